//! Fuzz targets of the engine: functions of arbitrary bytes that panic only if the engine is wrong.
//! Shared by cargo-fuzz and the test `malformed` of the engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use engine::guide::{Grammars, Opening, Structure, TokenBytes};
use engine::http::{ApiError, ErrorKind, check_chat, check_completion};
use engine::tokenize::{Reasoning, SplitText, Splitter, Tokenizer};
use engine::tools::{FORMATS, HARMONY};
use engine_cpu::Cpu;
use engine_model::Decoder;
use engine_weights::gguf::Value;
use engine_weights::{Checkpoint, ConfigSource, ModelFiles, StoredTensor, gguf, safetensors};
use tempfile::TempDir;
use tiny_gguf::{Writer, tiny_llama_gguf};

#[path = "../../engine/weights/tests/tiny_gguf/mod.rs"]
pub mod tiny_gguf;

/// Vocabulary size against which token ids are checked.
const VOCAB_SIZE: usize = 1000;

/// Parses the header of a GGUF file.
pub fn gguf_header(bytes: &[u8]) {
    if let Ok(header) = gguf::parse(Path::new("fuzzed.gguf"), bytes) {
        check_tensors(&header.tensors, bytes.len());
        for (name, tensor) in &header.tensors {
            if let (Some(kind), Some(cols)) = (tensor.weight_type, tensor.shape.last()) {
                assert!(cols.is_multiple_of(kind.block()), "`{name}` has no whole blocks");
            }
        }
    }
}

/// Parses the header of a safetensors file.
pub fn safetensors_header(bytes: &[u8]) {
    let mut tensors = BTreeMap::new();
    if safetensors::parse(Path::new("fuzzed.safetensors"), bytes, 0, &mut tensors).is_ok() {
        check_tensors(&tensors, bytes.len());
    }
}

/// Reads a `config.json` as the settings of a model, without weights.
pub fn config(bytes: &[u8]) {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    let path = FOLDER.path().join("config.json");
    std::fs::write(&path, bytes).expect("room for a file");
    let files = ModelFiles::Folder(FOLDER.path().to_owned());
    let described = Checkpoint::open(&files, Some(1)).map_err(|error| error.to_string()).and_then(
        |checkpoint| {
            Decoder::<Cpu>::missing_feature(&checkpoint).map_err(|error| error.to_string())
        },
    );
    if let Err(message) = described {
        let folder = FOLDER.path().to_string_lossy();
        assert!(message.contains(&*folder), "which model is at fault? {message}");
    }
}

/// Reads the body of a completion request with all its fields.
pub fn completion_body(bytes: &[u8]) {
    check_refusal(check_completion(bytes, VOCAB_SIZE));
}

/// Reads the body of a chat request, and renders the conversation by a template and in the harmony
/// format.
pub fn chat_body(bytes: &[u8]) {
    static TEXTS: LazyLock<[Tokenizer; 2]> =
        LazyLock::new(|| [text_of(&tiny_llama_gguf(1)), text_of(&harmony_gguf())]);
    for text in &*TEXTS {
        check_refusal(check_chat(bytes, text, VOCAB_SIZE));
    }
}

