//! `redline-bench sweep`: runs one scenario at several request rates or concurrency levels; and
//! `redline-bench search`: finds the highest request rate at which a server meets latency limits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::Args;
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::run::{Summary, ValidityVerdict};
use schema::scenario::Arrival;
use schema::search::{SCHEMA, SearchResult, SearchRun, SearchTrial};

use super::files;
use super::run::{Bench, BenchFlags, exit_of, positive};
use super::table::rate;
use super::threshold::ThresholdFlags;
use crate::client::drive::DriveError;
use crate::measure::capacity::{
    Range, Repeat, Standing, Target, Trial, highest, lowest_lost, search,
};
use crate::measure::rates::Slo;
use crate::workload::arrival::at_rate;

/// Run the same requests at several rates or concurrency levels, one after the other.
///
/// Each point is a run like one of `redline-bench run`, with the prefix cache reset before it where
/// the scenario asks for that, and gives a file in the folder of `--out`. At a rate, requests
/// follow the scenario's arrival process if it has a rate, else a Poisson process. A point is
/// another workload than the scenario, so its id differs, as in `balanced+rate-2.5`.
///
/// Exit codes: the worst of all points, with the codes of `run`. A condition of `--fail-if` holds for
/// each point by itself.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct SweepFlags {
    #[command(flatten)]
    bench: BenchFlags,
    /// Request rates to run at, in requests per second.
    #[arg(long, value_name = "R,R,...", value_delimiter = ',', value_parser = positive)]
    #[arg(required_unless_present = "concurrency", conflicts_with = "concurrency")]
    requests_per_s: Vec<f64>,
    /// Concurrency levels: requests in flight at a time; the next is sent when one ends.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    concurrency: Vec<u64>,
    /// Latency limit for goodput, as `ttft_ms=500`, `tpot_ms=50` or `e2e_ms=9000`; may be given
    /// several times.
    #[arg(long, value_name = "NAME_ms=LIMIT")]
    slo: Vec<Slo>,
    #[command(flatten)]
    thresholds: ThresholdFlags,
    /// Folder for the measurements of the sweep, one file per rate or concurrency level.
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
/// A file or other value that the flags give cannot be used, the server does not answer, the system
/// refuses signal handlers, a run ends without a measurement, or a result cannot be written.
pub fn execute(flags: &SweepFlags) -> anyhow::Result<Exit> {
    let bench = Bench::open(&flags.bench, None)?;
    files::make_folder(&flags.out)?;
    whole_file::print(&(row(HEADING) + "\n"))?;
    let mut worst = Exit::Well;
    for (name, arrival) in points(flags, &bench.file.scenario.arrival) {
        let point = bench.point_at(arrival, &name)?;
        let file = flags.out.join(format!("{name}.json"));
        let finished = match bench.measure(&point, &flags.slo, &file) {
            Ok(finished) => finished,
            Err(error) => return bench.unmeasured(error),
        };
        let broken = flags.thresholds.broken(&finished.measurement);
        whole_file::print(&(line(&name, &finished.measurement) + "\n" + &broken))?;
        if finished.interrupted {
            return Ok(bench.interrupted(&file));
        }
        let beyond = if broken.is_empty() { Exit::Well } else { Exit::Worse };
        worst = worst.max(exit_of(&finished.measurement)).max(beyond);
    }
    Ok(worst)
}

/// Returns the name and the arrival process of each run of the sweep, one for each rate and then
/// one for each concurrency level.
fn points(flags: &SweepFlags, arrival: &Arrival) -> Vec<(String, Arrival)> {
    let rates =
        flags.requests_per_s.iter().map(|rate| (format!("rate-{rate}"), at_rate(arrival, *rate)));
    let closed = flags.concurrency.iter();
    let closed = closed.map(|count| (format!("c{count}"), Arrival::Closed { concurrency: *count }));
    rates.chain(closed).collect()
}

/// Column titles of the table that a sweep prints, which has one row for each run.
const HEADING: [&str; 9] = [
    "point",
    "verdict",
    "ok",
    "requests/s",
    "tokens/s",
    "TTFT p50",
    "p99 ms",
    "TPOT p50 ms",
    "good/s",
];

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
    row(cells.each_ref().map(String::as_str))
}

/// Formats one row of the table that a sweep prints, from its cells.
fn row(cells: [&str; 9]) -> String {
    let [name, verdict, rest @ ..] = cells;
    rest.iter().fold(format!("{name:<14} {verdict:<9}"), |row, cell| format!("{row} {cell:>11}"))
}

