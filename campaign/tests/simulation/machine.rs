//! Simulated machine: counts the steps of the process that runs, lets a fault happen at one of them,
//! and keeps what the process's end leaves of its files. Production code announces its steps to the
//! machine of its thread.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::faults::{Fault, Random, Step};
use super::files::copy_tree;
use super::time::Time;
use super::unsynced::Unsynced;
use crate::disk::Change;
use crate::process::Interrupt;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
}

/// Returns the machine of this thread; `None` in tests that simulate none.
pub fn current() -> Option<Rc<Machine>> {
    CURRENT.with_borrow(Option::clone)
}

/// Makes `machine` that of this thread.
pub fn install(machine: Option<Rc<Machine>>) {
    CURRENT.set(machine);
}

/// Announces a change of the file system to the machine of this thread.
pub fn announce(change: Change<'_>) -> io::Result<()> {
    current().map_or(Ok(()), |machine| machine.change(change))
}

/// How a process was ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Killed,
    PowerLost,
}

/// What a process is begun with.
#[derive(Debug)]
pub struct Begin<'a> {
    /// Folder of all files that the process may change.
    pub dir: &'a Path,
    pub interrupt: Interrupt,
    /// Fault of the process, at the first fitting step from this one on.
    pub fault: Option<(u32, Fault)>,
    /// Changes of earlier processes that are not on the disk.
    pub unsynced: Unsynced,
}

/// A process that runs.
#[derive(Debug)]
struct Process {
    dir: PathBuf,
    interrupt: Interrupt,
    fault: Option<(u32, Fault)>,
    steps: u32,
    /// Error of the changes that are still refused, and their number.
    refused: Option<(io::ErrorKind, u32)>,
    /// Number of further calls to the job scheduler (Slurm) that it will not answer.
    silent: u32,
    /// End of the process, and the copy of its files at that time.
    end: Option<(End, PathBuf)>,
    unsynced: Unsynced,
}

/// What has become of a process.
#[derive(Debug)]
pub struct Ended {
    pub end: Option<End>,
    pub steps: u32,
    pub unsynced: Unsynced,
}

/// What a process learns at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepResult {
    /// The step is made.
    Go,
    /// The step fails; `is_done` tells if it has had its effect.
    Fails { is_done: bool },
    /// The process has ended, and whatever it does from here on is forgotten; `is_done` tells if
    /// the step is made before.
    Gone { is_done: bool },
}

#[derive(Debug)]
pub struct Machine {
    /// Folder for copies, outside of all folders of processes.
    aside: PathBuf,
    pub time: &'static Time,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Processes that run; the last one was begun by the one before it.
    processes: Vec<Process>,
    copies: u32,
    log: Vec<String>,
}

impl Machine {
    pub fn new(aside: &Path, time: &'static Time, random: Random) -> Self {
        let state = State { random, processes: Vec::new(), copies: 0, log: Vec::new() };
        Self { aside: aside.to_owned(), time, state: RefCell::new(state) }
    }

    /// Begins a process; until it ends, steps are its own.
    pub fn begin(&self, begin: Begin<'_>) {
        let Begin { dir, interrupt, fault, unsynced } = begin;
        self.say(|| format!("{} begins, fault {fault:?}", dir.display()));
        self.state.borrow_mut().processes.push(Process {
            dir: dir.to_owned(),
            interrupt,
            fault,
            steps: 0,
            refused: None,
            silent: 0,
            end: None,
            unsynced,
        });
    }

    /// Ends the process that was begun last. If it was killed, its files are those of that time.
    pub fn finish(&self) -> Ended {
        let process = self.state.borrow_mut().processes.pop().unwrap();
        let end = process.end.map(|(end, copy)| {
            // A process that was killed before it made its folder has neither.
            let _ = fs::remove_dir_all(&process.dir);
            if copy.exists() {
                fs::rename(copy, &process.dir).unwrap();
            }
            end
        });
        self.say(|| format!("it ends after {} steps: {end:?}", process.steps));
        let Process { steps, unsynced, .. } = process;
        Ended { end, steps, unsynced }
    }

    /// Adds changes that are not on the disk to those of the process that runs.
    pub fn add_unsynced(&self, unsynced: Unsynced) {
        if let Some(process) = self.state.borrow_mut().processes.last_mut() {
            process.unsynced.extend(unsynced);
        }
    }

