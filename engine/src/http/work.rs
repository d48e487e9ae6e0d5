//! Slow work of requests on blocking threads: the event loop serves all clients on one thread and
//! must not wait. Work whose cost a client decides is limited in how much of it runs at once, and the
//! building of a grammar ends when its client leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::error::{ApiError, ErrorKind, Result};
use crate::guide::IsWanted;

/// Number of long bodies that are parsed at once.
const BODIES_MAX: usize = 2;
static BODIES: Semaphore = Semaphore::const_new(BODIES_MAX);

/// Number of KiB of text that are tokenized at once. The tokenizer takes about 200 bytes of memory
/// for each byte; a longer text is tokenized alone.
const TEXT_KIB_MAX: u32 = 1024;
static TEXTS: Semaphore = Semaphore::const_new(TEXT_KIB_MAX as usize);

/// Queue of the server's grammars. What the limits of `guide` admit takes about a second at most; the
/// time is for what they overlook, and for busy machines. The places suffice for a thousand clients
/// that begin together.
static GRAMMARS: Queue = Queue::new(2, 1024, Duration::from_secs(30));

/// Queue of grammars that are to be built.
#[derive(Debug)]
struct Queue {
    /// Number of grammars that are built at once, each with up to 64 MB of memory.
    threads: Semaphore,
    /// Number of requests that wait for a thread.
    places: Semaphore,
    /// Longest time that a request waits until building its grammar begins, and then until it ends.
    time_max: Duration,
}

/// Runs a slow function, such as the rendering of a chat template, on a blocking thread. A panic
/// becomes the error "`what` failed".
pub(super) async fn blocking<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    spawn_blocking(work).await.map_err(|_| failed(what))
}

/// Runs a quick function on the event loop. A panic becomes the same error as in [`blocking`].
pub(super) fn inline<T>(what: &str, work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| failed(what))
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

/// Builds a grammar on a blocking thread, by `work`, once a thread is free. The request field `field`
/// asks for it. The work is given a function that returns false once nobody waits for it.
pub(super) async fn building<T: Send + 'static>(
    field: &str,
    work: impl FnOnce(IsWanted<'_>) -> T + Send + 'static,
) -> Result<T> {
    GRAMMARS.build(field, work).await
}

impl Queue {
    const fn new(threads: usize, places: usize, time_max: Duration) -> Self {
        Self {
            threads: Semaphore::const_new(threads),
            places: Semaphore::const_new(places),
            time_max,
        }
    }

    async fn build<T: Send + 'static>(
        &'static self,
        field: &str,
        work: impl FnOnce(IsWanted<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let overloaded = |message| Err(ApiError::new(ErrorKind::Overloaded, message).at(field));
        let Ok(place) = self.places.try_acquire() else {
            return overloaded("too many grammars wait to be built; hint: try again later");
        };
        let Ok(thread) = timeout(self.time_max, self.threads.acquire()).await else {
            return overloaded("other grammars are still being built; hint: try again later");
        };
        drop(place);
        let thread = thread.expect("the semaphore is never closed");
        // It is dropped with this future, when the client leaves, or when the time is over.
        let waiting = Arc::new(());
        let waits = Arc::downgrade(&waiting);
        let work = move || work(&|| waits.strong_count() > 0);
        match timeout(self.time_max, spawn_blocking(holding(thread, work))).await {
            Ok(built) => built.map_err(|_| failed("the grammar")),
            Err(_) => {
                let seconds = self.time_max.as_secs();
                let message =
                    format!("`{field}` has a grammar that takes over {seconds} s to build");
                Err(ApiError::field(field, message))
            }
        }
    }
}

/// Returns `work` together with its permit, which it gives back when it ends: a client that leaves
/// does not end the work by itself.
fn holding<T>(permit: SemaphorePermit<'static>, work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _permit = permit;
        work()
    }
}

/// Error of work that panicked; what the panic said is in the log.
fn failed(what: &str) -> ApiError {
    ApiError::new(ErrorKind::EngineFailed, format!("{what} failed"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    /// Longest time that a test waits for a thread.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn queue(threads: usize, places: usize, time_max: Duration) -> &'static Queue {
        Box::leak(Box::new(Queue::new(threads, places, time_max)))
    }

    /// Work of a test. It sends `true` when it begins, runs until nobody waits for it or `end` has a
    /// message, and then sends whether somebody waits.
    fn work(said: Sender<bool>, end: Receiver<()>) -> impl FnOnce(IsWanted<'_>) + Send {
        move |is_wanted: IsWanted<'_>| {
            said.send(true).unwrap();
            while is_wanted() && end.try_recv().is_err() {
                thread::yield_now();
            }
            let _ = said.send(is_wanted());
        }
    }

    /// What work says next, without blocking the requests.
    async fn next(said: Receiver<bool>) -> (bool, Receiver<bool>) {
        let next = spawn_blocking(move || (said.recv_timeout(PATIENCE).unwrap(), said));
        next.await.unwrap()
    }

    #[tokio::test]
    async fn a_client_that_leaves_ends_the_building_of_its_grammar() {
        let queue = queue(1, 8, PATIENCE);
        let ((said, hears), (_end, ends)) = (channel(), channel());
        let request = tokio::spawn(queue.build("tools", work(said, ends)));
        let (has_begun, hears) = next(hears).await;
        assert!(has_begun);
        request.abort();
        let (is_wanted, _) = next(hears).await;
        assert!(!is_wanted);
        // The thread is free again.
        assert!(queue.build("tools", |is_wanted| is_wanted()).await.unwrap());
    }

    #[tokio::test]
    async fn a_grammar_that_takes_too_long_is_refused_and_given_up() {
        let queue = queue(1, 8, Duration::from_millis(1));
        let ((said, hears), (_end, ends)) = (channel(), channel());
        let error = queue.build("tools", work(said, ends)).await.unwrap_err();
        assert!(error.message.contains("takes over 0 s to build"), "{error}");
        assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::InvalidField, Some("tools")));
        let (has_begun, hears) = next(hears).await;
        let (is_wanted, _) = next(hears).await;
        assert_eq!((has_begun, is_wanted), (true, false));
    }

    #[tokio::test]
    async fn few_grammars_are_built_some_wait_and_others_are_refused() {
        let queue = queue(1, 2, PATIENCE);
        let ((said, hears), (end, ends)) = (channel(), channel());
        let building = tokio::spawn(queue.build("tools", work(said, ends)));
        let (_, hears) = next(hears).await;
        let begun = Arc::new(Semaphore::new(0));
        let wait = || {
            let begun = Arc::clone(&begun);
            tokio::spawn(queue.build("tools", move |_| begun.add_permits(1)))
        };
        let waiting = [wait(), wait()];
        while queue.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let error = queue.build("regex", |_| ()).await.unwrap_err();
        assert!(error.message.contains("too many grammars wait"), "{error}");
        assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::Overloaded, Some("regex")));
        // A client that leaves gives up its place, and its grammar is never begun.
        let [left, stays] = waiting;
        left.abort();
        assert!(left.await.unwrap_err().is_cancelled());
        assert_eq!(queue.places.available_permits(), 1);
        end.send(()).unwrap();
        building.await.unwrap().unwrap();
        stays.await.unwrap().unwrap();
        assert_eq!((begun.available_permits(), queue.threads.available_permits()), (1, 1));
        assert!(next(hears).await.0, "somebody waits until the end");
    }
}
