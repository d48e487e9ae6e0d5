//! Life of one server: listening socket, which answers from the start, thread that loads the model
//! and then runs the engine loop, and shutdown of both.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc as async_mpsc, oneshot, watch};

use crate::http::{self, Access, App, ConnectionLimits, Names, Origins, Phase, Ready};
use crate::metrics::Metrics;
use crate::worker::{Command, Handle, Output, Worker};
use crate::{EnvironmentError, log};
use engine_core::clock::Clock;
use engine_model::Model;

/// Time that the last answers get to reach their clients before the process ends, and during which
/// a failed engine still answers `/health`.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Length of the accept queue of the listening socket; the system lowers it to its own limit. A
/// connection that does not fit is dropped and the client retries a second later: a workload that
/// sends all its requests at once would measure that second.
const BACKLOG: u32 = 65_535;
/// Number of open files to allow, one per connection. Shells allow 1,024, and a server at its limit
/// refuses clients.
const FILES_MAX: u64 = 65_536;
/// Number of open files that is assumed where the system does not say how many it allows.
const FILES_USUAL: usize = 1024;
/// Smallest number of open files with which a server starts: its own, those of a model, and a few
/// clients.
const FILES_LEAST: usize = 32;

/// Loaded model, and the state that the routes need once it is loaded. The KV cache is allocated as
/// the state's limits say; the worker fills in `startup_us`.
pub type Loaded = (Box<dyn Model>, Ready);

/// Error for a bug of the engine: a thread panicked with this message.
#[derive(Debug, thiserror::Error)]
#[error("the engine broke an invariant: {0}")]
pub struct EnginePanic(String);

/// Rules by which a server treats its clients.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Rule by which requests are accepted or refused.
    pub access: Access,
    /// Origins of web pages that may use the server from a browser.
    pub origins: Origins,
    /// Limits on the number of connections and on the patience with each.
    pub connections: ConnectionLimits,
    /// Longest time for which the server waits, once it is told to stop, until no sequence is
    /// waiting or running. Sequences that are left then are cut off.
    pub grace: Duration,
}

impl Rules {
    /// Returns the rules of a server that does not listen: only this process asks it.
    pub fn of_this_process() -> Self {
        let names = Names { host: "localhost".into(), is_open: false };
        Self {
            access: Access::Keyless(names),
            origins: Origins::default(),
            connections: ConnectionLimits::of_files(0),
            grace: Duration::ZERO,
        }
    }
}

/// A server whose model is loading or loaded.
#[derive(Debug)]
pub struct Server {
    app: App,
    rules: Rules,
    phase: watch::Receiver<Phase>,
    worker: JoinHandle<Result<()>>,
}

impl Server {
    /// Starts a thread that loads the model and then runs the engine loop. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        load: impl FnOnce(Handle) -> Result<Loaded> + Send + 'static,
        rules: Rules,
        clock: Clock,
    ) -> Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let (phase_sender, phase) = watch::channel(Phase::Loading);
        let (command_sender, commands) = mpsc::channel();
        let (output_sender, outputs) = async_mpsc::unbounded_channel();
        let (handle, dispatch) = Handle::new(command_sender, outputs);
        tokio::spawn(dispatch);
        let (access, origins) = (rules.access.clone(), rules.origins.clone());
        let app = App::new(phase.clone(), Arc::clone(&metrics), clock, access, origins);
        let queues = Queues { commands, outputs: output_sender };
        let work = move || {
            let phase = phase_sender;
            let life = || {
                let loaded = load(handle).context("failed to load the model")?;
                work(loaded, &phase, &queues, metrics, clock)
            };
            // A panic becomes a failure that clients and the exit code report; a server whose
            // worker is gone would answer nothing.
            let end = catch_unwind(AssertUnwindSafe(life))
                .unwrap_or_else(|panic| Err(EnginePanic(panic_message(&*panic)).into()));
            // Sent before the queues close, so that a route that sees them closed finds the reason.
            if let Err(error) = &end {
                let _ = phase.send(Phase::Failed(error.to_string()));
            }
            drop(queues);
            end
        };
        let worker = thread::Builder::new().name("worker".into()).spawn(work);
        let worker = worker.context(EnvironmentError("failed to start the worker".into()))?;
        Ok(Self { app, rules, phase, worker })
    }

    /// Waits until the model is loaded, and returns the state of the routes, by which this process
    /// can use the engine without a listening socket.
    ///
    /// # Errors
    /// The model could not be loaded.
    pub async fn loaded(mut self) -> Result<App> {
        let loaded = self.phase.wait_for(|phase| !matches!(phase, Phase::Loading)).await;
        match loaded.as_deref() {
            Ok(Phase::Ready(_)) => {}
            _ => self.worker.join().unwrap_or(Ok(()))?,
        }
        Ok(self.app)
    }

    /// Answers requests on `listener` until the engine fails, or until `stops` brings a first
    /// message or is closed, and the open sequences have ended or their time for it is over. Calls
    /// `ready` with the address of `listener` once the model is loaded.
    ///
    /// # Errors
    /// The model could not be loaded, the engine failed, or `stops` brought a second message before
    /// the open sequences had ended.
    pub async fn run(
        mut self,
        listener: TcpListener,
        mut stops: async_mpsc::UnboundedReceiver<()>,
        ready: impl FnOnce(SocketAddr) + Send + 'static,
    ) -> Result<()> {
        let address = listener.local_addr();
        let (close, closed) = oneshot::channel::<()>();
        let (app, limits) = (self.app.clone(), self.rules.connections.clone());
        let mut server =
            tokio::spawn(http::serve(listener, app, limits, async move { _ = closed.await }));
        let mut phase = self.phase.clone();
        // A task waits for the model, because the socket answers while it loads.
        tokio::spawn(async move {
            let loaded = phase.wait_for(|phase| !matches!(phase, Phase::Loading)).await;
            if let (Ok(Phase::Ready(_)), Ok(address)) = (loaded.as_deref(), address) {
                ready(address);
            }
        });
        let ended = tokio::select! {
            () = failure(&mut self.phase) => Ok(()),
            _ = stops.recv() => drain(&self.app, self.rules.grace, &mut stops).await,
        };
        let _ = close.send(());
        // A client that does not read its answer must not keep the process alive.
        if tokio::time::timeout(LAST_WORDS, &mut server).await.is_err() {
            server.abort();
        }
        ended?;
        let failed = matches!(&*self.phase.borrow(), Phase::Failed(_));
        // A worker that did not fail ends with the process; joining it would wait for its last
        // step.
        if failed { self.worker.join().unwrap_or(Ok(())) } else { Ok(()) }
    }
}

