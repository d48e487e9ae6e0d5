//! The error of a model that is loaded on a device.

use std::fmt;
use std::path::Path;

use engine_core::DeviceError;
use engine_weights::CheckpointError;

/// Reason why a model cannot be loaded. Every message names the file, and the remedy where one is
/// known.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum LoadError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A model that this release, or this number of ranks, does not support.
    #[error("{0}")]
    Unsupported(String),
    #[error("failed to put the weights on the device")]
    Device(#[from] DeviceError),
}

impl LoadError {
    /// The value of `key` in the configuration at `path` is missing or wrong.
    pub(crate) fn config(path: &Path, key: impl fmt::Display, reason: impl fmt::Display) -> Self {
        CheckpointError::config(path, key, reason).into()
    }
}
