//! The command `scale-bench`: measures how long the registry's tools and the site take on a large
//! simulated registry. The times are compared only with fixed limits, not with earlier times.
//!
//! The registry is a repository with one commit per release, whose records are valid and marked
//! `simulated`. The same number of records gives the same files. A bundle that is submitted to it is
//! made beside it.

mod submission;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use campaign::files::{FileError, files_below, make_dir};
use campaign::lock::Lock;
use campaign::process;
use campaign::process::{capture, children_us, describe};
use campaign::stop::Stop;
use campaign::tools::{RESULTS, SITE};
use campaign::world::World;
use judge::summary;
use samples::{Sample, campaign_id};
use schema::campaign::{CampaignRecord, PlannedRun};
use schema::canonical::{record_sha256, to_file_text};
use schema::exit::Exit;
use schema::path::{of_campaign, of_run};

use crate::cli::ScaleBench;
use crate::clients::table::{grouped, spread};
use crate::{clients, float, write_table};
use submission::{SubmittedBundle, submitted};

/// Number of records in the simulated registry for which the commands have time limits.
pub const WANTED_OF: u64 = 50_000;
/// Divisor of the number of records that gives the number from which the site is built.
const SITE_SHARE: u64 = 10;
/// Page that contains the table of the scale benchmark, relative to the repository's root.
const DOCUMENT: &str = "docs/method/scale.md";
/// Command named in the marker of the page `docs/method/scale.md` that says who writes its table.
const COMMAND: &str = "cargo xtask scale-bench --document";

/// Runs `scale-bench`. The exit code is 1 if the median time of a command is above its limit; the
/// limits apply to the default number of records only.
///
/// # Errors
/// A program of Redline is missing, another process holds the clone's lock, the folder for the
/// registry is not empty, git fails, a file cannot be read or written (as when the disk is full), a
/// command fails on the registry, or the run is interrupted.
pub fn run(world: &World, flags: &ScaleBench) -> Result<Exit, Stop> {
    world.tools.check_for(&[RESULTS, SITE])?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let (records, site_records) = (flags.records, flags.records / SITE_SHARE);
    let dir = world.places.target("scale-bench");
    make_dir(&dir)?;
    let scratch = tempfile::tempdir_in(&dir).map_err(FileError::at("make a folder in", &dir))?;
    let place = clients::place(world)?;
    let step = |text: &str| world.console.step(world.clock.elapsed(), text);
    step(&format!("Generate {records} and {site_records} records, and a bundle"));
    let registry = flags.keep.clone().unwrap_or_else(|| scratch.path().join("registry"));
    repository(world, &registry, records)?;
    // The site gets a registry of its own, a tenth of the size.
    let site_registry = scratch.path().join("site-registry");
    repository(world, &site_registry, site_records)?;
    let registries = Registries {
        world,
        registry,
        site_registry,
        site: scratch.path().join("site"),
        bundle: submitted(world, &scratch.path().join("submitter"), records)?,
    };
    let mut times: Vec<(&Work, Vec<Took>)> = WORKS.iter().map(|work| (work, Vec::new())).collect();
    for repeat in 1..=flags.repeats {
        for (work, times) in &mut times {
            step(&format!("{}, repeat {repeat}", work.title));
            let took = registries.time(work)?;
            world.console.note(&format!("{:.2} s, processor {:.2} s", took.wall_s, took.cpu_s));
            times.push(took);
        }
    }
    let scaled = Scaled {
        records,
        site_records,
        registry_bytes: bytes(&files_below(&registries.registry.join("results")))?,
        site_bytes: bytes(&files_below(&registries.site))?,
        bundle_runs: registries.bundle.runs,
        bundle_bytes: bytes(std::slice::from_ref(&registries.bundle.file))?,
        times,
        provenance: place.provenance(),
    };
    let table = scaled.render();
    if flags.document {
        write_table(world, DOCUMENT, COMMAND, &table)?;
    }
    world.console.answer(&table)?;
    Ok(if scaled.is_as_wanted() { Exit::Well } else { Exit::Worse })
}

/// Returns the total size of `files` in bytes.
fn bytes(files: &[PathBuf]) -> Result<u64, FileError> {
    let of = |file: &PathBuf| {
        fs::metadata(file).map(|facts| facts.len()).map_err(FileError::at("look at", file))
    };
    files.iter().map(of).sum()
}

/// Removes a folder with its content; a folder that does not exist is no error.
fn remove(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FileError::at("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

/// Command of the registry's tools or the site that the scale benchmark times.
#[derive(Debug)]
pub struct Work {
    pub title: &'static str,
    /// Limit, in seconds, on the command's median wall time, for the default number of records.
    pub wanted_s: f64,
    /// Command line: subcommand of `redline-results`, or of `redline-site` for the site, and its
    /// arguments.
    words: &'static [&'static str],
    on: Subject,
    /// Exit codes of the command that do not count as a failure.
    codes: &'static [i32],
}

/// What a timed command works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// Registry, through the index of its records.
    Registry,
    /// Registry whose index was removed.
    RegistryWithoutIndex,
    /// Bundle that is submitted to the registry.
    Bundle,
    /// Registry of the site.
    Site,
}