/// Search for the highest request rate at which a server meets latency limits.
///
/// The rate is doubled until one does not pass, then the interval is divided (bisection). A rate
/// passes if, at the given confidence, at least the `--attainment` share of all its runs' requests
/// meets every limit, and no single run shows at that confidence that its share is smaller. A
/// failed request meets no limit. Between the highest rate that passed and the lowest that did not,
/// the runs leave the answer open.
///
/// Exit codes: 0 a rate was found; 1 the lowest rate does not pass, or a run at the highest rate
/// that passed meets a condition of `--fail-if`; 2 wrong use; 4 the environment. Conditions do not
/// apply to runs at other rates, because higher rates overload the server.
#[derive(Debug, Args)]
#[command(after_long_help = SEARCH_EXAMPLE)]
pub struct SearchFlags {
    #[command(flatten)]
    bench: BenchFlags,
    /// Latency limit that requests must meet, as `ttft_ms=500`, `tpot_ms=50` or `e2e_ms=9000`; may
    /// be given several times. TTFT and E2E count from the scheduled send.
    #[arg(long, value_name = "NAME_ms=LIMIT", required = true)]
    slo: Vec<Slo>,
    /// Share of the requests at a rate that must meet all latency limits, from 0.001 to 0.9999.
    #[arg(long, value_name = "SHARE", default_value_t = 0.99, value_parser = share)]
    attainment: f64,
    /// Confidence with which the runs must show that the share of `--attainment` is reached.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = share)]
    confidence: f64,
    /// Number of runs at each request rate.
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Request rate with which the search begins, in requests per second.
    #[arg(long, value_name = "RATE", default_value_t = 1.0, value_parser = positive)]
    from_requests_per_s: f64,
    /// Highest request rate that the search tries, in requests per second.
    #[arg(long, value_name = "RATE", default_value_t = 1000.0, value_parser = positive)]
    to_requests_per_s: f64,
    /// Stop when the highest rate that passed and the lowest that did not differ by at most this
    /// share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    precision: f64,
    #[command(flatten)]
    thresholds: ThresholdFlags,
    /// Folder for the search's result, `search.json`, and for every run's measurement.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

const SEARCH_EXAMPLE: &str = "\
Example, the rate at which 99 of 100 answers begin within half a second:

  redline-bench search --url http://127.0.0.1:8000 --engine redline.toml --scenario balanced.toml \\
    --dataset rows.json --tokenizer tokenizer.json --slo ttft_ms=500 --out search/

`search.json` lists every run. The rate found is a lower bound: the server sustains it with the
given confidence. The lowest rate that did not pass is stated beside it.";

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let fits = (0.001..=0.9999).contains(&value);
    if fits { Ok(value) } else { Err("not from 0.001 to 0.9999".to_owned()) }
}

/// Runs `redline-bench search` and returns its exit code.
///
/// # Errors
/// A file or other value that the flags give cannot be used, the server does not answer, the system
/// refuses signal handlers, a rate has too few requests to reach the confidence, a run ends without
/// a measurement or with an invalid one, or a result cannot be written.
pub fn execute_search(flags: &SearchFlags) -> anyhow::Result<Exit> {
    let target = Target {
        attainment: flags.attainment,
        confidence: flags.confidence,
        repeats: flags.repeats,
    };
    let (from, to) = (flags.from_requests_per_s, flags.to_requests_per_s);
    ensure!(from <= to, "the search would begin at {from} requests/s and end at {to}");
    let bench = Bench::open(&flags.bench, None)?;
    // With fewer requests even runs without any miss cannot reach the confidence.
    let (all, needed) = (bench.requests() * u64::from(flags.repeats), target.requests_min());
    if all < needed {
        bail!(
            "{all} requests at each rate cannot show that {} % meet the limits with {} % \
             confidence: {needed} are needed\nhint: give more `--repeats` or a longer scenario",
            flags.attainment * 100.0,
            flags.confidence * 100.0
        );
    }
    files::make_folder(&flags.out)?;
    let range = Range { from, to, precision: flags.precision };
    let mut broken = Broken::new();
    let mut run = |rate, number| one(flags, &bench, (rate, number), &mut broken);
    let trials = match search(range, &target, &mut run) {
        Ok(trials) => trials,
        Err(error) => return bench.unmeasured(error),
    };
    files::json(&flags.out.join("search.json"), &result(flags, &bench, &trials)?)?;
    let found = highest(&trials);
    let broken = found.map_or_else(String::new, |trial| broken_at(trial, &broken));
    let said = statements(&trials, &target, &flags.slo).join("\n");
    whole_file::print(&format!("{said}\n{broken}"))?;
    Ok(if found.is_some() && broken.is_empty() { Exit::Well } else { Exit::Worse })
}

/// Lines about the thresholds that a run breaks, by the name of the run's file.
type Broken = BTreeMap<String, String>;

