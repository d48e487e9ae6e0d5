//! The records of a registry, grouped as pages need them. Reads through `registry`; knows
//! nothing of how they are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use registry::Registry;
use registry::finding::Finding;
use registry::store::StoreError;
use schema::campaign::CampaignRecord;
use schema::canonical::sha256_hex;
use schema::event::{Event, EventKind};
use schema::kernel::KernelRecord;
use schema::run::{Check, Kind, PromptForm, RunRecord, Status, ValidityVerdict};

use crate::order;

/// A run with what later events and rules say about it.
#[derive(Debug, Clone)]
pub struct Run {
    pub record: RunRecord,
    /// Path below the registry's root.
    pub path: String,
    /// Index of the folder it was read from.
    pub root: usize,
    /// Why the run was taken back.
    pub retracted: Option<String>,
    pub replaced_by: Option<String>,
    /// What was remarked on the run afterwards.
    pub notes: Vec<String>,
    /// Findings of rules that are younger than the record.
    pub later: Vec<Check>,
}

impl Run {
    /// A run that no event speaks of.
    #[must_use]
    pub fn new(path: String, root: usize, record: RunRecord) -> Self {
        let later = audit::judge_later(&record);
        let (retracted, replaced_by, notes) = (None, None, Vec::new());
        Self { record, path, root, retracted, replaced_by, notes, later }
    }

    /// True when the run's figures may stand in a summary: it has some, it was not taken back
    /// and the client did not spoil them.
    #[must_use]
    pub fn counts(&self) -> bool {
        let record = &self.record;
        self.retracted.is_none()
            && matches!(record.status, Status::Ok | Status::Partial)
            && record.validity.verdict != ValidityVerdict::Invalid
            && record.metrics.is_some()
    }

    /// Stored findings, then those of younger rules.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.record.checks.iter().chain(&self.later)
    }
}

/// What a page is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReleaseKey {
    pub engine: String,
    pub release: String,
    pub hardware: String,
}

impl ReleaseKey {
    /// The page that `record` belongs to.
    #[must_use]
    pub fn of(record: &RunRecord) -> Self {
        Self {
            engine: record.engine.name.clone(),
            release: record.engine.release.clone(),
            hardware: record.hardware.id.clone(),
        }
    }
}

/// What must be equal for runs to be repeats of one another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellKey {
    pub model: String,
    /// Configuration slug without its hash.
    pub config: String,
    /// `id@rev`.
    pub scenario: String,
    pub text_prompts: bool,
    pub kind: &'static str,
}

/// The repeats of one cell, in the order of their ids, which is the order in which they ran.
#[derive(Debug, Clone)]
pub struct Cell<'a> {
    pub key: CellKey,
    pub runs: Vec<&'a Run>,
}

impl<'a> Cell<'a> {
    /// The runs that summaries are made from.
    pub fn counted(&self) -> impl Iterator<Item = &'a Run> + '_ {
        self.runs.iter().copied().filter(|run| run.counts())
    }
}

/// A registry that pages cannot be made from.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the registry is unsound:\n{}\n  hint: `cargo xtask check` judges all of it", lines(.0))]
    Unsound(Vec<Finding>),
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Everything in one or more registries.
#[derive(Debug, Default)]
pub struct Catalog {
    /// In the order of their ids, which is that in which they were planned.
    pub runs: Vec<Run>,
    pub kernels: Vec<(String, KernelRecord)>,
    pub campaigns: Vec<CampaignRecord>,
    pub events: Vec<Event>,
    /// Path and root of every record's file.
    pub files: Vec<(String, usize)>,
    /// Generated pages that are there now.
    pub pages: BTreeSet<String>,
}

impl Catalog {
    /// Reads the records below `roots`.
    ///
    /// # Errors
    /// A folder cannot be read, or a file in it is not a record.
    pub fn load(roots: &[&Path]) -> Result<Self, CatalogError> {
        Self::new(Registry::load(roots)?)
    }

