//! Runs the fuzz target of foreign servers' answers over its corpus and over mutations of it.

use std::path::Path;

#[path = "../../../tests/fuzz/mutation.rs"]
mod mutation;
#[path = "../../../tests/fuzz/client.rs"]
mod targets;

#[test]
fn mutated_answers_of_servers_are_read_alike_in_pieces_and_as_a_whole() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/events");
    mutation::run_mutated(&mutation::files(&corpus), targets::events, 3000);
}
