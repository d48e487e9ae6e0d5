//! A job: interleaved runs of one cell, or runs on one server, for one node, as plain data in a folder that controller and
//! node share. Defines the files that cross it: `job.json` with the facts that a node needs, the
//! job's final report, and the step log, from which the node resumes and the controller prints
//! progress. Builds a planned job's `job.json`, its specification for the scheduler and its share
//! of the GPU-hours; verifies the records that come back, byte for byte, and copies them into the
//! campaign's staged results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use schema::alternation::AlternatingComparison;
use schema::canonical::{record_sha256, sha256_hex};
use schema::exit::Exit;
use schema::run::RunRecord;
use schema::untrusted::parser_message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::executor::journal::{
    Entry, PlannedJob, PreparedCampaign, Reached, RecordedHardware, State,
};
use crate::executor::{Executor, JobSpec};
use crate::files::{self, FileError, files_below, read_lines, read_text, write_whole};
use crate::inputs::cache::sha256_file;
use crate::node::load_generator::time_limit;
use crate::places::{CampaignPlaces, STARTS};
use crate::plan::brief::gpu_hours;
use crate::plan::{PlannedAlternation, PlannedRun};
use crate::publish::write_run;
use crate::server_spec::{ReadyCell, ServerSpec};
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Number of hex digits of a SHA-256 that a job's key contains.
const KEY_DIGITS: usize = 12;

/// Content of a job's file `job.json`: facts from which the job's node starts servers, measures and
/// records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub key: String,
    pub campaign: String,
    /// Name of the job's executor for its records, such as `slurm`.
    pub executor: String,
    /// All variants of the campaign; the job's runs name them by index.
    #[serde(rename = "sides")]
    pub variants: Vec<ServerSpec>,
    /// Cells of the job's runs, by their index in the campaign: one, or several of one model.
    pub cells: BTreeMap<usize, JobCell>,
    #[serde(rename = "slots")]
    pub runs: Vec<PlannedRun>,
    /// Files and folders that the job's runs read, each with its size in bytes; a folder has size
    /// 0.
    pub inputs: Vec<(PathBuf, u64)>,
    /// Facts of the hardware of a server that is already running (`--url`); `None` when the node
    /// detects its own hardware.
    pub hardware: Option<RecordedHardware>,
    /// True when a server takes one GPU per tensor-parallel rank; false when it runs on a
    /// processor.
    pub on_gpu: bool,
    /// Hardware id that the node must have for its results to belong to the campaign; `None`
    /// accepts any hardware.
    pub hardware_id: Option<String>,
    pub url: Option<String>,
    pub timeout_s: Option<u32>,
    /// True when the user watches a terminal, so that the node writes the progress of its runs to
    /// its log.
    pub watched: bool,
    /// Largest number of GPU-hours that the job may use; `None` for no limit.
    pub gpu_hours_max: Option<f64>,
    /// Extent of the alternating comparison that the job makes of the variants of its two runs;
    /// `None` for a job that carries out its runs one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternation: Option<PlannedAlternation>,
    /// True for a job of a gate, whose results are never recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gate: bool,
}

/// A cell of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobCell {
    #[serde(flatten)]
    pub ready: ReadyCell,
    /// Expected time of one run of each variant in the cell, in microseconds, in the order of the
    /// variants; 0 if unknown.
    pub expected_us: Vec<u64>,
}

impl Job {
    /// Returns the number of GPUs that a server of the job takes; 0 on a processor.
    pub fn gpus(&self) -> u32 {
        let tp = self.cells.values().next().map_or(0, |cell| cell.ready.cell.tp);
        if self.on_gpu { tp } else { 0 }
    }

    /// Returns the cell of one of the job's runs.
    ///
    /// # Errors
    /// The job does not have the cell that the run names.
    pub fn cell(&self, run: &PlannedRun) -> Result<&JobCell, Stop> {
        let missing = || wrong_use!("the job lacks cell {} of run {}", run.cell, run.run);
        self.cells.get(&run.cell).ok_or_else(missing)
    }

