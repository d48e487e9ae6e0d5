//! Faults: what may fail at a step of a simulated process, drawn from a seed.

use std::io::ErrorKind;

use schema::random::SplitMix64;

/// Random numbers of a seed.
#[derive(Debug, Clone)]
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.draw() % end
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What happens at a step of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process is killed.
    Killed,
    /// The machine loses its power.
    PowerLost,
    /// The user or the scheduler interrupts the process.
    Interrupted,
    /// So many changes of the file system are refused with this error.
    Refused { kind: ErrorKind, changes: u32 },
    /// A program is killed, or ends with the exit code of a failed environment.
    Program,
    /// The scheduler leaves so many calls unanswered.
    Silent { calls: u32 },
    /// The wall clock is set by so many seconds.
    Jump { seconds: i64 },
}

impl Fault {
    /// Draws a fault of the controller.
    pub fn draw(random: &mut Random) -> Self {
        match random.below(12) {
            0..=2 => Self::Killed,
            3..=5 => Self::PowerLost,
            6 => Self::Interrupted,
            7 | 8 => Self::refused(random),
            9 => Self::Program,
            10 => Self::Silent { calls: u32::try_from(1 + random.below(14)).unwrap() },
            _ => Self::Jump { seconds: i64::try_from(random.below(14_400)).unwrap() - 7_200 },
        }
    }

    /// Draws a refusal: a disk that is full for a while, or an error of the device.
    pub fn refused(random: &mut Random) -> Self {
        match random.below(3) {
            0 => Self::Refused { kind: ErrorKind::Other, changes: 1 },
            _ => {
                let changes = u32::try_from(1 + random.below(30)).unwrap();
                Self::Refused { kind: ErrorKind::StorageFull, changes }
            }
        }
    }

    /// True for a fault that can happen at this kind of step.
    pub fn is_of(self, step: Step) -> bool {
        match self {
            Self::Killed | Self::PowerLost | Self::Interrupted | Self::Jump { .. } => true,
            Self::Refused { .. } => step == Step::Change,
            Self::Program => step == Step::Program,
            Self::Silent { .. } => step == Step::Call,
        }
    }
}

/// Kind of a step at which a fault may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A change of the file system.
    Change,
    /// The run of a program.
    Program,
    /// A call of the scheduler.
    Call,
}
