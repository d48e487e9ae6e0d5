//! Journal of a campaign: each change of a job's state is on disk before it is acted upon, so that
//! `--resume` of a campaign can continue after any crash. Its first line is the prepared campaign:
//! planned, built and fetched, with everything that its runs, records and publication need. It stores
//! states; it submits, collects and commits nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schema::campaign::CampaignLab;
use schema::lab::{Candidate, LabOutline, flag_name, without};
use schema::run::{HardwareFacts, RunRecord};
use schema::scenario::id_of;
use schema::verdict::Stage;
use serde::{Deserialize, Serialize};

use crate::cli::ReleaseBench;
use crate::executor::Handle;
use crate::files::{self, Lines, files_below, read_lines};
use crate::places::{CampaignPlaces, STARTS};
use crate::plan::brief::CellBrief;
use crate::plan::decide::Decided;
use crate::plan::{Cell, Plan, PlannedAlternation, PlannedRun, Variant};
use crate::publish::Named;
use crate::server_spec::{ReadyCell, ServerSpec};
use crate::stop::Stop;
use crate::world::World;

/// Name of the folder, in a campaign's folder, for copies of the suite's files: edits made during
/// the campaign do not affect its runs.
const SUITE: &str = "suite";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PreparedCampaign {
    /// Arguments of the command that began the campaign, as they were typed, without the program's
    /// name.
    pub command: Vec<String>,
    pub executor: String,
    /// Additional options for `sbatch` that the user gave with `--slurm-option`.
    #[serde(default)]
    pub slurm_options: Vec<String>,
    /// Plan of the campaign, with the runs that are known from the start; confirmation runs and a
    /// lab's rounds follow in the journal.
    pub plan: Plan,
    /// Specification of the server of each variant of the plan, in the plan's order.
    #[serde(rename = "sides")]
    pub variants: Vec<ServerSpec>,
    /// Cells with their fetched inputs, in the order of the plan's cells.
    pub cells: Vec<ReadyCell>,
    /// Files and folders that the runs of each cell read, each with its size in bytes; a folder has
    /// size 0.
    pub inputs: Vec<Vec<(PathBuf, u64)>>,
    /// Facts of the measured hardware, as detected or expected when the campaign began.
    pub hardware: RecordedHardware,
    /// True when a server takes one GPU per tensor-parallel rank; false when it runs on a
    /// processor.
    pub on_gpu: bool,
    /// Number of pairs of confirmation runs in each cell with a suspected change; `None` without a
    /// confirmation stage.
    pub confirm_pairs: Option<u32>,
    /// Extent of the alternating comparisons of baseline and candidate, over all cells; `None` where
    /// nothing is compared, or both servers do not fit into memory side by side.
    #[serde(default)]
    pub alternation: Option<PlannedAlternation>,
    /// True when the campaign's records will be committed to the registry at its end: those of
    /// releases are, those of a working tree or of a server started by somebody else are not.
    pub commits: bool,
    /// Repository whose `results/` receives the campaign's records.
    pub registry: PathBuf,
    /// Expected total time in microseconds of the planned runs whose duration is known; for a lab,
    /// that of as many runs as its budget allows.
    pub expected_us: u64,
    /// Expected time of one run in microseconds, indexed by the run's cell and then by its variant;
    /// 0 if unknown.
    pub each_us: Vec<Vec<u64>>,
    pub url: Option<String>,
    pub timeout_s: Option<u32>,
    pub max_gpu_hours: Option<f64>,
    /// Facts about the lab that plans runs round by round; `None` for a campaign that is no lab.
    #[serde(default)]
    pub lab: Option<Box<PreparedLab>>,
    /// Facts about the gate; `None` for a campaign that is none.
    #[serde(default)]
    pub gate: Option<PreparedGate>,
}

