//! Lines for whoever started the process. The one place that writes to standard error.

use std::fmt;
use std::io::{self, Write};

/// Writes a line on standard error, in one piece. Whoever waited for `ready` may have stopped
/// reading since; that is no reason to end, as it would be for `eprintln`.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
