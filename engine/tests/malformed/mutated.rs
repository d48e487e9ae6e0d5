//! Runs the fuzz targets over their corpus and over mutations of it that are the same on every run,
//! and loads mutated models.

use std::fs;
use std::path::Path;

use crate::targets::tiny_gguf::tiny_llama_gguf;
use engine::load::{LoadOptions, load};
use engine_weights::ModelSource;

use crate::mutation::{self, Mutations};
use crate::targets;

/// Number of mutations of each input of a corpus.
const MUTATIONS: usize = 3000;
/// Number of mutations of each structure: building a grammar takes a millisecond.
const STRUCTURE_MUTATIONS: usize = 200;

fn run_mutated(target: &str, run: fn(&[u8])) {
    run_often(target, run, MUTATIONS);
}

fn run_often(target: &str, run: fn(&[u8]), count: usize) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(target);
    mutation::run_mutated(&mutation::files(&corpus), run, count);
}

#[test]
fn mutated_gguf_headers_are_errors_or_sound() {
    run_mutated("gguf_header", targets::gguf_header);
}

#[test]
fn mutated_safetensors_headers_are_errors_or_sound() {
    run_mutated("safetensors_header", targets::safetensors_header);
}

#[test]
fn mutated_configurations_are_errors_or_describe_a_model() {
    run_mutated("config", targets::config);
}

#[test]
fn mutated_completion_bodies_are_refused_or_taken() {
    run_mutated("completion_body", targets::completion_body);
}

#[test]
fn mutated_chat_bodies_are_refused_or_taken() {
    run_mutated("chat_body", targets::chat_body);
}

#[test]
fn mutated_structures_are_refused_or_followed() {
    run_often("structure", targets::structure, STRUCTURE_MUTATIONS);
}

#[test]
fn mutated_answers_are_read_alike_in_pieces_and_as_a_whole() {
    run_mutated("answer", targets::answer);
}

#[test]
fn extra_many_mutated_answers_are_read_alike_in_pieces_and_as_a_whole() {
    run_often("answer", targets::answer, 50 * MUTATIONS);
}

#[test]
fn extra_many_mutated_structures_are_refused_or_followed() {
    run_often("structure", targets::structure, 100 * STRUCTURE_MUTATIONS);
}

#[test]
fn mutated_models_load_or_say_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let sound = tiny_llama_gguf(1);
    // Only the header is mutated: the data after it has no structure that could be invalid.
    let head = sound.windows(10).rposition(|bytes| bytes == b"ffn_down.w").unwrap() + 60;
    let mut mutations = Mutations::new(11, sound[..head].to_vec());
    let mut loaded = 0;
    for _ in 0..200 {
        let mut bytes = mutations.next().to_vec();
        bytes.extend_from_slice(&sound[head..]);
        fs::write(&path, &bytes).unwrap();
        let source = ModelSource::find(path.to_str().unwrap(), None).unwrap();
        match load(&source, &LoadOptions::default()) {
            Ok(_) => loaded += 1,
            Err(error) => assert!(error.to_string().contains("m.gguf"), "{error} names no file"),
        }
    }
    assert!((1..200).contains(&loaded), "{loaded} of 200 mutations do no harm");
}
