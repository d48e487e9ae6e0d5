//! The records of a registry, grouped as pages need them. Reads through `registry`; knows
//! nothing of how they are shown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use schema::canonical::sha256_hex;
use schema::kernel::KernelRecord;
use schema::run::{Kind, PromptForm, RunRecord, Status, ValidityVerdict};

use crate::order;

/// A run with what later events say about it.
#[derive(Debug, Clone)]
pub struct Run {
    pub record: RunRecord,
    /// Path below the registry's root.
    pub path: String,
    /// Why the run was taken back.
    pub retracted: Option<String>,
    pub notes: Vec<String>,
}

impl Run {
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
}

/// What a page is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReleaseKey {
    pub engine: String,
    pub release: String,
    pub hardware: String,
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

/// Everything in one or more registries, later roots on top of earlier ones.
#[derive(Debug, Default)]
pub struct Catalog {
    pub runs: Vec<Run>,
    pub kernels: Vec<(String, KernelRecord)>,
}

impl Catalog {
    /// Reads the records below `roots`.
    ///
    /// # Errors
    /// A folder or file cannot be read, or a file is not a record.
    pub fn load(roots: &[PathBuf]) -> Result<Self> {
        let mut files = BTreeMap::new();
        for root in roots {
            collect(root, root, &mut files)?;
        }
        let mut catalog = Self::default();
        for (path, file) in files {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read `{}`", file.display()))?;
            let bad = || format!("`{path}` is not a record");
            if path.starts_with("runs/") || path.starts_with("imports/") {
                let record = serde_json::from_str(&text).with_context(bad)?;
                catalog.runs.push(Run { record, path, retracted: None, notes: Vec::new() });
            } else if path.starts_with("kernels/") {
                let record = serde_json::from_str(&text).with_context(bad)?;
                catalog.kernels.push((path, record));
            }
        }
        catalog.sort();
        Ok(catalog)
    }

    fn sort(&mut self) {
        self.runs.sort_by(|a, b| a.record.id.cmp(&b.record.id).then_with(|| a.path.cmp(&b.path)));
    }

    /// Runs by release and hardware.
    #[must_use]
    pub fn releases(&self) -> BTreeMap<ReleaseKey, Vec<&Run>> {
        let mut releases: BTreeMap<ReleaseKey, Vec<&Run>> = BTreeMap::new();
        for run in &self.runs {
            let record = &run.record;
            let key = ReleaseKey {
                engine: record.engine.name.clone(),
                release: record.engine.release.clone(),
                hardware: record.hardware.id.clone(),
            };
            releases.entry(key).or_default().push(run);
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

fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let context = || format!("cannot list `{}`", folder.display());
    for entry in std::fs::read_dir(folder).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if path.extension().is_some_and(|ext| ext == "json") {
            let below = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            files.insert(below, path);
        }
    }
    Ok(())
}
