//! Where things lie in a bundle and in its results: a pure map from names to paths.

use std::path::{Path, PathBuf};

/// A folder that can be carried to a machine without network and compiler.
#[derive(Debug, Clone)]
pub struct BundlePlaces {
    dir: PathBuf,
}

impl BundlePlaces {
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// What is to be done.
    #[must_use]
    pub fn description(&self) -> PathBuf {
        self.dir.join("bundle.json")
    }

    /// The one command of a user: runs the bundle.
    #[must_use]
    pub fn script(&self) -> PathBuf {
        self.dir.join("validate")
    }

    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join("bin").join(name)
    }

    /// The suite's own files, laid out as in a clone.
    #[must_use]
    pub fn suite(&self) -> PathBuf {
        self.dir.join("suite")
    }

    /// The folder of a model: its file, or its configuration and tokenizer.
    #[must_use]
    pub fn model(&self, id: &str) -> PathBuf {
        self.dir.join("models").join(id)
    }

    /// The requests of a scenario, as that tokenizer has them.
    #[must_use]
    pub fn plan(&self, scenario: &str, tokenizer: &str) -> PathBuf {
        self.dir.join("plans").join(format!("{scenario}-{tokenizer}.json"))
    }

    /// Reference checkpoints and outputs for the engine's own tests.
    #[must_use]
    pub fn fixtures(&self) -> PathBuf {
        self.dir.join("fixtures")
    }
}

/// What a bundle has brought about so far.
#[derive(Debug, Clone)]
pub struct ResultPlaces {
    dir: PathBuf,
}

impl ResultPlaces {
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A copy of the bundle's description, so that the results can be read without the bundle.
    #[must_use]
    pub fn description(&self) -> PathBuf {
        self.dir.join("bundle.json")
    }

    /// The machine that they are from.
    #[must_use]
    pub fn machine(&self) -> PathBuf {
        self.dir.join("machine.json")
    }

    #[must_use]
    pub fn report(&self, stage: &str) -> PathBuf {
        self.dir.join("stages").join(format!("{stage}.json"))
    }

    /// What the command of a stage wrote to `stdout` or `stderr`.
    #[must_use]
    pub fn output(&self, stage: &str, stream: &str) -> PathBuf {
        self.dir.join("stages").join(format!("{stage}.{stream}"))
    }

    /// All of it in one file, beside the folder.
    #[must_use]
    pub fn archive(&self) -> PathBuf {
        self.dir.with_extension("tar.gz")
    }
}
