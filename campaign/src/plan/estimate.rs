//! Estimate of a run's duration: the median of earlier runs in the registry, else of imported
//! results. Without either, the duration is unknown.

use std::fs;
use std::path::{Path, PathBuf};

use judge::quantile::quantile;
use schema::path::read_again;
use schema::run::{RunRecord, Status};
use schema::scenario::{Scenario, Workload};

/// Assumed time of a run around its measurement: server start, sampling of the requests, warm-up,
/// output check and drain, in microseconds.
const OVERHEAD_US: u64 = 12_000_000;
/// Assumed time around a run's measurement if the run does not sample its requests, in
/// microseconds: all runs then share requests that were sampled once.
const START_US: u64 = 5_000_000;
/// Largest number of earlier runs of a cell, the newest, from whose times a duration is estimated.
const PAST_RUNS: usize = 9;
/// Assumed throughput on a CPU in tokens per second, prompt and output tokens together, for cells
/// without earlier results.
const TOKENS_PER_S: u64 = 1_000;
const TOKENS_PER_S_ON_GPU: u64 = 10_000;
/// Assumed number of tokens of a request, prompt and output together, whose prompt is from a
/// dataset.
const CONVERSATION_TOKENS: u64 = 500;

/// Expected time of one run, and what the estimate is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// The estimate is `us` microseconds: the median wall time of the measurement in `runs` earlier
    /// runs of the registry, plus an assumed time around it.
    Measured { us: u64, runs: usize },
    /// The estimate is `us` microseconds: the median wall time of `runs` results that others
    /// published.
    Imported { us: u64, runs: usize },
    /// The duration is unknown: the registry has no earlier run and no imported result of the cell.
    Unknown,
}

impl Estimate {
    /// Returns the expected time of a run in microseconds; `None` if unknown.
    pub fn us(self) -> Option<u64> {
        match self {
            Self::Measured { us, .. } | Self::Imported { us, .. } => Some(us),
            Self::Unknown => None,
        }
    }

    /// Returns the expected time of a run in microseconds when all runs share requests that were
    /// sampled once, so that no run samples them itself; `None` if unknown.
    pub fn us_with_workload(self) -> Option<u64> {
        match self {
            Self::Measured { us, .. } => Some(us.saturating_sub(OVERHEAD_US) + START_US),
            Self::Imported { us, .. } => Some(us + START_US),
            Self::Unknown => None,
        }
    }
}

/// Cell for which a duration is estimated: engine, hardware, model and scenario, without release
/// and configuration.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    pub engine: &'a str,
    pub hardware: &'a str,
    pub model: &'a str,
    pub scenario: &'a str,
    pub rev: u32,
}

/// Estimates the time of one run of a cell, and that of a server's start in microseconds, from the
/// registry in `results`, whatever the release and configuration. Earlier runs tell the time of a
/// start.
pub fn of_run(results: &Path, of: Of<'_>) -> (Estimate, Option<u64>) {
    let past = past_runs(results, of);
    let walls: Vec<u64> = past.iter().filter_map(|run| run.time.as_ref()?.wall_us).collect();
    let starts: Vec<u64> = past.iter().filter_map(|run| run.server.as_ref()?.startup_us).collect();
    (estimate(&walls, &imported_wall_us(results, of)), median(&starts))
}

/// Estimates the time of a run from the median wall time of earlier runs, or if there are none,
/// from that of imported results, in microseconds. Earlier runs come first because imported results
/// do not say how long their servers took to start.
fn estimate(measured_us: &[u64], imported_us: &[u64]) -> Estimate {
    match (median(measured_us), median(imported_us)) {
        (Some(us), _) => Estimate::Measured { us: us + OVERHEAD_US, runs: measured_us.len() },
        (None, Some(us)) => Estimate::Imported { us, runs: imported_us.len() },
        (None, None) => Estimate::Unknown,
    }
}

/// Returns the assumed time of one run without earlier results, in microseconds: server start and
/// warm-up, the time until the last request is sent, and all tokens at [`tokens_per_s_assumed`].
pub fn assumed_us(scenario: &Scenario, on_gpu: bool) -> u64 {
    let Workload { requests, input_tokens, output_tokens, prefix_tokens, .. } = scenario.workload;
    let each = match (input_tokens, output_tokens) {
        (Some(input), Some(output)) => input + output + prefix_tokens.unwrap_or(0),
        _ => CONVERSATION_TOKENS,
    };
    let tokens_us =
        requests.saturating_mul(each).saturating_mul(1_000_000) / tokens_per_s_assumed(on_gpu);
    START_US.saturating_add(scenario.arrival.span_us(requests)).saturating_add(tokens_us)
}

/// Returns the throughput in tokens per second, prompt and output together, that is assumed for any
/// engine without earlier results: one value on GPUs, another on a CPU.
pub fn tokens_per_s_assumed(on_gpu: bool) -> u64 {
    if on_gpu { TOKENS_PER_S_ON_GPU } else { TOKENS_PER_S }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it lies between times of runs"
)]
fn median(past_us: &[u64]) -> Option<u64> {
    let mut sorted = past_us.to_vec();
    sorted.sort_unstable();
    quantile(&sorted, 0.5).map(|us| us.round() as u64)
}