    /// Returns true if the run after `run` uses the same server.
    pub fn shares_server_with_next(&self, run: &PlannedRun) -> bool {
        let mut after = self.runs.iter().skip_while(|other| other.run != run.run).skip(1);
        run.server.is_some() && after.next().is_some_and(|next| next.server == run.server)
    }

    /// Returns the block number, which counts through the campaign, of each of the job's blocks, in
    /// the order in which the blocks run.
    pub fn blocks(&self) -> Vec<u32> {
        let mut blocks: Vec<u32> = self.runs.iter().map(|run| run.block).collect();
        blocks.dedup();
        blocks
    }
}

/// Returns the key of a job, `redline-<12 hex>-<attempt>`. The hex digits are the first of a
/// SHA-256 over campaign, first run and attempt, so that the key finds the same job again after a
/// crash and never another.
pub fn key(campaign: &str, runs: &[PlannedRun], attempt: u32) -> String {
    let first = runs.first().map_or("", |run| &run.run);
    // The first run's id tells jobs of one campaign apart, since a run belongs to one job.
    let digest = sha256_hex(format!("{campaign} {first} {attempt}").as_bytes());
    format!("redline-{}-{attempt}", &digest[..KEY_DIGITS])
}

/// Path, SHA-256 and size in bytes of a file in a job's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFact {
    /// Path of the file relative to the job's folder.
    pub path: String,
    pub sha256: String,
    pub bytes: u64,
}

impl FileFact {
    /// Returns path, SHA-256 and size of the file at `path` below `dir`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(dir: &Path, path: &str) -> Result<Self, FileError> {
        let file = dir.join(path);
        let bytes = std::fs::metadata(&file).map_err(FileError::at("read", &file))?.len();
        Ok(Self { path: path.to_owned(), sha256: sha256_file(&file)?, bytes })
    }
}

/// A job's final report, `DONE`: the last file that its node writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub end: NodeEnd,
    /// Record files that the job's node has written, with their hashes.
    pub files: Vec<FileFact>,
}

/// Outcome of a job, as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum NodeEnd {
    /// The job succeeded: every run has its record.
    Well,
    /// The job's node is not fit to measure, for the reason in `said`; another node may be.
    Unfit { said: String },
    /// The job ended early for a reason that another node may not have: a program or container
    /// runtime that cannot be started, a server that does not answer at its URL, a failing Redline
    /// tool, or a file that cannot be read or written, among others.
    Broke { said: String, hint: Option<String> },
    /// The job ended early for a reason that no other node would mend: wrong usage, invalid data,
    /// or GPU-hours that are used up.
    Refused { said: String, hint: Option<String> },
}

impl NodeEnd {
    /// Converts the error that ended a job on its node into the outcome that the controller reads.
    pub fn stopped(stop: &Stop) -> Self {
        let (said, hint) = stop.cause();
        match stop.exit() {
            Exit::Environment => Self::Broke { said, hint },
            _ => Self::Refused { said, hint },
        }
    }

    /// Converts the outcome that the node reported into an error of the controller; `None` if the
    /// job succeeded.
    pub fn stop(&self) -> Option<Stop> {
        let (stop, hint) = match self {
            Self::Well => return None,
            Self::Unfit { said } => (Stop::environment(said.clone()), &None),
            Self::Broke { said, hint } => (Stop::environment(said.clone()), hint),
            Self::Refused { said, hint } => (Stop::wrong_use(said.clone()), hint),
        };
        Some(match hint {
            Some(hint) => stop.with_hint(hint.clone()),
            None => stop,
        })
    }
}

impl Job {
    /// Reads the file `job.json` in the folder `places` of a job.
    ///
    /// # Errors
    /// `job.json` cannot be read or parsed.
    pub fn read(places: &CampaignPlaces) -> Result<Self, Stop> {
        let path = places.dir.join("job.json");
        serde_json::from_str(&read_text(&path)?).map_err(|error| {
            wrong_use!("`{}` is no job: {}", path.display(), parser_message(&error))
        })
    }

