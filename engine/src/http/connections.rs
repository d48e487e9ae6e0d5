//! Open connections: their number is limited, and at the limit the one that has been idle for
//! longest is closed for a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

/// Number of connections beyond the limit that are taken while all others have a request; only
/// health checks are answered on them.
const SPARE: usize = 8;
/// Number of open files that are kept for the listening socket, connections about to close, the
/// spare ones, and files of the model.
const FILES_KEPT: usize = 64;

/// Limits on the connections of clients, whoever they are: a connection that stays within them may
/// stay open as long as it likes.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// Largest number of open connections.
    pub connections: usize,
    /// Time within which the head of a request must have arrived whole, counted from the opening of
    /// the connection or the end of its last answer. So an idle connection is closed after it.
    pub head: Duration,
    /// Time that a new connection has for its first request before it may be closed for another: a
    /// client sends its request a moment after it has connected.
    pub first: Duration,
    /// Time within which a body must arrive, which grows with what has arrived.
    pub body: Duration,
    /// Longest time for which a client may take no byte of an answer.
    pub unread: Duration,
}

impl ConnectionLimits {
    /// Returns the limits of a process that may open `files` files.
    pub fn of_files(files: usize) -> Self {
        Self {
            connections: files - FILES_KEPT.min(files / 2),
            // Longer than proxies keep idle connections by default (60 s): if both ended one at the
            // same moment, a request on it would be lost.
            head: Duration::from_secs(75),
            first: Duration::from_millis(100),
            body: Duration::from_secs(30),
            unread: Duration::from_secs(60),
        }
    }
}

/// Table of the open connections of one server.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    /// Time that a new connection has for its first request.
    first: Duration,
    state: Mutex<State>,
    /// Signal that a connection has been closed or has become idle.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    open: BTreeMap<u64, Open>,
    /// Ids of the idle connections, ordered by the moments at which they became idle.
    idle: BTreeMap<u64, u64>,
    /// Number of ids and moments given out so far.
    next: u64,
}

#[derive(Debug)]
struct Open {
    /// Sender that ends the connection: at once when it is dropped, after the answer in progress
    /// when it sends.
    end: oneshot::Sender<()>,
    /// Moment at which the connection became idle, unless a request is in progress.
    idle_since: Option<u64>,
    /// Time until which the connection is not closed for another; `None` once it has had a request.
    kept_until: Option<Instant>,
}

/// Capacity of the table for a new connection.
enum Capacity {
    /// The connection can be added.
    Available,
    /// The connection can be added once the idle ones have ended that are being closed for it.
    Evicted,
    /// No connection can be added until one is closed or becomes idle, or until this time, when an
    /// idle one can be closed.
    Full { until: Option<Instant> },
}

