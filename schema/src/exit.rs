//! Exit codes that every program of the suite uses.

/// Exit code of a program. Code 101 is a panic, that is, a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Exit code 0: the command succeeded.
    Well = 0,
    /// Exit code 1: the command worked, and what it measured or checked is not as it should be,
    /// such as a regression, a new failure, or a run that failed or is INVALID.
    Worse = 1,
    /// Exit code 2: wrong usage, or invalid data.
    Unsound = 2,
    /// Exit code 3: there is no conclusion, such as where a regression was neither found nor
    /// excluded.
    Inconclusive = 3,
    /// Exit code 4: the environment failed, such as no GPU, port taken, model missing, disk full or
    /// an interruption.
    Environment = 4,
}

impl Exit {
    /// Returns the exit code as the number that the process ends with.
    pub fn code(self) -> u8 {
        self as u8
    }
}