    /// Writes the facts about the job to `job.json` in the folder `places`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, places: &CampaignPlaces) -> Result<(), Stop> {
        write_json(&places.dir.join("job.json"), self)
    }
}

impl Done {
    /// Reads the final report of the job in the folder `places`; `None` while the job runs, or
    /// while a network file system does not show the file yet.
    ///
    /// # Errors
    /// The file exists, but cannot be read or is invalid.
    pub fn read(places: &CampaignPlaces) -> Result<Option<Self>, Stop> {
        let path = places.done();
        if !path.is_file() {
            return Ok(None);
        }
        let done = serde_json::from_str(&read_text(&path)?);
        let unreadable = |error| wrong_use!("cannot read `{}`: {error}", path.display());
        Ok(Some(done.map_err(unreadable)?))
    }

    /// Writes the job's final report to the folder `places`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, places: &CampaignPlaces) -> Result<(), Stop> {
        write_json(&places.done(), self)
    }
}

/// Path of the file with a job's alternating comparison, relative to the job's folder.
pub const COMPARISON: &str = "comparison.json";

/// Returns the path of the file with a start of an alternating comparison, relative to the job's
/// folder.
pub fn start_path(number: usize) -> String {
    format!("{STARTS}/{number:04}.json")
}

/// Returns the path of a run's record relative to the job's folder.
pub fn record_path(run: &str) -> String {
    format!("runs/{run}.json")
}

/// Writes a value as JSON on one line.
///
/// # Errors
/// The value has no JSON form, or the file cannot be written.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Stop> {
    let text =
        serde_json::to_string(value).map_err(|error| FileError::at("write", path)(error.into()))?;
    files::make_dir(path.parent().unwrap_or(Path::new(".")))?;
    Ok(write_whole(path, format!("{text}\n").as_bytes())?)
}

/// One line of a job's step log, which its node writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// A process on the node has begun the job or continues it.
    Began,
    /// The node has a note for the user, such as that the machine is slower than before.
    Noted { said: String },
    /// The node has begun a block of the job.
    BlockBegun { block: u32 },
    /// The node has begun a run of the current block.
    RunBegun { run: String },
    /// A run has ended; it took `wall_us` microseconds with start and stop of its server. `said`
    /// are lines for the user: its rates or its failure, and findings about its validity.
    RunEnded { run: String, said: Vec<String>, wall_us: u64 },
    /// Every run of the block has its record; `files` are the record files.
    BlockDone { block: u32, files: Vec<FileFact> },
    /// A start of an alternating comparison has ended; it took `wall_us` microseconds, and `file` has
    /// its slices. `said` are lines for the user.
    StartEnded { file: FileFact, said: Vec<String>, wall_us: u64 },
    /// Files of an interrupted block were moved to `folder`; the block begins again.
    SetAside { block: u32, folder: String },
}

/// Progress of a job, computed from all lines of its step log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    pub blocks_done: BTreeSet<u32>,
    /// Number of the block that is begun and not done; `None` between blocks.
    pub block_open: Option<u32>,
    /// Record files of the job's finished blocks.
    pub files: Vec<FileFact>,
    /// Files of the ended starts of an alternating comparison.
    pub starts: Vec<FileFact>,
    /// Number of the job's interrupted blocks whose files were set aside.
    pub aside: usize,
    /// Total time of the ended runs of the job in microseconds, including those of discarded
    /// blocks; a run that was cut short does not count.
    pub wall_us: u64,
}

