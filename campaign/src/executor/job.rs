//! A job: interleaved runs of one cell for one node, as plain data in a folder that controller and
//! node share. Defines the folder's layout and the files that cross it; runs nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schema::canonical::sha256_hex;
use schema::exit::Exit;
use schema::run::HardwareFacts;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, read_text, write_whole};
use crate::inputs::cache::sha256_file;
use crate::launch::{LaunchSpec, ReadyCell};
use crate::places::CampaignPlaces;
use crate::plan::PlannedRun;
use crate::stop::Stop;

/// Number of hex digits in a job's key.
const KEY_DIGITS: usize = 12;

/// Facts of a machine in journals and jobs, where a map of reasons once stood beside them.
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

/// A job's description, `job.json`: everything that a node needs to start servers, measure and
/// record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub key: String,
    pub campaign: String,
    /// Executor's name for the records, such as `slurm`.
    pub executor: String,
    /// All of the campaign; slots count them.
    #[serde(rename = "sides")]
    pub variants: Vec<LaunchSpec>,
    pub cell: ReadyCell,
    pub slots: Vec<PlannedRun>,
    /// Files that the runs read, each with its size in bytes; a folder has size 0.
    pub inputs: Vec<(PathBuf, u64)>,
    /// Hardware facts of a server elsewhere; `None` when the node detects its own hardware.
    pub hardware: Option<RecordedHardware>,
    /// True when each tensor-parallel rank takes a GPU.
    pub on_gpu: bool,
    /// Hardware id that the node must have for its figures to belong to this campaign; `None`
    /// accepts any hardware.
    pub hardware_id: Option<String>,
    pub url: Option<String>,
    pub timeout_s: Option<u32>,
    /// True when the user watches a terminal, so that the node writes its progress to its log.
    pub watched: bool,
    /// Largest number of GPU-hours that the job may use; `None` for no limit.
    pub gpu_hours_max: Option<f64>,
    /// Expected time of one run in microseconds, by variant; 0 if unknown.
    pub expected_us: Vec<u64>,
}

impl Job {
    /// GPUs that a server of this job takes.
    pub fn gpus(&self) -> u32 {
        if self.on_gpu { self.cell.cell.tp } else { 0 }
    }

    /// Numbers of the job's blocks, in order.
    pub fn blocks(&self) -> Vec<u32> {
        let mut blocks: Vec<u32> = self.slots.iter().map(|slot| slot.block).collect();
        blocks.dedup();
        blocks
    }
}

/// Returns the key of a job, `redline-<12 hex>-<attempt>`. It is a hash of campaign, first run and
/// attempt, so that it finds the same job again after a crash and never another.
pub fn key(campaign: &str, runs: &[PlannedRun], attempt: u32) -> String {
    let first = runs.first().map_or("", |slot| &slot.run);
    // The first run's id tells jobs of one campaign apart, since a run belongs to one job.
    let digest = sha256_hex(format!("{campaign} {first} {attempt}").as_bytes());
    format!("redline-{}-{attempt}", &digest[..KEY_DIGITS])
}

/// Path, SHA-256 and size of a file in a job's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFact {
    /// Path relative to the job's folder.
    pub path: String,
    pub sha256: String,
    pub bytes: u64,
}

impl FileFact {
    /// Hashes the file at `path` below `dir`.
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
    /// Record files that the job has written, with their hashes.
    pub files: Vec<FileFact>,
}

/// Outcome of a job, as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum NodeEnd {
    /// Every run has its record.
    Well,
    /// The node is not fit to measure; another node may be.
    Unfit { said: String },
    /// A Redline tool or the machine failed.
    Broke { said: String, hint: Option<String> },
    /// The job's request cannot be met on any node.
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

    /// Converts the outcome back into an error on the controller; `None` if the job succeeded.
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

/// Paths inside a job's folder.
#[derive(Debug, Clone)]
pub struct JobPlaces {
    dir: PathBuf,
}

impl JobPlaces {
    /// File name of the node's log, [`Self::log`].
    pub const LOG: &'static str = "node.log";

    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Paths of the logs and measurements of the job's runs.
    pub fn runs(&self) -> CampaignPlaces {
        CampaignPlaces::at(&self.dir)
    }

    pub fn steps(&self) -> PathBuf {
        self.dir.join("steps.jsonl")
    }

    /// Log file with the standard output and error of the node's program.
    pub fn log(&self) -> PathBuf {
        self.dir.join(Self::LOG)
    }

    pub fn lock(&self) -> PathBuf {
        self.dir.join("node.lock")
    }

    pub fn done(&self) -> PathBuf {
        self.dir.join("DONE")
    }

    /// Folder for files of an interrupted block, which is measured again.
    pub fn aside(&self) -> PathBuf {
        self.dir.join("aside")
    }

    /// Reads the job's description.
    ///
    /// # Errors
    /// `job.json` cannot be read.
    pub fn job(&self) -> Result<Job, Stop> {
        let path = self.dir.join("job.json");
        serde_json::from_str(&read_text(&path)?)
            .map_err(|error| Stop::wrong_use(format!("`{}` is no job: {error}", path.display())))
    }

    /// Writes the job's description.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn write_job(&self, job: &Job) -> Result<(), Stop> {
        write_json(&self.dir.join("job.json"), job)
    }

    /// Reads the job's final report; `None` while the job runs, or while a network file system does
    /// not show the file yet.
    ///
    /// # Errors
    /// The file exists but is invalid.
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

    /// Writes the job's final report.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn write_done(&self, done: &Done) -> Result<(), Stop> {
        write_json(&self.done(), done)
    }
}

/// Path of a run's record relative to the job's folder.
pub fn record_path(run: &str) -> String {
    format!("runs/{run}.json")
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Stop> {
    let text =
        serde_json::to_string(value).map_err(|error| FileError::at("write", path)(error.into()))?;
    files::make_dir(path.parent().unwrap_or(Path::new(".")))?;
    Ok(write_whole(path, format!("{text}\n").as_bytes())?)
}
