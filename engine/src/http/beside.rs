//! Work that takes longer than clients should wait for each other: it leaves the event loop, which
//! answers all of them on one thread.

use super::error::{ApiError, ErrorKind};

/// What `work` returns, done on another thread. `what` does it, as a client is told should it panic.
pub(super) async fn beside<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|panicked| ApiError {
        source: Some(Box::new(panicked)),
        ..ApiError::new(ErrorKind::EngineFailed, format!("{what} failed"))
    })
}
