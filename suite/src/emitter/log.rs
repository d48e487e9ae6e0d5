//! The emitter's log: when it truly read and wrote, as JSON lines, so that a client's times are
//! judged against what happened and not against what was planned.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// One line. Times are nanoseconds of the machine's monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Position of the request among those that are no routes.
    pub request: u64,
    /// What it is about.
    pub event: Logged,
    /// When it happened.
    pub at_ns: u64,
    /// When the script wanted it.
    pub planned_ns: u64,
}

/// What the emitter saw or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Logged {
    /// The whole request was read.
    Received,
    /// The response's head is written.
    Head,
    /// The n-th event of the script is written.
    Written(u64),
    /// The client is gone.
    Gone,
}

/// Where lines go; shared by all connections.
#[derive(Debug)]
pub struct Log<W>(Mutex<W>);

impl<W: Write> Log<W> {
    /// Lines go to `output`, one at a time.
    pub fn new(output: W) -> Self {
        Self(Mutex::new(output))
    }

    /// Writes one line. A log that cannot be written must not change what the emitter does.
    pub fn line(&self, line: &Line) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = output.write_all(&text).and_then(|()| output.flush());
    }
}
