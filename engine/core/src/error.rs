//! The error of a device.

/// A device that can no longer be trusted.
#[derive(Debug, thiserror::Error)]
#[error("the device failed in {operation}: {message}")]
pub struct DeviceError {
    /// What was asked of the device.
    pub operation: &'static str,
    /// What it answered; may end with a hint.
    pub message: String,
}