/// Refuses new requests, and waits until the open sequences have ended. Those that have not after
/// `grace`, or when `stops` brings another message, are cut off: their answers end with an error.
///
/// # Errors
/// `stops` brought another message.
async fn drain(
    app: &App,
    grace: Duration,
    stops: &mut async_mpsc::UnboundedReceiver<()>,
) -> Result<()> {
    log(format_args!("draining: running requests may finish, new ones are refused"));
    app.drain();
    tokio::select! {
        ended = tokio::time::timeout(grace, ended(app)) => {
            if ended.is_err() {
                log(format_args!("{} sequences did not end in time", app.open_sequences()));
                app.cut_off();
            }
            Ok(())
        }
        Some(()) = stops.recv() => {
            let open = app.open_sequences();
            app.cut_off();
            let message = format!("interrupted while draining, with {open} sequences open");
            Err(EnvironmentError(message).into())
        }
    }
}

/// Listens on the first of `addresses` that is available. Must be called within a tokio runtime.
///
/// # Errors
/// No address is available; the error states all of them and the reason for the last one.
pub fn listen(addresses: &[SocketAddr]) -> Result<TcpListener> {
    let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in addresses {
        result = listen_on(*address);
        if result.is_ok() {
            break;
        }
    }
    result.map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; hint: another program listens there; `--port N` takes another port, `--port 0` a \
                 free one"
            }
            _ => "",
        };
        EnvironmentError(format!("failed to listen on {addresses:?}: {error}{hint}")).into()
    })
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Allows a port whose connections of an earlier server are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Raises the soft limit on open files, and returns the limit in force. If it cannot be raised,
/// fewer clients are served.
///
/// # Errors
/// The limit is too low for a server.
pub fn allow_files() -> Result<usize> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(FILES_USUAL) };
    let wanted = hard.min(FILES_MAX).max(soft);
    let raised = soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
    let files = usize::try_from(if raised { wanted } else { soft }).unwrap_or(usize::MAX);
    if files < FILES_LEAST {
        bail!(EnvironmentError(format!(
            "this process may open {files} files, and a server needs {FILES_LEAST}; hint: raise \
             the limit with `ulimit -n`"
        )));
    }
    Ok(files)
}

/// Waits until the model could not be loaded or the engine has failed. If the model had been
/// loaded, waits one second more, so that health checks can still read the reason.
async fn failure(phase: &mut watch::Receiver<Phase>) {
    let loaded = phase.wait_for(|phase| !matches!(phase, Phase::Loading)).await;
    let was_ready = loaded.is_ok_and(|phase| matches!(*phase, Phase::Ready(_)));
    let _ = phase.wait_for(|phase| matches!(phase, Phase::Failed(_))).await;
    if was_ready {
        tokio::time::sleep(LAST_WORDS).await;
    }
}

/// Waits until no sequence is running or waiting.
async fn ended(app: &App) {
    while app.open_sequences() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Worker's ends of its two queues: commands that it receives from the front end, and outputs that
/// it sends there.
struct Queues {
    commands: mpsc::Receiver<Command>,
    outputs: async_mpsc::UnboundedSender<Vec<Output>>,
}

/// Creates the worker for the loaded model, announces that the server is ready, and runs the engine
/// loop until it ends.
fn work(
    (model, mut ready): Loaded,
    phase: &watch::Sender<Phase>,
    queues: &Queues,
    metrics: Arc<Metrics>,
    clock: Clock,
) -> Result<()> {
    let worker = Worker::new(model, Arc::clone(&ready.text), ready.limits.clone(), metrics, clock);
    ready.info.startup_us = clock.elapsed_us();
    phase.send_replace(Phase::Ready(Arc::new(ready)));
    worker.run(&queues.commands, &queues.outputs).context("the engine failed")
}

/// Returns the message of a panic, or `no message` if the panic's value is not a text.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
