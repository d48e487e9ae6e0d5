//! Daemon processes of a Slurm cluster: starting them and killing them by their ids.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getsid};

use crate::program::{system, until};

/// Daemon that runs in the foreground and leads a process group of its own; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts `program`; its output goes to `log/PROGRAM.out`.
    ///
    /// # Panics
    /// The program cannot be started.
    #[track_caller]
    pub fn start(root: &Path, program: &str, words: &[&str]) -> Self {
        let log = root.join("log").join(format!("{program}.out"));
        let log = fs::OpenOptions::new().create(true).append(true).open(log).expect("writable");
        let mut command = Command::new(system(program).expect("it was looked for"));
        // A group of its own, so that `end` also kills what the daemon has started.
        command.args(words).current_dir(root).process_group(0).stdin(Stdio::null());
        command.env("SLURM_CONF", super::conf::path(root));
        command.stdout(log.try_clone().expect("a second handle")).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child }
    }

    /// True while the daemon runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Kills the daemon and its process group.
    pub fn end(&mut self) {
        if self.runs() {
            let id = i32::try_from(self.child.id()).expect("process ids are small");
            // An error means that no process of the group is left.
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts munge, the daemon by which the cluster's daemons authenticate each other.
///
/// # Panics
/// The daemon does not start.
#[track_caller]
pub fn munge(root: &Path) -> Daemon {
    let mut key = [0; 1024];
    let random = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut key));
    random.expect("random bytes");
    let folder = root.join("munge");
    super::conf::write_secret(&folder.join("key"), &key);
    let word = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
    let words = [
        // Without this, munged refuses parent folders that others may write.
        "--force".to_owned(),
        "--foreground".to_owned(),
        word("key-file", "key"),
        word("socket", "sock"),
        word("pid-file", "pid"),
        word("log-file", "log"),
        word("seed-file", "seed"),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut daemon = Daemon::start(root, "munged", &words);
    until("munge's socket", || {
        assert!(daemon.runs(), "munged ended; its log is `{}`", folder.join("log").display());
        folder.join("sock").exists().then_some(())
    });
    daemon
}

/// Kills the job steps of nodes, with all processes of their sessions, and waits for their end. A
/// step leaves the process group of its node's daemon, but everything that it starts stays in its
/// session. A step is recognized by the node's log file, which it keeps open; its environment
/// cannot tell, because the step's title overwrites it.
pub fn kill_steps(root: &Path, nodes: &[&str]) {
    let logs: Vec<PathBuf> = nodes.iter().map(|node| super::conf::log(root, node)).collect();
    until("the end of the nodes' steps", || {
        let steps: Vec<i32> = processes().into_iter().filter(|id| is_step(*id, &logs)).collect();
        let sessions: Vec<Pid> = steps.iter().filter_map(|id| session(*id)).collect();
        for id in processes() {
            if session(id).is_some_and(|of| sessions.contains(&of)) {
                // The process may have ended since it was listed.
                let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
            }
        }
        steps.is_empty().then_some(())
    });
}

/// True if the process is a job step of one of the nodes whose log files are `logs`.
fn is_step(id: i32, logs: &[PathBuf]) -> bool {
    let named = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let open = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let mut open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    let program = named.split(|byte| b": \0".contains(byte)).next().unwrap_or_default();
    program.ends_with(b"slurmstepd") && open.any(|file| logs.contains(&file))
}

/// Session of a running process; `None` if it is this test's own session.
fn session(id: i32) -> Option<Pid> {
    let of = getsid(Some(Pid::from_raw(id))).ok()?;
    (Some(of) != getsid(None).ok()).then_some(of)
}

/// Ids of all processes on this machine.
fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("a proc file system").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Programs of the list that are not installed.
pub fn missing<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    programs.iter().copied().filter(|name| system(name).is_none()).collect()
}
