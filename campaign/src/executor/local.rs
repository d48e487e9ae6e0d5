//! Local executor: runs each job on this machine as a process group of its own, which survives its
//! controller and is found again by the job's key. Knows processes; nothing of what a job does.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::{Executor, Handle, JobEnd, JobSpec, JobState, LOCAL};
use crate::files::{FileError, make_dir, read_text, write_whole};
use crate::places::CampaignPlaces;
use crate::process::ProcessError;
use crate::stop::{Stop, environment, wrong_use};

/// Line that a job reads on standard input before it begins. It is sent once the job's process id
/// is on disk.
pub const GO: &str = "go";
/// Environment variable that marks every process of a job with the job's key.
const MARK: &str = "REDLINE_JOB";

/// Time that a job has to end after SIGTERM before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(20);

/// A process, identified by id and start time, so that a later process with the same id is not
/// mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    /// Start time of the process in clock ticks since boot; with the process id it is unique.
    start_ticks: u64,
}

impl Process {
    /// Returns the running process with id `pid`; `None` if there is none or it is a zombie.
    fn of(pid: i32) -> Option<Self> {
        let stat = procfs::process::Process::new(pid).ok()?.stat().ok()?;
        // A zombie has ended; it only waits for its parent to read the exit status.
        (stat.state != 'Z').then_some(Self { pid, start_ticks: stat.starttime })
    }

    fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// Local executor, with the path of the folder that contains a folder for each job, named by the
/// job's key.
#[derive(Debug)]
pub struct Local {
    jobs: PathBuf,
}

impl Local {
    pub fn new(jobs: &Path) -> Self {
        Self { jobs: jobs.to_owned() }
    }

    fn dir(&self, key: &str) -> PathBuf {
        self.jobs.join(key)
    }
}

impl Executor for Local {
    fn name(&self) -> &'static str {
        LOCAL
    }

    fn is_here(&self) -> bool {
        true
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// Returns an error while a job of another campaign of the clone runs on this machine, because
    /// the jobs would share the cores.
    fn preflight(&self) -> Result<(), Stop> {
        let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
        // The folder of jobs is `campaigns/ID/jobs`.
        let campaigns = self.jobs.ancestors().nth(2).unwrap_or(Path::new("."));
        let others = below(campaigns).map(|entry| entry.path().join("jobs"));
        for jobs in others.filter(|jobs| *jobs != self.jobs) {
            for job in below(&jobs) {
                let text = fs::read_to_string(process_file(&job.path())).unwrap_or_default();
                let Some(process) = read_process(&text).filter(|found| found.is_alive()) else {
                    continue;
                };
                let (key, pid) = (job.file_name(), process.pid);
                return Err(environment!("job `{}` still runs (process {pid})", key.display())
                    .with_hint(format!(
                        "`--resume` continues its campaign; `kill {pid}` ends it"
                    )));
            }
        }
        Ok(())
    }

    /// Starts the job's process. The process waits for the line [`GO`], which is sent once its id
    /// is on disk, and exits if the line never comes: otherwise a crash in between could leave a
    /// process that nobody finds again.
    fn submit(&self, job: &JobSpec) -> Result<Handle, Stop> {
        make_dir(&job.dir)?;
        let log = CampaignPlaces::at(&job.dir).node_log();
        let open = File::options().create(true).append(true).open(&log);
        let out = open.map_err(FileError::at("write", &log))?;
        let err = out.try_clone().map_err(FileError::at("write", &log))?;
        let (program, args) = job
            .argv
            .split_first()
            .ok_or_else(|| wrong_use!("job `{}` names no program", job.key))?;
        let mut command = Command::new(program);
        command.args(args).arg("--when-told").envs(&job.env).env(MARK, &job.key);
        command.stdin(Stdio::piped()).stdout(out).stderr(err).process_group(0);
        let start = |source| ProcessError::Start { program: program.clone(), source };
        let mut child = command.spawn().map_err(start)?;
        let process = Process::of(child.id().cast_signed())
            .ok_or_else(|| environment!("job `{}` ended as it was started", job.key))?;
        let text = format!("{} {}", process.pid, process.start_ticks);
        write_whole(&process_file(&job.dir), text.as_bytes())?;
        if let Some(mut stdin) = child.stdin.take() {
            // A process that has ended meanwhile is noticed by the next poll.
            let _ = writeln!(stdin, "{GO}");
        }
        // Waits for the child in a thread, since a child that is never waited for stays a zombie.
        thread::spawn(move || child.wait());
        Ok(Handle(format!("{} {text}", job.key)))
    }

    fn find(&self, key: &str) -> Result<Option<Handle>, Stop> {
        let path = process_file(&self.dir(key));
        if !path.is_file() {
            return Ok(None);
        }
        Ok(Some(Handle(format!("{key} {}", read_text(&path)?.trim()))))
    }

    fn poll(&self, handle: &Handle) -> Result<JobState, Stop> {
        let (key, process) = parse(handle)?;
        if process.is_alive() {
            return Ok(JobState::Running { node: "this machine".to_owned() });
        }
        // The node writes `DONE` before its process ends, so its presence proves success.
        let end = match CampaignPlaces::at(&self.dir(key)).done().is_file() {
            true => JobEnd::Well,
            false => {
                sweep(key);
                JobEnd::LostNode { said: "its process is gone".to_owned() }
            }
        };
        Ok(JobState::Ended { end, node: None })
    }

    fn cancel(&self, handle: &Handle) -> Result<(), Stop> {
        let (_, process) = parse(handle)?;
        if process.is_alive() {
            let group = Pid::from_raw(process.pid);
            // A group that is gone already needs no signal.
            let _ = killpg(group, Signal::SIGTERM);
            // The job first ends the servers it started, which may take as long as they drain.
            thread::spawn(move || {
                thread::sleep(GRACE);
                if process.is_alive() {
                    let _ = killpg(group, Signal::SIGKILL);
                }
            });
        }
        Ok(())
    }
}

/// Kills the processes that a vanished job left running. They are found by the job's mark in their
/// environment, because they have process groups of their own.
fn sweep(key: &str) {
    let marked = |process: &procfs::process::Process| {
        let environment = process.environ().unwrap_or_default();
        environment.get(OsStr::new(MARK)).is_some_and(|mark| mark == key)
    };
    let all = procfs::process::all_processes().into_iter().flatten().flatten();
    // This process may itself have been started by a job, whose mark it then inherits.
    for process in all.filter(|process| Pid::from_raw(process.pid) != Pid::this()).filter(marked) {
        // A process that is gone already needs no signal.
        let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
    }
}

fn process_file(dir: &Path) -> PathBuf {
    dir.join("process")
}

/// Parses the handle of a local job, `KEY PID TICKS`: key, process id and start time in clock
/// ticks.
fn parse(handle: &Handle) -> Result<(&str, Process), Stop> {
    let split = handle.0.split_once(' ');
    match split.and_then(|(key, text)| Some((key, read_process(text)?))) {
        Some(read) => Ok(read),
        None => Err(wrong_use!("`{}` is no process of this machine", handle.0)),
    }
}

/// Parses `PID TICKS` (process id and start time) from a job's process file.
fn read_process(text: &str) -> Option<Process> {
    let (pid, start_ticks) = text.trim().split_once(' ')?;
    Some(Process { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
}
