//! Handle of the HTTP front end to the worker (engine loop): submits requests, and routes outputs
//! to the clients.
//!
//! The worker sends one message per step; `dispatch` distributes its outputs. What a slow client
//! has not read yet waits in the client's own queue, which `max_tokens` bounds, so that the worker
//! never waits for a client.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use tokio::sync::{mpsc as async_mpsc, oneshot};

use super::{Command, Output, Request};
use engine_schedule::SeqId;

/// Reason why no command can be sent to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkerGone {
    /// The worker has ended by itself.
    #[error("the engine has stopped")]
    Failed,
    /// The server is about to end, and has cut off all requests.
    #[error("the server is shutting down")]
    CutOff,
}

/// Handle that sends commands to the worker. Clones share the worker.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    routes: Arc<Routes>,
    next: Arc<AtomicU64>,
}

/// Table from sequence ids to the queues of the requests that wait for the sequences' outputs.
#[derive(Debug, Default)]
struct Routes(Mutex<RouteState>);

#[derive(Debug, Default)]
struct RouteState {
    open: BTreeMap<SeqId, Route>,
    closed: bool,
    is_cut_off: bool,
}

/// Queue of one request's outputs, with the index of one sequence among the request's sequences.
#[derive(Debug)]
struct Route {
    choice: usize,
    sender: async_mpsc::UnboundedSender<(usize, Output)>,
}

impl Routes {
    fn lock(&self) -> MutexGuard<'_, RouteState> {
        // No operation leaves the map half-changed, so a panic elsewhere while it is locked does no
        // harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// Creates a handle, and a task that distributes outputs to the requests, from the front end's
    /// ends of the worker's two queues. The caller must spawn the task.
    pub fn new(
        commands: mpsc::Sender<Command>,
        outputs: async_mpsc::UnboundedReceiver<Vec<Output>>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let routes = Arc::new(Routes::default());
        let handle = Self { commands, routes: Arc::clone(&routes), next: Arc::default() };
        (handle, dispatch(outputs, routes))
    }

    /// Submits the sequences of one HTTP request. Their outputs come with the sequence's index in
    /// `requests`.
    ///
    /// # Errors
    /// The worker has ended, or the server has cut off all requests.
    pub fn submit(&self, requests: Vec<Request>) -> Result<Ticket, WorkerGone> {
        let (sender, outputs) = async_mpsc::unbounded_channel();
        // Ids grow with arrival; the scheduler takes them as age.
        let first = self.next.fetch_add(requests.len() as u64, Ordering::Relaxed);
        let ids: Vec<_> = (first..).map(SeqId).take(requests.len()).collect();
        // The routes must exist before the worker can answer.
        {
            let mut state = self.routes.lock();
            if state.closed {
                return Err(if state.is_cut_off { WorkerGone::CutOff } else { WorkerGone::Failed });
            }
            for (choice, id) in ids.iter().enumerate() {
                state.open.insert(*id, Route { choice, sender: sender.clone() });
            }
        }
        // From here on dropping the ticket, also by an early return, removes the routes.
        let ticket = Ticket { outputs, ids, handle: self.clone() };
        let numbered = ticket.ids.iter().copied().zip(requests).collect();
        self.commands.send(Command::Submit(numbered)).map_err(|_| WorkerGone::Failed)?;
        Ok(ticket)
    }

    /// Empties the prefix cache and returns the number of KV pages freed.
    ///
    /// # Errors
    /// The worker has ended.
    pub async fn reset_prefix_cache(&self) -> Result<usize, WorkerGone> {
        let (reply, freed) = oneshot::channel();
        self.commands.send(Command::ResetPrefixCache(reply)).map_err(|_| WorkerGone::Failed)?;
        freed.await.map_err(|_| WorkerGone::Failed)
    }

    /// Ends all open requests without the rest of their outputs, and takes no new ones, because the
    /// server is about to end.
    pub fn cut_off(&self) {
        let mut state = self.routes.lock();
        (state.closed, state.is_cut_off) = (true, true);
        state.open.clear();
    }

    /// Returns true if [`Handle::cut_off`] has ended the open requests.
    pub fn is_cut_off(&self) -> bool {
        self.routes.lock().is_cut_off
    }

    /// Returns the number of sequences that are waiting or running, over all requests.
    pub fn open(&self) -> usize {
        self.routes.lock().open.len()
    }
}

/// HTTP request in progress, and the queue of its outputs. Dropping it, as when a client
/// disconnects, aborts its sequences.
#[derive(Debug)]
pub struct Ticket {
    outputs: async_mpsc::UnboundedReceiver<(usize, Output)>,
    ids: Vec<SeqId>,
    handle: Handle,
}

impl Ticket {
    /// Returns the number of sequences of the request.
    pub fn sequences(&self) -> usize {
        self.ids.len()
    }

    /// Returns the next output and the index of its sequence in the request; `None` once all
    /// sequences have ended, or the worker has.
    pub async fn next(&mut self) -> Option<(usize, Output)> {
        self.outputs.recv().await
    }

    /// Polls for the next output, as [`Ticket::next`] does, for a `Stream` that is implemented by
    /// hand.
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
            // A sequence without a route has ended and needs no abort.
            unfinished.retain(|id| state.open.remove(id).is_some());
        }
        if !unfinished.is_empty() {
            // If the worker has ended, there is nothing left to abort.
            let _ = self.handle.commands.send(Command::Abort(unfinished));
        }
    }
}

/// Distributes the outputs of each step to the requests that wait for them.
async fn dispatch(mut outputs: async_mpsc::UnboundedReceiver<Vec<Output>>, routes: Arc<Routes>) {
    while let Some(step) = outputs.recv().await {
        let mut state = routes.lock();
        for output in step {
            let ended = output.finish.is_some();
            let id = output.id;
            // The sequence was aborted while its output was on the way.
            let Some(route) = state.open.get(&id) else { continue };
            let _ = route.sender.send((route.choice, output));
            if ended {
                state.open.remove(&id);
            }
        }
    }
    // The worker has ended: dropping the senders ends every open answer.
    let mut state = routes.lock();
    state.closed = true;
    state.open.clear();
}
