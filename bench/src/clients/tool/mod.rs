//! The compared clients, behind one interface: command line, accepted exit codes, and reported
//! times.

mod aiperf;
mod floor;
mod redline;
mod sglang;

use std::process::Command;

use clap::ValueEnum;
use serde_json::Value;

use crate::clients::load::{Load, Spread};
use crate::clients::testbed::Testbed;
use campaign::files::read_text;
use campaign::stop::Stop;

pub use redline::stamp_errors_ns;

/// A load generator in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tool {
    /// Redline's load generator `redline-bench`.
    Redline,
    /// The Rust client in SGLang's wheel.
    #[value(name = "sglang-bench")]
    Sglang,
    Aiperf,
    /// The raw-socket client `redline-floor`, which does the least possible work.
    Floor,
}

/// Times and verdict that a client reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reported {
    pub ttft: Spread,
    pub gaps: Spread,
    /// Lag of the sent requests behind their schedule, as the client reports it.
    pub lag: Spread,
    /// Verdict of a client that judges itself: `valid`, `degraded` or `invalid`.
    pub verdict: Option<String>,
    /// Reasons for the verdict, in the client's words.
    pub reasons: Vec<String>,
}

impl Tool {
    pub const ALL: [Self; 4] = [Self::Redline, Self::Sglang, Self::Aiperf, Self::Floor];

    pub fn id(self) -> &'static str {
        match self {
            Self::Redline => "redline-bench",
            Self::Sglang => "sglang-bench",
            Self::Aiperf => "aiperf",
            Self::Floor => "floor",
        }
    }

    /// Returns the command line that sends `load` to `address`.
    ///
    /// # Errors
    /// The client is not installed, or an input file cannot be written.
    pub fn command(
        self,
        testbed: &Testbed<'_>,
        load: &Load,
        address: &str,
    ) -> Result<Command, Stop> {
        match self {
            Self::Redline => redline::command(testbed, load, address),
            Self::Sglang => sglang::command(testbed, load, address),
            Self::Aiperf => aiperf::command(testbed, load, address),
            Self::Floor => Ok(floor::command(testbed, load, address)),
        }
    }

    /// True for an exit code with which the client still leaves results: `redline-bench` ends with
    /// 1 when it judges its run invalid.
    pub fn may_end_with(self, code: Option<i32>) -> bool {
        code == Some(0) || (self == Self::Redline && code == Some(1))
    }

    /// True when the client reads no answers under this load.
    pub fn only_sends(self, load: &Load) -> bool {
        self == Self::Floor && load.requests_per_s.is_some()
    }

    /// Reads the client's result file.
    ///
    /// # Errors
    /// The file is missing or has another form; the error is a phrase for a message.
    pub fn read(self, testbed: &Testbed<'_>, load: &Load) -> Result<Reported, String> {
        match self {
            Self::Redline => redline::read(testbed, load),
            Self::Sglang => sglang::read(testbed),
            Self::Aiperf => aiperf::read(testbed),
            Self::Floor => floor::read(testbed),
        }
    }
}

/// Reads a JSON document that a client has written.
fn document(testbed: &Testbed<'_>, name: &str) -> Result<Value, String> {
    let text = read_text(&testbed.path(name)).map_err(|_| format!("left no `{name}`"))?;
    serde_json::from_str(&text).map_err(|error| format!("left a `{name}` of another form: {error}"))
}

/// Reads mean, deviation and p99 at `pointers` of a document; multiplied by `per_us` they are in
/// microseconds.
fn spread(document: &Value, pointers: [&str; 3], per_us: f64) -> Spread {
    let [mean_us, std_us, p99_us] =
        pointers.map(|pointer| Some(document.pointer(pointer)?.as_f64()? * per_us));
    Spread { mean_us, std_us, p99_us }
}
