//! Programs of GPU drivers, such as `nvidia-smi`, which answer questions about the machine's GPUs.

use std::process::Command;

use crate::process::{self, Interrupt, ProcessError};

/// Function that runs a program with some words and returns its output.
pub type Ask<'a> = &'a dyn Fn(&str, &[&str]) -> Result<String, ProcessError>;

/// Runs a driver's program and returns its output.
///
/// # Errors
/// The program cannot be started, as without a driver, or fails, as for a question that it does not
/// know; or the wait was interrupted.
pub fn ask(program: &str, words: &[&str], interrupt: &Interrupt) -> Result<String, ProcessError> {
    process::text(Command::new(program).args(words), interrupt)
}
