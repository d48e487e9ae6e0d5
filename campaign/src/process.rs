//! Child processes: each in a process group of its own, polled together with the interrupt flag,
//! and ended with every process that it started.

use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;
use schema::exit::Exit;

use crate::clock::Clock;
use crate::stop::Ends;

/// Time that a child process may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Interval at which a child process and the interrupt flag are polled.
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("interrupted")]
    Interrupted,
    #[error("cannot start `{program}`")]
    Start { program: String, source: io::Error },
    #[error("lost track of `{program}`")]
    Wait { program: String, source: io::Error },
    #[error("`{program}` ended with {}{}", describe(*.status), after_colon(.stderr))]
    Failed { program: String, status: ExitStatus, stderr: String },
    #[error("the system does not report the processor time of children")]
    NoUsage,
}

impl Ends for ProcessError {
    fn exit(&self) -> Exit {
        Exit::Environment
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Start { program, source } if source.kind() == io::ErrorKind::NotFound => {
                Some(format!("install `{program}`, or put it on the PATH"))
            }
            _ => None,
        }
    }
}

/// Turns every error except an interrupt into `None`, for the result of running a program that may
/// be missing or fail.
///
/// # Errors
/// Interrupted.
pub fn attempted<T>(result: Result<T, ProcessError>) -> Result<Option<T>, ProcessError> {
    match result {
        Err(ProcessError::Interrupted) => Err(ProcessError::Interrupted),
        other => Ok(other.ok()),
    }
}

/// Interrupt flag, set by SIGINT, SIGTERM and SIGHUP; waiting loops poll it.
#[derive(Debug, Clone)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    /// Clock by which the loops that poll the interrupt flag measure how long they have waited.
    clock: Clock,
}

impl Interrupt {
    /// Returns a new interrupt flag that is not set; by `clock`, the loops that poll it measure how
    /// long they have waited.
    pub fn new(clock: Clock) -> Self {
        Self { flag: Arc::default(), clock }
    }

    /// Returns the time since the command began.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Sleeps for `duration`, without regard to the flag; the caller polls it afterwards.
    pub fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration);
    }

    /// Returns the shared flag that the signal handlers set.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// Returns true when a signal has arrived.
    pub fn raised(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Returns an error when a signal has arrived, for use with `?`.
    ///
    /// # Errors
    /// A signal has arrived.
    pub fn check(&self) -> Result<(), ProcessError> {
        if self.raised() { Err(ProcessError::Interrupted) } else { Ok(()) }
    }
}

/// A child process that leads its own process group. Dropping it ends the whole group if the leader
/// still runs.
#[derive(Debug)]
pub struct Group {
    child: Child,
    program: String,
    ended: Option<ExitStatus>,
}

impl Group {
    /// Starts `command` as the leader of a new process group, without standard input.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, ProcessError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            // Its own group: Ctrl-C then reaches only this program, which ends the child in order.
            .process_group(0)
            .spawn()
            .map_err(|source| ProcessError::Start { program: program.clone(), source })?;
        Ok(Self { child, program, ended: None })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the group's leader has ended, `None` while it runs.
    ///
    /// # Errors
    /// The system no longer knows the child.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .map_err(|source| ProcessError::Wait { program: self.program.clone(), source })?;
        }
        Ok(self.ended)
    }

    /// Waits for the group's leader to end; returns `None` if `limit` passes first. Without a
    /// limit, it waits as long as the leader runs.
    ///
    /// # Errors
    /// A signal has arrived, after which the group has been ended; or the system no longer knows
    /// the child.
    pub fn wait(
        &mut self,
        limit: Option<Duration>,
        interrupt: &Interrupt,
    ) -> Result<Option<ExitStatus>, ProcessError> {
        let until = limit.map(|limit| interrupt.elapsed() + limit);
        loop {
            if let Some(status) = self.poll()? {
                return Ok(Some(status));
            }
            if interrupt.raised() {
                self.end(GRACE);
                return Err(ProcessError::Interrupted);
            }
            if until.is_some_and(|until| interrupt.elapsed() >= until) {
                return Ok(None);
            }
            interrupt.sleep(POLL);
        }
    }

    /// Ends the group: while the leader runs, sends SIGTERM and waits up to `grace` for it; then
    /// kills every process that is left. Returns the leader's exit status, `None` if the system
    /// does not report it, and true if the leader had to be killed.
    pub fn end(&mut self, grace: Duration) -> (Option<ExitStatus>, bool) {
        let was_alive = self.poll().is_ok_and(|status| status.is_none());
        if was_alive {
            self.signal(Signal::SIGTERM);
            // A stopped process acts on SIGTERM only after SIGCONT.
            self.signal(Signal::SIGCONT);
            let mut waited = Duration::ZERO;
            while self.poll().is_ok_and(|status| status.is_none()) && waited < grace {
                thread::sleep(POLL);
                waited += POLL;
            }
        }
        let killed = self.poll().is_ok_and(|status| status.is_none());
        // Children of the leader may have outlived it; the group id is not reused while one of them
        // lives.
        self.signal(Signal::SIGKILL);
        if killed {
            self.ended = self.child.wait().ok();
        }
        (self.ended, killed)
    }

    fn signal(&self, signal: Signal) {
        if let Ok(id) = i32::try_from(self.child.id()) {
            // ESRCH means that nobody is left, which is the goal.
            let _ = killpg(Pid::from_raw(id), signal);
        }
    }

    /// Returns the number of processes in the group now, without zombies.
    pub fn members(&self) -> usize {
        let all = procfs::process::all_processes().into_iter().flatten().flatten();
        let stats = all.filter_map(|process| process.stat().ok());
        stats.filter(|stat| stat.state != 'Z' && u32::try_from(stat.pgrp) == Ok(self.id())).count()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.poll().is_ok_and(|status| status.is_none()) {
            self.end(GRACE);
        }
    }
}

