//! How long a run will take: as long as such runs took before, else from its token count.

use std::fs;
use std::path::{Path, PathBuf};

use schema::run::{RunRecord, Status};
use schema::scenario::{Pack, Scenario};

/// Tokens per second that are assumed where nothing was measured yet.
const ASSUMED_ON_CPU: u64 = 300;
const ASSUMED_ON_GPU: u64 = 10_000;
/// Mean tokens of a sampled conversation, input and output together (reference for the data set:
/// 219.6 + 202.9 under its own filter).
const CONVERSATION_TOKENS: u64 = 422;
/// Launch, sampling of the requests, warm-up, output check and drain of one run.
const OVERHEAD_US: u64 = 12_000_000;
/// How many earlier runs are read.
const PAST_RUNS: usize = 9;

/// An expectation and what it rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// The median of that many earlier runs.
    Measured { us: u64, runs: usize },
    /// A rate of tokens per second was assumed.
    Assumed { us: u64, tokens_per_s: u64 },
}

impl Estimate {
    #[must_use]
    pub fn us(self) -> u64 {
        match self {
            Self::Measured { us, .. } | Self::Assumed { us, .. } => us,
        }
    }
}

/// Expected time of one run, launch included.
#[must_use]
pub fn of_run(past_wall_us: &[u64], scenario: &Scenario, on_gpu: bool) -> Estimate {
    let mut sorted = past_wall_us.to_vec();
    sorted.sort_unstable();
    if let Some(median) = sorted.get(sorted.len() / 2) {
        return Estimate::Measured { us: median + OVERHEAD_US, runs: sorted.len() };
    }
    let tokens_per_s = if on_gpu { ASSUMED_ON_GPU } else { ASSUMED_ON_CPU };
    let us = tokens(scenario).saturating_mul(1_000_000) / tokens_per_s + OVERHEAD_US;
    Estimate::Assumed { us, tokens_per_s }
}

/// Input and output tokens that a scenario asks for, as far as its file tells.
#[must_use]
pub fn tokens(scenario: &Scenario) -> u64 {
    let workload = &scenario.workload;
    let told = [workload.prefix_tokens, workload.input_tokens, workload.output_tokens];
    let each = match workload.output_tokens {
        Some(_) if workload.pack != Pack::Jsonl => told.into_iter().flatten().sum(),
        // The data tells, and only once it is tokenized.
        _ => CONVERSATION_TOKENS,
    };
    workload.requests.saturating_mul(each)
}

/// Wall times of the newest earlier runs of a cell, of whichever release and configuration.
///
/// What cannot be read is passed over: an estimate is no check.
#[must_use]
pub fn past_wall_us(
    results: &Path,
    engine: &str,
    hardware: &str,
    (model, scenario_rev): (&str, &str),
) -> Vec<u64> {
    let mut files: Vec<PathBuf> = Vec::new();
    for release in folders(&results.join("runs").join(engine)) {
        for config in folders(&release.join(hardware).join(model)) {
            files.extend(entries(&config.join(scenario_rev)));
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

    fn scenario(id: &str) -> Scenario {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite/scenarios");
        Scenario::parse(&fs::read_to_string(dir.join(format!("{id}.toml"))).unwrap()).unwrap()
    }

    #[test]
    fn earlier_runs_are_believed_before_any_assumption() {
        let scenario = scenario("balanced-lite");
        let measured = of_run(&[30_000_000, 10_000_000, 20_000_000], &scenario, false);
        assert_eq!(measured, Estimate::Measured { us: 20_000_000 + OVERHEAD_US, runs: 3 });
        let assumed = of_run(&[], &scenario, false);
        let us = 32 * 256 * 1_000_000 / ASSUMED_ON_CPU + OVERHEAD_US;
        assert_eq!(assumed, Estimate::Assumed { us, tokens_per_s: ASSUMED_ON_CPU });
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
        let of = (newer.model.as_str(), "balanced-lite@1");
        let past = past_wall_us(dir.path(), "redline", &newer.hardware, of);
        assert_eq!(past, [new.unwrap(), old.unwrap()]);
    }

    #[test]
    fn tokens_follow_from_the_file() {
        for (id, expected) in
            [("thinking-lite", 8_000), ("long-input-lite", 8_000), ("sharegpt-lite", 48 * 422)]
        {
            assert_eq!(tokens(&scenario(id)), expected, "{id}");
        }
    }
}