impl PreparedCampaign {
    /// Combines the decided plan with the built variants and fetched inputs into a prepared
    /// campaign.
    pub fn new(
        world: &World,
        flags: &ReleaseBench,
        decided: &Decided,
        variants: Vec<ServerSpec>,
        cells: Vec<ReadyCell>,
    ) -> Self {
        let each_us = |cell: &Cell, variant: &Variant| {
            let is_of = |brief: &&CellBrief| {
                let same = brief.engine == variant.engine && brief.model == cell.model;
                same && id_of(&brief.scenario) == cell.scenario
            };
            decided.brief.cells.iter().find(is_of).and_then(|brief| brief.each.us()).unwrap_or(0)
        };
        let of_cell =
            |cell| decided.plan.variants.iter().map(|variant| each_us(cell, variant)).collect();
        Self {
            command: world.command.clone(),
            executor: flags.execution.executor.clone(),
            slurm_options: flags.execution.slurm_options.clone(),
            plan: decided.plan.clone(),
            variants,
            cells,
            hardware: RecordedHardware(decided.hardware.clone()),
            on_gpu: decided.brief.on_gpu,
            confirm_pairs: decided.brief.confirm_pairs,
            alternation: decided.alternation,
            commits: decided.commits,
            registry: decided.registry.clone(),
            expected_us: decided.brief.expected_us(),
            each_us: decided.plan.cells.iter().map(of_cell).collect(),
            url: flags.url.clone(),
            timeout_s: flags.execution.timeout_s,
            max_gpu_hours: flags.max_gpu_hours,
            gate: flags.gate.as_ref().map(|asked| PreparedGate { out: asked.out.clone() }),
            ..Self::default()
        }
    }

    /// Copies the files of engines, scenarios and lab into the campaign's folder, points the
    /// prepared campaign at the copies, and notes the size of every input file.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn freeze(&mut self, places: &CampaignPlaces) -> Result<(), Stop> {
        let dir = places.dir.join(SUITE);
        for variant in &mut self.variants {
            variant.engine.path = keep(&variant.engine.path, &dir.join("engines"))?;
        }
        for cell in &mut self.cells {
            cell.scenario.path = keep(&cell.scenario.path, &dir.join("scenarios"))?;
        }
        if let Some(lab) = &mut self.lab {
            lab.path = keep(&lab.path, &dir.join("labs"))?;
        }
        self.inputs = self.cells.iter().map(|cell| cell.inputs(&self.variants)).collect();
        Ok(())
    }

    /// Adds a variant to the campaign; it is started like the variant at index `of` except for its
    /// name and flags.
    pub fn add_variant(&mut self, of: usize, variant: Variant) {
        let mut added = self.variants[of].clone();
        added.built.variant = variant.clone();
        self.variants.push(added);
        self.plan.variants.push(variant);
        // The new variant is expected to take as long as the one that it is derived from.
        for each_us in &mut self.each_us {
            each_us.push(each_us[of]);
        }
    }

    /// Replaces the campaign's hardware id by that of the first of `records`: a node elsewhere
    /// knows its hardware better than the plan does. Without records the id stays.
    pub fn take_hardware(&mut self, records: &[RunRecord]) {
        if let Some(record) = records.first() {
            record.hardware.id.clone_into(&mut self.hardware.0.id);
        }
    }

    /// Returns `release` of `engine` on the campaign's hardware, the three names by which the
    /// registry's tools select runs.
    pub fn named<'a>(&'a self, engine: &'a str, release: &'a str) -> Named<'a> {
        Named { engine, release, hardware: &self.hardware.0.id }
    }

    /// Returns the baseline's release and the candidate if the campaign compares two releases of
    /// one engine, else `None`.
    pub fn compared(&self) -> Option<(&str, Named<'_>)> {
        let (baseline, candidate) = self.plan.compared()?;
        Some((baseline, self.named(&self.plan.variants[0].engine, candidate)))
    }
}

fn keep(file: &Path, dir: &Path) -> Result<PathBuf, Stop> {
    let to = dir.join(file.file_name().unwrap_or_default());
    files::copy(file, &to)?;
    Ok(to)
}

/// Hardware facts of a machine, in the form in which journals and the `job.json` of jobs store
/// them: a pair of the facts and a map that is written empty and ignored when read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    from = "(HardwareFacts, BTreeMap<String, String>)",
    into = "(HardwareFacts, BTreeMap<String, String>)"
)]
pub struct RecordedHardware(pub HardwareFacts);

impl From<(HardwareFacts, BTreeMap<String, String>)> for RecordedHardware {
    fn from((facts, _): (HardwareFacts, BTreeMap<String, String>)) -> Self {
        Self(facts)
    }
}

impl From<RecordedHardware> for (HardwareFacts, BTreeMap<String, String>) {
    fn from(RecordedHardware(facts): RecordedHardware) -> Self {
        (facts, BTreeMap::new())
    }
}