impl Progress {
    pub fn of(steps: &[Step]) -> Self {
        let mut progress = Self::default();
        for step in steps {
            match step {
                Step::BlockBegun { block } => progress.block_open = Some(*block),
                Step::BlockDone { block, files } => {
                    progress.block_open = None;
                    progress.blocks_done.insert(*block);
                    progress.files.extend_from_slice(files);
                }
                Step::SetAside { .. } => progress.aside += 1,
                Step::StartEnded { file, wall_us, .. } => {
                    progress.starts.push(file.clone());
                    progress.wall_us += wall_us;
                }
                Step::RunEnded { wall_us, .. } => progress.wall_us += wall_us,
                Step::Began | Step::Noted { .. } | Step::RunBegun { .. } => {}
            }
        }
        progress
    }
}

/// Reads all steps from the step log of the job in the folder `places`; none if there is no log
/// yet.
///
/// # Errors
/// The file cannot be read, or a line before the last is not a step.
pub fn read_steps(places: &CampaignPlaces) -> Result<Vec<Step>, Stop> {
    read_lines(&places.steps()).map(|content| content.lines)
}

/// Builds the error of a file or record that is not what its node wrote.
fn unsound(what: String) -> Stop {
    Stop::wrong_use(what).with_hint("copy the job's folder again, or remove it and measure again")
}

/// Copies the records of a job's finished blocks into the staged results; returns the job's
/// progress and the ids of the copied runs. An alternating comparison has no records of runs: its
/// file is checked, and `in_turns` reads it.
///
/// # Errors
/// The step log or the final report is invalid; a record file is missing, is not in the step log,
/// is no record or differs from what the node wrote; or a file cannot be read or written.
pub fn collect(places: &CampaignPlaces, staged: &Path) -> Result<(Progress, Vec<String>), Stop> {
    let progress = Progress::of(&read_steps(places)?);
    // The two files are written separately; a record that only one of them lists means damage.
    if let Some(done) = Done::read(places)? {
        let known: BTreeSet<&str> = progress.files.iter().map(|file| file.path.as_str()).collect();
        if let Some(lost) = done.files.iter().find(|file| !known.contains(file.path.as_str())) {
            let path = places.dir.join(&lost.path);
            return Err(other_file(&path, "the job's step log does not list it"));
        }
    }
    let mut runs = Vec::new();
    for file in &progress.files {
        if file.path == COMPARISON {
            verified::<AlternatingComparison>(&places.dir, file)?;
            continue;
        }
        let record: RunRecord = verified(&places.dir, file)?;
        write_run(staged, &record)?;
        runs.push(record.id);
    }
    Ok((progress, runs))
}

fn other_file(path: &Path, what: &str) -> Stop {
    unsound(format!("`{}` is not the file that its node wrote: {what}", path.display()))
}

/// Reads a file that a node has written below `dir`, after checking its size and SHA-256 against
/// `fact`.
pub fn verified<T: DeserializeOwned>(dir: &Path, fact: &FileFact) -> Result<T, Stop> {
    let path = dir.join(&fact.path);
    let other = |what: &str| other_file(&path, what);
    if fact.path.split('/').any(|part| part == "..") || Path::new(&fact.path).is_absolute() {
        return Err(other("its path leads out of the job's folder"));
    }
    // Files may have crossed a network file system or been copied by hand since the node wrote
    // them.
    let found = FileFact::of(dir, &fact.path)?;
    if found != *fact {
        let what = format!(
            "{} bytes of SHA-256 {}, expected {} of {}",
            found.bytes, found.sha256, fact.bytes, fact.sha256
        );
        return Err(other(&what));
    }
    serde_json::from_str(&read_text(&path)?).map_err(|error| other(&parser_message(&error)))
}

