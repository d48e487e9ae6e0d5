//! The compared clients, behind one interface: command line, accepted exit codes, and reported
//! times.

mod redline;

use std::fmt::Write;
use std::process::Command;

use clap::ValueEnum;
use serde_json::Value;

use crate::clients::testbed::Testbed;
use crate::clients::testbed::{Load, Spread};
use campaign::files::{read_text, write_whole};
use campaign::stop::Stop;
use campaign::tools::FLOOR;

pub use redline::stamp_errors_ns;
use redline::tokenizer;

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
            Self::Sglang => sglang(testbed, load, address),
            Self::Aiperf => aiperf(testbed, load, address),
            Self::Floor => Ok(raw_socket(testbed, load, address)),
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
        // File, pointers to mean, deviation and p99 of TTFT, gaps and lag, and the unit in microseconds.
        let (file, pointers, unit_us) = match self {
            Self::Redline => return redline::read(testbed, load),
            Self::Sglang => ("sglang.json", ["/{}_ttft_ms", "/{}_itl_ms", ""], 1000.0),
            // AIPerf's `inter_token_latency` is one mean per request; `inter_chunk_latency` contains
            // every gap.
            Self::Aiperf => (
                "aiperf/profile_export_aiperf.json",
                ["/time_to_first_token/{}", "/inter_chunk_latency/{}", ""],
                1000.0,
            ),
            Self::Floor => ("client.out", ["/ttft_us/{}", "/itl_us/{}", "/lag_us/{}"], 1.0),
        };
        let text = read_text(&testbed.path(file)).map_err(|_| format!("left no `{file}`"))?;
        let document: Value = serde_json::from_str(&text)
            .map_err(|error| format!("left a `{file}` of another form: {error}"))?;
        let mean = if self == Self::Aiperf { "avg" } else { "mean" };
        let [ttft, gaps, lag] = pointers.map(|pointer| {
            let us =
                |name| Some(document.pointer(&pointer.replace("{}", name))?.as_f64()? * unit_us);
            Spread { mean_us: us(mean), std_us: us("std"), p99_us: us("p99") }
        });
        Ok(Reported { ttft, gaps, lag, ..Reported::default() })
    }
}

fn not_installed(tool: &str) -> Stop {
    Stop::environment(format!("{tool} is not installed"))
}

/// Command line of AIPerf, installed in a virtual environment of the cache.
fn aiperf(testbed: &Testbed<'_>, load: &Load, address: &str) -> Result<Command, Stop> {
    let program = testbed.peers.aiperf.as_ref().ok_or_else(|| not_installed("aiperf"))?;
    let class = r#"{"tokenizer_class":"PreTrainedTokenizerFast","model_max_length":4096}"#;
    write_whole(&testbed.path("tokenizer/tokenizer.json"), tokenizer().as_bytes())?;
    write_whole(&testbed.path("tokenizer/tokenizer_config.json"), class.as_bytes())?;
    let mut rows = String::new();
    for _ in 0..load.requests {
        let _ = writeln!(rows, r#"{{"text":"t t t t t t t t"}}"#);
    }
    write_whole(&testbed.path("aiperf.jsonl"), rows.as_bytes())?;
    // Results of an earlier measurement must not be read as this one's.
    let _ = std::fs::remove_dir_all(testbed.path("aiperf"));
    let mut command = Command::new(program);
    command.args(["profile", "--model", "emitter", "--url", &format!("http://{address}")]);
    command.args(["--endpoint-type", "completions", "--streaming", "--tokenizer"]);
    command.arg(testbed.path("tokenizer"));
    command.args(["--input-file", "aiperf.jsonl", "--custom-dataset-type", "single_turn"]);
    command.args(["--extra-inputs", &format!("max_tokens:{}", load.tokens)]);
    command.args(["--request-count", &load.requests.to_string()]);
    command.args(["--use-server-token-count", "--no-server-metrics", "--no-gpu-telemetry"]);
    command.args(["--ui-type", "none", "--output-artifact-dir", "aiperf"]);
    match load.requests_per_s {
        None => command.args(["--concurrency", &load.requests.to_string()]),
        Some(rate) => command.args(["--request-rate", &rate.to_string()]),
    };
    Ok(command)
}

/// Number of connections used in turn where only sends are measured: enough that a connection is
/// idle again before its next request.
const CONNECTIONS: u64 = 256;

/// Command line of the raw-socket client `redline-floor`.
fn raw_socket(testbed: &Testbed<'_>, load: &Load, address: &str) -> Command {
    let mut command = Command::new(testbed.world.tools.path(FLOOR));
    command.args(["--address", address, "--tokens", &load.tokens.to_string()]);
    match load.requests_per_s {
        None => command.args(["--streams", &load.requests.to_string()]),
        Some(rate) => {
            command.args(["--streams", &load.requests.min(CONNECTIONS).to_string()]).args([
                "--requests-per-s",
                &rate.to_string(),
                "--requests",
                &load.requests.to_string(),
            ])
        }
    };
    command
}

/// Python script that loads the module and calls it as SGLang's own package does.
const LOADER: &str = "\
import importlib.machinery as m, importlib.util as u, sys
loader = m.ExtensionFileLoader('_bench', sys.argv[1])
module = u.module_from_spec(u.spec_from_file_location('_bench', sys.argv[1], loader=loader))
loader.exec_module(module)
module.run_argv(['sglang-bench'] + sys.argv[2:])
";

/// Command line of the Rust client inside SGLang's wheel, an extension module that CPython 3.11 loads
/// without SGLang's other packages.
fn sglang(testbed: &Testbed<'_>, load: &Load, address: &str) -> Result<Command, Stop> {
    let client = testbed.peers.sglang.as_ref().ok_or_else(|| not_installed("sglang-bench"))?;
    // The client appends to an existing result file.
    let _ = std::fs::remove_file(testbed.path("sglang.json"));
    let mut command = Command::new(&client.python);
    command.args(["-c", LOADER]).arg(&client.module);
    command.args(["--backend", "sglang-oai", "--base-url", &format!("http://{address}")]);
    command.args(["--dataset-name", "random-ids", "--random-range-ratio", "1"]);
    command.args(["--random-input-len", "8", "--random-output-len", &load.tokens.to_string()]);
    command.args(["--num-prompts", &load.requests.to_string(), "--warmup-requests", "0"]);
    // Without a tokenizer the client does not tokenize the answers again.
    command.args(["--model", "emitter", "--tokenizer", "none", "--vocab-size", "1000"]);
    command.args(["--tokenize-prompt", "--disable-tqdm", "--output-file", "sglang.json"]);
    if let Some(rate) = load.requests_per_s {
        command.args(["--request-rate", &rate.to_string()]);
    }
    Ok(command)
}