/// Builds the grammar of a structure and follows it for some tokens. The first byte decides between
/// a JSON schema, a regular expression and a choice of the lines that follow.
pub fn structure(bytes: &[u8]) {
    const END: u32 = 256;
    static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
        let bytes = (0..=u8::MAX).map(|byte| TokenBytes { bytes: vec![byte], is_special: false });
        let end = TokenBytes { bytes: b"<end>".to_vec(), is_special: true };
        Grammars::new(bytes.chain([end]), &[END]).expect("a sound vocabulary")
    });
    let Some((kind, text)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    let structure = match kind {
        b'r' => Structure::Regex(text.into_owned()),
        b'c' => Structure::Choice(text.lines().map(str::to_owned).collect()),
        _ => match serde_json::from_str(&text) {
            Ok(schema) => Structure::Json(schema),
            Err(_) => return,
        },
    };
    let mut guide = match GRAMMARS.guide(&structure, Opening::AtOnce, &|| true) {
        Ok(guide) => guide,
        Err(error) => return check_message(&error.0),
    };
    for step in 0..20 {
        let allowed = match guide.allowed() {
            Ok(allowed) => allowed.expect("the structure begins at once"),
            Err(error) => return check_message(&error.0),
        };
        // Another token in each step, so that both ends of the alphabet are tried.
        let tokens: Vec<u32> = (0..=END).filter(|token| allowed.contains(*token)).collect();
        let count = tokens.len();
        match guide.accept(tokens[step % count]) {
            Ok(false) => {}
            Ok(true) => return,
            Err(error) => return check_message(&error.0),
        }
    }
}

/// Reads the text of an answer for reasoning and tool calls, whole and in pieces. The first byte decides
/// about the format of the calls, and the second about the length of the pieces.
pub fn answer(bytes: &[u8]) {
    let [format, length, text @ ..] = bytes else { return };
    let format = FORMATS[usize::from(*format) % FORMATS.len()];
    let reasoning = if *format == HARMONY { Reasoning::Harmony } else { Reasoning::Think };
    let text = String::from_utf8_lossy(text);
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let read = |length: usize| {
        let mut splitter = Splitter::new(reasoning, "").with_calls(format, false);
        let mut all = SplitText::default();
        let pieces = chars.chunks(length).map(|piece| splitter.push(&piece.concat()));
        let mut pieces: Vec<SplitText> = pieces.collect();
        pieces.push(splitter.finish());
        for piece in pieces {
            all.reasoning += &piece.reasoning;
            all.content += &piece.content;
            all.calls.extend(piece.calls);
        }
        all.whole()
    };
    let whole = read(chars.len().max(1));
    assert_eq!(read(1 + usize::from(*length) % 16), whole, "in pieces and as a whole");
}

/// Panics if a message for clients shows the inside of the grammar engine.
fn check_message(message: &str) {
    let is_clean = !message.contains('\n') && !message.contains("panic");
    assert!(is_clean && !message.is_empty(), "no message for a client: {message}");
}

fn text_of(file: &[u8]) -> Tokenizer {
    let header = gguf::parse(Path::new("text.gguf"), file).expect("a sound file");
    let tokenizer = Tokenizer::load(&ConfigSource::Gguf(header.metadata));
    tokenizer.expect("a sound tokenizer").expect("the file has one")
}

/// GGUF file with a vocabulary that contains only the special tokens of the harmony format.
fn harmony_gguf() -> Vec<u8> {
    let marks = ["start", "end", "message", "channel", "return", "call", "constrain"];
    let marks = marks.map(|mark| format!("<|{mark}|>"));
    let mut file = Writer::default();
    file.value("tokenizer.ggml.model", Value::Text("gpt2".into()))
        .value("tokenizer.ggml.pre", Value::Text("gpt-2".into()))
        .value("tokenizer.ggml.token_type", Value::Integers(vec![3; marks.len()]))
        .value("tokenizer.ggml.tokens", Value::Texts(marks.to_vec()))
        .value("tokenizer.ggml.merges", Value::Texts(Vec::new()));
    file.bytes()
}

fn check_refusal(checked: Result<(), ApiError>) {
    if let Err(error) = checked {
        assert!(error.kind != ErrorKind::EngineFailed, "a body is the client's affair: {error}");
    }
}

/// Panics if a listed tensor lies outside the file.
fn check_tensors(tensors: &BTreeMap<String, StoredTensor>, file_bytes: usize) {
    for (name, tensor) in tensors {
        let range = &tensor.range;
        assert!(range.start <= range.end && range.end <= file_bytes, "`{name}` leaves the file");
    }
}
