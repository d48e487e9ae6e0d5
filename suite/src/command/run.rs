//! `redline-bench run`: one scenario against one server, one file of results.

use std::path::PathBuf;

use clap::Args;
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::run::{Status, TtftParts, ValidityVerdict};

use super::bench::{Bench, BenchFlags};
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
}

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
    print(&measurement);
    Ok(exit_of(&measurement))
}

/// What a measurement means for the exit code.
#[must_use]
pub fn exit_of(measurement: &Measurement) -> Exit {
    let invalid = measurement.validity.verdict == ValidityVerdict::Invalid;
    if invalid || measurement.status != Status::Ok { Exit::Worse } else { Exit::Well }
}

/// The few figures that a person wants at once; the rest is in the file.
fn print(measurement: &Measurement) {
    if let Some(counts) = &measurement.counts {
        let count = |value: Option<u64>| value.unwrap_or(0);
        println!(
            "requests       {} answered, {} failed of {}",
            count(counts.requests_ok),
            count(counts.requests_failed),
            count(counts.requests_planned)
        );
    }
    if let Some(metrics) = &measurement.metrics {
        println!("output         {:.1} tokens/s", metrics.output_tokens_per_s.unwrap_or(0.0));
        for (name, summary) in metrics.summaries() {
            let Some(summary) = summary else { continue };
            println!(
                "{:<14} p50 {} ms, p99 {} ms",
                name.trim_end_matches("_us"),
                ms(summary.p50),
                ms(summary.p99)
            );
        }
        for (name, summary) in [
            ("ttft_scheduled", &metrics.ttft_scheduled_us),
            ("e2e_scheduled", &metrics.e2e_scheduled_us),
        ] {
            let Some(summary) = summary else { continue };
            println!("{name:<14} p50 {} ms, p99 {} ms", ms(summary.p50), ms(summary.p99));
        }
        if let Some(parts) = &metrics.ttft_parts_us {
            print_parts(parts);
        }
    }
    if let Some(failure) = &measurement.failure {
        println!("failure        {}", failure.message);
    }
    let verdict = format!("{:?}", measurement.validity.verdict).to_uppercase();
    println!("verdict        {verdict}");
    for reason in &measurement.validity.reasons {
        println!("               {reason}");
    }
}

/// Where the time to the first token went, from the scheduled send on.
fn print_parts(parts: &TtftParts) {
    println!("from the scheduled send to the first token, in ms:");
    for (name, part) in parts.named() {
        println!("  {name:<12} mean {}, p50 {}, p99 {}", ms(part.mean), ms(part.p50), ms(part.p99));
    }
}

fn ms(us: Option<u64>) -> String {
    us.map_or_else(|| "?".to_owned(), |us| format!("{}.{:03}", us / 1000, us % 1000))
}

/// The exit code of an error that reached the top.
#[must_use]
pub fn exit_of_error(error: &anyhow::Error) -> Exit {
    let io = |cause: &(dyn std::error::Error + 'static)| cause.is::<std::io::Error>();
    let environment = error.chain().any(|cause| {
        cause.is::<DriveError>()
            || cause.downcast_ref().is_some_and(|error| !matches!(error, ControlError::Url { .. }))
            || io(cause)
    });
    if environment { Exit::Environment } else { Exit::Unsound }
}
