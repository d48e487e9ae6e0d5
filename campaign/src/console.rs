//! Console output: step headings with the time since the start, and notes, on standard error. The
//! result of a command (plan, table, paths) goes to standard output. Text of servers, files and
//! programs is part of all of them: what would act on a terminal is written as escapes.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use schema::untrusted::{lines, one_line};
use whole_file::PrintError;

/// Terminal sequence that returns to the beginning of the line and clears it.
const CLEAR: &str = "\r\x1b[K";
/// Number of characters to which a longer progress line is cut, so that it fits into any terminal.
const PASSING_CHARS: usize = 69;

/// Writer of a command's headings and notes to standard error, and of its results to standard
/// output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Console {
    quiet: bool,
    followed: bool,
}

impl Console {
    /// Returns a console that writes nothing, for tests.
    pub fn silent() -> Self {
        Self { quiet: true, followed: false }
    }

    /// Returns true when headings are written and standard error is a terminal.
    pub fn is_live(&self) -> bool {
        !self.quiet && stderr().is_terminal()
    }

    /// Returns a console for the program that runs a job on a node: where standard error is no
    /// terminal, load generators print their progress as plain lines to the job's log, whose last
    /// line the controller shows to the user.
    pub fn followed(self) -> Self {
        Self { followed: true, ..self }
    }

    /// Returns the value of the load generator's `--progress`: `auto` on a terminal, else `plain`
    /// for a job whose log the controller follows, else `none`.
    pub fn progress(&self) -> &'static str {
        match (self.is_live(), self.followed) {
            (true, _) => "auto",
            (false, true) => "plain",
            (false, false) => "none",
        }
    }

    /// Shows a progress line that the next line replaces. Does nothing if standard error is no
    /// terminal or the console is silent.
    pub fn passing(&self, text: &str) {
        if self.is_live() {
            // A line that wraps could not be cleared by the next one.
            let text: String = one_line(text.trim()).chars().take(PASSING_CHARS).collect();
            eprint!("{CLEAR}         {text}");
        }
    }

    fn clear(&self) {
        if self.is_live() {
            eprint!("{CLEAR}");
        }
    }

    /// Prints a heading with the elapsed time, such as `[  1:05] Build v0.9.2`.
    pub fn step(&self, elapsed: Duration, heading: &str) {
        self.clear();
        if !self.quiet {
            eprintln!("[{:>6}] {}", clock_text(elapsed), lines(heading));
        }
    }

    /// Prints a result on standard output.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn answer(&self, text: &str) -> Result<(), PrintError> {
        if self.quiet { Ok(()) } else { whole_file::print(&(lines(text) + "\n")) }
    }

    /// Prints a note below the last heading.
    pub fn note(&self, text: &str) {
        self.clear();
        if !self.quiet {
            eprintln!("         {}", lines(text));
        }
    }
}

/// Formats a duration as `0:05`, `12:40` or `1:02:03`.
pub fn clock_text(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Formats an expected duration in microseconds with few digits: `about 40 s`, `about 8 min`,
/// `about 2.5 h`.
pub fn about(us: u64) -> String {
    let seconds = us / 1_000_000;
    match seconds {
        0..=90 => format!("about {} s", seconds.max(1)),
        91..=5400 => format!("about {} min", (seconds + 30) / 60),
        _ => format!("about {}.{} h", seconds / 3600, seconds % 3600 / 360),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        for (seconds, clock, spoken) in [
            (0, "0:00", "about 1 s"),
            (65, "1:05", "about 65 s"),
            (540, "9:00", "about 9 min"),
            (9000, "2:30:00", "about 2.5 h"),
        ] {
            assert_eq!(clock_text(Duration::from_secs(seconds)), clock);
            assert_eq!(about(seconds * 1_000_000), spoken);
        }
    }
}
