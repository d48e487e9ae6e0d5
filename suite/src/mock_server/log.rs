//! Log of the scripted mock server: when it really read and wrote, as JSON lines, so that a
//! client's times are compared with what happened and not with what was planned.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Line of the log. Times are nanoseconds of the machine's monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Number of the request, from 0, not counting requests to fixed routes.
    pub request: u64,
    /// Event that the line reports.
    pub event: Logged,
    /// Time of the event, in nanoseconds.
    pub at_ns: u64,
    /// Time at which the script planned the event, in nanoseconds.
    pub planned_ns: u64,
}

/// Event that the mock server logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Logged {
    /// The whole request was read.
    Received,
    /// The response's head was written.
    Head,
    /// The event with this index in the script was written.
    Written(u64),
    /// The client disconnected before the answer ended.
    Gone,
}

/// Writer of the log, shared by all connections.
#[derive(Debug)]
pub struct Log<W>(Mutex<W>);

impl<W: Write> Log<W> {
    /// Creates a log that writes lines to `output`.
    pub fn new(output: W) -> Self {
        Self(Mutex::new(output))
    }

    /// Writes one line. An error is ignored: logging must not change what the mock server does.
    pub fn line(&self, line: &Line) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = output.write_all(&text).and_then(|()| output.flush());
    }
}