/// A job as planned: one attempt at runs of one cell, or on one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedJob {
    pub key: String,
    /// Index of the cell of the job's first run.
    pub cell: usize,
    #[serde(rename = "slots")]
    pub runs: Vec<PlannedRun>,
    /// Number of this attempt at the job's runs, counted from 1.
    pub attempt: u32,
    /// Number of earlier attempts at the job's runs that failed for a cause outside the engine,
    /// such as a lost node or a preemption.
    pub lost: u32,
    /// Names of the nodes on which earlier attempts at the job's runs failed, and which this
    /// attempt avoids; empty for a job on the controller's own machine.
    pub excluded_nodes: Vec<String>,
}

/// One line of the journal: a change of the campaign's or a job's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Line {
    /// First line of a journal: the complete prepared campaign. It occurs once.
    Campaign(Box<PreparedCampaign>),
    /// A variant was added to the campaign; it is started like the one at index `of` except for its
    /// name and flags.
    #[serde(rename = "side")]
    Variant {
        of: usize,
        #[serde(rename = "side")]
        variant: Variant,
    },
    /// The budget of the campaign's lab was reduced to `runs_max` runs.
    Allowed { runs_max: u32 },
    /// Jobs were planned: those of a stage or of a lab's round, or a job that `ingest` has found.
    Planned { stage: Option<Stage>, jobs: Vec<PlannedJob> },
    /// The job with the key `job` was submitted; the executor knows it by `handle`.
    Submitted { job: String, handle: Handle },
    /// The job with the key `job` runs on a node.
    Running { job: String, node: String },
    /// The job with the key `job` was cancelled before it was done; it counts as planned again.
    Withdrawn { job: String },
    /// The job with the key `job` has ended: the records of `runs`, from its finished blocks or of
    /// failures, are in the staged results; its ended runs took `wall_us` microseconds in total.
    /// `again` is the next attempt at the runs that it left. It is part of this line because a
    /// failure between two lines would repeat the job and carry out its next attempt as well.
    Collected {
        job: String,
        runs: Vec<String>,
        wall_us: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<Box<PlannedJob>>,
    },
    /// The collected records of the job with the key `job` passed their checks.
    Checked { job: String },
    /// All records of the campaign are committed to the registry.
    Committed { commit: Option<String> },
    /// The campaign is finished: pages are rendered and the summary is printed.
    Finished,
}

/// State that a job of the campaign has reached; the variants are in the order in which a job
/// passes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    Planned,
    Submitted,
    Running,
    Collected,
    Checked,
}

/// A job of a campaign and its current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub stage: Option<Stage>,
    pub planned: PlannedJob,
    pub reached: Reached,
    pub handle: Option<Handle>,
    pub node: Option<String>,
    /// Ids of the job's runs whose records were collected.
    pub runs: Vec<String>,
    /// Total time of the job's ended runs in microseconds; 0 until its records are collected.
    pub wall_us: u64,
}

impl Entry {
    fn new(stage: Option<Stage>, planned: PlannedJob) -> Self {
        let (reached, runs) = (Reached::Planned, Vec::new());
        Self { stage, planned, reached, handle: None, node: None, runs, wall_us: 0 }
    }
}

/// State of a campaign, computed from all lines of its journal.
#[derive(Debug, Default)]
pub struct State {
    pub ready: Option<PreparedCampaign>,
    /// Jobs of the campaign in the order of planning.
    pub jobs: Vec<Entry>,
    pub stages: Vec<Option<Stage>>,
    /// `None` until the campaign's records are committed to the registry, then the commit's hash,
    /// or `Some(None)` if the registry's tool reported no hash.
    pub committed: Option<Option<String>>,
    pub finished: bool,
}