/// Output and exit status of a child process that has ended.
#[derive(Debug)]
pub struct Written {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Written {
    /// Returns the last non-empty line of standard error, trimmed; `None` if there is none.
    pub fn last_said(&self) -> Option<&str> {
        self.stderr.lines().map(str::trim).rfind(|line| !line.is_empty())
    }

    /// Returns the last `count` non-empty lines of standard error, or of standard output if standard
    /// error is empty, in order.
    pub fn last_lines(&self, count: usize) -> Vec<&str> {
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines = said.lines().map(str::trim_end).filter(|line| !line.is_empty());
        let mut last: Vec<&str> = lines.rev().take(count).collect();
        last.reverse();
        last
    }
}

/// Runs `command` to its end and returns its output, whatever its exit status.
///
/// # Errors
/// The command cannot be started, the system no longer knows the process, or the wait was
/// interrupted.
pub fn capture(command: &mut Command, interrupt: &Interrupt) -> Result<Written, ProcessError> {
    let written = capture_until(command, None, interrupt)?;
    Ok(written.expect("without a limit the wait is for the end"))
}

/// Runs `command` to its end, or for `limit` if there is one, and returns its output; returns
/// `None` if it was ended at the limit.
///
/// # Errors
/// The command cannot be started, the system no longer knows the process, or the wait was
/// interrupted.
pub fn capture_until(
    command: &mut Command,
    limit: Option<Duration>,
    interrupt: &Interrupt,
) -> Result<Option<Written>, ProcessError> {
    interrupt.check()?;
    #[cfg(test)]
    if let Some(ended) = crate::simulation::programs::run(command, interrupt) {
        return ended.map(Some);
    }
    let mut group = Group::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    // Both pipes are read while the child runs, because a full pipe would block it.
    let stdout = group.child.stdout.take().map(drain);
    let stderr = group.child.stderr.take().map(drain);
    let Some(status) = group.wait(limit, interrupt)? else {
        group.end(GRACE);
        return Ok(None);
    };
    let text = |reader: Option<thread::JoinHandle<String>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    Ok(Some(Written { status, stdout: text(stdout), stderr: text(stderr) }))
}

/// Returns the processor time of all ended children in microseconds: user and system time,
/// including their own children's.
///
/// # Errors
/// The system does not report it.
#[expect(clippy::cast_precision_loss, reason = "processor time is far below 2^53 us")]
pub fn children_us() -> Result<f64, ProcessError> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|_| ProcessError::NoUsage)?;
    let spent = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(spent as f64)
}

/// Runs `command` and returns its standard output.
///
/// # Errors
/// The command cannot be started, was interrupted, did not succeed, or the system no longer knows
/// the process.
pub fn text(command: &mut Command, interrupt: &Interrupt) -> Result<String, ProcessError> {
    let written = capture(command, interrupt)?;
    if written.status.success() {
        return Ok(written.stdout);
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let stderr = written.stderr.trim().to_owned();
    Err(ProcessError::Failed { program, status: written.status, stderr })
}

/// Returns true if `program --version` succeeds.
///
/// # Errors
/// Interrupted.
pub fn is_installed(program: &str, interrupt: &Interrupt) -> Result<bool, ProcessError> {
    let written = capture(Command::new(program).arg("--version"), interrupt);
    Ok(attempted(written)?.is_some_and(|written| written.status.success()))
}

/// Runs `command` with its output on this process's standard streams, and returns its exit status.
///
/// # Errors
/// The command cannot be started, the system no longer knows the process, or the wait was
/// interrupted.
pub fn show(command: &mut Command, interrupt: &Interrupt) -> Result<ExitStatus, ProcessError> {
    interrupt.check()?;
    #[cfg(test)]
    if let Some(ended) = crate::simulation::programs::run(command, interrupt) {
        return ended.map(|written| written.status);
    }
    let status = Group::start(command)?.wait(None, interrupt)?;
    Ok(status.unwrap_or_else(|| ExitStatus::from_raw(0)))
}

/// Describes an exit status in words, such as `exit code 1` or `signal 9 (SIGKILL)`.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {number} ({signal})"),
            Err(_) => format!("signal {number}"),
        },
        (None, None) => "an unknown status".to_owned(),
    }
}

/// Converts a duration to microseconds, rounded down.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe has delivered everything that was written.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn after_colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}