/// Checks the staged records of `runs`: each must lie at its own path, carry the hash of its
/// content, and contain the findings that the rules give for its figures.
///
/// # Errors
/// A record is missing, cannot be read or fails a check.
pub fn check(staged: &Path, runs: &[String]) -> Result<(), Stop> {
    let files = files_below(&staged.join("runs"));
    for run in runs {
        let unsound = |what: &str| {
            unsound(format!("run `{run}` in `{}` is not sound: {what}", staged.display()))
        };
        let is_of = |path: &&PathBuf| path.file_stem().is_some_and(|stem| *stem == **run);
        let path = files.iter().find(is_of).ok_or_else(|| unsound("it is missing"))?;
        let record = read_record(path)?;
        let place = schema::path::of_run(&record)?;
        if staged.join(&place) != **path {
            return Err(unsound(&format!("its path must be `{place}`")));
        }
        if record_sha256(&record)? != record.record_sha256 {
            return Err(unsound("its hash does not match its content"));
        }
        if judge::findings_at(&record, record.checks_rev) != record.checks {
            return Err(unsound("its findings differ from those of the rules"));
        }
    }
    Ok(())
}

/// Reads every run record of the staged results, in the order of the plan.
///
/// # Errors
/// A file cannot be read or is not a run record.
pub fn records(staged: &Path) -> Result<Vec<RunRecord>, Stop> {
    let files = files_below(&staged.join("runs"));
    let mut records = files.iter().map(|path| read_record(path)).collect::<Result<Vec<_>, _>>()?;
    // Run ids are ULIDs that count up in the order of planning.
    records.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(records)
}

/// Reads the run record in the file `path`.
///
/// # Errors
/// The file cannot be read or is not a run record.
pub fn read_record(path: &Path) -> Result<RunRecord, Stop> {
    serde_json::from_str(&read_text(path)?).map_err(|error| {
        wrong_use!("`{}` is not a record: {}", path.display(), parser_message(&error))
    })
}

/// Time that a job's time limit allows in addition to its runs, once per job: for checks of the
/// node and for writing files.
const AROUND: Duration = Duration::from_secs(10 * 60);
/// Factor by which a run may exceed its expected time before the scheduler ends the job.
const PATIENCE: u32 = 4;

/// Returns the paths inside the folder of the campaign's job `key`.
pub fn places(world: &World, ready: &PreparedCampaign, key: &str) -> CampaignPlaces {
    world.places.campaign(&ready.plan.campaign).job(key)
}

/// Builds the content of a job's `job.json` for its node.
pub fn describe_job(
    ready: &PreparedCampaign,
    planned: &PlannedJob,
    executor: &dyn Executor,
    (gpu_hours_max, watched): (Option<f64>, bool),
    alternation: Option<PlannedAlternation>,
) -> Job {
    let memory_percent = alternation.and_then(|planned| planned.memory_percent);
    let cell = |at: usize| {
        let mut cell = ready.cells[at].clone();
        if memory_percent.is_some() {
            cell.cell.settings.memory_percent = memory_percent;
        }
        (at, JobCell { ready: cell, expected_us: ready.each_us[at].clone() })
    };
    let cells: BTreeMap<usize, JobCell> = planned.runs.iter().map(|run| cell(run.cell)).collect();
    // Scenarios of one model share most of their files.
    let inputs: BTreeSet<(PathBuf, u64)> =
        cells.keys().flat_map(|at| ready.inputs[*at].iter().cloned()).collect();
    Job {
        key: planned.key.clone(),
        campaign: ready.plan.campaign.clone(),
        executor: executor.name().to_owned(),
        variants: ready.variants.clone(),
        cells,
        runs: planned.runs.clone(),
        inputs: inputs.into_iter().collect(),
        // A node that measures a server elsewhere must not record its own hardware.
        hardware: ready.url.as_ref().map(|_| ready.hardware.clone()),
        on_gpu: ready.on_gpu,
        // CPU nodes of a cluster may differ from the machine that submits; their id is recorded as
        // found.
        hardware_id: (executor.is_here() || ready.on_gpu).then(|| ready.hardware.0.id.clone()),
        url: ready.url.clone(),
        timeout_s: ready.timeout_s,
        watched,
        gpu_hours_max,
        alternation,
        gate: ready.gate.is_some(),
    }
}

