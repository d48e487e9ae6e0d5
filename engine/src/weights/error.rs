//! Errors of loading a checkpoint: one variant per operation, with the path and the tensor.

use std::io;
use std::path::PathBuf;

use crate::model::StepError;

/// Reason why a model cannot be loaded. Every message names the file, and the remedy where one is
/// known.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum LoadError {
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
    #[error("architecture `{architecture}` of `{path}` is not supported; supported: {supported}")]
    Architecture { path: PathBuf, architecture: String, supported: String },
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
    #[error(
        "tensor `{tensor}` of `{path}` is stored as {weight_type}, and its rows cannot be cut at \
         {at}, within a block of {block}; hint: a smaller `--tp`"
    )]
    Cut { path: PathBuf, tensor: String, weight_type: &'static str, at: usize, block: usize },
    #[error("failed to read the tokenizer of `{path}`: {reason}")]
    Tokenizer { path: PathBuf, reason: String },
    #[error("failed to put the weights on the device")]
    Device(#[source] StepError),
}

impl LoadError {
    pub(crate) fn damaged(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn config(
        path: impl Into<PathBuf>,
        key: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self::Config { path: path.into(), key: key.into(), reason: reason.into() }
    }
}
