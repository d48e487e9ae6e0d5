//! The exit codes of every command of the suite.

/// Why a command ended. `101` is left to a panic, which is a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// All well.
    Well = 0,
    /// The answer is "worse": a regression, a new failure, an INVALID run.
    Worse = 1,
    /// Wrong use, or unsound data.
    Unsound = 2,
    /// Nothing but inconclusive verdicts.
    Inconclusive = 3,
    /// The environment: no GPU, port taken, model missing, disk full, interrupted.
    Environment = 4,
}

impl Exit {
    /// The number that the process ends with.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}
