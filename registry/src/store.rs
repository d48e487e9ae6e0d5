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
use crate::layout::{FileKind, RunParts};
use crate::release::is_release;
use crate::spread;
use crate::storage::{self, Parsed};

/// A record and the path of its file, below `results/`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    /// With `/` between its parts.
    pub path: String,
    /// Index of the folder it was read from, in the order given to [`Registry::load`].
    pub root: usize,
    /// What the file says.
    pub record: T,
}

/// Everything in a registry, each list in the order of its paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Registry {
    /// Those that were measured, and imported figures.
    pub runs: Vec<Stored<RunRecord>>,
    /// Machines' kernels.
    pub kernels: Vec<Stored<KernelRecord>>,
    /// Campaigns.
    pub campaigns: Vec<Stored<CampaignRecord>>,
    /// What was said of records afterwards.
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
        Self::load_where(roots, &|_| true)
    }

    /// As [`Registry::load`], with the runs of these releases alone. A release may be written with
    /// or without its `v`.
    ///
    /// # Errors
    /// A folder or file exists and cannot be read.
    pub fn load_releases(roots: &[&Path], releases: &[&str]) -> Result<Self, StoreError> {
        let wanted = |name: &str| releases.iter().any(|release| is_release(release, name));
        Self::load_where(roots, &|path| {
            let release = path.strip_prefix("runs/").and_then(|below| below.split('/').nth(1));
            release.is_none_or(wanted)
        })
    }

    /// The runs that `parts` admits, without their histograms, and the events; nothing else.
    ///
    /// # Errors
    /// A folder or file exists and cannot be read.
    pub fn load_runs(roots: &[&Path], parts: &RunParts) -> Result<Self, StoreError> {
        Self::load_figures(roots, &|path| {
            path.split('/').next() == Some("events") || parts.admit(path)
        })
    }

    /// As [`Registry::load`], without what lies at or below a path that is not wanted. The paths of
    /// folders, below `results/` as those of files, are asked for as well, so that a folder that is
    /// not wanted is never looked into.
    ///
    /// # Errors
    /// A folder or file exists and cannot be read.
    pub fn load_where(
        roots: &[&Path],
        wanted: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Self, StoreError> {
        Self::load_with(roots, wanted, &|_| {})
    }

    /// As [`Registry::load_where`], without the histograms of runs: they are most of what a run
    /// takes, and tables of many runs do not show them.
    ///
    /// # Errors
    /// A folder or file exists and cannot be read.
    pub fn load_figures(
        roots: &[&Path],
        wanted: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Self, StoreError> {
        Self::load_with(roots, wanted, &|run| run.histograms = None)
    }

    fn load_with(
        roots: &[&Path],
        wanted: &(dyn Fn(&str) -> bool + Sync),
        trim: &(dyn Fn(&mut RunRecord) + Sync),
    ) -> Result<Self, StoreError> {
        let mut registry = Self::default();
        let mut listings = Vec::new();
        for root in roots {
            let mut listing = Listing::of_wanted(root, wanted)?;
            registry.findings.append(&mut listing.findings);
            listings.push(listing);
        }
        let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (root, listing) in listings.iter().enumerate() {
            for (path, _) in &listing.files {
                places.entry(path).or_default().push(root);
            }
        }
        let places: Vec<(&str, Vec<usize>)> = places.into_iter().collect();
        let read = spread::map(&places, |(path, roots)| read(&listings, path, roots, trim));
        for ((path, roots), read) in places.into_iter().zip(read) {
            let (parsed, other) = read?;
            registry.take(path.to_owned(), roots[0], parsed);
            registry.findings.extend(other);
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

    /// Ids of the campaigns that labs are. What they tried stands on their own pages: it belongs to
    /// no comparison of releases and to no series.
    #[must_use]
    pub fn labs(&self) -> BTreeSet<&str> {
        let campaigns = self.campaigns.iter().map(|stored| &stored.record);
        campaigns.filter(|campaign| campaign.lab.is_some()).map(|lab| lab.id.as_str()).collect()
    }

    /// The runs that still stand and that no lab made: those of releases.
    pub fn of_releases(&self) -> impl Iterator<Item = &Stored<RunRecord>> {
        let labs = self.labs();
        self.standing().filter(move |run| {
            let campaign = run.record.campaign.as_ref();
            campaign.is_none_or(|campaign| !labs.contains(campaign.id.as_str()))
        })
    }

    /// Engine and release of every run.
    #[must_use]
    pub fn releases(&self) -> BTreeSet<(&str, &str)> {
        let engines = self.runs.iter().map(|run| &run.record.engine);
        engines.map(|engine| (engine.name.as_str(), engine.release.as_str())).collect()
    }
}

/// What lies at `path` in the first of `roots`, and whether another of them contradicts it.
type Read = (Result<Parsed, Finding>, Option<Finding>);

fn read(
    listings: &[Listing],
    path: &str,
    roots: &[usize],
    trim: &(dyn Fn(&mut RunRecord) + Sync),
) -> Result<Read, StoreError> {
    let (first, others) = roots.split_first().expect("a path was found somewhere");
    let bytes = listings[*first].read(path)?;
    let mut contradicted = None;
    for other in others.iter().filter(|_| FileKind::of(path).is_record()) {
        if listings[*other].read(path)? != bytes {
            let detail = "the overlay holds another record under this path";
            contradicted = Some(Finding::breach(HISTORY, path, detail));
        }
    }
    let mut parsed = storage::read(path, &bytes);
    if let Ok(Parsed::Run(run)) = &mut parsed {
        trim(run);
    }
    Ok((parsed, contradicted))
}
