//! Programs pinned to a core, and the processor time and memory that they take.

use std::fs;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use campaign::node::server::status_bytes;
use campaign::process::{Group, Interrupt, ProcessError, children_us};
use campaign::stop::Stop;

/// Interval at which a running client is polled.
const POLL: Duration = Duration::from_millis(20);
/// Time after which a client counts as hung.
const LIMIT: Duration = Duration::from_secs(180);

/// Resources that a finished program has used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// User and system time in microseconds, including the program's children.
    pub cpu_us: f64,
    pub wall_s: f64,
    /// Peak memory of the program's first process, in bytes.
    pub peak_bytes: Option<u64>,
}

/// Starts `command` pinned to `core`. This process moves to the core for the moment of the start,
/// because a child inherits its parent's cores.
///
/// # Errors
/// The machine has no such core, or the program cannot be started.
pub fn start_on(core: usize, command: &mut Command) -> Result<Group, Stop> {
    let this = Pid::from_raw(0);
    let refused = |what: &str| {
        let message = format!("the system refuses to {what} core {core}");
        Stop::environment(message).with_hint("give cores that this machine has")
    };
    let before = sched_getaffinity(this).map_err(|_| refused("report"))?;
    let mut only = CpuSet::new();
    only.set(core).and_then(|()| sched_setaffinity(this, &only)).map_err(|_| refused("run on"))?;
    let started = Group::start(command);
    sched_setaffinity(this, &before).map_err(|_| refused("leave"))?;
    Ok(started?)
}

/// Runs `command` on `core` to its end; returns its status and cost.
///
/// # Errors
/// It cannot be started, takes too long, or the wait was interrupted.
pub fn run_on(
    core: usize,
    command: &mut Command,
    interrupt: &Interrupt,
) -> Result<(ExitStatus, Cost), Stop> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (before_us, started) = (children_us()?, interrupt.elapsed());
    let mut group = start_on(core, command)?;
    let status_file = format!("/proc/{}/status", group.id());
    let mut peak_bytes = None;
    let status = loop {
        if let Some(status) = group.poll()? {
            break status;
        }
        let seen = fs::read_to_string(&status_file).ok();
        // `VmHWM` is a maximum, so the last poll before the end is accurate enough.
        peak_bytes = seen.and_then(|text| status_bytes(&text, "VmHWM")).or(peak_bytes);
        interrupt.check()?;
        if interrupt.elapsed() > started + LIMIT {
            return Err(Stop::environment(format!("`{name}` has not ended in {LIMIT:?}")));
        }
        interrupt.sleep(POLL);
    };
    let wall_s = (interrupt.elapsed() - started).as_secs_f64();
    Ok((status, Cost { cpu_us: children_us()? - before_us, wall_s, peak_bytes }))
}

/// Polls `found` until it returns a value.
///
/// # Errors
/// It returns none within five seconds, or the wait was interrupted.
pub fn wait_for<T>(
    what: &str,
    interrupt: &Interrupt,
    mut found: impl FnMut() -> Option<T>,
) -> Result<T, Stop> {
    let deadline = interrupt.elapsed() + Duration::from_secs(5);
    loop {
        if let Some(found) = found() {
            return Ok(found);
        }
        interrupt.check().map_err(|error: ProcessError| Stop::from(error))?;
        if interrupt.elapsed() > deadline {
            return Err(Stop::environment(format!("{what} within 5 s")));
        }
        interrupt.sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use campaign::environment::SystemClock;

    #[test]
    fn a_program_on_its_core_is_charged_for_what_it_did_and_its_parent_is_left_where_it_was() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 3"]);
        let (status, cost) = run_on(0, &mut shell, &Interrupt::new(&SystemClock::start())).unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(cost.cpu_us > 0.0 && cost.wall_s > 0.0, "{cost:?}");
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), before);
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let refused = start_on(1000, &mut Command::new("true")).unwrap_err();
        assert!(refused.to_string().contains("core 1000"), "{refused}");
    }
}