impl State {
    fn apply(&mut self, line: Line) {
        match line {
            Line::Campaign(ready) => self.ready = Some(*ready),
            Line::Variant { of, variant } => {
                if let Some(ready) = &mut self.ready {
                    ready.add_variant(of, variant);
                }
            }
            Line::Allowed { runs_max } => {
                if let Some(lab) = self.ready.as_mut().and_then(|ready| ready.lab.as_mut()) {
                    lab.asked.runs_max = runs_max;
                }
            }
            Line::Planned { stage, jobs } => {
                if !self.stages.contains(&stage) {
                    self.stages.push(stage);
                }
                self.jobs.extend(jobs.into_iter().map(|planned| Entry::new(stage, planned)));
            }
            Line::Submitted { job, handle } => self.set(&job, |entry| {
                entry.reached = Reached::Submitted;
                entry.handle = Some(handle);
            }),
            Line::Running { job, node } => self.set(&job, |entry| {
                entry.reached = Reached::Running;
                entry.node = Some(node);
            }),
            Line::Withdrawn { job } => self.set(&job, |entry| entry.reached = Reached::Planned),
            Line::Collected { job, runs, wall_us, again } => {
                self.collect(&job, runs, wall_us, again)
            }
            Line::Checked { job } => self.set(&job, |entry| entry.reached = Reached::Checked),
            Line::Committed { commit } => self.committed = Some(commit),
            Line::Finished => self.finished = true,
        }
    }

    /// Returns all planned runs that will have a record of their own, by id: those of alternating
    /// comparisons have none.
    pub fn runs_planned(&self) -> BTreeMap<&str, &PlannedRun> {
        let jobs = self.jobs.iter().filter(|job| job.stage != Some(Stage::Alternate));
        // A retried run occurs in several jobs and is listed once.
        jobs.flat_map(|job| &job.planned.runs).map(|run| (run.run.as_str(), run)).collect()
    }

    fn collect(
        &mut self,
        job: &str,
        runs: Vec<String>,
        wall_us: u64,
        again: Option<Box<PlannedJob>>,
    ) {
        let mut stage = None;
        self.set(job, |entry| {
            entry.reached = Reached::Collected;
            (entry.runs, entry.wall_us) = (runs, wall_us);
            stage = entry.stage;
        });
        self.jobs.extend(again.map(|planned| Entry::new(stage, *planned)));
    }

    fn set(&mut self, job: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.jobs.iter_mut().find(|entry| entry.planned.key == job) {
            change(entry);
        }
    }
}

/// The journal of one campaign, open for writing. The clone's lock guarantees that it has a single
/// writer.
#[derive(Debug)]
pub struct Journal {
    pub places: CampaignPlaces,
    lines: Option<Lines>,
    pub state: State,
}

impl Journal {
    /// Returns the journal of a new campaign, without writing a file yet.
    pub fn new(places: CampaignPlaces) -> Self {
        Self { places, lines: None, state: State::default() }
    }

    /// Opens the journal of an existing campaign to continue it. Returns true if its last line was
    /// cut short by a crash and is dropped. Without a file it returns the journal of a new
    /// campaign.
    ///
    /// # Errors
    /// The file cannot be read or written, or a line before the last is not one of a journal.
    pub fn open(places: CampaignPlaces) -> Result<(Self, bool), Stop> {
        // A crash before the first line leaves a folder without a journal, which is a new campaign.
        if !path(&places).is_file() {
            return Ok((Self::new(places), false));
        }
        let (lines, held) = Lines::open(&path(&places))?;
        let mut journal = Self { places, lines: Some(lines), state: State::default() };
        held.lines.into_iter().for_each(|line| journal.state.apply(line));
        Ok((journal, held.torn))
    }

    /// Reads the state of a campaign without opening its journal for writing; the default state if
    /// there is no journal.
    ///
    /// # Errors
    /// The file cannot be read, or a line before the last is not one of a journal.
    pub fn read(places: &CampaignPlaces) -> Result<State, Stop> {
        let mut state = State::default();
        read_lines(&path(places))?.lines.into_iter().for_each(|line| state.apply(line));
        Ok(state)
    }

    /// Appends a line to the journal; it is on disk when this function returns.
    ///
    /// # Errors
    /// The journal cannot be opened or written.
    pub fn note(&mut self, line: Line) -> Result<(), Stop> {
        let lines = match &mut self.lines {
            Some(lines) => lines,
            none => none.insert(Lines::open::<Line>(&path(&self.places))?.0),
        };
        lines.append(&line)?;
        self.state.apply(line);
        Ok(())
    }

    /// Returns the prepared campaign from the journal's first line, with the changes that later
    /// lines made to it.
    pub fn prepared(&self) -> &PreparedCampaign {
        self.state.ready.as_ref().expect("a campaign is written down before it is carried out")
    }

