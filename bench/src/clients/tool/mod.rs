//! The clients that are measured, each behind the same three questions: how it is called, how it
//! may end, and what it says came of it.

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

/// A client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tool {
    /// `redline-bench`.
    Redline,
    /// The Rust client in SGLang's wheel.
    #[value(name = "sglang-bench")]
    Sglang,
    Aiperf,
    /// `redline-floor`: raw sockets, the least that a client can do.
    Floor,
}

/// What a client says, as far as it does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reported {
    pub ttft: Spread,
    pub gaps: Spread,
    /// How late requests were sent, by its own account.
    pub lag: Spread,
    /// `valid`, `degraded` or `invalid`, of a client that judges itself.
    pub verdict: Option<String>,
    /// Why, in its words.
    pub reasons: Vec<String>,
}

impl Tool {
    pub const ALL: [Self; 4] = [Self::Redline, Self::Sglang, Self::Aiperf, Self::Floor];

    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Redline => "redline-bench",
            Self::Sglang => "sglang-bench",
            Self::Aiperf => "aiperf",
            Self::Floor => "floor",
        }
    }

    /// The command line that sends `load` to `address`.
    ///
    /// # Errors
    /// The tool is not there, or what it is given cannot be written.
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

    /// True for an exit code that still leaves figures: `redline-bench` answers 1 where it does not
    /// believe its run.
    #[must_use]
    pub fn may_end_with(self, code: Option<i32>) -> bool {
        code == Some(0) || (self == Self::Redline && code == Some(1))
    }

    /// True where it reads no answers.
    #[must_use]
    pub fn only_sends(self, load: &Load) -> bool {
        self == Self::Floor && load.requests_per_s.is_some()
    }

    /// Reads what it wrote.
    ///
    /// # Errors
    /// What it wrote cannot be read, in a sentence.
    pub fn read(self, testbed: &Testbed<'_>, load: &Load) -> Result<Reported, String> {
        match self {
            Self::Redline => redline::read(testbed, load),
            Self::Sglang => sglang::read(testbed),
            Self::Aiperf => aiperf::read(testbed),
            Self::Floor => floor::read(testbed),
        }
    }
}

/// A JSON document that a tool left.
fn document(testbed: &Testbed<'_>, name: &str) -> Result<Value, String> {
    let text = read_text(&testbed.path(name)).map_err(|_| format!("left no `{name}`"))?;
    serde_json::from_str(&text).map_err(|error| format!("left a `{name}` of another form: {error}"))
}

/// Figures at `pointers` (mean, deviation, p99) of a document that has them in units of
/// `1 / per_us` microseconds.
fn spread(document: &Value, pointers: [&str; 3], per_us: f64) -> Spread {
    let [mean_us, std_us, p99_us] =
        pointers.map(|pointer| Some(document.pointer(pointer)?.as_f64()? * per_us));
    Spread { mean_us, std_us, p99_us }
}
