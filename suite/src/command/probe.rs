//! `redline-bench probe` and `redline-bench first-answer`: print the facts that a server reports
//! about itself, and the time at which a starting server gives its first answer.

use std::fmt::Display;
use std::time::Duration;

use clap::Args;
use schema::canonical::to_file_text;
use schema::exit::Exit;
use schema::untrusted;

use super::files::{KeyFlag, ServerFlags};
use crate::client::probe::{first_answer, probe};

/// Print what a running server reports about itself, as JSON with Redline's names.
///
/// The output holds version, effective configuration, model and counters, as far as the engine
/// reports them; a value that it does not report is null or left out.
///
/// Exit codes: 0 printed; 2 wrong use, or certificates that cannot be read; 4 the host is not found
/// or the server is not ready, with the reason on standard error, or another file cannot be read.
#[derive(Debug, Args)]
#[command(after_long_help = PROBE_EXAMPLE)]
pub struct ProbeFlags {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    key: KeyFlag,
}

const PROBE_EXAMPLE: &str = "\
Example, the version that is running and the size of its KV cache:

  redline-bench probe --url http://127.0.0.1:23333 --engine suite/engines/redline.toml > probe.json
  jq '.version, .server.kv_bytes' probe.json";

/// Runs `redline-bench probe` and returns its exit code.
///
/// # Errors
/// The engine file or key file cannot be used, the server's URL is not valid, or TLS cannot be set
/// up. A server that does not answer is no error: only the exit code and standard error tell it.
pub fn execute(flags: &ProbeFlags) -> anyhow::Result<Exit> {
    let engine = flags.server.engine()?;
    let server = flags.server.server(&flags.key)?;
    answered(probe(&server, &engine.id, &engine.file), |probed| {
        Ok(untrusted::json(&to_file_text(&probed.probe)?))
    })
}

/// Request one token from a starting server until it answers, and print when it did.
///
/// The program that starts the server can read the start time from the same clock, CLOCK_MONOTONIC,
/// which all processes of a machine share; the difference is the time from start to first answer.
///
/// Exit codes: 0 answered; 2 wrong use; 4 no answer in time, an error that retrying cannot cure, or
/// a file that cannot be read.
#[derive(Debug, Args)]
#[command(after_long_help = FIRST_ANSWER_EXAMPLE)]
pub struct FirstAnswerFlags {
    #[command(flatten)]
    server: ServerFlags,
    /// Give up if the starting server has not answered after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    timeout_s: u64,
}

const FIRST_ANSWER_EXAMPLE: &str = "\
Example, which also prints the time of the start:

  python3 -c 'import time; print(time.monotonic_ns())'; redline serve MODEL &
  redline-bench first-answer --url http://127.0.0.1:23333 --engine suite/engines/redline.toml

It prints `{\"first_byte_ns\":N}`, the time at which the first byte of the answer arrived.";

/// Runs `redline-bench first-answer` and returns its exit code.
///
/// # Errors
/// The engine file cannot be used, the server's URL is not valid, or TLS cannot be set up. A server
/// that does not answer is no error: only the exit code and standard error tell it.
pub fn execute_first_answer(flags: &FirstAnswerFlags) -> anyhow::Result<Exit> {
    let (engine, server) = (flags.server.engine()?, flags.server.server(&KeyFlag::default())?);
    let found = first_answer(&server, &engine.file.request, Duration::from_secs(flags.timeout_s));
    answered(found, |found| Ok(serde_json::to_string(found)? + "\n"))
}

/// Prints the text of a result on standard output and returns success, or prints the error on
/// standard error and returns the exit code of a failure of the environment.
pub(super) fn answered<T, E: Display>(
    answer: Result<T, E>,
    text: impl FnOnce(&T) -> anyhow::Result<String>,
) -> anyhow::Result<Exit> {
    match answer {
        Ok(found) => {
            whole_file::print(&text(&found)?)?;
            Ok(Exit::Well)
        }
        Err(error) => {
            eprintln!("error: {}", untrusted::lines(&error.to_string()));
            Ok(Exit::Environment)
        }
    }
}
