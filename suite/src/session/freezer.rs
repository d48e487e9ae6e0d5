//! Freezer of a server on this machine: while another server is measured, all processes of this one
//! are stopped, so that it takes no CPU time.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use procfs::process::{Process, all_processes};

use crate::clock::{monotonic_ns, sleep_until};

/// Time within which the processes of a server must have stopped, in nanoseconds.
const STOPPED_LIMIT_NS: u64 = 5_000_000_000;
/// Time between two looks at whether they have, in nanoseconds.
const POLL_NS: u64 = 100_000;

/// Processes of a server that can be frozen and thawed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freezer {
    /// Process group, frozen with `SIGSTOP` and thawed with `SIGCONT`.
    Group(Pid),
    /// Folder of a cgroup (version 2), frozen by its file `cgroup.freeze`; a container's processes
    /// are in one.
    Cgroup(PathBuf),
}

impl FromStr for Freezer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("group", id)) => match id.parse() {
                // 0 and 1 would mean this program's own group, and every process.
                Ok(id) if id > 1 => Ok(Self::Group(Pid::from_raw(id))),
                _ => Err("no id of a process group".to_owned()),
            },
            Some(("cgroup", folder)) => Ok(Self::Cgroup(PathBuf::from(folder))),
            _ => Err("neither `group:ID` nor `cgroup:FOLDER`".to_owned()),
        }
    }
}

impl Freezer {
    /// Stops all processes, and returns once they have stopped.
    ///
    /// # Errors
    /// The processes are gone or belong to somebody else, or one still runs after five seconds.
    pub fn freeze(&self) -> io::Result<()> {
        match self {
            Self::Group(group) => killpg(*group, Signal::SIGSTOP)?,
            Self::Cgroup(folder) => fs::write(folder.join("cgroup.freeze"), "1")?,
        }
        let limit_ns = monotonic_ns() + STOPPED_LIMIT_NS;
        while !self.is_frozen()? {
            if monotonic_ns() > limit_ns {
                return Err(io::Error::new(ErrorKind::TimedOut, "a process does not stop"));
            }
            sleep_until(monotonic_ns() + POLL_NS);
        }
        Ok(())
    }

    /// Lets the processes go on; it is no error if they already run.
    ///
    /// # Errors
    /// The processes are gone or belong to somebody else.
    pub fn thaw(&self) -> io::Result<()> {
        match self {
            Self::Group(group) => Ok(killpg(*group, Signal::SIGCONT)?),
            Self::Cgroup(folder) => fs::write(folder.join("cgroup.freeze"), "0"),
        }
    }

    /// Returns the CPU time that the processes have used so far, summed over their threads; `None`
    /// where the kernel does not report it.
    pub fn cpu_time(&self) -> Option<Duration> {
        match self {
            Self::Group(group) => {
                let mut sum_ns = 0;
                for process in members(*group).ok()? {
                    for task in process.tasks().ok()? {
                        sum_ns += task.ok()?.schedstat().ok()?.sum_exec_runtime;
                    }
                }
                Some(Duration::from_nanos(sum_ns))
            }
            Self::Cgroup(folder) => {
                value_of(&folder.join("cpu.stat"), "usage_usec").ok()?.map(Duration::from_micros)
            }
        }
    }

    fn is_frozen(&self) -> io::Result<bool> {
        match self {
            Self::Group(group) => Ok(members(*group)?.iter().all(is_stopped)),
            Self::Cgroup(folder) => {
                Ok(value_of(&folder.join("cgroup.events"), "frozen")? == Some(1))
            }
        }
    }
}

/// True where no thread of the process runs; one that ended meanwhile does not run either.
fn is_stopped(process: &Process) -> bool {
    let stopped = |state: char| ['T', 't', 'Z', 'X'].contains(&state);
    let threads = process.tasks().into_iter().flatten().filter_map(Result::ok);
    threads.filter_map(|thread| thread.stat().ok()).all(|stat| stopped(stat.state))
}

/// Returns the processes of a process group.
fn members(group: Pid) -> io::Result<Vec<Process>> {
    let all = all_processes().map_err(io::Error::other)?;
    let of_group = |process: &Process| process.stat().is_ok_and(|stat| stat.pgrp == group.as_raw());
    Ok(all.filter_map(Result::ok).filter(of_group).collect())
}

/// Returns the number that follows `key` in a file of lines with a key and a number each; `None`
/// without such a line.
fn value_of(file: &Path, key: &str) -> io::Result<Option<u64>> {
    let text = fs::read_to_string(file)?;
    let value = |line: &str| line.strip_prefix(key)?.trim().parse().ok();
    Ok(text.lines().find_map(value))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;
    use std::thread::sleep;

    use super::*;

    #[test]
    fn a_frozen_group_uses_no_cpu_time_and_a_thawed_one_does() {
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .process_group(0)
            .spawn()
            .expect("a shell");
        let freezer: Freezer = format!("group:{}", busy.id()).parse().unwrap();
        sleep(Duration::from_millis(50));
        freezer.freeze().unwrap();
        let before = freezer.cpu_time().unwrap();
        assert!(before > Duration::ZERO);
        sleep(Duration::from_millis(50));
        assert_eq!(freezer.cpu_time().unwrap(), before);
        freezer.thaw().unwrap();
        sleep(Duration::from_millis(50));
        assert!(freezer.cpu_time().unwrap() > before);
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(freezer.freeze().is_err(), "nobody is left to be frozen");
    }

    #[test]
    fn a_cgroup_is_frozen_through_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let freezer: Freezer = format!("cgroup:{}", folder.path().display()).parse().unwrap();
        fs::write(folder.path().join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        fs::write(folder.path().join("cpu.stat"), "usage_usec 1234\nuser_usec 1000\n").unwrap();
        freezer.freeze().unwrap();
        let written = || fs::read_to_string(folder.path().join("cgroup.freeze")).unwrap();
        assert_eq!(written(), "1");
        assert_eq!(freezer.cpu_time(), Some(Duration::from_micros(1234)));
        freezer.thaw().unwrap();
        assert_eq!(written(), "0");
    }

    #[test]
    fn what_cannot_be_frozen_is_refused() {
        for text in ["", "group:0", "group:1", "group:-5", "group:x", "17"] {
            assert!(text.parse::<Freezer>().is_err(), "{text}");
        }
    }
}