/// Returns the lines about thresholds that the runs at the rate of `trial` break, each run's below
/// its rate and number; empty if they break none.
fn broken_at(trial: &Trial, broken: &Broken) -> String {
    let lines = (1..).zip(&trial.repeats).filter_map(|(number, _)| {
        let lines = broken.get(&file(trial.rate, number))?;
        Some(format!("{:>10} requests/s, run {number}\n{lines}", trial.rate))
    });
    lines.collect()
}

/// Performs run number `number` at `rate` requests per second, adds the thresholds that it breaks
/// to `broken`, and returns the number of its requests that met all latency limits and the number
/// planned. A run that is INVALID although no request failed is an error, and so is one that was
/// interrupted.
fn one(
    flags: &SearchFlags,
    bench: &Bench,
    (rate, number): (f64, u32),
    broken: &mut Broken,
) -> anyhow::Result<Repeat> {
    let arrival = at_rate(&bench.file.scenario.arrival, rate);
    let point = bench.point_at(arrival, &format!("rate-{rate}"))?;
    let name = file(rate, number);
    let file = flags.out.join(&name);
    let finished = bench.measure(&point, &flags.slo, &file)?;
    if finished.interrupted {
        return Err(DriveError::Interrupted.into());
    }
    let measurement = &finished.measurement;
    let failed = measurement.counts.as_ref().and_then(|counts| counts.requests_failed);
    // An overloaded server may fail requests; those just meet no limit. But an INVALID run without
    // a failed request has a fault of the measurement, and says nothing about the server.
    if measurement.validity.verdict == ValidityVerdict::Invalid && failed == Some(0) {
        let reasons = measurement.validity.reasons.join("; ");
        bail!("the run `{}` is INVALID and cannot be judged: {reasons}", file.display());
    }
    let lines = flags.thresholds.broken(measurement);
    if !lines.is_empty() {
        broken.insert(name, lines);
    }
    let repeat = Repeat { met: finished.slos_met, planned: bench.requests() };
    let Repeat { met, planned } = repeat;
    whole_file::print(&format!(
        "{rate:>10} requests/s, run {number}: {met} of {planned} passed\n"
    ))?;
    Ok(repeat)
}

fn file(rate: f64, number: u32) -> String {
    format!("rate-{rate}-run-{number}.json")
}

/// Formats the result of the search as two sentences: on the highest rate that passed, and on the
/// lowest that did not.
fn statements(trials: &[Trial], target: &Target, slos: &[Slo]) -> [String; 2] {
    let limits: Vec<String> = slos.iter().map(ToString::to_string).collect();
    let limits = limits.join(", ");
    let shares = |trial: &Trial| {
        let all = trial.pooled();
        format!(
            "{} requests/s: {} of {} requests in {} runs met {limits}",
            trial.rate,
            all.met,
            all.planned,
            trial.repeats.len()
        )
    };
    let sure = target.confidence * 100.0;
    let kept = highest(trials).map(|trial| {
        let least = trial.pooled().share_min(target.confidence) * 100.0;
        format!("passes {}; at least {least:.2} % do, with {sure} % confidence", shares(trial))
    });
    let lost = lowest_lost(trials).map(|trial| {
        let most = trial.pooled().share_max(target.confidence) * 100.0;
        let verdict = if trial.standing == Standing::Missed { "fails " } else { "open  " };
        format!("{verdict}{}; at most {most:.2} % do, with {sure} % confidence", shares(trial))
    });
    [
        kept.unwrap_or_else(|| "no tested rate passes".to_owned()),
        lost.unwrap_or_else(|| "the highest rate to try passes".to_owned()),
    ]
}

fn result(flags: &SearchFlags, bench: &Bench, trials: &[Trial]) -> anyhow::Result<SearchResult> {
    let trial = |trial: &Trial| SearchTrial {
        requests_per_s: trial.rate,
        standing: format!("{:?}", trial.standing).to_lowercase(),
        share_min: trial.pooled().share_min(flags.confidence),
        share_max: trial.pooled().share_max(flags.confidence),
        runs: (1..)
            .zip(&trial.repeats)
            .map(|(number, repeat)| SearchRun {
                file: file(trial.rate, number),
                requests_met: repeat.met,
                requests_planned: repeat.planned,
            })
            .collect(),
    };
    let point = bench.point()?;
    Ok(SearchResult {
        schema: SCHEMA.to_owned(),
        scenario: point.plan.manifest.scenario,
        slos: flags.slo.iter().map(ToString::to_string).collect(),
        attainment: flags.attainment,
        confidence: flags.confidence,
        precision: flags.precision,
        requests_per_s_kept: highest(trials).map(|trial| trial.rate),
        requests_per_s_lost: lowest_lost(trials).map(|trial| trial.rate),
        trials: trials.iter().map(trial).collect(),
    })
}
