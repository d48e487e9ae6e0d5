//! Makes a registry of made-up records, as many as asked for, to see how a large one behaves:
//! `cargo run --release -p registry --example many -- FOLDER COUNT [SEED]`.
//!
//! The same count and seed give the same files. It is a repository with one commit for each
//! release; the records are sound and say `simulated`.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use audit::sample::{Sample, campaign_id};
use schema::campaign::{CampaignRecord, PlannedRun};
use schema::canonical::{record_sha256, to_file_text};
use schema::path::{of_campaign, of_run};

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
/// Records of one release.
const OF_RELEASE: u64 = (HARDWARE.len() * MODELS.len() * SCENARIOS.len()) as u64 * REPEATS;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let (folder, count, seed) = match arguments {
        [folder, count] => (folder, count, "1"),
        [folder, count, seed] => (folder, count, seed.as_str()),
        _ => bail!("usage: many FOLDER COUNT [SEED]"),
    };
    let count: u64 = count.parse().context("COUNT is a number of records")?;
    let seed: u64 = seed.parse().context("SEED is a number")?;
    let folder = Path::new(folder);
    fs::create_dir_all(folder)?;
    ensure!(fs::read_dir(folder)?.next().is_none(), "`{}` is not empty", folder.display());
    git(folder, &["init", "--quiet", "--initial-branch", "main"])?;
    let mut written = 0;
    for release in 0..count.div_ceil(OF_RELEASE) {
        let records = OF_RELEASE.min(count - written);
        write_release(&folder.join("results"), release, records, seed)?;
        written += records;
        git(folder, &["add", "--all"])?;
        git(folder, &["commit", "--quiet", "--message", &format!("v0.{release}.0")])?;
        println!("{written} of {count}");
    }
    Ok(())
}

/// Runs of two consecutive releases share a campaign, in blocks of two.
fn write_release(results: &Path, release: u64, records: u64, seed: u64) -> anyhow::Result<()> {
    let mut plan: Vec<PlannedRun> = Vec::new();
    let campaign = campaign_id(1_000_000 + release / 2);
    for index in 0..records {
        let record = sample(&campaign, release, index, seed).record();
        write(&results.join(of_run(&record)?), &to_file_text(&record)?)?;
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
    write(&results.join(of_campaign(&record)?), &to_file_text(&record)?)
}

fn sample(campaign: &str, release: u64, index: u64, seed: u64) -> Sample {
    let (repeat, cell) = (index % REPEATS, index / REPEATS);
    let pick = |among: &[&str], n: u64| {
        let at = usize::try_from(n).unwrap_or(0) % among.len();
        among[at].to_owned()
    };
    let serial = release * OF_RELEASE + index + 1;
    Sample {
        release: format!("v0.{release}.0"),
        hardware: pick(&HARDWARE, cell / (MODELS.len() * SCENARIOS.len()) as u64),
        model: pick(&MODELS, cell / SCENARIOS.len() as u64),
        scenario: pick(&SCENARIOS, cell),
        serial,
        seed: seed.wrapping_mul(1_000_003).wrapping_add(serial),
        campaign: (
            campaign.to_owned(),
            u32::try_from(index).unwrap_or(u32::MAX),
            u32::from(release % 2 == 1),
        ),
        repeat: u32::try_from(repeat + 1).unwrap_or(1),
        ..Sample::default()
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().context("a record has no folder")?;
    fs::create_dir_all(folder).and_then(|()| fs::write(path, text))?;
    Ok(())
}

fn git(folder: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let author = ["-c", "user.name=Redline", "-c", "user.email=redline@localhost"];
    let status = Command::new("git")
        .args(author)
        .args(["-c", "gc.auto=0"])
        .args(arguments)
        .current_dir(folder)
        .status()?;
    ensure!(status.success(), "`git {}` ended with {status}", arguments.join(" "));
    Ok(())
}
