//! Error type of opening and reading a checkpoint.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Reason why a checkpoint cannot be read. Messages name the file or the model, and the remedy
/// where one is known.
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
    /// A checkpoint file or one of its tensors is damaged or missing, or this release does not
    /// support it. The text is the whole message.
    #[error("{0}")]
    Unsound(String),
}

impl CheckpointError {
    /// Builds the error that the checkpoint file at `path` is damaged.
    pub fn damaged(path: &Path, reason: impl fmt::Display) -> Self {
        Self::Unsound(format!(
            "`{}` is damaged: {reason}; hint: fetch the file again and compare its checksum",
            path.display()
        ))
    }

    /// Builds the error that the checkpoint's file or folder at `path` cannot be used by this
    /// release.
    pub fn unsupported(path: &Path, reason: impl fmt::Display) -> Self {
        Self::Unsound(format!("`{}` cannot be used: {reason}", path.display()))
    }

    /// Builds the error that the value of `key` in the configuration at `path` is missing or wrong.
    pub fn config(path: &Path, key: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::Unsound(format!("`{}` has no usable `{key}`: {reason}", path.display()))
    }

    /// Builds the error that the tensor `name` of the checkpoint at `path` cannot be used: `what`
    /// continues the sentence "tensor NAME of PATH".
    pub fn tensor(path: &Path, name: &str, what: impl fmt::Display) -> Self {
        Self::Unsound(format!("tensor `{name}` of `{}`{what}", path.display()))
    }
}
