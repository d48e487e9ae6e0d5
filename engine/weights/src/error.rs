//! Errors of loading a checkpoint: one variant per operation, with the path and the tensor.

use std::io;
use std::path::PathBuf;

/// Reason why a model cannot be loaded. Every message names the file, and the remedy where one is
/// known.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum CheckpointError {
    #[error("failed to read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{name}` is neither a folder with a config.json, nor a .gguf file, nor a model in the hub cache{searched}; \
         hint: give a path, or download the model into the cache first"
    )]
    NotFound { name: String, searched: String },
    #[error("`{path}` is damaged: {reason}; hint: fetch the file again and compare its checksum")]
    Damaged { path: PathBuf, reason: String },
    #[error("`{path}` cannot be used: {reason}")]
    Unsupported { path: PathBuf, reason: String },
    #[error("`{path}` has no usable `{key}`: {reason}")]
    Config { path: PathBuf, key: String, reason: String },
    #[error("`{path}` has no tensor `{tensor}`")]
    MissingTensor { path: PathBuf, tensor: String },
    #[error(
        "tensor `{tensor}` of `{path}` has shape {found:?}, the configuration asks for {wanted:?}"
    )]
    TensorShape { path: PathBuf, tensor: String, found: Vec<usize>, wanted: Vec<usize> },
    #[error("tensor `{tensor}` of `{path}` is stored as {found}; supported: {supported}")]
    TensorType { path: PathBuf, tensor: String, found: String, supported: String },
    #[error(
        "tensor `{tensor}` of `{path}`, of shape {shape:?}, is larger than this machine's memory"
    )]
    TooLarge { path: PathBuf, tensor: String, shape: Vec<usize> },
}

impl CheckpointError {
    /// [`CheckpointError::Damaged`] for `reason`.
    pub fn damaged(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), reason: reason.into() }
    }

    /// [`CheckpointError::Config`] for `key` of the configuration in `path`.
    pub fn config(
        path: impl Into<PathBuf>,
        key: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self::Config { path: path.into(), key: key.into(), reason: reason.into() }
    }
}