    /// The catalog of `registry`.
    ///
    /// # Errors
    /// The registry holds a file that is not a sound record.
    pub fn new(registry: Registry) -> Result<Self, CatalogError> {
        let breaches: Vec<Finding> =
            registry.findings.iter().filter(|finding| finding.breach).cloned().collect();
        if !breaches.is_empty() {
            return Err(CatalogError::Unsound(breaches));
        }
        let mut files = Vec::new();
        files.extend(registry.runs.iter().map(|stored| (stored.path.clone(), stored.root)));
        files.extend(registry.kernels.iter().map(|stored| (stored.path.clone(), stored.root)));
        files.extend(registry.campaigns.iter().map(|stored| (stored.path.clone(), stored.root)));
        files.extend(registry.events.iter().map(|stored| (stored.path.clone(), stored.root)));
        let events: Vec<Event> = registry.events.into_iter().map(|stored| stored.record).collect();
        let retracted = registry.retracted;
        let mut runs: Vec<Run> = registry
            .runs
            .into_iter()
            .map(|stored| Run::new(stored.path, stored.root, stored.record))
            .collect();
        for run in &mut runs {
            if let Some(retraction) = retracted.get(&run.record.id) {
                run.retracted = Some(retraction.reason.clone());
                run.replaced_by.clone_from(&retraction.replaced_by);
            }
            let notes = events.iter().filter(|event| event.kind == EventKind::Annotate);
            let notes = notes.filter(|event| event.names(&run.record.id, &run.path));
            run.notes = notes.map(|event| event.reason.clone()).collect();
        }
        runs.sort_by(|a, b| a.record.id.cmp(&b.record.id).then_with(|| a.path.cmp(&b.path)));
        Ok(Self {
            runs,
            kernels: registry.kernels.into_iter().map(|stored| (stored.path, stored.record)).collect(),
            campaigns: registry.campaigns.into_iter().map(|stored| stored.record).collect(),
            events,
            files,
            pages: registry.pages,
        })
    }

    /// Runs by release and hardware.
    #[must_use]
    pub fn releases(&self) -> BTreeMap<ReleaseKey, Vec<&Run>> {
        let mut releases: BTreeMap<ReleaseKey, Vec<&Run>> = BTreeMap::new();
        for run in &self.runs {
            releases.entry(ReleaseKey::of(&run.record)).or_default().push(run);
        }
        releases
    }
}

/// The cells of `runs`, in the order in which they are shown.
#[must_use]
pub fn cells<'a>(runs: &[&'a Run]) -> Vec<Cell<'a>> {
    let mut cells: BTreeMap<CellKey, Vec<&'a Run>> = BTreeMap::new();
    for run in runs {
        let record = &run.record;
        let key = CellKey {
            model: record.model.id.clone(),
            config: schema::path::config_slug(record),
            scenario: format!("{}@{}", record.scenario.id, record.scenario.rev),
            text_prompts: record.scenario.prompt_form == Some(PromptForm::Text),
            kind: kind_name(record.kind),
        };
        cells.entry(key).or_default().push(run);
    }
    let mut cells: Vec<Cell> = cells.into_iter().map(|(key, runs)| Cell { key, runs }).collect();
    cells.sort_by(|a, b| {
        order::natural(&a.key.model, &b.key.model)
            .then_with(|| order::natural(&a.key.config, &b.key.config))
            .then_with(|| order::scenarios(&a.key.scenario, &b.key.scenario))
            .then_with(|| a.key.cmp(&b.key))
    });
    cells
}

/// The word of records and pages for `kind`.
#[must_use]
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Measured => "measured",
        Kind::Imported => "imported",
        Kind::Simulated => "simulated",
    }
}

/// SHA-256 over the sorted record hashes, one a line: names the data behind a page.
#[must_use]
pub fn records_sha256<'a>(hashes: impl Iterator<Item = &'a str>) -> String {
    let mut hashes: Vec<&str> = hashes.collect();
    hashes.sort_unstable();
    hashes.dedup();
    sha256_hex(hashes.join("\n").as_bytes())
}
