//! The front end's side of the worker: hands requests in, hands outputs out.
//!
//! The worker sends one message per step; `dispatch` takes it apart. What a slow client has not
//! read yet waits in its own queue, which is never longer than the request's `max_tokens`, and so
//! the worker never waits for anybody.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use tokio::sync::{mpsc as async_mpsc, oneshot};

use super::{Command, Output, Request};
use engine_schedule::SeqId;

/// The worker ended; nothing can be asked of it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped")]
pub struct WorkerGone;

/// Asks the worker for things. Clones ask the same worker.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    routes: Arc<Routes>,
    next: Arc<AtomicU64>,
}

/// Where outputs go.
#[derive(Debug, Default)]
struct Routes {
    state: Mutex<RouteState>,
}

#[derive(Debug, Default)]
struct RouteState {
    open: BTreeMap<SeqId, Route>,
    closed: bool,
}

#[derive(Debug)]
struct Route {
    choice: usize,
    sender: async_mpsc::UnboundedSender<(usize, Output)>,
}

impl Routes {
    fn lock(&self) -> MutexGuard<'_, RouteState> {
        // The map is whole between any two operations, so that a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// A handle over the worker's command queue, and the task that must run beside it.
    pub fn new(
        commands: mpsc::Sender<Command>,
        outputs: async_mpsc::UnboundedReceiver<Vec<Output>>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let routes = Arc::new(Routes::default());
        let handle = Self { commands, routes: Arc::clone(&routes), next: Arc::default() };
        (handle, dispatch(outputs, routes))
    }

    /// Hands the sequences of one request in; they are told apart by their place in `requests`.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn submit(&self, requests: Vec<Request>) -> Result<Ticket, WorkerGone> {
        let (sender, outputs) = async_mpsc::unbounded_channel();
        let first = self.next.fetch_add(requests.len() as u64, Ordering::Relaxed);
        let ids: Vec<_> = (first..).map(SeqId).take(requests.len()).collect();
        {
            let mut state = self.routes.lock();
            if state.closed {
                return Err(WorkerGone);
            }
            for (choice, id) in ids.iter().enumerate() {
                state.open.insert(*id, Route { choice, sender: sender.clone() });
            }
        }
        // From here on a dropped ticket takes the routes away again.
        let ticket = Ticket { outputs, ids, handle: self.clone() };
        let numbered = ticket.ids.iter().copied().zip(requests).collect();
        self.commands.send(Command::Submit(numbered)).map_err(|_| WorkerGone)?;
        Ok(ticket)
    }

    /// Forgets all cached prefixes; returns the number of pages freed.
    ///
    /// # Errors
    /// The worker has ended.
    pub async fn reset_prefix_cache(&self) -> Result<usize, WorkerGone> {
        let (reply, freed) = oneshot::channel();
        self.commands.send(Command::ResetPrefixCache(reply)).map_err(|_| WorkerGone)?;
        freed.await.map_err(|_| WorkerGone)
    }

    /// Sequences that have not ended.
    pub fn open(&self) -> usize {
        self.routes.lock().open.len()
    }
}

/// One request under way. Dropping it, as happens when a client goes away, ends its sequences.
#[derive(Debug)]
pub struct Ticket {
    outputs: async_mpsc::UnboundedReceiver<(usize, Output)>,
    ids: Vec<SeqId>,
    handle: Handle,
}

impl Ticket {
    /// The next output and the place of its sequence in the request; none once all have ended, or
    /// when the worker has.
    pub async fn next(&mut self) -> Option<(usize, Output)> {
        self.outputs.recv().await
    }

    /// As `next`, for a hand-written stream.
    pub fn poll_next(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<(usize, Output)>> {
        self.outputs.poll_recv(context)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut unfinished = std::mem::take(&mut self.ids);
        {
            let mut state = self.handle.routes.lock();
            unfinished.retain(|id| state.open.remove(id).is_some());
        }
        if !unfinished.is_empty() {
            // A worker that has ended has nothing left to abort.
            let _ = self.handle.commands.send(Command::Abort(unfinished));
        }
    }
}

async fn dispatch(mut outputs: async_mpsc::UnboundedReceiver<Vec<Output>>, routes: Arc<Routes>) {
    while let Some(step) = outputs.recv().await {
        let mut state = routes.lock();
        for output in step {
            let ended = output.finish.is_some();
            let id = output.id;
            // A sequence without a route was aborted a moment ago.
            let Some(route) = state.open.get(&id) else { continue };
            let _ = route.sender.send((route.choice, output));
            if ended {
                state.open.remove(&id);
            }
        }
    }
    let mut state = routes.lock();
    state.closed = true;
    state.open.clear();
}
