//! Tests that a malformed file ends the process with exit code 2 and one line that gives the
//! reason.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::targets::tiny_gguf::tiny_llama_gguf;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

/// Exit code and last line of `redline serve MODEL FLAGS`.
fn serve(model: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let (code, text) = serve_and_listen(model, flags);
    (code, text.lines().last().unwrap_or_default().to_owned())
}

/// Exit code and messages of `redline serve MODEL FLAGS`.
fn serve_and_listen(model: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let args = ["serve", model.to_str().unwrap(), "--port", "0", "--device", "cpu"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_redline"));
    command
        .args(args)
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .env("HF_HUB_CACHE", "hub");
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn check_refused(model: &Path, want: &str) {
    check_refused_with(model, &[], want);
}

fn check_refused_with(model: &Path, flags: &[&str], want: &str) {
    let (code, line) = serve(model, flags);
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
    // A key's type follows its name: 6 is a float, whose four bytes are replaced.
    let number = |key: &str, value: f32| {
        let name = [key.as_bytes(), &6_u32.to_le_bytes()].concat();
        let at = sound.windows(name.len()).position(|bytes| bytes == name).unwrap() + name.len();
        [&sound[..at], &value.to_le_bytes(), &sound[at + 4..]].concat()
    };
    let key =
        |name: &str, id: u64| [name.as_bytes(), &10_u32.to_le_bytes(), &id.to_le_bytes()].concat();
    let cases: [(Vec<u8>, &str); 9] = [
        (sound[..sound.len() / 2].to_vec(), "m.gguf` is damaged: tensor"),
        (sound[..100].to_vec(), "m.gguf` is damaged: it claims 20 metadata entries"),
        (b"no model at all".to_vec(), "it does not begin with `GGUF`"),
        (replaced(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba"), "architecture `mamba`"),
        (replaced(b"blk.0.ffn_up", b"blk.7.ffn_up"), "has no tensor `blk.0.ffn_up.weight`"),
        (number("rope.freq_base", f32::NAN), "no usable `llama.rope.freq_base`: NaN is"),
        (number("rope.freq_base", 0.0), "no usable `llama.rope.freq_base`: 0 is not"),
        (number("rms_epsilon", -1.0), "no usable `llama.attention.layer_norm_rms_epsilon`: -1 is"),
        (
            replaced(&key("eos_token_id", 2), &key("eos_token_id", 1_000_000_000_000)),
            "`tokenizer.ggml.eos_token_id` is 1000000000000, but ids are below 267",
        ),
    ];
    for (bytes, want) in cases {
        fs::write(&path, bytes).unwrap();
        check_refused(&path, want);
    }
}

/// Folder with a one-layer Llama that has only one tensor, the embedding.
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
    let cases: [(Change, &str); 12] = [
        (|config| config["vocab_size"] = json!(9), "the configuration asks for [9, 32]"),
        (|_| (), "has no tensor `model.layers.0."),
        (|config| config["architectures"] = json!(["Mamba2ForCausalLM"]), "`Mamba2ForCausalLM`"),
        (
            |config| config["quantization_config"] = json!({"quant_method": "awq", "bits": 4}),
            "quantization `awq` is not supported; supported: fp8, mxfp4",
        ),
        (|config| config["hidden_size"] = json!(1u64 << 60), "no usable `"),
        (|config| config["num_hidden_layers"] = json!(u64::MAX), "no usable `"),
        (|config| config["rms_norm_eps"] = json!(-1e-6), "no usable `rms_norm_eps`: -0.000001 is"),
        (|config| config["rms_norm_eps"] = json!(1e300), "no usable `rms_norm_eps`: 1"),
        (|config| config["rope_theta"] = json!(0), "no usable `rope_theta`: 0 is not a number"),
        (|config| config["rope_theta"] = json!(-1), "no usable `rope_theta`: -1 is not a number"),
        (
            |config| {
                config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e-60});
            },
            "no usable `rope_theta`: 0.0",
        ),
        (
            |config| config["rope_scaling"] = json!({"rope_type": "linear", "factor": 0}),
            "no usable `rope_scaling`: the rotary frequencies would not be finite",
        ),
    ];
    for (change, want) in cases {
        check_refused(folder_model(change).path(), want);
    }
}

#[test]
fn what_a_checkpoint_says_stays_within_its_line_and_controls_no_terminal() {
    let hostile = "\u{1b}[31mx\u{9b}2J\u{202e}\u{2028}\u{85}\r\nready http://evil";
    let architecture = |config: &mut Value| config["architectures"] = json!([hostile]);
    let quantization = |config: &mut Value| {
        config["quantization_config"] = json!({"quant_method": hostile});
    };
    let (one, two) = (folder_model(architecture), folder_model(quantization));
    let three = folder_model(|_| ());
    fs::remove_file(three.path().join("model.safetensors")).unwrap();
    let index = json!({"weight_map": {hostile: hostile}}).to_string();
    fs::write(three.path().join("model.safetensors.index.json"), index).unwrap();
    for folder in [one, two, three] {
        let (code, text) = serve_and_listen(folder.path(), &[]);
        assert_eq!(code, Some(2), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("error: failed to load the model: "), "{text}");
        let quoted = r"\u{1b}[31mx\u{9b}2J\u{202e}\u{2028}\u{85}\r\nready http://evil";
        assert!(text.contains(quoted), "{text}");
        let (code, text) = serve_and_listen(folder.path(), &["--log-format", "json"]);
        assert_eq!(code, Some(2), "{text}");
        let quoted = r"\u001b[31mx\u009b2J\u202e\u2028\u0085\r\nready http://evil";
        assert!(text.contains(quoted), "{text}");
        let line: Value = serde_json::from_str(&text).expect("one line of JSON");
        assert!(line["message"].as_str().unwrap().contains(hostile), "{line}");
    }
}

#[test]
fn files_of_a_checkpoint_that_are_no_regular_files_or_too_long_end_the_process_with_code_2() {
    let folder = folder_model(|_| ());
    let at = |name: &str| folder.path().join(name);
    let lengthen = |name: &str, bytes: u64| {
        // A sparse file takes no space.
        File::options().create(true).append(true).open(at(name)).unwrap().set_len(bytes).unwrap();
    };
    lengthen("tokenizer.json", 5 << 30);
    let random = ["--load-format", "random"];
    let want = "tokenizer.json` has 5368709120 bytes, more than the limit of 134217728 bytes";
    check_refused_with(folder.path(), &random, want);
    fs::write(at("tokenizer.json"), "{}").unwrap();
    for name in ["tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        lengthen(name, 3 << 30);
        let want = format!("{name}` has 3221225472 bytes, more than the limit of 16777216 bytes");
        check_refused_with(folder.path(), &random, &want);
        fs::write(at(name), "{}").unwrap();
    }
    fs::remove_file(at("model.safetensors")).unwrap();
    mkfifo(&at("pipe.safetensors"), Mode::S_IRWXU).unwrap();
    let index = json!({"weight_map": {"model.embed_tokens.weight": "pipe.safetensors"}});
    fs::write(at("model.safetensors.index.json"), index.to_string()).unwrap();
    check_refused(folder.path(), "pipe.safetensors` is not a regular file");
    let zero = json!({"weight_map": {"model.embed_tokens.weight": "zero"}});
    symlink("/dev/zero", at("zero")).unwrap();
    fs::write(at("model.safetensors.index.json"), zero.to_string()).unwrap();
    check_refused(folder.path(), "zero` is not a regular file");
    lengthen("model.safetensors.index.json", 5 << 30);
    check_refused(folder.path(), "index.json` has 5368709120 bytes, more than the limit of");
    lengthen("config.json", 3 << 30);
    check_refused(folder.path(), "config.json` has 3221225472 bytes, more than the limit of");
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

#[test]
fn end_tokens_that_are_no_token_ids_end_the_process_with_code_2() {
    let folder = folder_model(|config| config["eos_token_id"] = json!(1_000_000_000_000_u64));
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "model": {
        "type": "BPE", "vocab": {"a": 0}, "merges": []}});
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let random = ["--load-format", "random"];
    check_refused_with(folder.path(), &random, "config.json` has no usable `eos_token_id`");
    fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [0, -1]}"#)
        .unwrap();
    let want = "generation_config.json` has no usable `eos_token_id`";
    check_refused_with(folder.path(), &random, want);
}

