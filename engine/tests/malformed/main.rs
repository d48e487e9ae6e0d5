//! Files and requests that are not what they claim to be: a value or one clear error, never a crash.
//!
//! The functions that are fuzzed run here over their corpus and over mutations of it that are the
//! same on every run; whole models are mutated and loaded; and the binary ends with exit code 2.

mod mutation;
#[path = "../../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine::fixture::tiny_llama_gguf;
use engine::model::{LoadOptions, load};
use engine::weights::ModelSource;
use serde_json::{Value, json};

use mutation::Mutations;

/// Mutations of each input of a corpus.
const MUTATIONS: usize = 3000;

/// The inputs of a target, by name.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 3, "{target} has a corpus");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn run_mutated(target: &str, run: fn(&[u8])) {
    for (seed, input) in (1..).zip(corpus(target)) {
        run(&input);
        let mut mutations = Mutations::new(seed, input);
        for _ in 0..MUTATIONS {
            run(mutations.next());
        }
    }
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
fn mutated_completion_bodies_are_refused_or_taken() {
    run_mutated("completion_body", targets::completion_body);
}

#[test]
fn mutated_models_load_or_say_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let sound = tiny_llama_gguf(1);
    // Everything up to the data: that is where a file can lie.
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

/// Exit code and last line of `redline serve MODEL`.
fn serve(model: &Path) -> (Option<i32>, String) {
    let args = ["serve", model.to_str().unwrap(), "--port", "0", "--device", "cpu"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_redline"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).env("HF_HUB_CACHE", "hub");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), text.lines().last().unwrap_or_default().to_owned())
}

fn check_refused(model: &Path, want: &str) {
    let (code, line) = serve(model);
    assert!(line.contains(want), "{line} should say: {want}");
    assert_eq!(code, Some(2), "{line}");
}

#[test]
fn unsound_gguf_files_end_the_process_with_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let sound = tiny_llama_gguf(1);
    let replaced = |from: &[u8], to: &[u8]| {
        let at = sound.windows(from.len()).position(|bytes| bytes == from).unwrap();
        [&sound[..at], to, &sound[at + from.len()..]].concat()
    };
    let cases: [(Vec<u8>, &str); 5] = [
        (sound[..sound.len() / 2].to_vec(), "m.gguf` is damaged: tensor"),
        (sound[..100].to_vec(), "m.gguf` is damaged: it ends within"),
        (b"no model at all".to_vec(), "it does not begin with `GGUF`"),
        (replaced(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba"), "architecture `mamba`"),
        (replaced(b"blk.0.ffn_up", b"blk.7.ffn_up"), "has no tensor `blk.0.ffn_up.weight`"),
    ];
    for (bytes, want) in cases {
        fs::write(&path, bytes).unwrap();
        check_refused(&path, want);
    }
}

/// A Llama of one layer; its one tensor is the embedding.
fn folder_model(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
        "vocab_size": 8, "max_position_embeddings": 64, "tie_word_embeddings": true,
    });
    change(&mut config);
    let header = json!({
        "model.embed_tokens.weight": {"dtype": "F32", "shape": [8, 32], "data_offsets": [0, 1024]},
    });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + 1024, 0);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

#[test]
fn configurations_that_do_not_fit_end_the_process_with_code_2() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 6] = [
        (|config| config["vocab_size"] = json!(9), "the configuration asks for [9, 32]"),
        (|_| (), "has no tensor `model.layers.0."),
        (|config| config["architectures"] = json!(["Mamba2ForCausalLM"]), "`Mamba2ForCausalLM`"),
        (
            |config| config["quantization_config"] = json!({"quant_method": "awq", "bits": 4}),
            "quantization `awq` is not supported; supported: fp8, mxfp4",
        ),
        (|config| config["hidden_size"] = json!(1u64 << 60), "no usable `"),
        (|config| config["num_hidden_layers"] = json!(u64::MAX), "no usable `"),
    ];
    for (change, want) in cases {
        check_refused(folder_model(change).path(), want);
    }
}

#[test]
fn a_truncated_safetensors_file_ends_the_process_with_code_2() {
    let folder = folder_model(|_| ());
    let path = folder.path().join("model.safetensors");
    let sound = fs::read(&path).unwrap();
    for len in [4, 60, sound.len() - 1] {
        fs::write(&path, &sound[..len]).unwrap();
        check_refused(folder.path(), "model.safetensors` is damaged: its safetensors header");
    }
}
