//! Slow work of requests on blocking threads: the event loop serves all clients on one thread and
//! must not wait. Work whose cost a client decides is limited in how much of it runs at once.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, spawn_blocking};

use super::error::{ApiError, ErrorKind, Result};

/// Number of grammars that are built at once, each with up to 64 MB of memory.
const GRAMMARS_MAX: usize = 2;
static GRAMMARS: Semaphore = Semaphore::const_new(GRAMMARS_MAX);

/// Number of long bodies that are parsed at once.
const BODIES_MAX: usize = 2;
static BODIES: Semaphore = Semaphore::const_new(BODIES_MAX);

/// Longest time that a request waits until building its grammar begins, and then until it ends. What
/// the limits of `guide` admit takes about a second at most; this is for what they overlook, and for
/// busy machines.
const GRAMMAR_TIME_MAX: Duration = Duration::from_secs(30);

/// Number of KiB of text that are tokenized at once. The tokenizer takes about 200 bytes of memory
/// for each byte; a longer text is tokenized alone.
const TEXT_KIB_MAX: u32 = 1024;
static TEXTS: Semaphore = Semaphore::const_new(TEXT_KIB_MAX as usize);

/// Runs a slow function, such as the rendering of a chat template, on a blocking thread. A panic
/// becomes the error "`what` failed".
pub(super) async fn blocking<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    spawn_blocking(work).await.map_err(|panicked| failed(what, panicked))
}

/// Tokenizes a text of `bytes` bytes on a blocking thread, by `work`, once the texts that are being
/// tokenized leave it enough of the limit.
pub(super) async fn tokenizing<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).clamp(1, TEXT_KIB_MAX);
    let permit = TEXTS.acquire_many(kib).await.expect("the semaphore is never closed");
    blocking("the tokenizer", holding(permit, work)).await
}

/// Parses a long body on a blocking thread, by `work`, once fewer than [`BODIES_MAX`] are being
/// parsed.
pub(super) async fn parsing<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let permit = BODIES.acquire().await.expect("the semaphore is never closed");
    blocking("reading the body", holding(permit, work)).await
}

/// Builds a grammar on a blocking thread, by `work`, once fewer than [`GRAMMARS_MAX`] are being
/// built. The request field `field` asks for it.
pub(super) async fn building<T: Send + 'static>(
    field: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let Ok(permit) = tokio::time::timeout(GRAMMAR_TIME_MAX, GRAMMARS.acquire()).await else {
        let message = "other grammars are still being built; hint: try again later";
        return Err(ApiError::new(ErrorKind::Overloaded, message).at(field));
    };
    let permit = permit.expect("the semaphore is never closed");
    match tokio::time::timeout(GRAMMAR_TIME_MAX, spawn_blocking(holding(permit, work))).await {
        Ok(built) => built.map_err(|panicked| failed("the grammar", panicked)),
        Err(_) => {
            let seconds = GRAMMAR_TIME_MAX.as_secs();
            let message = format!("`{field}` has a grammar that takes over {seconds} s to build");
            Err(ApiError::field(field, message))
        }
    }
}

/// Returns `work` together with its permit, which it gives back when it ends: a client that leaves
/// does not end the work.
fn holding<T>(permit: SemaphorePermit<'static>, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _permit = permit;
        work()
    }
}

fn failed(what: &str, panicked: JoinError) -> ApiError {
    let error = ApiError::new(ErrorKind::EngineFailed, format!("{what} failed"));
    ApiError { source: Some(Box::new(panicked)), ..error }
}
