//! Simulated registry of a given number of records: a repository with one commit per release, whose
//! records are valid and marked `simulated`. The same number gives the same files. Knows nothing of
//! the measurements made with it.

use std::fs;
use std::path::Path;
use std::process::Command;

use samples::{Sample, campaign_id};
use schema::campaign::{CampaignRecord, PlannedRun};
use schema::canonical::{record_sha256, to_file_text};
use schema::path::{of_campaign, of_run};

use campaign::files::{FileError, make_dir};
use campaign::process;
use campaign::stop::Stop;
use campaign::world::World;

const HARDWARE: [&str; 5] =
    ["a100-80g", "h100-80g", "h200-141g", "h800-80g", "cpu-example-simulated-f6m1s1-2c"];
const MODELS: [&str; 5] = ["qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b"];
const SCENARIOS: [&str; 8] = [
    "sharegpt-lite",
    "balanced-lite",
    "thinking-lite",
    "long-input-lite",
    "ladder-lite-c1",
    "ladder-lite-c4",
    "ladder-lite-c16",
    "ladder-lite-c64",
];
const REPEATS: u64 = 5;
/// Number of records per release, if there are enough for two releases.
const OF_RELEASE: u64 = (HARDWARE.len() * MODELS.len() * SCENARIOS.len()) as u64 * REPEATS;

/// Two releases whose runs share blocks, so that they can be compared.
pub const PAIR: [&str; 2] = ["v0.0.0", "v0.1.0"];

/// Writes a repository with `records` runs of at least two releases into `folder`, which must be
/// empty or not exist.
///
/// # Errors
/// The folder is not empty, or git or a file operation fails.
pub fn repository(world: &World, folder: &Path, records: u64) -> Result<(), Stop> {
    make_dir(folder)?;
    let mut entries = fs::read_dir(folder).map_err(FileError::at("read", folder))?;
    if entries.next().is_some() {
        return Err(Stop::wrong_use(format!("`{}` is not empty", folder.display()))
            .with_hint("name a folder that is not there yet"));
    }
    git(world, folder, &["init", "--quiet", "--initial-branch", "main"])?;
    let of_release = OF_RELEASE.min(records.div_ceil(2));
    let mut written = 0;
    for release in 0..records.div_ceil(of_release) {
        let count = of_release.min(records - written);
        write_release(&folder.join("results"), release, written, count)?;
        written += count;
        git(world, folder, &["add", "--all"])?;
        git(world, folder, &["commit", "--quiet", "--message", &format!("v0.{release}.0")])?;
    }
    Ok(())
}

/// Writes the runs of one release. Two consecutive releases share a campaign, in blocks of two
/// runs.
fn write_release(results: &Path, release: u64, before: u64, count: u64) -> Result<(), Stop> {
    let mut plan: Vec<PlannedRun> = Vec::new();
    let campaign = campaign_id(1_000_000 + release / 2);
    for index in 0..count {
        let record = sample(&campaign, release, before + index + 1, index).record();
        let place = of_run(&record)?;
        write(&results.join(place), &to_file_text(&record)?)?;
        plan.push(PlannedRun::of(&record));
    }
    let mut record = CampaignRecord {
        schema: schema::campaign::SCHEMA.to_owned(),
        id: campaign_id(2_000_000 + release),
        releases: vec![format!("v0.{release}.0")],
        plan,
        ..CampaignRecord::default()
    };
    record.record_sha256 = record_sha256(&record)?;
    let place = of_campaign(&record)?;
    write(&results.join(place), &to_file_text(&record)?)
}

/// Makes the run with number `serial` in the registry, which has number `index` in its release.
fn sample(campaign: &str, release: u64, serial: u64, index: u64) -> Sample {
    let (repeat, cell) = (index % REPEATS, index / REPEATS);
    let pick = |among: &[&str], n: u64| {
        let at = usize::try_from(n).unwrap_or(0) % among.len();
        among[at].to_owned()
    };
    Sample {
        release: format!("v0.{release}.0"),
        hardware: pick(&HARDWARE, cell / (MODELS.len() * SCENARIOS.len()) as u64),
        model: pick(&MODELS, cell / SCENARIOS.len() as u64),
        scenario: pick(&SCENARIOS, cell),
        serial,
        seed: 1_000_003 + serial,
        campaign: (
            campaign.to_owned(),
            u32::try_from(index).unwrap_or(u32::MAX),
            u32::from(release % 2 == 1),
        ),
        repeat: u32::try_from(repeat + 1).unwrap_or(1),
        ..Sample::default()
    }
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    if let Some(folder) = path.parent() {
        make_dir(folder)?;
    }
    Ok(fs::write(path, text).map_err(FileError::at("write", path))?)
}

fn git(world: &World, folder: &Path, arguments: &[&str]) -> Result<(), Stop> {
    let mut git = Command::new("git");
    // The user's git settings, such as signing, must not influence or stop the commits.
    git.args(["-c", "user.name=Redline", "-c", "user.email=redline@localhost"])
        .args(["-c", "gc.auto=0", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .current_dir(folder);
    process::text(&mut git, &world.interrupt)?;
    Ok(())
}
