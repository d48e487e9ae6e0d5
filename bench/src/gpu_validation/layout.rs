//! Paths inside a bundle and its results: a pure map from names to paths.

use std::path::{Path, PathBuf};

/// Paths in a bundle, a folder that can be copied to a machine without network and compiler.
#[derive(Debug, Clone)]
pub struct BundlePlaces {
    dir: PathBuf,
}

impl BundlePlaces {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The bundle's own folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Description of the bundle: its release and stages.
    pub fn description(&self) -> PathBuf {
        self.dir.join("bundle.json")
    }

    /// Script that runs the bundle, the only command that a user needs.
    pub fn script(&self) -> PathBuf {
        self.dir.join("validate")
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join("bin").join(name)
    }

    /// Files of the suite, laid out as in a clone.
    pub fn suite(&self) -> PathBuf {
        self.dir.join("suite")
    }

    /// Folder of a model: its file, or its configuration and tokenizer.
    pub fn model(&self, id: &str) -> PathBuf {
        self.dir.join("models").join(id)
    }

    /// Workload manifest of a scenario, drawn with a tokenizer.
    pub fn plan(&self, scenario: &str, tokenizer: &str) -> PathBuf {
        self.dir.join("plans").join(format!("{scenario}-{tokenizer}.json"))
    }

    /// Folder of reference checkpoints and outputs for the engine's own tests.
    pub fn fixtures(&self) -> PathBuf {
        self.dir.join("tests/fixtures")
    }
}

/// Paths in the folder of a bundle's results.
#[derive(Debug, Clone)]
pub struct ResultPlaces {
    dir: PathBuf,
}

impl ResultPlaces {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Copy of the bundle's description, so that results can be read without the bundle.
    pub fn description(&self) -> PathBuf {
        self.dir.join("bundle.json")
    }

    /// Facts about the machine on which the results were measured.
    pub fn machine(&self) -> PathBuf {
        self.dir.join("machine.json")
    }

    pub fn report(&self, stage: &str) -> PathBuf {
        self.dir.join("stages").join(format!("{stage}.json"))
    }

    /// File with the standard output or error (`stdout` or `stderr`) of a stage's command.
    pub fn output(&self, stage: &str, stream: &str) -> PathBuf {
        self.dir.join("stages").join(format!("{stage}.{stream}"))
    }

    /// Archive of all results, next to their folder.
    pub fn archive(&self) -> PathBuf {
        self.dir.with_extension("tar.gz")
    }
}
