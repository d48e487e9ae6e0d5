//! Runs the fuzz targets over their corpus and over mutations of it that are the same on every run,
//! and loads mutated models.
//!
//! The longer tests take other mutations where `REDLINE_SEED` names seeds, one or a range. Each seed of
//! this command reads a million answers:
//!
//! `REDLINE_SEED=1..11 cargo nextest run -P extra -p engine extra_many_mutated_answers`

use std::fs;
use std::path::{Path, PathBuf};

use crate::targets::tiny_gguf::tiny_llama_gguf;
use engine::load::{LoadOptions, load};
use engine::tokenize::{Reasoning, Splitter};
use engine::tools::{FORMATS, HARMONY};
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
    mutation::run_mutated(&corpus(target), run, count);
}

/// Runs a target over `count` mutations of each input for each seed that the user names.
fn run_seeds(target: &str, run: fn(&[u8]), count: usize) {
    for seed in fixtures::named_seeds().unwrap_or(0..1) {
        println!("seed {seed}: {count} mutations of each input");
        mutation::run_mutated_by(seed, &corpus(target), run, count);
    }
}

fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus");
    mutation::files(&folder.join(target))
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

/// The first byte of an input is the number of its format, so that mutations of its text are read by
/// the parser of that format.
#[test]
fn each_format_has_an_answer_with_calls_to_mutate() {
    let inputs: Vec<Vec<u8>> =
        corpus("answer").iter().map(|path| fs::read(path).unwrap()).collect();
    for (number, format) in FORMATS.iter().enumerate() {
        let input = inputs.iter().find(|input| usize::from(input[0]) == number);
        let input = input.unwrap_or_else(|| panic!("no answer of {}", format.name));
        let reasoning = if **format == HARMONY { Reasoning::Harmony } else { Reasoning::Think };
        let mut splitter = Splitter::new(reasoning, "").with_calls(format, false);
        splitter.push(str::from_utf8(&input[2..]).unwrap());
        assert!(splitter.has_calls(), "the answer of {} has no call", format.name);
    }
}

#[test]
fn extra_many_mutated_answers_are_read_alike_in_pieces_and_as_a_whole() {
    run_seeds("answer", targets::answer, 50 * MUTATIONS);
}

#[test]
fn extra_many_mutated_structures_are_refused_or_followed() {
    run_seeds("structure", targets::structure, 100 * STRUCTURE_MUTATIONS);
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
