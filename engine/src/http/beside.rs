//! Runs slow work, such as chat templates, on a blocking thread. The event loop answers all clients
//! on one thread and must not wait for it.

use super::error::{ApiError, ErrorKind};

/// Runs `work` on a blocking thread and returns its result. A panic becomes the error "`what`
/// failed".
pub(super) async fn beside<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|panicked| ApiError {
        source: Some(Box::new(panicked)),
        ..ApiError::new(ErrorKind::EngineFailed, format!("{what} failed"))
    })
}