/// Returns the wall times of a cell in imported results, in microseconds; of a report that was read
/// again, those of the latest reading. The scenario's revision is not compared, because imported
/// results carry none.
fn imported_wall_us(results: &Path, of: Of<'_>) -> Vec<u64> {
    let sources = folders(&results.join("imports"));
    let files = sources.iter().flat_map(|source| folders(source)).flat_map(|dir| entries(&dir));
    let files =
        files.filter_map(|file| Some(file.strip_prefix(results).ok()?.to_str()?.to_owned()));
    let files: Vec<String> = files.collect();
    let again = read_again(files.iter().map(String::as_str));
    let walls = files.iter().filter(|file| !again.contains(file.as_str())).filter_map(|file| {
        let text = fs::read_to_string(results.join(file)).ok()?;
        let record: RunRecord = serde_json::from_str(&text).ok()?;
        let same = (record.engine.name == of.engine, record.hardware.id == of.hardware);
        let cell = (record.model.id == of.model, record.scenario.id == of.scenario);
        let fits = same == (true, true) && cell == (true, true) && record.status == Status::Ok;
        if fits { record.time?.wall_us } else { None }
    });
    walls.collect()
}

/// Returns at most [`PAST_RUNS`] earlier runs of a cell, the newest that have not failed, whatever
/// the release and configuration.
///
/// Unreadable files are skipped: an estimate is no check of the registry.
fn past_runs(results: &Path, of: Of<'_>) -> Vec<RunRecord> {
    let scenario_rev = format!("{}@{}", of.scenario, of.rev);
    let mut files: Vec<PathBuf> = Vec::new();
    for release in folders(&results.join("runs").join(of.engine)) {
        for config in folders(&release.join(of.hardware).join(of.model)) {
            files.extend(entries(&config.join(&scenario_rev)));
        }
    }
    // File names are ULIDs, which sort by time.
    files.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    let runs = files.iter().filter_map(|file| {
        let record: RunRecord = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
        // A failed run ended early, or waited for its time limit: its duration says nothing.
        let counts = record.status != Status::Failed && record.time.as_ref()?.wall_us.is_some();
        counts.then_some(record)
    });
    runs.take(PAST_RUNS).collect()
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    entries(dir).into_iter().filter(|path| path.is_dir()).collect()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(dir) else { return Vec::new() };
    read.flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_runs_are_believed_before_published_ones() {
        let three = [30_000_000, 10_000_000, 20_000_000];
        let us = 20_000_000;
        let started = Estimate::Measured { us: us + OVERHEAD_US, runs: 3 };
        assert_eq!(estimate(&three, &[1]), started);
        assert_eq!(estimate(&[], &three), Estimate::Imported { us, runs: 3 });
        let between = Estimate::Imported { us: 15_000_000, runs: 2 };
        assert_eq!(estimate(&[], &three[1..]), between);
        assert_eq!(estimate(&[], &[]), Estimate::Unknown);
    }

    #[test]
    fn what_is_unknown_is_assumed_from_the_scenario() {
        let catalog =
            crate::catalog::Catalog::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite"));
        let assumed =
            |id, on_gpu| assumed_us(&catalog.scenario(id).unwrap().scenario, on_gpu) - START_US;
        // Sixteen requests are sent within 15/16 of a second and have 256 + 32 tokens each.
        assert_eq!(assumed("lab-throughput-lite", false), 937_500 + 4_608_000);
        assert_eq!(assumed("lab-sharegpt", true), 999_000 + 50_000_000);
        let known = Estimate::Measured { us: 20_000_000, runs: 1 };
        assert_eq!(known.us_with_workload(), Some(13_000_000));
    }

    #[test]
    fn published_durations_are_found_in_this_registry() {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
        let of = Of {
            engine: "vllm",
            hardware: "a100-80g",
            model: "qwen3-8b",
            scenario: "balanced",
            rev: 1,
        };
        assert_eq!(of_run(&results, of).0, Estimate::Imported { us: 779_020_000, runs: 1 });
        let unknown = of_run(&results, Of { engine: "redline", ..of });
        assert_eq!(unknown, (Estimate::Unknown, None));
    }

    #[test]
    fn the_newest_runs_that_went_well_are_read() {
        use samples::Sample;
        let dir = tempfile::tempdir().unwrap();
        let wrote = |record: &RunRecord| {
            let path = dir.path().join(schema::path::of_run(record).unwrap());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, serde_json::to_string(record).unwrap()).unwrap();
            record.time.as_ref().and_then(|time| time.wall_us)
        };
        let old = wrote(&Sample::default().record());
        let newer = Sample { serial: 2, speed: 2.0, release: "v0.9.2".into(), ..Sample::default() };
        let new = wrote(&newer.record());
        wrote(&Sample { serial: 3, ..Sample::default() }.failed_record());
        wrote(&Sample { serial: 4, hardware: "other".into(), ..Sample::default() }.record());
        let of = Of {
            engine: "redline",
            hardware: &newer.hardware,
            model: &newer.model,
            scenario: "balanced-lite",
            rev: 1,
        };
        let past = past_runs(dir.path(), of);
        let past: Vec<_> = past.iter().filter_map(|run| run.time.as_ref()?.wall_us).collect();
        assert_eq!(past, [new.unwrap(), old.unwrap()]);
    }
}
