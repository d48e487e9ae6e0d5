//! Kills a program at a change of the file system, whose number the test chooses: it traces the
//! system calls of the program's first thread.

use std::fs;
use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// System calls that change files or the names of files, or flush them.
const CHANGES: [i64; 20] = [
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rmdir,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_ftruncate,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
];

/// Result of a program that was to be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Killed {
    /// The program was killed at the entry of the chosen change, which it did not make.
    Killed,
    /// The program had fewer changes to make, and ended with this exit code after so many.
    Ended {
        /// Exit code of the program.
        code: i32,
        /// Number of changes that it made.
        changes: u32,
    },
}

/// Runs `command`, without output, and kills it where it begins its change number `end` of the file
/// system, counted from 1. Programs that it starts are neither traced nor killed.
///
/// # Panics
/// The program cannot be started or traced.
#[expect(clippy::zombie_processes, reason = "`waitpid` has waited for a program that ended")]
pub fn killed_at(command: &Command, end: u32) -> Killed {
    // A shell that waits and then becomes the program can be traced from its start.
    let mut shell = Command::new("sh");
    shell.args(["-c", "read go; exec \"$@\"", "sh"]).arg(command.get_program());
    shell.args(command.get_args()).stdin(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        shell.current_dir(dir);
    }
    let child = shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("a shell can be started");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("process ids are small"));
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_TRACEEXEC;
    ptrace::seize(pid, options).expect("a child can be traced");
    ptrace::interrupt(pid).expect("a child can be stopped");
    drop(child.stdin.take());
    let exe = format!("/proc/{pid}/exe");
    let program = fs::canonicalize(command.get_program()).expect("a path of a program");
    let (mut is_program, mut changes) = (false, 0);
    loop {
        match waitpid(pid, None).expect("a child can be waited for") {
            WaitStatus::Exited(_, code) => return Killed::Ended { code, changes },
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => {
                is_program = fs::read_link(&exe).is_ok_and(|path| path == program);
            }
            WaitStatus::PtraceSyscall(_) if is_program && is_change(pid) => {
                changes += 1;
                if changes == end {
                    child.kill().expect("a child can be killed");
                    child.wait().expect("a child can be waited for");
                    return Killed::Killed;
                }
            }
            _ => {}
        }
        ptrace::syscall(pid, None).expect("a stopped child goes on");
    }
}

/// Returns `count` of the numbers from 1 to `last`, spread evenly, or all if there are fewer.
pub fn spread(count: u32, last: u32) -> Vec<u32> {
    if last <= count {
        return (1..=last).collect();
    }
    (0..count).map(|number| 1 + number * (last - 1) / (count - 1)).collect()
}

/// True where a process stopped at the entry of a system call that changes the file system.
fn is_change(pid: Pid) -> bool {
    let registers = ptrace::getregs(pid).expect("a stopped child has registers");
    // The kernel's mark of an entry, as against an exit.
    if registers.rax.cast_signed() != -i64::from(libc::ENOSYS) {
        return false;
    }
    let creates = |flags: u64| flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0;
    match registers.orig_rax.cast_signed() {
        libc::SYS_open => creates(registers.rsi),
        libc::SYS_openat => creates(registers.rdx),
        // Output is no change of a file.
        libc::SYS_write | libc::SYS_writev => registers.rdi > 2,
        other => CHANGES.contains(&other),
    }
}
