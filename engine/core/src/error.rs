//! Error type of compute devices.

/// Error of an operation of a compute device; the device cannot be used any more.
#[derive(Debug, thiserror::Error)]
#[error("the device failed in {operation}: {message}")]
pub struct DeviceError {
    /// Name of the device operation that failed, such as `step` or `kv`.
    pub operation: &'static str,
    /// Reason why the device operation failed, which may end with a hint.
    pub message: String,
}
