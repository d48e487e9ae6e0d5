//! The log: lines on standard error, as text or, with `--log-format json`, as JSON objects with time,
//! level and message. The JSON log also has a line for each request.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use serde::Serialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::{is_active, one_line};
use engine_core::clock::Clock;

/// Clock of the JSON log; not set while the log is text.
static JSON: OnceLock<Clock> = OnceLock::new();

/// Writes the log as JSON from now on.
pub fn use_json(clock: Clock) {
    let _ = JSON.set(clock);
}

/// Returns true if the log is JSON.
pub fn is_json() -> bool {
    JSON.get().is_some()
}

/// Writes a message as one line. Errors are ignored: the program that waited for `ready` may have
/// closed the pipe since, where `eprintln` would panic.
pub fn log(message: fmt::Arguments<'_>) {
    match JSON.get() {
        None => write(&one_line(&message.to_string())),
        Some(clock) => write_json(*clock, "info", json!({"message": message.to_string()})),
    }
}

/// Writes each line of a text in which nobody else's words are quoted as a message.
pub fn log_lines(text: &str) {
    text.lines().for_each(|line| log(format_args!("{line}")));
}

/// Writes an error message; in a text log it begins with `error: `.
pub fn log_error(message: &str) {
    match JSON.get() {
        None => log(format_args!("error: {message}")),
        Some(clock) => write_json(*clock, "error", json!({"message": message})),
    }
}

/// Request whose answer has ended, as the JSON log has it.
#[derive(Debug, Default, Serialize)]
pub struct RequestLine {
    method: String,
    path: String,
    /// HTTP status; 0 if the client left before there was an answer.
    pub status: u16,
    /// Microseconds from the head of the request to the head of the answer.
    pub head_us: u64,
    /// Microseconds from the head of the request to the end of the answer.
    pub total_us: u64,
}

impl RequestLine {
    /// Begins the line of a request. Long paths are cut.
    pub fn new(method: &str, path: &str) -> Self {
        let cut = |text: &str| crate::shortened(text, 200).into_owned();
        Self { method: cut(method), path: cut(path), ..Self::default() }
    }
}

/// Writes a request into the JSON log.
pub fn request(line: &RequestLine) {
    if let Some(clock) = JSON.get() {
        write_json(*clock, "info", json!({"message": "request", "request": line}));
    }
}

fn write_json(clock: Clock, level: &str, mut line: Value) {
    let unix_ns = i128::from(clock.start_unix_ns()) + i128::from(clock.elapsed_us()) * 1000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(unix_ns).ok();
    line["time"] = time.and_then(|time| time.format(&Rfc3339).ok()).into();
    line["level"] = level.into();
    write(&escaped_json(&line.to_string()));
}

/// Escapes what a terminal acts on in the texts of a JSON document without white space; JSON itself
/// asks for the escapes of characters below U+0020 alone.
fn escaped_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for character in json.chars() {
        if is_active(character) {
            // None of them is beyond the 16 bits of one escape.
            safe += &format!("\\u{:04x}", u32::from(character));
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Writes a line in a single call.
fn write(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
