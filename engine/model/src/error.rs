//! Error type of loading a model on a device.

use std::fmt;
use std::path::Path;

use engine_core::DeviceError;
use engine_weights::CheckpointError;

/// Reason why a model cannot be loaded. Messages name the file where one is concerned, and the
/// remedy where one is known.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum LoadError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// This release, this device or this number of ranks does not support the model. The text is
    /// the whole message.
    #[error("{0}")]
    Unsupported(String),
    #[error("failed to put the weights on the device")]
    Device(#[from] DeviceError),
}

impl LoadError {
    /// Builds the error that the value of `key` in the configuration at `path` is missing or wrong.
    pub(crate) fn config(path: &Path, key: impl fmt::Display, reason: impl fmt::Display) -> Self {
        CheckpointError::config(path, key, reason).into()
    }
}
