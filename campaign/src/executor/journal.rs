//! How far a campaign has come, on disk before anything is done about it: whoever reads the
//! journal can go on. Knows states; submits, collects and commits nothing.

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

/// A job as it is planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedJob {
    pub key: String,
    pub cell: usize,
    pub slots: Vec<PlannedRun>,
    /// From 1.
    pub attempt: u32,
    /// Earlier attempts for whose end neither the job nor the engine was to blame.
    pub lost: u32,
    /// Nodes on which earlier attempts failed.
    pub excluded_nodes: Vec<String>,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Line {
    /// The first line, and the only one of its kind.
    Campaign(Box<PreparedCampaign>),
    /// One more side, launched as the one at `of` is but for its name and flags.
    #[serde(rename = "side")]
    Variant {
        of: usize,
        #[serde(rename = "side")]
        variant: Variant,
    },
    /// A lab may make no more launches than this.
    Allowed {
        runs_max: u32,
    },
    /// The jobs of a stage, or the next attempt at one.
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
    /// It was taken back before it was done: nobody waits for it any more.
    Withdrawn {
        job: String,
    },
    /// It is over; the records of its finished blocks lie in the campaign's folder.
    Collected {
        job: String,
        runs: Vec<String>,
        wall_us: u64,
    },
    /// They are sound.
    Checked {
        job: String,
    },
    /// All records are in the registry.
    Committed {
        commit: Option<String>,
    },
    /// Everything is rendered and told.
    Finished,
}

/// The last that was noted of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reached {
    Planned,
    Submitted,
    Running,
    Collected,
    Checked,
}

/// A job and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub stage: Option<Stage>,
    pub planned: PlannedJob,
    pub reached: Reached,
    pub handle: Option<Handle>,
    pub node: Option<String>,
    /// Runs whose records were collected.
    pub runs: Vec<String>,
    /// Time of its launches.
    pub wall_us: u64,
}

/// What a journal says in all.
#[derive(Debug, Default)]
pub struct State {
    pub ready: Option<PreparedCampaign>,
    /// In the order of planning.
    pub jobs: Vec<Entry>,
    pub stages: Vec<Option<Stage>>,
    /// The commit, where its tool told it.
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

    /// Every run that some job was to launch, each once.
    #[must_use]
    pub fn runs_planned(&self) -> BTreeSet<&String> {
        self.jobs.iter().flat_map(|job| &job.planned.slots).map(|slot| &slot.run).collect()
    }

    fn set(&mut self, job: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.jobs.iter_mut().find(|entry| entry.planned.key == job) {
            change(entry);
        }
    }
}

/// The journal of one campaign, whose one writer this is: it holds the clone's lock.
#[derive(Debug)]
pub struct Journal {
    places: CampaignPlaces,
    lines: Option<Lines>,
    pub state: State,
}

impl Journal {
    /// Of a campaign of which nothing is written yet.
    #[must_use]
    pub fn new(places: CampaignPlaces) -> Self {
        Self { places, lines: None, state: State::default() }
    }

    /// Reads the journal of a campaign that was begun, and goes on with it. True where its last
    /// line was cut short.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn open(places: CampaignPlaces) -> Result<(Self, bool), LinesError> {
        if !path(&places).is_file() {
            return Ok((Self::new(places), false));
        }
        let (lines, held) = Lines::open(&path(&places))?;
        let mut journal = Self { places, lines: Some(lines), state: State::default() };
        held.lines.into_iter().for_each(|line| journal.state.apply(line));
        Ok((journal, held.torn))
    }

    /// What the journal of a campaign says, without going on with it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn look(places: &CampaignPlaces) -> Result<State, LinesError> {
        let mut state = State::default();
        crate::lines::read(&path(places))?.lines.into_iter().for_each(|line| state.apply(line));
        Ok(state)
    }

    /// Notes a line: it is on the disk when this returns.
    ///
    /// # Errors
    /// The disk is full.
    pub fn note(&mut self, line: Line) -> Result<(), LinesError> {
        let lines = match &mut self.lines {
            Some(lines) => lines,
            none => none.insert(Lines::open::<Line>(&path(&self.places))?.0),
        };
        lines.append(&line)?;
        self.state.apply(line);
        Ok(())
    }

    #[must_use]
    pub fn places(&self) -> &CampaignPlaces {
        &self.places
    }

    /// Adds to a premature end what became of the records.
    #[must_use]
    pub fn ended_early(&self, stop: Stop, places: &Places, interrupt: &Interrupt) -> Stop {
        let staged = places.shown(&self.places.staged());
        let written =
            crate::executor::collect::files_below(&self.places.staged().join("runs")).len();
        let mut left = match (&self.state.committed, written) {
            (Some(_), _) => "the records are committed; what came after is not done".to_owned(),
            (None, 0) => "nothing was recorded".to_owned(),
            (None, count) => {
                let records = if count == 1 { "record lies" } else { "records lie" };
                format!("nothing was committed; {count} finished {records} in `{staged}`")
            }
        };
        if self.state.ready.is_some() {
            left.push_str("; `--resume` goes on with it");
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
