//! Redline's engine: an OpenAI-compatible server for large language models.
//!
//! Read in this order: `worker` is the engine loop, which schedules steps and runs them on the
//! model; `http` talks to clients; `tokenize` turns text into tokens and back; `serve` starts a
//! server. Only `http` knows the wire format.

#![warn(missing_docs)]

pub mod bench;
mod capacity;
pub mod chat;
mod chat_template;
pub mod cli;
pub mod config;
#[cfg(test)]
#[expect(dead_code, reason = "groups of GPUs are for the tests of models")]
#[path = "../cuda/emulated/mod.rs"]
mod emulated;
pub mod guide;
pub mod http;
mod keys;
pub mod load;
pub mod log;
pub mod logprobs;
mod memory;
pub mod metrics;
pub mod perplexity;
pub mod serve;
pub mod server;
#[cfg(test)]
#[path = "../weights/tests/tiny_gguf/mod.rs"]
mod tiny_gguf;
pub mod tokenize;
pub mod tools;
pub mod worker;

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::LazyLock;

pub use log::{log, log_error};

/// Commit that this binary was built from, if the environment variable `REDLINE_COMMIT` named it
/// during the build; else `None`.
pub const COMMIT: Option<&str> = option_env!("REDLINE_COMMIT");

/// Returns version and commit of this binary, as `--version` prints them.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        format!("{} ({})", env!("CARGO_PKG_VERSION"), COMMIT.unwrap_or("unknown commit"))
    });
    &VERSION
}

/// Error: a failure of the environment, such as a missing GPU or a taken port. A command that ends
/// with it has exit code 4.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EnvironmentError(pub String);

/// Returns `text`, or its first `characters` characters and an ellipsis if it is longer.
fn shortened(text: &str, characters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(characters) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// Writes `text` to standard output and returns the exit code of the program: success also where the
/// reader closed the pipe, because it has all that it wants, and 4, with a message, where standard
/// output cannot be written, as on a full device.
pub fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            log_error(&format!("cannot write to standard output: {error}"));
            ExitCode::from(4)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Escapes the control characters of a text, which a checkpoint or a model may have written, so that
/// a terminal does not act on them. Line feeds and tabs stay.
fn harmless(text: &str) -> String {
    escaped(text, |c| !matches!(c, '\n' | '\t') && is_active(c))
}

/// Escapes a message in which a checkpoint, a request or an argument may be quoted as one line: what
/// is quoted can neither control a terminal nor pass for a line of its own.
pub fn one_line(text: &str) -> String {
    escaped(text, is_active)
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_escaped(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Returns true for a control character, a line break of Unicode, and a character that changes the
/// order in which a line is shown.
const fn is_active(character: char) -> bool {
    matches!(character,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
