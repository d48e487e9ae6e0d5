//! `redline-bench first-answer`: reports when a starting server gives its first answer.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use schema::exit::Exit;

use super::inputs::Engine;
use super::inputs::TrustFlags;
use crate::client::control::Server;
use crate::client::first_answer::first_answer;

/// Request one token from a starting server until it answers, and print when it did.
///
/// The program that starts the server can read the start time from the same clock, CLOCK_MONOTONIC,
/// which all processes of a machine share; the difference is the time from start to first answer.
///
/// Exit codes: 0 answered; 2 wrong use; 4 no answer in time, or an error that retrying cannot cure.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct FirstAnswerFlags {
    /// Server to wait for.
    #[arg(long, value_name = "http[s]://HOST:PORT")]
    url: String,
    #[command(flatten)]
    trust: TrustFlags,
    /// Engine file: the routes and features of this kind of server.
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,
    /// Give up if the server has not answered after this time.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    timeout_s: u64,
}

const EXAMPLE: &str = "\
Example, which also prints the time of the start:

  python3 -c 'import time; print(time.monotonic_ns())'; redline serve MODEL &
  redline-bench first-answer --url http://127.0.0.1:23333 --engine suite/engines/redline.toml

It prints `{\"first_byte_ns\":N}`, the time at which the first byte of the answer arrived.";

/// Runs `redline-bench first-answer` and returns its exit code.
///
/// # Errors
/// The engine file cannot be read.
pub fn execute(flags: &FirstAnswerFlags) -> anyhow::Result<Exit> {
    let engine = Engine::open(&flags.engine)?;
    let server = Server::at(&flags.url, &flags.trust.trust())?;
    let limit = Duration::from_secs(flags.timeout_s);
    match first_answer(&server, &engine.file.request, limit) {
        Ok(found) => {
            println!("{}", serde_json::to_string(&found)?);
            Ok(Exit::Well)
        }
        Err(error) => {
            eprintln!("error: {error}");
            Ok(Exit::Environment)
        }
    }
}
