//! A made-up registry for tests and for looking at the pages without one.

use schema::canonical::to_file_text;
use schema::run::RunRecord;

use audit::sample::{Sample, campaign_id};

use registry::{Registry, Stored};

/// Releases, models and scenarios of the made-up registry.
const RELEASES: [(&str, f64); 3] = [("v0.9.1", 1.0), ("v0.9.2", 1.04), ("v0.10.0", 1.31)];
const MODELS: [(&str, f64); 2] = [("smollm2-135m-instruct-q4_1", 1.0), ("qwen3-0.6b-bf16", 0.31)];
const SCENARIOS: [(&str, f64); 4] = [
    ("sharegpt-lite", 1.0),
    ("balanced-lite", 1.2),
    ("thinking-lite", 0.7),
    ("long-input-lite", 0.5),
];

/// The records: three launches of every cell; in the last release one launch fails to load and
/// one loses requests, and the second model runs once.
#[must_use]
pub fn records() -> Vec<RunRecord> {
    let mut records = Vec::new();
    let mut serial = 1;
    for (release, speed) in RELEASES {
        for (model, factor) in MODELS {
            for (scenario, share) in SCENARIOS {
                let launches =
                    if release == "v0.10.0" && model.starts_with("qwen") { 1 } else { 3 };
                for repeat in 1..=launches {
                    serial += 1;
                    let lost = release == "v0.10.0" && scenario == "thinking-lite" && repeat == 2;
                    let sample = Sample {
                        release: release.to_owned(),
                        model: model.to_owned(),
                        scenario: scenario.to_owned(),
                        serial,
                        campaign: campaign(release, repeat),
                        repeat,
                        speed: speed * factor * share * wobble(serial),
                        seed: serial,
                        failed: if lost { 3 } else { 0 },
                        ..Sample::default()
                    };
                    let dead = release == "v0.10.0" && scenario == "long-input-lite" && repeat == 3;
                    records.push(if dead { sample.failed_record() } else { sample.record() });
                }
            }
        }
    }
    records
}

/// The last two releases ran interleaved, the first on a day of its own.
fn campaign(release: &str, repeat: u32) -> (String, u32, u32) {
    match release {
        "v0.9.1" => (campaign_id(1), repeat, 0),
        "v0.9.2" => (campaign_id(2), repeat, repeat % 2),
        _ => (campaign_id(2), repeat, (repeat + 1) % 2),
    }
}

/// Launch-to-launch noise of about a percent.
fn wobble(serial: u64) -> f64 {
    let step = u32::try_from(serial.wrapping_mul(2_654_435_761) % 1000).unwrap_or(0);
    1.0 + (f64::from(step) / 1000.0 - 0.5) * 0.03
}

/// A registry that holds `records`.
#[must_use]
pub fn registry(records: Vec<RunRecord>) -> Registry {
    let stored = |record: RunRecord| Stored { path: path(&record), root: 0, record };
    let mut runs: Vec<Stored<RunRecord>> = records.into_iter().map(stored).collect();
    runs.sort_by(|a, b| a.path.cmp(&b.path));
    Registry { runs, ..Registry::default() }
}

/// Path and text of every file of the made-up registry.
///
/// # Panics
/// A made-up record has no JSON form.
#[must_use]
pub fn files() -> Vec<(String, String)> {
    let text = |record: &RunRecord| to_file_text(record).expect("made-up figures are numbers");
    records().iter().map(|record| (path(record), text(record))).collect()
}

fn path(record: &RunRecord) -> String {
    schema::path::of_run(record).unwrap_or_else(|_| format!("imports/sample/{}.json", record.id))
}
