//! A job: one list of interleaved blocks of one cell on one allocation, as plain data in a folder
//! that controller and node share. Says where everything lies there; runs nothing.

use std::path::{Path, PathBuf};

use schema::canonical::sha256_hex;
use schema::exit::Exit;
use schema::run::{Absent, HardwareFacts};
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, read_text, write_whole};
use crate::inputs::cache::sha256_file;
use crate::launch::{LaunchSpec, ReadyCell};
use crate::places::CampaignPlaces;
use crate::plan::PlannedRun;
use crate::stop::Stop;

/// Hex digits of a key.
const KEY_DIGITS: usize = 12;

/// Facts of a machine in journals and jobs, where a map of reasons once stood beside them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(HardwareFacts, Absent)", into = "(HardwareFacts, Absent)")]
pub struct RecordedHardware(pub HardwareFacts);

impl From<(HardwareFacts, Absent)> for RecordedHardware {
    fn from((facts, _): (HardwareFacts, Absent)) -> Self {
        Self(facts)
    }
}

impl From<RecordedHardware> for (HardwareFacts, Absent) {
    fn from(RecordedHardware(facts): RecordedHardware) -> Self {
        (facts, Absent::new())
    }
}

/// Everything that a node needs to launch, measure and record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub key: String,
    pub campaign: String,
    /// As records say it.
    pub executor: String,
    /// All of the campaign; slots count them.
    #[serde(rename = "sides")]
    pub variants: Vec<LaunchSpec>,
    pub cell: ReadyCell,
    pub slots: Vec<PlannedRun>,
    /// The files that launches read, and their sizes; a folder's is 0.
    pub inputs: Vec<(PathBuf, u64)>,
    /// The hardware where the node is not to look at its own: that of a server elsewhere.
    pub hardware: Option<RecordedHardware>,
    /// A rank takes a GPU.
    pub on_gpu: bool,
    /// The only hardware whose figures belong to this campaign; none where any does.
    pub hardware_id: Option<String>,
    pub url: Option<String>,
    pub timeout_s: Option<u32>,
    /// Somebody watches: the node's log is to say how far it is.
    pub watched: bool,
    /// GPU-hours that it may take; none for any.
    pub gpu_hours_max: Option<f64>,
    /// Expected time of a launch, side by side; zero where nobody knows.
    pub expected_us: Vec<u64>,
}

impl Job {
    /// GPUs that a launch takes.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        if self.on_gpu { self.cell.cell.tp } else { 0 }
    }

    /// The numbers of its blocks, in order.
    #[must_use]
    pub fn blocks(&self) -> Vec<u32> {
        let mut blocks: Vec<u32> = self.slots.iter().map(|slot| slot.block).collect();
        blocks.dedup();
        blocks
    }
}

/// `redline-<12 hex>-<attempt>`: the same for the same job and attempt, and for no other.
#[must_use]
pub fn key(campaign: &str, runs: &[PlannedRun], attempt: u32) -> String {
    let first = runs.first().map_or("", |slot| &slot.run);
    let digest = sha256_hex(format!("{campaign} {first} {attempt}").as_bytes());
    format!("redline-{}-{attempt}", &digest[..KEY_DIGITS])
}

/// A file of a job and its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFact {
    /// Below the job's folder.
    pub path: String,
    pub sha256: String,
    pub bytes: u64,
}

impl FileFact {
    /// Of the file at `path` below `dir`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(dir: &Path, path: &str) -> Result<Self, FileError> {
        let file = dir.join(path);
        let bytes = std::fs::metadata(&file).map_err(FileError::at("read", &file))?.len();
        Ok(Self { path: path.to_owned(), sha256: sha256_file(&file)?, bytes })
    }
}

/// The last file that a node writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub end: NodeEnd,
    /// Every record.
    pub files: Vec<FileFact>,
}

/// How a job ended, as its node saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum NodeEnd {
    /// Every run has its record.
    Well,
    /// The node is not fit to measure: another may be.
    Unfit { said: String },
    /// A tool of the suite failed, or the machine did.
    Broke { said: String, hint: Option<String> },
    /// What was asked cannot be done anywhere.
    Refused { said: String, hint: Option<String> },
}

impl NodeEnd {
    /// What ended it, as a command would end of it.
    #[must_use]
    pub fn stopped(stop: &Stop) -> Self {
        let (said, hint) = stop.cause();
        match stop.exit() {
            Exit::Environment => Self::Broke { said, hint },
            _ => Self::Refused { said, hint },
        }
    }

    /// The same on the other side; none where it ended well.
    #[must_use]
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

/// The folder of a job.
#[derive(Debug, Clone)]
pub struct JobPlaces {
    dir: PathBuf,
}

impl JobPlaces {
    /// The name of [`Self::log`] in its folder.
    pub const LOG: &'static str = "node.log";

    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Logs and measurements of its runs.
    #[must_use]
    pub fn runs(&self) -> CampaignPlaces {
        CampaignPlaces::at(&self.dir)
    }

    #[must_use]
    pub fn steps(&self) -> PathBuf {
        self.dir.join("steps.jsonl")
    }

    /// What the node's program writes to a terminal elsewhere.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join(Self::LOG)
    }

    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.dir.join("node.lock")
    }

    #[must_use]
    pub fn done(&self) -> PathBuf {
        self.dir.join("DONE")
    }

    /// Where files of a block that was interrupted are put.
    #[must_use]
    pub fn aside(&self) -> PathBuf {
        self.dir.join("aside")
    }

    /// The job as it was planned.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn job(&self) -> Result<Job, Stop> {
        let path = self.dir.join("job.json");
        serde_json::from_str(&read_text(&path)?)
            .map_err(|error| Stop::wrong_use(format!("`{}` is no job: {error}", path.display())))
    }

    /// # Errors
    /// The folder is not writable.
    pub fn write_job(&self, job: &Job) -> Result<(), Stop> {
        write_json(&self.dir.join("job.json"), job)
    }

    /// How it ended; none while it has not, or where nobody can see it yet.
    ///
    /// # Errors
    /// The file is there and says something else.
    pub fn read_done(&self) -> Result<Option<Done>, Stop> {
        let path = self.done();
        if !path.is_file() {
            return Ok(None);
        }
        let done = serde_json::from_str(&read_text(&path)?);
        let unreadable =
            |error| Stop::wrong_use(format!("cannot read `{}`: {error}", path.display()));
        Ok(Some(done.map_err(unreadable)?))
    }

    /// # Errors
    /// The folder is not writable.
    pub fn write_done(&self, done: &Done) -> Result<(), Stop> {
        write_json(&self.done(), done)
    }
}

/// Where a run's record lies, below the job's folder.
#[must_use]
pub fn record_path(run: &str) -> String {
    format!("runs/{run}.json")
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Stop> {
    let text =
        serde_json::to_string(value).map_err(|error| FileError::at("write", path)(error.into()))?;
    files::make_dir(path.parent().unwrap_or(Path::new(".")))?;
    Ok(write_whole(path, format!("{text}\n").as_bytes())?)
}
