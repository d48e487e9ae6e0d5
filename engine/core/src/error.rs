//! The error of a device.

/// Failure of a device, which cannot be used any more.
#[derive(Debug, thiserror::Error)]
#[error("the device failed in {operation}: {message}")]
pub struct DeviceError {
    /// Device operation that failed, such as `step` or `kv`.
    pub operation: &'static str,
    /// Message of the device, which may end with a hint.
    pub message: String,
}
