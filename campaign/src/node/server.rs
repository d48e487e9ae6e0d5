//! The server of one run: started on a free port in its own process group, polled until it is
//! ready, and stopped with every process that it started.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use schema::probe::Probe;
use schema::untrusted::origin;

use crate::catalog::Engine;
use crate::files::{self, FileError};
use crate::node::record::Happening;
use crate::process::{Group, Interrupt, ProcessError, capture_until, micros};
use crate::stop::{Stop, environment};
use crate::tools::{self, BENCH, Tools};
use crate::world::World;

/// Time for which a server may drain before it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// Interval at which a starting server is polled. It limits the precision of the startup time only
/// where the server does not report its own.
const POLL: Duration = Duration::from_millis(50);
/// Time limit of one probe of a starting server.
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of one probe of a server that somebody else started.
const RUNNING_LIMIT: Duration = Duration::from_secs(30);
/// Largest number of bytes that are read, from the end of a server's log, for an error message.
const TAIL_BYTES: usize = 16 * 1024;

/// Result of waiting for a server to become ready: its answer to the probe and the time from its
/// start in microseconds, or what kept it from becoming ready.
pub type Readiness = Result<(Probe, u64), Happening>;

/// A running server process of a run.
#[derive(Debug)]
pub struct Server {
    group: Group,
    /// Command that removes the server's container, which outlives its process; `None` without a
    /// container and for one that is a process.
    pub removal: Option<Vec<String>>,
    port: u16,
    log: PathBuf,
    /// Time at which the server was started, since the command began.
    started: Duration,
}

/// Returns a port on which nobody listens now.
///
/// # Errors
/// The machine has no free port.
pub fn free_port() -> Result<u16, FileError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let port = listener.and_then(|listener| listener.local_addr()).map(|address| address.port());
    port.map_err(FileError::at("find a free port on", Path::new("127.0.0.1")))
}

impl Server {
    /// Starts the server with the command line `argv`, its standard output and error in the file
    /// `log`.
    ///
    /// # Errors
    /// The command line is empty, the program cannot be started, or the log cannot be written.
    pub fn start(
        argv: &[String],
        env: &BTreeMap<String, String>,
        port: u16,
        log: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, Stop> {
        files::make_dir(log.parent().unwrap_or(Path::new(".")))?;
        let out = File::create(log).map_err(FileError::at("write", log))?;
        let err = out.try_clone().map_err(FileError::at("write", log))?;
        let (program, args) = argv
            .split_first()
            .ok_or_else(|| Stop::wrong_use("the engine's file names no program to start"))?;
        let mut command = Command::new(program);
        command.args(args).envs(env).stdout(out).stderr(err);
        let started = interrupt.elapsed();
        let group = Group::start(&mut command)?;
        Ok(Self { group, removal: None, port, log: log.to_owned(), started })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn id(&self) -> u32 {
        self.group.id()
    }

    /// Returns the exit status of the server's process if it has ended, `None` while it runs.
    ///
    /// # Errors
    /// The system no longer knows the process.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        self.group.poll()
    }

    /// Probes the server until it is ready, it gives an answer that cannot be parsed, it ends, or
    /// `limit` has passed since its start.
    ///
    /// # Errors
    /// The command is interrupted, the probing tool cannot be run or its output cannot be parsed,
    /// or the system no longer knows the server's process.
    pub fn wait_ready(
        &mut self,
        tools: &Tools,
        engine_file: &Path,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<Readiness, Stop> {
        let mut said = "nothing listens on its port".to_owned();
        loop {
            interrupt.check()?;
            if let Some(status) = self.poll()? {
                return Ok(Err(Happening::ExitedBeforeReady(status)));
            }
            let left = limit.saturating_sub(interrupt.elapsed().saturating_sub(self.started));
            if left.is_zero() {
                return Ok(Err(Happening::NotReady { limit_s: limit.as_secs(), said }));
            }
            // A connection is cheaper than starting the probe to find the port closed.
            if self.listens() {
                match ask(tools, &self.url(), engine_file, left.min(PROBE_LIMIT), interrupt)? {
                    ProbeAnswer::Ready(probe) => {
                        let startup_us = micros(interrupt.elapsed().saturating_sub(self.started));
                        return Ok(Ok((*probe, startup_us)));
                    }
                    ProbeAnswer::NotYet(text) => said = text,
                    ProbeAnswer::Unreadable(text) => return Ok(Err(Happening::Unreadable(text))),
                }
            }
            interrupt.sleep(POLL);
        }
    }

    /// Returns the peak resident memory of the server so far, in bytes; `None` if the system does
    /// not report it, for a server in a container, and for a server of several processes, because
    /// their shared pages would be counted repeatedly.
    pub fn rss_bytes_max(&self) -> Option<u64> {
        // With a container, the process here is the runtime's client and not the server.
        if self.removal.is_some() || self.group.members() != 1 {
            return None;
        }
        status_bytes(&self.status()?, "VmHWM")
    }

    /// Returns the current content of the server's `/proc/<pid>/status`; `None` if it cannot be
    /// read.
    pub fn status(&self) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/status", self.id())).ok()
    }

    /// Stops the server: it may drain, then its process group is killed and its container removed.
    pub fn stop(&mut self) {
        self.group.end(GRACE);
        if let Some((program, args)) = self.removal.take().as_deref().and_then(<[_]>::split_first) {
            // A container that has ended by itself is removed already.
            let _ = Command::new(program).args(args).output();
        }
    }

    /// Returns the end of the server's log, 16 KiB at most.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        log[log.ceil_char_boundary(log.len().saturating_sub(TAIL_BYTES))..].to_owned()
    }