impl Work {
    /// Returns a command that reads the registry through its index, and must end with exit code 0.
    const fn new(title: &'static str, wanted_s: f64, words: &'static [&'static str]) -> Self {
        Self { title, wanted_s, words, on: Subject::Registry, codes: &[0] }
    }
}

/// Timed commands, in an order in which each finds the files that it needs.
const WORKS: [Work; 6] = [
    Work {
        on: Subject::RegistryWithoutIndex,
        ..Work::new("check, without an index", 20.0, &["check"])
    },
    Work::new("check, again", 20.0, &["check"]),
    Work::new("list", 1.0, &["list"]),
    // A comparison of simulated releases may have any verdict.
    Work {
        codes: &[0, 1, 3],
        ..Work::new("diff of two releases", 3.0, &["diff", PAIR[0], PAIR[1]])
    },
    Work { on: Subject::Bundle, ..Work::new("submit check", 10.0, &["submit", "check"]) },
    Work { on: Subject::Site, ..Work::new("the site", 10.0, &["build"]) },
];

/// Wall and CPU time that one timed command took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    /// Wall time of the command in seconds, to 10 ms, the interval at which processes are polled.
    pub wall_s: f64,
    /// User and system CPU time of the command in seconds, summed over all cores.
    pub cpu_s: f64,
}

/// Simulated registries and the site's folder, on which the timed commands work.
#[derive(Debug)]
pub struct Registries<'a> {
    pub world: &'a World,
    pub registry: PathBuf,
    pub site_registry: PathBuf,
    /// Folder in which the site is built, emptied before each build.
    pub site: PathBuf,
    /// Bundle that is submitted to the registry.
    pub bundle: SubmittedBundle,
}

impl Registries<'_> {
    /// Runs the command of `work` to its end and measures its time.
    ///
    /// # Errors
    /// The command cannot be started, fails, or is interrupted, or the system does not report CPU
    /// times.
    pub fn time(&self, work: &Work) -> Result<Took, Stop> {
        let mut command = self.command(work)?;
        let clock = &self.world.clock;
        // Processor time is known only in sum over all ended children, hence the difference.
        let (before_us, started) = (children_us()?, clock.elapsed());
        let written = capture(&mut command, &self.world.interrupt)?;
        let took = Took {
            wall_s: (clock.elapsed() - started).as_secs_f64(),
            cpu_s: (children_us()? - before_us) / 1e6,
        };
        if written.status.code().is_some_and(|code| work.codes.contains(&code)) {
            return Ok(took);
        }
        let (title, how) = (work.title, describe(written.status));
        let said = written.last_said().unwrap_or("silent");
        Err(Stop::environment(format!("`{title}` ended with {how}: {said}")))
    }

    /// Builds the command line of `work`, and removes what an earlier command left on disk that
    /// would speed it up.
    fn command(&self, work: &Work) -> Result<Command, Stop> {
        let (verb, arguments) = (work.words[0], &work.words[1..]);
        let mut results = self.world.tools.results(verb);
        results.args(arguments);
        match work.on {
            Subject::Registry => {}
            // The folder contains only the index.
            Subject::RegistryWithoutIndex => remove(&self.registry.join("target"))?,
            Subject::Bundle => {
                results.arg(&self.bundle.file).arg("--signers").arg(&self.bundle.signers);
            }
            Subject::Site => {
                remove(&self.site)?;
                let mut build = self.world.tools.site(verb);
                build.arg("--registry").arg(&self.site_registry).arg("--out").arg(&self.site);
                return Ok(build);
            }
        }
        results.arg("--registry").arg(&self.registry);
        Ok(results)
    }
}

/// Number of decimal places of a time in seconds: processes are polled every 10 ms.
const DIGITS: usize = 2;

/// Results of the scale benchmark: numbers of records, sizes, and times of the commands.
#[derive(Debug)]
pub struct Scaled {
    pub records: u64,
    /// Number of records in the registry from which the site is built.
    pub site_records: u64,
    pub registry_bytes: u64,
    pub site_bytes: u64,
    /// Number of runs in the bundle that is submitted.
    pub bundle_runs: u64,
    pub bundle_bytes: u64,
    /// Times of each timed command, with one entry per repeat in the order of the repeats.
    pub times: Vec<(&'static Work, Vec<Took>)>,
    /// Sentence that states date, commit and machine of the measurement.
    pub provenance: String,
}

impl Scaled {
    /// Renders the measured times, the sizes and the provenance as Markdown.
    pub fn render(&self) -> String {
        let mut text =
            "| | wanted, s | wall time, s | processor time, s |\n|---|---|---|---|\n".to_owned();
        for (work, times) in &self.times {
            let repeats =
                |of: fn(&Took) -> f64| summary::of(&times.iter().map(of).collect::<Vec<f64>>());
            let (Some(wall), Some(cpu)) = (repeats(|t| t.wall_s), repeats(|t| t.cpu_s)) else {
                continue;
            };
            let wanted = self.wanted_s(work);
            let shown = wanted.map(|most| format!("<= {}", grouped(most, DIGITS)));
            let kept = wanted.is_none_or(|most| wall.median <= most);
            text += &format!(
                "| {} | {} | {} | {} |\n",
                work.title,
                shown.unwrap_or_default(),
                spread(&wall, DIGITS, kept),
                spread(&cpu, DIGITS, true),
            );
        }
        format!("{text}\n{}\n{}\n", self.sizes(), self.provenance)
    }

