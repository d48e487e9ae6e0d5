//! Messages to the user on standard error. Nothing else in the engine writes there.

use std::fmt;
use std::io::{self, Write};

/// Writes one line to standard error in a single call. Errors are ignored: the program that waited
/// for `ready` may have closed the pipe since, where `eprintln` would panic.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