impl Connections {
    pub(super) fn new(limits: &ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            limit: limits.connections,
            first: limits.first,
            state: Mutex::default(),
            freed: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No operation leaves the table half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more connection can be added. At the limit this closes the connection that has
    /// been idle for longest.
    pub(super) async fn wait_for_capacity(&self) {
        loop {
            match self.evict() {
                Capacity::Available => return,
                // Lets the closed connection's task give its file back before the next is taken.
                Capacity::Evicted => return tokio::task::yield_now().await,
                Capacity::Full { until: None } => self.freed.notified().await,
                Capacity::Full { until: Some(time) } => {
                    let _ = timeout_at(time, self.freed.notified()).await;
                }
            }
        }
    }

    fn evict(&self) -> Capacity {
        let mut state = self.lock();
        let (before, now) = (state.open.len(), Instant::now());
        // Spare connections may be idle too: closing one of them would leave the new one a spare.
        while state.open.len() >= self.limit && state.close_idle(Some(now)) {}
        match state.open.len() {
            open if open < before => Capacity::Evicted,
            open if open < self.limit + SPARE => Capacity::Available,
            _ => Capacity::Full { until: state.kept_until() },
        }
    }

    /// Closes the connection that has been idle for longest, if any is idle.
    pub(super) fn close_idle(&self) {
        self.lock().close_idle(None);
    }

    /// Adds a connection, idle at first. The receiver completes when the connection is to end: with
    /// an error at once, otherwise after the answer in progress.
    pub(super) fn add(self: &Arc<Self>) -> (Arc<Connection>, oneshot::Receiver<()>) {
        let (end, ended) = oneshot::channel();
        let mut state = self.lock();
        let id = state.next();
        let kept_until = Some(Instant::now() + self.first);
        state.open.insert(id, Open { end, idle_since: Some(id), kept_until });
        state.idle.insert(id, id);
        let connections = Arc::clone(self);
        (Arc::new(Connection { id, connections, stage: Mutex::default() }), ended)
    }

    /// Ends all connections after their answers in progress.
    pub(super) fn drain(&self) {
        let open = std::mem::take(&mut self.lock().open);
        for connection in open.into_values() {
            // The connection may have ended by itself.
            let _ = connection.end.send(());
        }
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Closes the connection that has been idle for longest, and returns true if there is one. With
    /// a time, only those are closed that may be closed at it.
    fn close_idle(&mut self, now: Option<Instant>) -> bool {
        let may_close = |id: &u64| {
            let kept_until = self.open.get(id).and_then(|open| open.kept_until);
            now.is_none_or(|now| kept_until.is_none_or(|until| until <= now))
        };
        let found = self.idle.iter().find(|(_, id)| may_close(id));
        let Some((since, id)) = found.map(|(since, id)| (*since, *id)) else { return false };
        self.idle.remove(&since);
        self.open.remove(&id);
        true
    }

    /// Returns the first time at which an idle connection may be closed that may not be now.
    fn kept_until(&self) -> Option<Instant> {
        self.idle.values().filter_map(|id| self.open.get(id)?.kept_until).min()
    }
}

/// Progress of the request on a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// No request is in progress.
    #[default]
    Idle,
    /// The head of a request has arrived, and its body may still arrive.
    Receiving,
    /// The client has sent its last byte while a request's body was read.
    Ending,
    /// The request has arrived whole, and none of its answer is written.
    Answering,
    /// The head of the answer has been handed over, and its body may still grow.
    Streaming,
    /// As `Streaming`, and a comment is to be written to find out whether the client still reads.
    Probing,
    /// The answer has been handed over whole, and its last bytes may still wait for the client.
    Flushing,
}

/// Connection of one client, as its socket and the requests on it share it.
#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    connections: Arc<Connections>,
    stage: Mutex<Stage>,
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if only health checks are answered on this connection for now, because as many
    /// older ones as the limit allows are open.
    pub(super) fn is_spare(&self) -> bool {
        let (state, limit) = (self.connections.lock(), self.connections.limit);
        state.open.len() > limit && state.open.range(..self.id).count() >= limit
    }

    pub(super) fn stage(&self) -> Stage {
        *self.lock()
    }

    /// Moves the request on this connection from the stage `from` to `to`, and returns false if it
    /// is at another stage.
    pub(super) fn advance(&self, from: Stage, to: Stage) -> bool {
        let mut stage = self.lock();
        let moves = *stage == from;
        if moves {
            *stage = to;
        }
        moves
    }

    /// Notes that the request on this connection has arrived whole.
    pub(super) fn await_answer(&self) {
        let _ = self.advance(Stage::Receiving, Stage::Answering)
            || self.advance(Stage::Ending, Stage::Answering);
    }

    /// Notes that the system has all bytes that were handed over: if they end an answer, the
    /// connection is idle from now on.
    pub(super) fn end_answer(&self) {
        if !self.advance(Stage::Flushing, Stage::Idle) {
            return;
        }
        let state = &mut *self.connections.lock();
        let since = state.next();
        if let Some(open) = state.open.get_mut(&self.id) {
            open.idle_since = Some(since);
            state.idle.insert(since, self.id);
        }
        self.connections.freed.notify_one();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let state = &mut *self.connections.lock();
        if let Some(Open { idle_since: Some(since), .. }) = state.open.remove(&self.id) {
            state.idle.remove(&since);
        }
        self.connections.freed.notify_one();
    }
}

/// One request on a connection, from its head until its answer has been handed over: while it lives,
/// and until the last bytes of the answer are written, the connection is not idle.
#[derive(Debug)]
pub(super) struct ActiveRequest(pub(super) Arc<Connection>);

impl ActiveRequest {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        *connection.lock() = Stage::Receiving;
        let state = &mut *connection.connections.lock();
        if let Some(open) = state.open.get_mut(&connection.id)
            && let Some(since) = open.idle_since.take()
        {
            open.kept_until = None;
            state.idle.remove(&since);
        }
        Self(Arc::clone(connection))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        *self.0.lock() = Stage::Flushing;
    }
}
