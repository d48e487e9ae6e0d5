//! Where a campaign keeps what: a pure map from names to paths.

use std::path::{Path, PathBuf};

/// The places of one clone. Everything that a campaign writes, apart from the registry and the
/// cache of inputs, lies below `target/`.
#[derive(Debug, Clone)]
pub struct Places {
    root: PathBuf,
    cargo_target: PathBuf,
}

impl Places {
    /// `root` is the clone; `cargo_target` overrides where cargo builds.
    #[must_use]
    pub fn new(root: &Path, cargo_target: Option<&Path>) -> Self {
        let cargo_target = cargo_target.map_or_else(|| root.join("target"), |dir| root.join(dir));
        Self { root: root.to_owned(), cargo_target }
    }

    /// The clone.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the user's own builds lie, these tools among them.
    #[must_use]
    pub fn cargo_target(&self) -> &Path {
        &self.cargo_target
    }

    /// Where the programs of releases are built, since the user's own have the same names.
    #[must_use]
    pub fn release_target(&self) -> PathBuf {
        self.root.join("target/releases/built")
    }

    /// What keeps a second campaign in the same clone waiting.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.root.join("target/release-bench.lock")
    }

    /// The git worktree of a release.
    #[must_use]
    pub fn release_tree(&self, release: &str) -> PathBuf {
        self.root.join("target/releases").join(release)
    }

    /// A kept binary, by its content.
    #[must_use]
    pub fn binary(&self, sha256: &str, name: &str) -> PathBuf {
        self.root.join("target/releases/bin").join(sha256).join(name)
    }

    /// The HTML site.
    #[must_use]
    pub fn site(&self) -> PathBuf {
        self.root.join("target/site")
    }

    /// A folder for each campaign.
    #[must_use]
    pub fn campaigns(&self) -> PathBuf {
        self.root.join("target/campaigns")
    }

    /// The folder of one of them, by its id.
    #[must_use]
    pub fn campaign(&self, id: &str) -> CampaignPlaces {
        CampaignPlaces { dir: self.campaigns().join(id) }
    }

    /// Logs and measurements of one `peer-bench`.
    #[must_use]
    pub fn peer_bench(&self, id: &str) -> CampaignPlaces {
        CampaignPlaces { dir: self.root.join("target/peer-bench").join(id) }
    }

    /// What one `soak` works with.
    #[must_use]
    pub fn soak(&self, id: &str) -> CampaignPlaces {
        CampaignPlaces { dir: self.root.join("target/soak").join(id) }
    }

    /// What `client-bench` works with and keeps.
    #[must_use]
    pub fn client_bench(&self) -> PathBuf {
        self.root.join("target/client-bench")
    }

    /// What `scale-bench` works with.
    #[must_use]
    pub fn scale_bench(&self) -> PathBuf {
        self.root.join("target/scale-bench")
    }

    /// What `gpu-validation` packs and collects.
    #[must_use]
    pub fn validation(&self, name: &str) -> PathBuf {
        self.root.join("target/validations").join(name)
    }

    /// `path` as it is best shown: below the root without the root.
    #[must_use]
    pub fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// The places of one campaign. Its folder is laid out like a registry, so that records that are
/// never committed can be read by the same tools.
#[derive(Debug, Clone)]
pub struct CampaignPlaces {
    dir: PathBuf,
}

impl CampaignPlaces {
    /// In any folder.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A folder for each job.
    #[must_use]
    pub fn jobs(&self) -> PathBuf {
        self.dir.join("jobs")
    }

    /// The new records, laid out like `results/`.
    #[must_use]
    pub fn staged(&self) -> PathBuf {
        self.dir.join("results")
    }

    /// Standard error of a run's server.
    #[must_use]
    pub fn log(&self, run: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{run}.log"))
    }

    /// What the load generator writes.
    #[must_use]
    pub fn measurement(&self, run: &str) -> PathBuf {
        self.dir.join("measurements").join(format!("{run}.json"))
    }

    /// The requests that a scenario draws, for all launches.
    #[must_use]
    pub fn plan(&self, scenario: &str) -> PathBuf {
        self.dir.join("plans").join(format!("{scenario}.json"))
    }

    #[must_use]
    pub fn criterion(&self) -> PathBuf {
        self.dir.join("criterion")
    }
}