    /// Returns the error of a campaign that ends early, with a hint that says where its records are
    /// and whether `--resume` continues it. After an interrupt, the error only says so.
    pub fn ended_early(&self, stop: Stop, world: &World) -> Stop {
        let staged = world.places.shown(&self.places.staged());
        let written = files_below(&self.places.staged().join("runs")).len();
        let mut left = match (&self.state.committed, written) {
            (Some(_), _) => {
                "the records are committed; the steps after that are not done".to_owned()
            }
            (None, 0) => match self.starts() {
                0 => "nothing was recorded".to_owned(),
                1 => "1 finished start of both servers is kept".to_owned(),
                count => format!("{count} finished starts of both servers are kept"),
            },
            (None, count) => {
                let records = if count == 1 { "record lies" } else { "records lie" };
                format!("nothing was committed; {count} finished {records} in `{staged}`")
            }
        };
        if self.state.ready.is_some() {
            left.push_str("; `--resume` continues it");
        }
        if world.interrupt.raised() {
            Stop::environment("interrupted").with_hint(left)
        } else {
            stop.also(&left)
        }
    }

    /// Returns the number of finished starts of alternating comparisons.
    fn starts(&self) -> usize {
        let files = files_below(&self.places.jobs());
        let is_start = |path: &&PathBuf| path.parent().is_some_and(|dir| dir.ends_with(STARTS));
        files.iter().filter(is_start).count()
    }
}

fn path(places: &CampaignPlaces) -> PathBuf {
    places.dir.join("journal.jsonl")
}

/// Facts about a gate that its campaign's journal keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedGate {
    /// Folder for the comparison.
    pub out: PathBuf,
}

/// Facts about a lab that its campaign's journal keeps from the plan to the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedLab {
    /// The lab as the campaign's record will state it; its largest number of runs may be reduced
    /// during the campaign.
    pub asked: CampaignLab,
    pub outline: LabOutline,
    /// Largest total time of the lab's runs, in hours, as `--max-hours` or else the lab's file sets
    /// it; `None` without a time budget.
    pub hours_max: Option<f64>,
    /// Expected time of a run of the lab in microseconds.
    pub each_us: u64,
    /// Path of the copy of the lab's file as it was when the campaign began.
    pub path: PathBuf,
    /// Server flags of the variant of each engine before the lab adds its own, in the order of the
    /// lab's engines: those for a server under load for an engine that is built from its source
    /// distribution, else none.
    pub loaded: Vec<Vec<String>>,
}

impl PreparedLab {
    /// Returns the largest number of runs that the lab may make.
    pub fn runs_most(&self) -> u32 {
        self.asked.runs_max.min(self.outline.runs_most)
    }

    /// Builds the variant of a lab's candidate: engine and release are those of `engine`, a variant
    /// of the candidate's engine, and name and flags are the candidate's, after the engine's flags
    /// for load if the lab uses them.
    pub fn variant(&self, candidate: &Candidate, engine: &Variant) -> Variant {
        let loaded = self.loaded.get(candidate.engine).map_or(&[][..], Vec::as_slice);
        let flags = joined(loaded, self.asked.file.flags(candidate));
        Variant { name: candidate.variant(), flags, ..engine.clone() }
    }
}

/// Appends a lab's flags to those of an engine's file, and removes from the latter each flag that
/// the lab repeats or negates.
fn joined(loaded: &[String], own: Vec<String>) -> Vec<String> {
    let given: Vec<&str> = own.iter().filter_map(|word| flag_name(word)).collect();
    let denied: Vec<String> = given.iter().map(|name| opposite(name)).collect();
    let names: Vec<&str> = given.iter().copied().chain(denied.iter().map(String::as_str)).collect();
    let mut flags = without(loaded, &names);
    flags.extend(own);
    flags
}

/// Returns the opposite of a flag: `--no-x` for `--x`, and vice versa.
pub fn opposite(name: &str) -> String {
    match name.strip_prefix("--no-") {
        Some(rest) => format!("--{rest}"),
        None => format!("--no-{}", name.trim_start_matches('-')),
    }
}

#[cfg(test)]
mod lab_tests {
    use super::*;

    #[test]
    fn a_labs_flags_take_the_place_of_those_of_the_engines_file() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let loaded = words("--threads 2 --parallel 32 --no-cache-prompt --cache-ram 0");
        let flags = joined(&loaded, words("--threads=1 --cache-prompt"));
        assert_eq!(flags.join(" "), "--parallel 32 --cache-ram 0 --threads=1 --cache-prompt");
    }
}
