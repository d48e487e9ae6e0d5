//! Checks a whole registry: storage rules, whose breaches make it unsound, and quality rules,
//! whose findings are only shown. Everything is reported at once.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;

use anyhow::Result;
use schema::exit::Exit;
use schema::path::read_again;
use schema::run::RunRecord;
use schema::untrusted::one_line;
use serde::Serialize;

use crate::history;
use crate::repository::{RESULTS, WorkTree};
use crate::survey::{Place, Survey, Surveyed, Trust};
use judge::diff::words::plural;
use judge::finding::{Finding, ID};
use judge::groups::{self, Badge, GROUP_RULES, Known};
use store::folder::Listing;
use store::storage::{self, Parsed};

/// Report of a check of the whole registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Number of readable files in the registry by kind, such as `runs` or `campaigns`.
    pub files: BTreeMap<String, usize>,
    /// Findings of storage rules about files of the registry, both breaches and remarks, in the
    /// order of paths.
    pub storage: Vec<Finding>,
    /// Findings of quality rules about the registry's runs, which never affect the exit code.
    pub quality: Vec<Badge>,
    /// Notes on what could not be checked, such as the history of a folder that is not a
    /// repository.
    pub notes: Vec<String>,
}

impl Report {
    /// Returns the exit code of the check: unsound where a storage rule is broken. Findings of
    /// quality rules never decide.
    pub fn exit(&self) -> Exit {
        if self.breaches() > 0 { Exit::Unsound } else { Exit::Well }
    }

    /// Returns the number of breaches of storage rules.
    pub fn breaches(&self) -> usize {
        self.storage.iter().filter(|finding| finding.breach).count()
    }

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
            let over_several = GROUP_RULES.iter().find(|known| known.id == rule);
            let title = judge::rule(rule).map(|rule| rule.title);
            let title = title.or(over_several.map(|rule| rule.title)).unwrap_or_default();
            writeln!(f, "  {rule} {}: not \"{title}\"", plural(badges.len(), "run"))?;
            for badge in badges {
                let mut line = format!("    {}", badge.run);
                if let Some(detail) = &badge.detail {
                    let _ = write!(line, " {detail}");
                }
                writeln!(f, "{}", one_line(&line))?;
            }
        }
        Ok(())
    }
}

/// Checks the registry in the repository at `dir`, with the index at `place` if given. A folder
/// that is not a repository is checked without its history, and the report says so.
///
/// # Errors
///
/// A file or the repository cannot be read, the repository is bare, or `dir` is a folder inside a
/// repository instead of its root.
pub fn check(dir: &Path, place: Option<&Place>, unix_ms: u64) -> Result<Report> {
    // Every byte is read, because an edit can keep a file's size and restore its times.
    let survey = Survey::of(&dir.join(RESULTS), place, Trust::Bytes)?;
    // This listing needs no list of files: it only reads single files by their paths.
    let listing = Listing { root: dir.join(RESULTS), ..Listing::default() };
    let read = |path: &str| match storage::read(path, &listing.read(path).ok()?).ok()? {
        Parsed::Run(record) => Some(*record),
        _ => None,
    };
    let mut report = report(&survey, &read, unix_ms);
    match WorkTree::find(dir)? {
        Some(tree) => report.storage.extend(history::breaches(&tree, &survey.files)?),
        None => report.notes.push("not a git repository: history was not checked".to_owned()),
    }
    report.storage.sort();
    Ok(report)
}

/// Builds the report on a surveyed registry, without its git history. `read` returns the whole run
/// at a path, and `unix_ms` is the current time in milliseconds since 1970.
fn report(survey: &Survey, read: &dyn Fn(&str) -> Option<RunRecord>, unix_ms: u64) -> Report {
    let mut report = Report { storage: survey.findings.clone(), ..Report::default() };
    let mut ids = Vec::new();
    for file in &survey.files {
        report.storage.extend(file.findings.iter().cloned());
        let Some(facts) = &file.facts else { continue };
        *report.files.entry(facts.kind.clone()).or_default() += 1;
        // Ids of imported records come from their file's hash, so two sources may share one.
        let Some(id) = facts.id.as_deref().filter(|_| !file.path.starts_with("imports/")) else {
            continue;
        };
        report.storage.extend(storage::from_the_future(&file.path, id, unix_ms));
        ids.push((id, file.path.as_str()));
    }
    report.storage.extend(storage::repeated_ids(ids.into_iter(), ID));
    report.storage.sort();
    report.quality = badges(&survey.files, read);
    report
}

/// Returns the findings of quality rules about runs: those stored in the records, those of newer
/// rules, and those over several runs, ordered by rule and path.
fn badges(files: &[Surveyed], read: &dyn Fn(&str) -> Option<RunRecord>) -> Vec<Badge> {
    let again = read_again(files.iter().map(|file| file.path.as_str()));
    let runs = files.iter().filter_map(|file| {
        let facts = file.facts.as_ref().filter(|_| !again.contains(file.path.as_str()))?;
        Some(Known { path: &file.path, id: facts.id.as_deref()?, run: facts.run.as_ref()? })
    });
    let runs: Vec<Known<'_>> = runs.collect();
    let mut badges = groups::badges(&runs, read);
    for known in &runs {
        badges.extend(known.run.broken.iter().map(|broken| Badge {
            rule: broken.rule.clone(),
            path: known.path.to_owned(),
            run: known.id.to_owned(),
            level: broken.level.name(),
            detail: broken.detail.clone(),
            later: broken.later,
        }));
    }
    badges.sort();
    badges
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
