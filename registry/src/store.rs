//! Reads `results/` and overlays laid out like it into ordered plain data. Knows files, not git.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schema::campaign::CampaignRecord;
use schema::event::Event;
use schema::kernel::KernelRecord;
use schema::run::RunRecord;

pub use crate::events::Retraction;
use crate::finding::{Finding, HISTORY};
use crate::folder::Listing;
pub use crate::folder::StoreError;
use crate::layout::FileKind;
use crate::spread;
use crate::storage::{self, Parsed};

/// A record and the path of its file, below `results/`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    pub path: String,
    /// Index of the folder it was read from, in the order given to [`Registry::load`].
    pub root: usize,
    pub record: T,
}

/// Everything in a registry, each list in the order of its paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Registry {
    pub runs: Vec<Stored<RunRecord>>,
    pub kernels: Vec<Stored<KernelRecord>>,
    pub campaigns: Vec<Stored<CampaignRecord>>,
    pub events: Vec<Stored<Event>>,
    /// Paths of the generated pages, below `results/`.
    pub pages: BTreeSet<String>,
    /// Id of a run, a kernels record or an event to why it was retracted (`events`).
    pub retracted: BTreeMap<String, Retraction>,
    /// Files that could not be read, strays and leftovers.
    pub findings: Vec<Finding>,
}

impl Registry {
    /// Reads folders laid out like `results/`. A folder that does not exist is empty. Of a file
    /// that several folders hold, the first is kept; that they agree is checked.
    ///
    /// # Errors
    /// A folder or file exists and cannot be read.
    pub fn load(roots: &[&Path]) -> Result<Self, StoreError> {
        Self::load_where(roots, |_| true)
    }

    /// As [`Registry::load`], with the runs of these releases alone. A release may be written with
    /// or without its `v`.
    ///
    /// # Errors
    /// A folder or file exists and cannot be read.
    pub fn load_releases(roots: &[&Path], releases: &[&str]) -> Result<Self, StoreError> {
        let wanted = |name: &str| {
            let bare = |text: &str| text.trim_start_matches('v').to_owned();
            releases.iter().any(|release| bare(release) == bare(name))
        };
        Self::load_where(roots, |path| {
            let release = path.strip_prefix("runs/").and_then(|below| below.split('/').nth(1));
            release.is_none_or(wanted)
        })
    }

    /// As [`Registry::load`], with those files alone whose paths below `results/` are wanted.
    ///
    /// # Errors
    /// A folder or file exists and cannot be read.
    pub fn load_where(roots: &[&Path], wanted: impl Fn(&str) -> bool) -> Result<Self, StoreError> {
        let mut files: BTreeMap<String, (usize, Vec<u8>)> = BTreeMap::new();
        let mut registry = Self::default();
        for (index, root) in roots.iter().enumerate() {
            let mut listing = Listing::of(root)?;
            listing.files.retain(|(path, _)| wanted(path));
            registry.findings.append(&mut listing.findings);
            for (path, _) in &listing.files {
                let bytes = listing.read(path)?;
                match files.get(path) {
                    None => drop(files.insert(path.clone(), (index, bytes))),
                    Some((_, first)) if *first == bytes || !FileKind::of(path).is_record() => {}
                    Some(_) => registry.findings.push(Finding::breach(
                        HISTORY,
                        path,
                        "the overlay holds another record under this path",
                    )),
                }
            }
        }
        let files: Vec<(String, (usize, Vec<u8>))> = files.into_iter().collect();
        let parsed = spread::map(&files, |(path, (_, bytes))| storage::read(path, bytes));
        for ((path, (root, _)), parsed) in files.into_iter().zip(parsed) {
            registry.take(path, root, parsed);
        }
        registry.apply_events();
        registry.findings.sort();
        Ok(registry)
    }

    fn take(&mut self, path: String, root: usize, parsed: Result<Parsed, Finding>) {
        match parsed {
            Ok(Parsed::Run(record)) => self.runs.push(Stored { path, root, record: *record }),
            Ok(Parsed::Kernels(record)) => {
                self.kernels.push(Stored { path, root, record: *record })
            }
            Ok(Parsed::Campaign(record)) => self.campaigns.push(Stored { path, root, record }),
            Ok(Parsed::Event(record)) => self.events.push(Stored { path, root, record }),
            Ok(Parsed::Derived) if FileKind::of(&path) == FileKind::Page => {
                self.pages.insert(path);
            }
            Ok(Parsed::Derived) => {}
            Err(finding) => self.findings.push(finding),
        }
    }

    /// The run with this id.
    #[must_use]
    pub fn run(&self, id: &str) -> Option<&Stored<RunRecord>> {
        self.runs.iter().find(|run| run.record.id == id)
    }

    /// The runs that still stand, in the order of their paths.
    pub fn standing(&self) -> impl Iterator<Item = &Stored<RunRecord>> {
        self.runs.iter().filter(|run| !self.retracted.contains_key(&run.record.id))
    }

    /// Engine and release of every run.
    #[must_use]
    pub fn releases(&self) -> BTreeSet<(&str, &str)> {
        let engines = self.runs.iter().map(|run| &run.record.engine);
        engines.map(|engine| (engine.name.as_str(), engine.release.as_str())).collect()
    }
}
