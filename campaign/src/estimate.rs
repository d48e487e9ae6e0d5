//! How long a run will take: as long as such runs took before, else as imported results say; what
//! was never measured is unknown.

use std::fs;
use std::path::{Path, PathBuf};

use audit::quantile::percentile;
use schema::run::{RunRecord, Status};

/// Launch, sampling of the requests, warm-up, output check and drain of one run.
const OVERHEAD_US: u64 = 12_000_000;
/// How many earlier runs are read.
const PAST_RUNS: usize = 9;

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
        use audit::sample::Sample;
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
