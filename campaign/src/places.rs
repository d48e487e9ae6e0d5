//! Paths of the folders and files that commands read and write: a pure map from names to paths.

use std::path::{Path, PathBuf};

/// File name of a job's log, [`CampaignPlaces::node_log`].
pub const NODE_LOG: &str = "node.log";

/// Paths of the folders and files of one clone, most of them below `target/`.
#[derive(Debug, Clone)]
pub struct Places {
    /// Root folder of the clone.
    pub root: PathBuf,
    /// Cargo's target directory for the user's own builds, which include Redline's measurement
    /// programs.
    pub cargo_target: PathBuf,
}

impl Places {
    /// Returns the paths of the clone `root`. `cargo_target` is cargo's target directory, absolute
    /// or relative to `root`; `None` stands for `target/`.
    pub fn new(root: &Path, cargo_target: Option<&Path>) -> Self {
        // `join` with an absolute path yields that path, so both forms of the variable work.
        let cargo_target = cargo_target.map_or_else(|| root.join("target"), |dir| root.join(dir));
        Self { root: root.to_owned(), cargo_target }
    }

    /// Returns the path of the lock file that allows one campaign at a time in the clone.
    pub fn lock(&self) -> PathBuf {
        self.root.join("target/release-bench.lock")
    }

    /// Returns the folder of the git worktree in which a release is built.
    pub fn release_tree(&self, release: &str) -> PathBuf {
        self.root.join("target/releases").join(release)
    }

    /// Returns the folder of the rendered HTML site.
    pub fn site(&self) -> PathBuf {
        self.root.join("target/site")
    }

    /// Returns the folder that contains a folder for each campaign.
    pub fn campaigns(&self) -> PathBuf {
        self.root.join("target/campaigns")
    }

    /// Returns the paths inside the folder of the campaign `id`.
    pub fn campaign(&self, id: &str) -> CampaignPlaces {
        CampaignPlaces { dir: self.campaigns().join(id) }
    }

    /// Returns the folder `name` below `target/`, in which a command that is no campaign keeps its
    /// working files.
    pub fn target(&self, name: &str) -> PathBuf {
        self.root.join("target").join(name)
    }

    /// Returns `path` as text for display: relative to the clone's root if it lies below it, else
    /// as it is.
    pub fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// Folder of the files with the starts of an alternating comparison, in its job's folder.
pub const STARTS: &str = "starts";

/// Paths inside the folder of a campaign, or of one of its jobs. A campaign's `results/` is laid
/// out like the registry, so that the same tools read records that are never committed.
#[derive(Debug, Clone)]
pub struct CampaignPlaces {
    pub dir: PathBuf,
}

impl CampaignPlaces {
    /// Returns the paths inside the folder `dir` of a campaign or job.
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Returns the folder that contains a folder for each job of the campaign.
    pub fn jobs(&self) -> PathBuf {
        self.dir.join("jobs")
    }

    /// Returns the folder of the staged results: the campaign's new records, laid out like
    /// `results/`.
    pub fn staged(&self) -> PathBuf {
        self.dir.join("results")
    }

    /// Returns the path of the log file with the standard output and error of a run's server.
    pub fn log(&self, run: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{run}.log"))
    }

    /// Returns the path of the file with the measurement that the load generator writes for a run.
    pub fn measurement(&self, run: &str) -> PathBuf {
        self.dir.join("measurements").join(format!("{run}.json"))
    }

    /// Returns the path of the file with the outputs of a job's first run, with which those of its
    /// later runs are compared.
    pub fn reference(&self) -> PathBuf {
        self.dir.join("reference.json")
    }

    /// Returns the path of the workload manifest of a scenario: its requests, sampled once and sent
    /// in all of its runs.
    pub fn plan(&self, scenario: &str) -> PathBuf {
        self.dir.join("plans").join(format!("{scenario}.json"))
    }

    /// Returns the paths inside the folder of a job, which is named by the job's key.
    pub fn job(&self, key: &str) -> Self {
        Self { dir: self.jobs().join(key) }
    }

    /// Returns the path of a job's step log.
    pub fn steps(&self) -> PathBuf {
        self.dir.join("steps.jsonl")
    }

    /// Returns the path of the log file with the standard output and error of a job's program.
    pub fn node_log(&self) -> PathBuf {
        self.dir.join(NODE_LOG)
    }

    /// Returns the path of a job's final report.
    pub fn done(&self) -> PathBuf {
        self.dir.join("DONE")
    }
}
