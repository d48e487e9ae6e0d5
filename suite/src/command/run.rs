//! `redline-bench run`: runs one scenario against one server and writes one measurement.

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

/// Run one scenario against one server and write the measurement.
///
/// The order is fixed: draw the requests, warm up with prompts that share no prefix with them,
/// reset the server's prefix cache and verify that it is empty, start the clock, send, wait for
/// every answer, stop the clock, send a few fixed prompts to check the outputs.
///
/// A failed request is data: it is counted, classified and written, and so is a server that dies or
/// hangs. Every sample is written beside the result as soon as its request ends. Until the run has
/// ended the result says `partial`, also after this program was killed.
///
/// Exit codes: 0 not INVALID and nothing failed; 1 INVALID, or a request failed; 2 wrong use; 4 no
/// server, interrupted, or a failure of the client's system.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct RunFlags {
    #[command(flatten)]
    bench: BenchFlags,
    /// File for the measurement, as JSON.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Latency limit for goodput, as `ttft_ms=500`, `tpot_ms=50` or `e2e_ms=9000`; may be given
    /// several times. TTFT and E2E count from the scheduled send.
    #[arg(long, value_name = "NAME_ms=LIMIT")]
    slo: Vec<Slo>,
    /// Also write the result in another tool's format; may be given several times. The formats are
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
  p99    marked with `?` if there are too few requests for an upper bound
  TTFT in parts: where the time to the first token went; `server` is server and network, the rest
  is the client's own, and `schedule lag` grows when the client cannot keep up
  verdict: VALID, DEGRADED or INVALID, from checks of the client, the counts and the cache";

/// Runs `redline-bench run` and returns its exit code.
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
    export_all(&flags.export, &flags.out, &bench.report_facts())?;
    Ok(exit_of(&measurement))
}

/// Exit code for a measurement: success unless it is INVALID or a request failed.
pub fn exit_of(measurement: &Measurement) -> Exit {
    let invalid = measurement.validity.verdict == ValidityVerdict::Invalid;
    if invalid || measurement.status != Status::Ok { Exit::Worse } else { Exit::Well }
}

/// Exit code for an error that ended the program: 4 if the environment failed, else 2.
pub fn exit_of_error(error: &anyhow::Error) -> Exit {
    let io = |cause: &(dyn std::error::Error + 'static)| cause.is::<std::io::Error>();
    // A malformed URL or an unusable TLS setting is wrong use; any other failure of a connection is
    // the environment's.
    let environment = error.chain().any(|cause| {
        cause.is::<DriveError>()
            || cause.downcast_ref().is_some_and(|error| {
                !matches!(error, ControlError::Url { .. } | ControlError::Tls(_))
            })
            || io(cause)
    });
    if environment { Exit::Environment } else { Exit::Unsound }
}
