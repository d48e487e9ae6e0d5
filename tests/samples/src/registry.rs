//! A made-up registry for tests and for looking at the pages without one.

use schema::campaign::CampaignRecord;
use schema::canonical::to_file_text;
use schema::run::RunRecord;
use schema::scenario::Arrival;

use crate::alternation::{self, InTurns};
use crate::{Sample, campaign_id, reseal};

use judge::{Registry, Stored};

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

/// The campaign in which the last two releases ran. Under each scenario it also asked both servers
/// of the first model in turns: the later release is faster, as fast, slower, and undecided.
pub fn campaign_in_turns() -> CampaignRecord {
    let changes = [(1.31, 0.002), (1.0, 0.002), (0.96, 0.002), (1.0, 0.3)];
    let turns = SCENARIOS.iter().zip(changes).map(|((scenario, _), (speed, scatter))| {
        let engine = |release: &str| ("redline".to_owned(), release.to_owned());
        InTurns {
            engines: [engine("v0.9.2"), engine("v0.10.0")],
            scenario: format!("{scenario}@1"),
            arrival: Arrival::AllAtOnce,
            speed,
            scatter,
            ..InTurns::default()
        }
        .comparison()
    });
    alternation::campaign(&campaign_id(2), turns.collect())
}

/// Engines, hardware, models and scenarios of a registry that is made up at size.
const ENGINES: [(&str, f64); 3] = [("redline", 1.0), ("other", 0.9), ("third", 1.1)];
const MACHINES: [(&str, f64); 2] =
    [("cpu-example-simulated-f6m1s1-2c", 1.0), ("cpu-example-simulated-f6m2s1-8c", 3.0)];
const SIZES: [(&str, f64); 5] = [
    ("tiny-q4", 2.0),
    ("small-bf16", 1.0),
    ("medium-bf16", 0.5),
    ("large-fp8", 0.2),
    ("moe-fp8", 0.4),
];
const LOADS: [(&str, u64, f64); 6] = [
    ("sharegpt-lite", 0, 1.0),
    ("balanced-lite", 0, 1.2),
    ("long-input-lite", 0, 0.5),
    ("ladder-lite-c1", 1, 0.2),
    ("ladder-lite-c4", 4, 0.6),
    ("ladder-lite-c16", 16, 1.0),
];
const REPEATS: u32 = 3;

/// At least `count` records of several engines over as many releases as it takes: each cell three
/// times, one cell in seventeen failing or losing requests.
pub fn many(count: usize) -> Vec<RunRecord> {
    let mut records = Vec::with_capacity(count);
    let mut serial = 0;
    let mut release = 0_u32;
    while records.len() < count {
        release += 1;
        for (engine, of_engine) in ENGINES {
            for (hardware, of_hardware) in MACHINES {
                for (model, of_model) in SIZES {
                    let speed = of_engine * of_hardware * of_model * trend(release);
                    for load in LOADS {
                        for repeat in 1..=REPEATS {
                            serial += 1;
                            let sample = Sample {
                                engine: engine.to_owned(),
                                release: format!("v1.{release}.0"),
                                hardware: hardware.to_owned(),
                                model: model.to_owned(),
                                scenario: load.0.to_owned(),
                                serial,
                                campaign: (campaign_id(u64::from(release)), repeat, 0),
                                repeat,
                                speed: speed * load.2 * wobble(serial),
                                seed: serial,
                                failed: if serial % 17 == 3 { 3 } else { 0 },
                                ..Sample::default()
                            };
                            records.push(loaded(&sample, load.1));
                        }
                    }
                }
            }
        }
    }
    records
}

/// A step up every few releases, and noise in between.
fn trend(release: u32) -> f64 {
    1.0 + f64::from(release / 4) * 0.08
}

/// The record of `sample` under a closed loop of so many users; all at once for none.
fn loaded(sample: &Sample, users: u64) -> RunRecord {
    if sample.serial % 170 == 5 {
        return sample.failed_record();
    }
    let mut record = sample.record();
    if users > 0 {
        record.scenario.arrival = Some(Arrival::Closed { concurrency: users });
    }
    reseal(record)
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
pub(crate) fn wobble(serial: u64) -> f64 {
    let step = u32::try_from(serial.wrapping_mul(2_654_435_761) % 1000).unwrap_or(0);
    1.0 + (f64::from(step) / 1000.0 - 0.5) * 0.03
}

/// A registry that holds `records`.
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
pub fn files() -> Vec<(String, String)> {
    let campaign = campaign_in_turns();
    let path = schema::path::of_campaign(&campaign).expect("a made-up id is a ULID");
    let text = to_file_text(&campaign).expect("made-up figures are numbers");
    records().iter().map(file).chain([(path, text)]).collect()
}

/// Path and text of the file of `record`.
///
/// # Panics
/// A made-up record has no JSON form.
pub fn file(record: &RunRecord) -> (String, String) {
    (path(record), to_file_text(record).expect("made-up figures are numbers"))
}

fn path(record: &RunRecord) -> String {
    schema::path::of_run(record).unwrap_or_else(|_| format!("imports/sample/{}.json", record.id))
}

/// Two runs of one cell, the second of which failed.
pub fn two_runs() -> Registry {
    let failed = Sample { serial: 2, ..Sample::default() }.failed_record();
    registry(vec![Sample::default().record(), failed])
}
