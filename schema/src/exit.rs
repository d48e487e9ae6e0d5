//! Exit codes that every program of the suite uses.

/// Exit code of a program. Code 101 is a panic, that is, a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// The command succeeded.
    Well = 0,
    /// The answer is negative: a regression, a new failure or an INVALID run.
    Worse = 1,
    /// Wrong usage, or invalid data.
    Unsound = 2,
    /// No decision: no regression was found, but the data do not suffice to exclude one.
    Inconclusive = 3,
    /// Environment failure: no GPU, port taken, model missing, disk full, interrupted.
    Environment = 4,
}

impl Exit {
    /// Returns the exit code as the number that the process ends with.
    pub fn code(self) -> u8 {
        self as u8
    }
}
