//! Where the program of a variant comes from, before it is built or found. Plain data.

use schema::engine::Source;
use schema::probe::Probe;

use crate::catalog::Engine;
use crate::launch::container::Runtime;
use crate::plan::Variant;
use crate::plan::release::Release;

/// Id of the engine whose releases are commits of this clone.
pub const REDLINE: &str = "redline";

/// Origin of a variant's program.
#[derive(Debug, Clone)]
pub enum Origin {
    Release(Release),
    /// The working tree of the clone.
    Tree {
        version: String,
        commit: Option<String>,
        dirty: bool,
    },
    /// A source distribution that is built here.
    Source(Box<Source>),
    /// A Python package installed on this machine, or a container image with one.
    Installed {
        version: String,
        container: Option<Runtime>,
    },
    /// A server that is already running, and its answer to the probe.
    Running(Box<Probe>),
}

impl Origin {
    /// Records of releases are committed; those of a tree or of a stranger's server are not.
    pub fn commits(&self) -> bool {
        !matches!(self, Self::Tree { .. } | Self::Running(_))
    }
}

/// A variant before it is built.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub variant: Variant,
    pub engine: Engine,
    pub origin: Origin,
}

impl Wanted {
    /// Title for the printed plan, such as `redline v0.9.2, commit 1a2b3c4d5e`.
    pub fn title(&self) -> String {
        let title = format!("{} {}", self.variant.engine, self.variant.title());
        match &self.origin {
            Origin::Release(release) => {
                let short = release.commit.get(..10).unwrap_or(&release.commit);
                format!("{title}, commit {short}")
            }
            Origin::Tree { dirty: true, .. } => format!("{title}, the working tree with changes"),
            Origin::Tree { .. } => format!("{title}, the working tree"),
            Origin::Source(source) => format!("{title}, built from {}", source.sdist),
            Origin::Installed { container: Some(runtime), .. } => {
                format!("{title}, its image under {}", runtime.program())
            }
            Origin::Installed { .. } => format!("{title}, as installed"),
            Origin::Running(_) => format!("{title}, already running"),
        }
    }
}