#[test]
fn tokenizers_that_would_harm_the_server_end_the_process_with_code_2() {
    let folder = folder_model(|_| ());
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true});
    let doubling = json!({"type": "Sequence", "pretokenizers": vec![byte_level; 24]});
    let replace = |pattern: &str, content: &str| {
        json!({"type": "Replace", "content": content,
            "pattern": {"String": pattern}})
    };
    let repeated: Vec<Value> = vec![json!({"Sequence": {"id": "A", "type_id": 0}}); 3000];
    let template = |single: Vec<Value>| {
        json!({"type": "TemplateProcessing", "single": single,
            "pair": [], "special_tokens": {}})
    };
    let missing = vec![json!({"SpecialToken": {"id": "q", "type_id": 0}})];
    let charsmap = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    let nested = json!({"type": "Sequence", "normalizers": [charsmap("/////wAAAAAA")]});
    let (long, panics) = ("times as long", "the tokenizer library panic");
    let cut_off = "its `precompiled_charsmap` is cut off, or claims more than it has";
    for (key, value, want) in [
        ("pre_tokenizer", doubling, long),
        ("normalizer", replace("a", &"b".repeat(5000)), long),
        ("post_processor", template(repeated), long),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0}), panics),
        ("normalizer", replace("", &"x".repeat(3000)), long),
        ("post_processor", template(missing), "failed to read the tokenizer"),
        ("normalizer", charsmap("/////wAAAAAA"), cut_off),
        ("normalizer", nested, cut_off),
        (
            "model",
            json!({"type": "BPE", "vocab": {"a": u32::MAX, "b": 5}, "merges": []}),
            "it has a token with the id 4294967295, but 2 tokens",
        ),
    ] {
        let mut tokenizer = json!({"version": "1.0", "added_tokens": [], "model": {
            "type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}});
        tokenizer[key] = value;
        fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        check_refused_with(folder.path(), &["--load-format", "random"], want);
    }
}