    pub fn random<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.state.borrow_mut().random)
    }

    /// Adds a line to the log, which is printed when a seed fails.
    pub fn say(&self, text: impl FnOnce() -> String) {
        let at = self.time.steady();
        self.state.borrow_mut().log.push(format!("{at:>12.3?} {}", text()));
    }

    pub fn log(&self) -> String {
        self.state.borrow().log.join("\n")
    }

    fn change(&self, change: Change<'_>) -> io::Result<()> {
        if self.state.borrow().processes.is_empty() {
            return Ok(());
        }
        self.say(|| described(change));
        // A process that is killed in a write leaves a part of it.
        let told = self.step(Step::Change, &mut || self.state.borrow_mut().write_part(change));
        if told != StepResult::Go {
            return Err(io::Error::other("the process is gone"));
        }
        let state = &mut *self.state.borrow_mut();
        if let Some(kind) = state.refusal() {
            state.write_part(change);
            return Err(kind.into());
        }
        state.process().unsynced.note(change);
        Ok(())
    }

    /// Makes a step that runs a program with this effect.
    pub fn program(&self, name: &str, effect: &mut dyn FnMut()) -> StepResult {
        let told = self.step(Step::Program, effect);
        self.say(|| format!("program {name}: {told:?}"));
        if matches!(told, StepResult::Go | StepResult::Fails { is_done: true }) {
            effect();
        }
        told
    }

    /// Makes a step that calls the scheduler, with this effect.
    pub fn call(&self, what: &str, effect: &mut dyn FnMut()) -> StepResult {
        let mut told = self.step(Step::Call, effect);
        if told == StepResult::Go && self.state.borrow_mut().is_silent() {
            told = StepResult::Fails { is_done: self.random(|random| random.one_in(2)) };
        }
        self.say(|| format!("call {what}: {told:?}"));
        if matches!(told, StepResult::Go | StepResult::Fails { is_done: true }) {
            effect();
        }
        told
    }

    /// Counts a step and lets the fault of the process happen if it is due. A step at which the
    /// process ends has its effect `last` or has none; other steps leave it to the caller.
    fn step(&self, step: Step, last: &mut dyn FnMut()) -> StepResult {
        let is_done = self.random(|random| random.one_in(2));
        let fault = match self.state.borrow_mut().fault_at(step) {
            Err(Gone) => return StepResult::Gone { is_done: false },
            Ok(None) => return StepResult::Go,
            Ok(Some(fault)) => fault,
        };
        self.say(|| format!("FAULT {fault:?}"));
        let end = match fault {
            Fault::Killed => End::Killed,
            Fault::PowerLost => End::PowerLost,
            Fault::Jump { seconds } => {
                self.time.jump(seconds);
                return StepResult::Go;
            }
            Fault::Interrupted | Fault::Program if step == Step::Program => {
                return StepResult::Fails { is_done };
            }
            _ => return StepResult::Go,
        };
        if is_done {
            last();
        }
        self.state.borrow_mut().end(end, &self.aside);
        StepResult::Gone { is_done }
    }
}

/// Marks a process that has ended.
struct Gone;

impl State {
    fn process(&mut self) -> &mut Process {
        self.processes.last_mut().unwrap()
    }

    /// Counts a step and returns the fault that happens at it.
    fn fault_at(&mut self, step: Step) -> Result<Option<Fault>, Gone> {
        let Some(process) = self.processes.last_mut() else { return Ok(None) };
        if process.end.is_some() {
            return Err(Gone);
        }
        process.steps += 1;
        let due = process.fault.filter(|(at, fault)| process.steps >= *at && fault.is_of(step));
        let Some((_, fault)) = due else { return Ok(None) };
        process.fault = None;
        match fault {
            Fault::Interrupted => process.interrupt.flag().store(true, Ordering::Relaxed),
            Fault::Refused { kind, changes } => process.refused = Some((kind, changes)),
            Fault::Silent { calls } => process.silent = calls,
            Fault::Killed | Fault::PowerLost | Fault::Program | Fault::Jump { .. } => {}
        }
        Ok(Some(fault))
    }

    /// Counts a call that the scheduler leaves unanswered; false if it answers.
    fn is_silent(&mut self) -> bool {
        let Some(process) = self.processes.last_mut().filter(|process| process.silent > 0) else {
            return false;
        };
        process.silent -= 1;
        true
    }

    /// Returns the error of a change that is refused.
    fn refusal(&mut self) -> Option<io::ErrorKind> {
        let refused = &mut self.process().refused;
        let (kind, left) = (*refused)?;
        *refused = (left > 1).then_some((kind, left - 1));
        Some(kind)
    }

    /// Appends a part of the bytes of a write that fails.
    fn write_part(&mut self, change: Change<'_>) {
        let Change::Append(path, bytes) = change else { return };
        let part = self.random.below(bytes.len() as u64 + 1);
        self.process().unsynced.note(change);
        let part = &bytes[..usize::try_from(part).unwrap()];
        File::options().append(true).open(path).unwrap().write_all(part).unwrap();
    }

    /// Ends the process that runs: its files are kept as they are.
    fn end(&mut self, end: End, aside: &Path) {
        self.copies += 1;
        let copy = aside.join(self.copies.to_string());
        let process = self.process();
        copy_tree(&process.dir, &copy);
        process.end = Some((end, copy));
        // Loops that wait end sooner.
        process.interrupt.flag().store(true, Ordering::Relaxed);
    }
}

fn described(change: Change<'_>) -> String {
    let name = |path: &Path| {
        let parts: Vec<_> = path.components().rev().take(2).collect();
        parts.iter().rev().collect::<PathBuf>().display().to_string()
    };
    match change {
        Change::MakeDir(path) => format!("make {}", name(path)),
        Change::CreateTemp(dir) => format!("create a temporary file in {}", name(dir)),
        Change::Create(path) => format!("create {}", name(path)),
        Change::Append(path, bytes) => format!("append {} bytes to {}", bytes.len(), name(path)),
        Change::Cut(path, bytes) => format!("cut {} to {bytes} bytes", name(path)),
        Change::Sync(path) => format!("sync {}", name(path)),
        Change::Rename(from, to) => format!("rename {} to {}", name(from), name(to)),
        Change::Remove(path) => format!("remove {}", name(path)),
        Change::SyncDir(dir) => format!("sync folder {}", name(dir)),
    }
}