/// Builds the specification of a job for its scheduler: command, environment variables and limits.
pub fn spec(world: &World, job: &Job, planned: &PlannedJob, places: &CampaignPlaces) -> JobSpec {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut env: BTreeMap<String, String> = world.server_env.clone();
    // Set explicitly, because a node's own environment may point to another cache.
    env.insert("HF_HOME".to_owned(), text(&world.hub_home));
    env.insert("HF_HUB_CACHE".to_owned(), text(&world.hub_cache));
    // The node must read the files that the controller has verified.
    env.insert("REDLINE_CACHE".to_owned(), text(&world.cache.dir));
    env.extend(world.identity.user.clone().map(|user| ("USER".to_owned(), user)));
    JobSpec {
        key: job.key.clone(),
        dir: places.dir.clone(),
        argv: vec![
            text(&world.program),
            "--tools-dir".to_owned(),
            text(&world.tools.dir),
            "node".to_owned(),
            text(&places.dir),
        ],
        env,
        wall_max: wall_max(job),
        gpus: job.gpus(),
        excluded_nodes: planned.excluded_nodes.clone(),
    }
}

/// Returns the time limit of a job: for each run the limit of its scenario's tier, or a multiple of
/// its expected time if that is known and shorter, with time for the server's start and for the
/// node's checks.
fn wall_max(job: &Job) -> Duration {
    let runs = job.runs.iter().map(|run| {
        let start = Duration::from_secs(job.variants[run.variant].engine.file.launch.timeout_s);
        let cell = &job.cells[&run.cell];
        let limit = time_limit(cell.ready.scenario.scenario.tier);
        match cell.expected_us[run.variant] {
            0 => start + limit,
            us => start + limit.min(Duration::from_micros(us) * PATIENCE),
        }
    });
    // The last start of a comparison in turns may begin at the end of its budget, and has at least a
    // slice of each variant, which may be as long as a run.
    let budget = job.alternation.map_or(Duration::ZERO, |of| Duration::from_micros(of.budget_us));
    AROUND + budget + runs.sum::<Duration>()
}

/// Returns the GPU-hours that a job may use; `None` if the campaign has no limit. Where jobs run
/// one after the other, that is all that remains of the limit; on a scheduler it is the job's
/// share, by expected time, among the jobs not yet submitted.
///
/// # Errors
/// The `job.json` of a submitted job cannot be read or parsed.
pub fn budget(
    world: &World,
    ready: &PreparedCampaign,
    state: &State,
    (planned, executor): (&PlannedJob, &dyn Executor),
) -> Result<Option<f64>, Stop> {
    let Some(most) = ready.max_gpu_hours else { return Ok(None) };
    let gpus = |job: &PlannedJob| if ready.on_gpu { ready.cells[job.cell].cell.tp } else { 0 };
    let mut left = most;
    let mut waiting: Vec<&Entry> = Vec::new();
    for entry in &state.jobs {
        match entry.reached {
            Reached::Planned => waiting.push(entry),
            // The limit is reserved in full while the job runs, since its consumption is not known
            // yet.
            Reached::Submitted | Reached::Running => {
                let given = Job::read(&places(world, ready, &entry.planned.key))?.gpu_hours_max;
                left -= given.unwrap_or(0.0);
            }
            Reached::Collected | Reached::Checked => {
                left -= gpu_hours(entry.wall_us, gpus(&entry.planned));
            }
        }
    }
    let weight = |job: &PlannedJob| -> f64 {
        let us: u64 = job.runs.iter().map(|run| ready.each_us[run.cell][run.variant]).sum();
        // At least 1, so that jobs of unknown duration get a share too.
        gpu_hours(us.max(1), gpus(job).max(1))
    };
    let all: f64 = waiting.iter().map(|entry| weight(&entry.planned)).sum();
    let share = if executor.is_here() || all <= 0.0 { 1.0 } else { weight(planned) / all };
    Ok(Some(left.max(0.0) * share.min(1.0)))
}
