//! What is fuzzed: functions of bytes that panic only where the engine is wrong. Shared by
//! cargo-fuzz and by the test `malformed`.

use std::collections::BTreeMap;
use std::path::Path;

use engine::http::{ErrorKind, check_completion};
use engine::weights::{StoredTensor, gguf, safetensors};

/// The vocabulary that token ids are checked against.
const VOCAB_SIZE: usize = 1000;

/// Parses the head of a GGUF file.
pub fn gguf_header(bytes: &[u8]) {
    if let Ok(header) = gguf::parse(Path::new("fuzzed.gguf"), bytes) {
        check_tensors(&header.tensors, bytes.len());
        for (name, tensor) in &header.tensors {
            if let (Some(kind), Some(cols)) = (tensor.weight_type(), tensor.shape().last()) {
                assert!(cols.is_multiple_of(kind.block()), "`{name}` has no whole blocks");
            }
        }
    }
}

/// Parses the head of a safetensors file.
pub fn safetensors_header(bytes: &[u8]) {
    let mut tensors = BTreeMap::new();
    if safetensors::parse(Path::new("fuzzed.safetensors"), bytes, 0, &mut tensors).is_ok() {
        check_tensors(&tensors, bytes.len());
    }
}

/// Reads the body of a request for completions, all fields of it.
pub fn completion_body(bytes: &[u8]) {
    if let Err(error) = check_completion(bytes, VOCAB_SIZE) {
        assert!(error.kind != ErrorKind::EngineFailed, "a body is the client's affair: {error}");
    }
}

/// Whoever reads a tensor that was listed stays within the file.
fn check_tensors(tensors: &BTreeMap<String, StoredTensor>, file_bytes: usize) {
    for (name, tensor) in tensors {
        let range = tensor.range();
        assert!(range.start <= range.end && range.end <= file_bytes, "`{name}` leaves the file");
    }
}
