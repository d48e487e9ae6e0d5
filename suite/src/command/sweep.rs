//! `redline-bench sweep`: runs one scenario at several request rates or concurrency levels.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::run::Summary;
use schema::scenario::Arrival;

use super::bench::{Bench, BenchFlags, positive};
use super::run::exit_of;
use super::table::rate;
use crate::measure::slo::Slo;
use crate::workload::arrival::at_rate;

/// Run the same requests at several rates or concurrency levels, one after the other.
///
/// Each point is a run like one of `redline-bench run`, with the prefix cache reset before it, and
/// a file in the folder of `--out`. At a rate, requests follow the scenario's arrival process if it
/// has a rate, else a Poisson process. A point is another workload than the scenario, so its id
/// differs, as in `balanced+rate-2.5`.
///
/// Exit codes: the worst of all points, with the codes of `run`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct SweepFlags {
    #[command(flatten)]
    bench: BenchFlags,
    /// Request rates, in requests per second.
    #[arg(long, value_name = "R,R,...", value_delimiter = ',', value_parser = positive)]
    #[arg(required_unless_present = "concurrency", conflicts_with = "concurrency")]
    requests_per_s: Vec<f64>,
    /// Concurrency levels: requests in flight at a time; the next is sent when one ends.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    concurrency: Vec<u64>,
    /// Latency limit for goodput, as `ttft_ms=500`, `tpot_ms=50` or `e2e_ms=9000`.
    #[arg(long, value_name = "NAME_ms=LIMIT")]
    slo: Vec<Slo>,
    /// Folder for the measurements, one file per point.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

const EXAMPLE: &str = "\
Example, latency against throughput from one request at a time to 64:

  redline-bench sweep --url http://127.0.0.1:8000 --engine redline.toml --scenario balanced.toml \\
    --dataset rows.json --tokenizer tokenizer.json --concurrency 1,4,16,64 --out sweep/

Each row is a point: answered requests, requests and output tokens per second, TTFT and TPOT.
`good/s` is the rate of requests that meet every `--slo`.";

/// Runs `redline-bench sweep` and returns its exit code.
///
/// # Errors
/// An input cannot be used, or a result cannot be written.
pub fn execute(flags: &SweepFlags) -> anyhow::Result<Exit> {
    let bench = Bench::open(&flags.bench)?;
    let out = flags.out.display();
    std::fs::create_dir_all(&flags.out).with_context(|| format!("cannot make folder `{out}`"))?;
    println!("{}", row(HEADING.split('|')));
    let mut worst = Exit::Well;
    for (name, arrival) in points(flags, &bench.file.scenario.arrival) {
        let point = bench.point_at(arrival, &name)?;
        let file = flags.out.join(format!("{name}.json"));
        let measurement = match bench.measure(&point, &flags.slo, &file) {
            Ok(finished) => finished.measurement,
            Err(error) => return bench.unmeasured(error),
        };
        println!("{}", line(&name, &measurement));
        worst = worst.max(exit_of(&measurement));
    }
    Ok(worst)
}

/// Name and arrival process of each point of the sweep.
fn points(flags: &SweepFlags, arrival: &Arrival) -> Vec<(String, Arrival)> {
    let rates =
        flags.requests_per_s.iter().map(|rate| (format!("rate-{rate}"), at_rate(arrival, *rate)));
    let closed = flags.concurrency.iter();
    let closed = closed.map(|count| (format!("c{count}"), Arrival::Closed { concurrency: *count }));
    rates.chain(closed).collect()
}

const HEADING: &str = "point|verdict|ok|requests/s|tokens/s|TTFT p50|p99 ms|TPOT p50 ms|good/s";

fn line(name: &str, measurement: &Measurement) -> String {
    let metrics = measurement.metrics.clone().unwrap_or_default();
    let verdict = format!("{:?}", measurement.validity.verdict).to_uppercase();
    let ok = measurement.counts.as_ref().and_then(|counts| counts.requests_ok).unwrap_or(0);
    let ms = |summary: &Option<Summary>, of: fn(&Summary) -> Option<u64>| {
        let us = summary.as_ref().and_then(of);
        us.map_or_else(|| "-".to_owned(), |us| format!("{}.{:03}", us / 1000, us % 1000))
    };
    let good = metrics.goodput_per_s.as_ref().and_then(|rates| rates.get("all").copied());
    let cells = [
        name.to_owned(),
        verdict,
        ok.to_string(),
        rate(metrics.requests_per_s),
        rate(metrics.output_tokens_per_s),
        ms(&metrics.ttft_us, |summary| summary.p50),
        ms(&metrics.ttft_us, |summary| summary.p99),
        ms(&metrics.tpot_us, |summary| summary.p50),
        rate(good),
    ];
    row(cells.iter().map(String::as_str))
}

fn row<'a>(mut cells: impl Iterator<Item = &'a str>) -> String {
    let mut next = || cells.next().unwrap_or_default();
    let begin = format!("{:<14} {:<9}", next(), next());
    cells.fold(begin, |row, cell| format!("{row} {cell:>11}"))
}
