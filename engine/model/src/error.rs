//! The error of a model that is loaded on a device.

use std::path::PathBuf;

use engine_core::DeviceError;
use engine_weights::CheckpointError;

use crate::architectures::Architecture;

/// Reason why a model cannot be loaded. Every message names the file, and the remedy where one is
/// known.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum LoadError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "architecture `{architecture}` of `{path}` is not supported; supported: {}",
        Architecture::names()
    )]
    Architecture { path: PathBuf, architecture: String },
    #[error(
        "tensor `{tensor}` of `{path}` is stored as {weight_type}, and its rows cannot be cut at \
         {at}, within a block of {block}; hint: a smaller `--tp`"
    )]
    Cut { path: PathBuf, tensor: String, weight_type: &'static str, at: usize, block: usize },
    #[error("failed to put the weights on the device")]
    Device(#[source] DeviceError),
}

impl LoadError {
    /// [`CheckpointError::Config`] for `key` of the configuration in `path`.
    pub(crate) fn config(
        path: impl Into<PathBuf>,
        key: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        CheckpointError::config(path, key, reason).into()
    }
}
