//! How long a run will take: as long as such runs took before, else as imported results say; what
//! was never measured is unknown.

use std::fs;
use std::path::{Path, PathBuf};

use judge::quantile::percentile;
use schema::run::{RunRecord, Status};
use schema::scenario::{Scenario, Workload};

/// Launch, sampling of the requests, warm-up, output check and drain of one run.
const OVERHEAD_US: u64 = 12_000_000;
/// The same but for the sampling, where all launches share what was drawn.
const LAUNCH_US: u64 = 5_000_000;
/// How many earlier runs are read.
const PAST_RUNS: usize = 9;
/// Tokens a second that are assumed where nothing is known, of prompts and answers together.
const TOKENS_PER_S: u64 = 1_000;
const TOKENS_PER_S_ON_GPU: u64 = 10_000;
/// Prompt and answer of a conversation, as those of the standard data set have on average.
const CONVERSATION_TOKENS: u64 = 500;

/// An expectation and what it rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// The median of that many earlier runs.
    Measured {
        us: u64,
        runs: usize,
    },
    /// The median of that many results that others published.
    Imported {
        us: u64,
        runs: usize,
    },
    Unknown,
}

impl Estimate {
    /// None where nothing is known.
    #[must_use]
    pub fn us(self) -> Option<u64> {
        match self {
            Self::Measured { us, .. } | Self::Imported { us, .. } => Some(us),
            Self::Unknown => None,
        }
    }

    /// The same where all launches share the requests that were drawn once.
    #[must_use]
    pub fn us_when_drawn(self) -> Option<u64> {
        match self {
            Self::Measured { us, .. } => Some(us.saturating_sub(OVERHEAD_US) + LAUNCH_US),
            Self::Imported { us, .. } => Some(us + LAUNCH_US),
            Self::Unknown => None,
        }
    }
}

/// Wall times of a cell in earlier runs and in imported results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    pub measured_us: Vec<u64>,
    pub imported_us: Vec<u64>,
}

/// What a cell is, as far as it takes its time.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    pub engine: &'a str,
    pub hardware: &'a str,
    pub model: &'a str,
    pub scenario: &'a str,
    pub rev: u32,
}

/// Expected time of one run: as earlier ones took, launch included, else as imported ones did, of
/// whose launches nothing is known.
#[must_use]
pub fn of_run(past: &Past) -> Estimate {
    match (median(&past.measured_us), median(&past.imported_us)) {
        (Some(us), _) => Estimate::Measured { us: us + OVERHEAD_US, runs: past.measured_us.len() },
        (None, Some(us)) => Estimate::Imported { us, runs: past.imported_us.len() },
        (None, None) => Estimate::Unknown,
    }
}

/// What one run is assumed to take where nothing is known of its like: launch and warm-up, the time
/// until its last request is sent, and its tokens at [`tokens_per_s_assumed`].
#[must_use]
pub fn assumed_us(scenario: &Scenario, on_gpu: bool) -> u64 {
    let Workload { requests, input_tokens, output_tokens, prefix_tokens, .. } = scenario.workload;
    let each = match (input_tokens, output_tokens) {
        (Some(input), Some(output)) => input + output + prefix_tokens.unwrap_or(0),
        _ => CONVERSATION_TOKENS,
    };
    let tokens_us =
        requests.saturating_mul(each).saturating_mul(1_000_000) / tokens_per_s_assumed(on_gpu);
    LAUNCH_US.saturating_add(scenario.arrival.span_us(requests)).saturating_add(tokens_us)
}

/// Tokens a second that an engine is assumed to read and write where nothing is known of it.
#[must_use]
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
    percentile(&sorted, 0.5).map(|us| us.round() as u64)
}

/// What the registry tells of a cell's time, of whichever release and configuration.
#[must_use]
pub fn past(results: &Path, of: Of<'_>) -> Past {
    Past { measured_us: past_wall_us(results, of), imported_us: imported_wall_us(results, of) }
}

/// Wall times that others published. Their scenarios carry no revision of ours.
fn imported_wall_us(results: &Path, of: Of<'_>) -> Vec<u64> {
    let sources = folders(&results.join("imports"));
    let files = sources.iter().flat_map(|source| folders(source)).flat_map(|dir| entries(&dir));
    let walls = files.filter_map(|file| {
        let record: RunRecord = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
        let same = (record.engine.name == of.engine, record.hardware.id == of.hardware);
        let cell = (record.model.id == of.model, record.scenario.id == of.scenario);
        let fits = same == (true, true) && cell == (true, true) && record.status == Status::Ok;
        if fits { record.time?.wall_us } else { None }
    });
    walls.collect()
}

/// Wall times of the newest earlier runs of a cell, of whichever release and configuration.
///
/// What cannot be read is passed over: an estimate is no check.
fn past_wall_us(results: &Path, of: Of<'_>) -> Vec<u64> {
    let scenario_rev = format!("{}@{}", of.scenario, of.rev);
    let mut files: Vec<PathBuf> = Vec::new();
    for release in folders(&results.join("runs").join(of.engine)) {
        for config in folders(&release.join(of.hardware).join(of.model)) {
            files.extend(entries(&config.join(&scenario_rev)));
        }
    }
    // Names are ULIDs, which sort by time.
    files.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    let walls = files.iter().filter_map(|file| {
        let record: RunRecord = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
        if record.status == Status::Failed { None } else { record.time?.wall_us }
    });
    walls.take(PAST_RUNS).collect()
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
        let past = |measured_us: &[u64], imported_us: &[u64]| Past {
            measured_us: measured_us.to_vec(),
            imported_us: imported_us.to_vec(),
        };
        let three = [30_000_000, 10_000_000, 20_000_000];
        let us = 20_000_000;
        let launched = Estimate::Measured { us: us + OVERHEAD_US, runs: 3 };
        assert_eq!(of_run(&past(&three, &[1])), launched);
        assert_eq!(of_run(&past(&[], &three)), Estimate::Imported { us, runs: 3 });
        let between = Estimate::Imported { us: 15_000_000, runs: 2 };
        assert_eq!(of_run(&past(&[], &three[1..])), between);
        assert_eq!(of_run(&past(&[], &[])), Estimate::Unknown);
    }

    #[test]
    fn what_is_unknown_is_assumed_from_the_scenario() {
        let catalog =
            crate::catalog::Catalog::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite"));
        let assumed =
            |id, on_gpu| assumed_us(&catalog.scenario(id).unwrap().scenario, on_gpu) - LAUNCH_US;
        // Sixteen requests within 15/16 of a second, of 256 + 32 tokens each.
        assert_eq!(assumed("lab-throughput-lite", false), 937_500 + 4_608_000);
        assert_eq!(assumed("lab-sharegpt", true), 999_000 + 50_000_000);
        let known = Estimate::Measured { us: 20_000_000, runs: 1 };
        assert_eq!(known.us_when_drawn(), Some(13_000_000));
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
        let found = past(&results, of);
        assert_eq!((found.measured_us.len(), found.imported_us), (0, vec![779_020_000]));
        assert_eq!(past(&results, Of { engine: "redline", ..of }), Past::default());
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
        let past = past_wall_us(dir.path(), of);
        assert_eq!(past, [new.unwrap(), old.unwrap()]);
    }
}