    /// Returns the server's whole log, its standard output and error.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn listens(&self) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        TcpStream::connect_timeout(&address, POLL).is_ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answer of a server to a probe: ready, not ready yet, or not readable, with a text that says why.
#[derive(Debug)]
pub enum ProbeAnswer {
    Ready(Box<Probe>),
    NotYet(String),
    Unreadable(String),
}

/// Probes a server once with `redline-bench probe`; a server that does not answer within `limit` is
/// not ready yet.
///
/// # Errors
/// Interrupted, or the tool cannot be run or its output cannot be parsed.
pub fn ask(
    tools: &Tools,
    url: &str,
    engine_file: &Path,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<ProbeAnswer, Stop> {
    let mut command = tools.bench("probe");
    command.args(["--url", url, "--engine"]).arg(engine_file);
    // A server that accepts connections before it has loaded its model may never answer.
    let Some(written) = capture_until(&mut command, Some(limit), interrupt)? else {
        return Ok(ProbeAnswer::NotYet("it takes connections and does not answer".to_owned()));
    };
    let said = written.stderr.trim().to_owned();
    match written.status.code() {
        Some(0) => {
            let probe = serde_json::from_str(&written.stdout);
            let unreadable = |error| tools::unreadable(BENCH, "probe", &error);
            Ok(ProbeAnswer::Ready(probe.map_err(unreadable)?))
        }
        Some(2) => Ok(ProbeAnswer::Unreadable(said)),
        _ => Ok(ProbeAnswer::NotYet(said)),
    }
}

/// Probes a server that somebody else started, and returns its answer.
///
/// # Errors
/// Interrupted, the tool cannot be run or its output cannot be parsed, `url` is no address of a
/// server, or no such server answers there.
pub fn ask_running(world: &World, url: &str, engine: &Engine) -> Result<Probe, Stop> {
    match ask(&world.tools, url, &engine.path, RUNNING_LIMIT, &world.interrupt)? {
        ProbeAnswer::Ready(probe) => Ok(*probe),
        // Its words name the fault; the URL may hold a password and is not repeated.
        ProbeAnswer::Unreadable(said) => {
            Err(Stop::wrong_use(said.strip_prefix("error: ").unwrap_or(&said)))
        }
        ProbeAnswer::NotYet(said) => {
            Err(environment!("no server answers at `{}`: {said}", origin(url))
                .with_hint(format!("is it one that `suite/engines/{}.toml` describes?", engine.id)))
        }
    }
}

/// Returns the value in bytes of a field of `/proc/<pid>/status` that is given in kB; `None` if
/// there is no such field.
pub fn status_bytes(status: &str, field: &str) -> Option<u64> {
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(name, _)| *name == field)?;
    Some(value.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(status_bytes(status, "VmHWM"), Some(2_097_152));
        assert_eq!(status_bytes(status, "VmRSS"), Some(1024));
        assert_eq!(status_bytes("Name:\tx\n", "VmHWM"), None);
    }
}
