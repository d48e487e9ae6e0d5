//! `redline-bench run`: one scenario against one server, one file of results.

use std::path::PathBuf;

use clap::Args;
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::run::{Status, ValidityVerdict};

use super::bench::{Bench, BenchFlags};
use super::export::{ExportTo, export_all};
use super::table::table;
use crate::client::control::ControlError;
use crate::client::drive::DriveError;
use crate::measure::slo::Slo;

/// Run one scenario against one server and write what was measured.
///
/// The order is fixed: draw the requests, warm up with prompts that none of them shares, empty the
/// server's prefix cache and see that it is empty, start the clock, send, wait for every answer,
/// stop the clock, ask a few fixed prompts to see that the outputs are right.
///
/// A failed request is data: it is counted, classified and written, and so is a server that dies
/// or falls silent. Every sample is written as it comes, beside the result; until the run has ended
/// the result says `partial`, which it goes on to say where this program is killed.
///
/// Exit codes: 0 believable and nothing failed; 1 INVALID, or a request failed; 2 wrong use;
/// 4 no server, interrupted, or the system gave out.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct RunFlags {
    #[command(flatten)]
    bench: BenchFlags,
    /// Where the measurement goes, as JSON.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Count the requests that meet a limit, as `ttft_ms=500`, `tpot_ms=50` or `e2e_ms=9000`; may
    /// be given several times. TTFT and E2E count from the scheduled send.
    #[arg(long, value_name = "NAME_ms=LIMIT")]
    slo: Vec<Slo>,
    /// Write the result in another tool's format too; may be given several times. The formats are
    /// those of `redline-bench export`.
    #[arg(long, value_name = "FORMAT=FILE")]
    export: Vec<ExportTo>,
}

const EXAMPLE: &str = "\
Example:

  redline-bench run --url http://127.0.0.1:8000 --engine redline.toml --scenario ladder-lite-c4.toml \\
    --dataset rows.json --tokenizer tokenizer.json --out m.json --export vllm-json=v.json

What the numbers mean:

  TTFT   from the actual send to the first token; `from schedule` from when it was due
  TPOT   time per token after the first, (E2E - TTFT) / (tokens - 1), of each request
  ITL    gap between two chunks, or between two tokens where a chunk holds several
  E2E    from the send to the last token
  p99    with a `?` where there are too few requests to be sure of it
  TTFT in parts: where the time to the first token went; `server` is server and network, the rest
  is the client's own, and `schedule lag` grows when the client cannot keep up
  verdict: whether the client, the counts and the cache let the numbers be believed";

/// Runs the command.
///
/// # Errors
/// An input cannot be used, or the result cannot be written.
pub fn execute(flags: &RunFlags) -> anyhow::Result<Exit> {
    let bench = Bench::open(&flags.bench)?;
    let measurement = match bench.measure(&bench.point()?, &flags.slo, &flags.out) {
        Ok(finished) => finished.measurement,
        Err(error) => return bench.unmeasured(error),
    };
    print!("{}", table(&measurement));
    export_all(&flags.export, &flags.out, &bench.asked())?;
    Ok(exit_of(&measurement))
}

/// What a measurement means for the exit code.
#[must_use]
pub fn exit_of(measurement: &Measurement) -> Exit {
    let invalid = measurement.validity.verdict == ValidityVerdict::Invalid;
    if invalid || measurement.status != Status::Ok { Exit::Worse } else { Exit::Well }
}

/// The exit code of an error that reached the top.
#[must_use]
pub fn exit_of_error(error: &anyhow::Error) -> Exit {
    let io = |cause: &(dyn std::error::Error + 'static)| cause.is::<std::io::Error>();
    let environment = error.chain().any(|cause| {
        cause.is::<DriveError>()
            || cause.downcast_ref().is_some_and(|error| {
                !matches!(error, ControlError::Url { .. } | ControlError::Tls(_))
            })
            || io(cause)
    });
    if environment { Exit::Environment } else { Exit::Unsound }
}