    /// True when the median wall time of every command is at most its limit; true where no limits
    /// apply.
    pub fn is_as_wanted(&self) -> bool {
        self.times.iter().all(|(work, times)| {
            let wall = summary::of(&times.iter().map(|took| took.wall_s).collect::<Vec<f64>>());
            wall.zip(self.wanted_s(work)).is_none_or(|(wall, most)| wall.median <= most)
        })
    }

    /// Returns the limit, in seconds, on the median of a command's wall times; `None` unless the
    /// registry has the default number of records.
    fn wanted_s(&self, work: &Work) -> Option<f64> {
        (self.records == WANTED_OF).then_some(work.wanted_s)
    }

    fn sizes(&self) -> String {
        let count = |value: u64| grouped(float(value), 0);
        let megabytes = |bytes: u64| grouped(float(bytes) / 1e6, 0);
        format!(
            "The registry has {} records in {} MB, and the site {} MB, made of {} records. The \
             submitted bundle has {} runs in {} MB.",
            count(self.records),
            megabytes(self.registry_bytes),
            megabytes(self.site_bytes),
            count(self.site_records),
            count(self.bundle_runs),
            megabytes(self.bundle_bytes),
        )
    }
}

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
/// Number of runs in each release of the simulated registry except the last, which has the rest; a
/// registry too small for two such releases is split into halves instead.
const OF_RELEASE: u64 = (HARDWARE.len() * MODELS.len() * SCENARIOS.len()) as u64 * REPEATS;

/// Versions of the first two releases of the simulated registry, which the timed `diff` compares.
/// Their runs lie in common blocks, so that they can be compared.
pub const PAIR: [&str; 2] = ["v0.0.0", "v0.1.0"];

/// Creates a git repository of a simulated registry with `records` runs of at least two releases
/// into `folder`, which must be empty or not exist.
///
/// # Errors
/// The folder is not empty, git or a file operation fails, or the run is interrupted.
pub fn repository(world: &World, folder: &Path, records: u64) -> Result<(), Stop> {
    make_dir(folder)?;
    let mut entries = fs::read_dir(folder).map_err(FileError::at("read", folder))?;
    if entries.next().is_some() {
        return Err(Stop::wrong_use(format!("`{}` is not empty", folder.display()))
            .with_hint("name a folder that is not there yet"));
    }
    git(world, folder, &["init", "--quiet", "--initial-branch", "main"])?;
    // A small registry is split in half, so that there are two releases to compare.
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

/// Writes the records of one release: `count` runs, after the `before` runs of earlier releases,
/// and their campaign. The runs of releases 0 and 1, of 2 and 3, and so on have a common campaign
/// id and pair up in blocks: one run of each release.
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

/// Builds the simulated run with number `serial` in the registry and number `index` in its release.
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
            // The later one of two releases that share a campaign is second in each block.
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
        // Garbage collection would go on in the background while the commands are timed.
        .args(["-c", "gc.auto=0", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .current_dir(folder);
    process::text(&mut git, &world.interrupt)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn scaled(records: u64) -> Scaled {
        let took = |wall_s: f64| Took { wall_s, cpu_s: wall_s * 1.5 };
        Scaled {
            records,
            site_records: records / 10,
            registry_bytes: 435_000_000,
            site_bytes: 249_400_000,
            bundle_runs: 4_572,
            bundle_bytes: 60_200_000,
            times: [
                (&WORKS[0], vec![took(13.4)]),
                (&WORKS[2], vec![took(1.25), took(0.5), took(1.5)]),
            ]
            .into(),
            provenance: "Measured somewhere.".to_owned(),
        }
    }

    #[test]
    fn a_table_has_medians_ranges_and_what_was_missed() {
        let scaled = scaled(50_000);
        expect![[r#"
            | | wanted, s | wall time, s | processor time, s |
            |---|---|---|---|
            | check, without an index | <= 20.00 | 13.40 | 20.10 |
            | list | <= 1.00 | 1.25 (missed) [0.50 to 1.50] | 1.88 [0.75 to 2.25] |

            The registry has 50,000 records in 435 MB, and the site 249 MB, made of 5,000 records. The submitted bundle has 4,572 runs in 60 MB.
            Measured somewhere.
        "#]]
        .assert_eq(&scaled.render());
        assert!(!scaled.is_as_wanted());
    }

    #[test]
    fn nothing_is_wanted_of_a_registry_of_another_size() {
        let scaled = scaled(40_000);
        assert!(scaled.is_as_wanted() && !scaled.render().contains("<="), "{}", scaled.render());
    }
}
