//! Journal of a campaign: each change of a job's state is on disk before it is acted upon, so that
//! `--resume` of a campaign can continue after any crash. It stores states; it submits, collects
//! and commits nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;

use schema::verdict::Stage;
use serde::{Deserialize, Serialize};

use crate::executor::Handle;
use crate::executor::prepared::PreparedCampaign;
use crate::lines::{Lines, LinesError};
use crate::places::{CampaignPlaces, Places};
use crate::plan::{PlannedRun, Variant};
use crate::process::Interrupt;
use crate::stop::Stop;

/// A job as planned: one attempt at the runs of one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedJob {
    pub key: String,
    pub cell: usize,
    pub slots: Vec<PlannedRun>,
    /// Number of the attempt, counted from 1.
    pub attempt: u32,
    /// Number of earlier attempts that were lost through no fault of the job or the engine.
    pub lost: u32,
    /// Names of nodes on which earlier attempts failed.
    pub excluded_nodes: Vec<String>,
}

/// One line of the journal: a change of the campaign's or a job's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Line {
    /// First line of a journal: the complete campaign. It occurs once.
    Campaign(Box<PreparedCampaign>),
    /// One more side, launched as the one at `of` is but for its name and flags.
    #[serde(rename = "side")]
    Variant {
        of: usize,
        #[serde(rename = "side")]
        variant: Variant,
    },
    /// The budget of a lab is reduced to `runs_max` runs.
    Allowed {
        runs_max: u32,
    },
    /// Jobs are planned: those of a stage, or the next attempt at one.
    Planned {
        stage: Option<Stage>,
        jobs: Vec<PlannedJob>,
    },
    Submitted {
        job: String,
        handle: Handle,
    },
    Running {
        job: String,
        node: String,
    },
    /// A job was cancelled before it was done; it counts as planned again.
    Withdrawn {
        job: String,
    },
    /// A job has ended; the records of its finished blocks are in the staged results.
    Collected {
        job: String,
        runs: Vec<String>,
        wall_us: u64,
    },
    /// The collected records of a job passed their checks.
    Checked {
        job: String,
    },
    /// All records are committed to the registry.
    Committed {
        commit: Option<String>,
    },
    /// The campaign is finished: pages are rendered and the summary is printed.
    Finished,
}

/// How far a job has come, in the order of its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    Planned,
    Submitted,
    Running,
    Collected,
    Checked,
}

/// A job and its current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub stage: Option<Stage>,
    pub planned: PlannedJob,
    pub reached: Reached,
    pub handle: Option<Handle>,
    pub node: Option<String>,
    /// Ids of the runs whose records were collected.
    pub runs: Vec<String>,
    /// Time of the job's runs in microseconds.
    pub wall_us: u64,
}

/// State of a campaign, from all lines of its journal.
#[derive(Debug, Default)]
pub struct State {
    pub ready: Option<PreparedCampaign>,
    /// Jobs in the order of planning.
    pub jobs: Vec<Entry>,
    pub stages: Vec<Option<Stage>>,
    /// Set once the records are committed: the commit's hash, if the registry reported one.
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
                self.jobs.extend(jobs.into_iter().map(|planned| Entry {
                    stage,
                    planned,
                    reached: Reached::Planned,
                    handle: None,
                    node: None,
                    runs: Vec::new(),
                    wall_us: 0,
                }));
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
            Line::Collected { job, runs, wall_us } => self.set(&job, |entry| {
                entry.reached = Reached::Collected;
                (entry.runs, entry.wall_us) = (runs, wall_us);
            }),
            Line::Checked { job } => self.set(&job, |entry| entry.reached = Reached::Checked),
            Line::Committed { commit } => self.committed = Some(commit),
            Line::Finished => self.finished = true,
        }
    }

    /// Ids of all planned runs, without repetition.
    pub fn runs_planned(&self) -> BTreeSet<&String> {
        self.jobs.iter().flat_map(|job| &job.planned.slots).map(|slot| &slot.run).collect()
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
    places: CampaignPlaces,
    lines: Option<Lines>,
    pub state: State,
}

impl Journal {
    /// Makes the journal of a new campaign; no file is written yet.
    pub fn new(places: CampaignPlaces) -> Self {
        Self { places, lines: None, state: State::default() }
    }

    /// Opens the journal of an existing campaign to continue it. Returns true if its last line was
    /// cut short by a crash and is dropped.
    ///
    /// # Errors
    /// The file cannot be read, or is not a journal.
    pub fn open(places: CampaignPlaces) -> Result<(Self, bool), LinesError> {
        // A crash before the first line leaves a folder without a journal, which is a new campaign.
        if !path(&places).is_file() {
            return Ok((Self::new(places), false));
        }
        let (lines, held) = Lines::open(&path(&places))?;
        let mut journal = Self { places, lines: Some(lines), state: State::default() };
        held.lines.into_iter().for_each(|line| journal.state.apply(line));
        Ok((journal, held.torn))
    }

    /// Reads the state of a campaign without opening its journal for writing.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn look(places: &CampaignPlaces) -> Result<State, LinesError> {
        let mut state = State::default();
        crate::lines::read(&path(places))?.lines.into_iter().for_each(|line| state.apply(line));
        Ok(state)
    }

    /// Appends a line; it is on disk when this function returns.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn note(&mut self, line: Line) -> Result<(), LinesError> {
        let lines = match &mut self.lines {
            Some(lines) => lines,
            none => none.insert(Lines::open::<Line>(&path(&self.places))?.0),
        };
        lines.append(&line)?;
        self.state.apply(line);
        Ok(())
    }

    pub fn places(&self) -> &CampaignPlaces {
        &self.places
    }

    /// Adds to the error of a campaign that ends early where its records are and that `--resume`
    /// continues it.
    pub fn ended_early(&self, stop: Stop, places: &Places, interrupt: &Interrupt) -> Stop {
        let staged = places.shown(&self.places.staged());
        let written =
            crate::executor::collect::files_below(&self.places.staged().join("runs")).len();
        let mut left = match (&self.state.committed, written) {
            (Some(_), _) => {
                "the records are committed; the steps after that are not done".to_owned()
            }
            (None, 0) => "nothing was recorded".to_owned(),
            (None, count) => {
                let records = if count == 1 { "record lies" } else { "records lie" };
                format!("nothing was committed; {count} finished {records} in `{staged}`")
            }
        };
        if self.state.ready.is_some() {
            left.push_str("; `--resume` continues it");
        }
        if interrupt.raised() {
            Stop::environment("interrupted").with_hint(left)
        } else {
            stop.also(&left)
        }
    }
}

fn path(places: &CampaignPlaces) -> PathBuf {
    places.dir().join("journal.jsonl")
}
