//! Checks a whole registry: storage rules, which make it unsound, and quality findings, which are
//! badges. Everything is reported at once.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;

use schema::canonical::to_canonical;
use schema::exit::Exit;
use schema::run::{Kind, Level, RunRecord};
use serde::Serialize;

use crate::finding::{Finding, ID, LAYOUT, plain};
use crate::history;
use crate::repository::{RESULTS, RepositoryError, WorkTree};
use crate::storage::{self, Parsed};
use crate::store::{Registry, StoreError, Stored, read_folder};

/// A registry that cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Repository(#[from] RepositoryError),
}

impl CheckError {
    /// The exit code of a command that ends with this error.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Store(_) => Exit::Environment,
            Self::Repository(error) => error.exit(),
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Files of each kind: `runs`, `campaigns`, ...
    pub files: BTreeMap<&'static str, usize>,
    /// Breaches of storage rules and remarks, in the order of paths.
    pub storage: Vec<Finding>,
    /// Findings about the quality of runs: shown, never an exit code.
    pub quality: Vec<Badge>,
    /// What could not be checked.
    pub notes: Vec<String>,
}

/// A quality rule that a run breaks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Badge {
    pub rule: String,
    /// Path of the run, below `results/`.
    pub path: String,
    pub run: String,
    /// `error` or `warning`.
    pub level: &'static str,
    pub detail: Option<String>,
    /// True when the rule came after the run was judged.
    pub later: bool,
}

impl Report {
    /// Unsound where a storage rule is broken; quality never decides.
    #[must_use]
    pub fn exit(&self) -> Exit {
        if self.breaches() > 0 { Exit::Unsound } else { Exit::Well }
    }

    /// Number of breaches.
    #[must_use]
    pub fn breaches(&self) -> usize {
        self.storage.iter().filter(|finding| finding.breach).count()
    }
}

/// Checks the registry in the repository at `dir`. A folder that is no repository is checked
/// without its history, and the report says so.
///
/// # Errors
/// Files or the repository cannot be read.
pub fn check(dir: &Path) -> Result<Report, CheckError> {
    let mut report = check_folder(&dir.join(RESULTS))?;
    match WorkTree::open(dir) {
        Ok(tree) => report.storage.extend(history::breaches(&tree)?),
        Err(RepositoryError::NotOne(_)) => {
            report.notes.push("not a git repository: history was not checked".to_owned());
        }
        Err(error) => return Err(error.into()),
    }
    report.storage.sort();
    Ok(report)
}

/// Checks a folder laid out like `results/`, without history.
///
/// # Errors
/// A file cannot be read.
pub fn check_folder(results: &Path) -> Result<Report, StoreError> {
    let folder = read_folder(results)?;
    let mut report = Report { storage: folder.findings, ..Report::default() };
    let mut ids = Vec::new();
    let mut runs = Vec::new();
    for (path, bytes) in folder.files {
        match storage::read(&path, &bytes) {
            Ok(parsed) => {
                report.storage.extend(storage::verify(&path, &bytes, &parsed));
                *report.files.entry(kind_name(&parsed)).or_default() += 1;
                ids.extend(parsed.id().map(|id| (id.to_owned(), path.clone())));
                if let Parsed::Run(record) = parsed {
                    runs.push(Stored { path, root: 0, record: *record });
                }
            }
            Err(finding) => report.storage.push(finding),
        }
    }
    let own = ids.iter().filter(|(_, path)| !path.starts_with("imports/"));
    let own = own.map(|(id, path)| (id.as_str(), path.as_str()));
    report.storage.extend(storage::repeated_ids(own, ID));
    report.storage.sort();
    report.quality = badges(&runs);
    Ok(report)
}

fn kind_name(parsed: &Parsed) -> &'static str {
    match parsed {
        Parsed::Run(record) if record.kind == Kind::Imported => "imports",
        Parsed::Run(_) => "runs",
        Parsed::Kernels(_) => "kernels",
        Parsed::Campaign(_) => "campaigns",
        Parsed::Event(_) => "events",
        Parsed::Derived => "pages",
    }
}

/// The quality rules that `runs` break: stored findings, those of later rules, and figures that
/// two runs share. In the order of rules, then paths.
#[must_use]
pub fn badges(runs: &[Stored<RunRecord>]) -> Vec<Badge> {
    let mut badges = twins(runs);
    for run in runs {
        let stored = run.record.checks.iter().map(|check| (check.clone(), false));
        let later = audit::judge_later(&run.record).into_iter().map(|check| (check, true));
        for (check, later) in stored.chain(later).filter(|(check, _)| !check.ok) {
            badges.push(Badge {
                rule: check.rule,
                path: run.path.clone(),
                run: run.record.id.clone(),
                level: level_name(check.level),
                detail: check.detail,
                later,
            });
        }
    }
    badges.sort();
    badges
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warning => "warning",
    }
}

/// Rule E09: no two runs have the very same figures. A block that was pasted under two headings
/// looks like a repeat without any spread.
fn twins(runs: &[Stored<RunRecord>]) -> Vec<Badge> {
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for run in runs {
        let figures = (run.record.metrics.as_ref(), run.record.histograms.as_ref());
        let Some(text) = figures.0.and_then(|_| to_canonical(&figures).ok()) else { continue };
        if let Some(other) = first.get(&text) {
            found.push(Badge {
                rule: "E09".to_owned(),
                path: run.path.clone(),
                run: run.record.id.clone(),
                level: level_name(Level::Error),
                detail: Some(format!("every figure is that of `{other}`")),
                later: false,
            });
        } else {
            first.insert(text, &run.path);
        }
    }
    found
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<String> =
            self.files.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let files = if files.is_empty() { "no records".to_owned() } else { files.join(", ") };
        writeln!(f, "results: {files}")?;
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for finding in &self.storage {
            writeln!(f, "{finding}")?;
        }
        self.write_quality(f)?;
        match self.breaches() {
            0 => write!(f, "storage: sound"),
            1 => write!(f, "storage: 1 breach"),
            n => write!(f, "storage: {n} breaches"),
        }
    }
}

impl Report {
    fn write_quality(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_rule: BTreeMap<&str, Vec<&Badge>> = BTreeMap::new();
        for badge in &self.quality {
            by_rule.entry(&badge.rule).or_default().push(badge);
        }
        if by_rule.is_empty() {
            return Ok(());
        }
        writeln!(f, "quality (badges, never an exit code):")?;
        for (rule, badges) in by_rule {
            let title = audit::rule(rule).map_or("figures are a run's own", |rule| rule.title);
            let runs = if badges.len() == 1 { "run" } else { "runs" };
            writeln!(f, "  {rule} {} {runs}: not \"{title}\"", badges.len())?;
            for badge in badges {
                let mut line = format!("    {}", badge.run);
                if let Some(detail) = &badge.detail {
                    let _ = write!(line, " {detail}");
                }
                writeln!(f, "{}", plain(&line))?;
            }
        }
        Ok(())
    }
}

/// Breaches in what was loaded: a registry with any of them is not to be diffed or rendered
/// without saying so.
#[must_use]
pub fn unreadable(registry: &Registry) -> Vec<&Finding> {
    registry.findings.iter().filter(|finding| finding.breach && finding.rule != LAYOUT.id).collect()
}
