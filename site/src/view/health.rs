//! What does not run: how many launches of each release ended well, and every cell in which some
//! did not. Nothing that failed is hidden.

use std::collections::BTreeMap;

use schema::run::{Status, ValidityVerdict};
use serde::Serialize;

use super::model::note;
use super::pager::PartLink;
use super::release::Related;
use super::words;
use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::link::Target;
use crate::{order, outside};

/// The health of everything that was run here.
#[derive(Debug, Clone, Serialize)]
pub struct HealthView {
    /// The latest release of each engine on each hardware; on the first part alone.
    pub latest: Vec<HealthRow>,
    pub failures: Vec<FailureRow>,
    /// Cells with failures, over all parts.
    pub failing: usize,
    pub pager: Vec<PartLink>,
}

/// A release serving one model on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct HealthRow {
    pub engine: Related,
    pub model: Related,
    pub hardware: Related,
    pub runs: usize,
    pub ok: usize,
    /// `3 out of memory, 1 crash`; empty where all went well.
    pub classes: String,
    pub partial: usize,
    pub invalid: usize,
    pub retracted: usize,
}

/// A cell in which launches failed or lost requests.
#[derive(Debug, Clone, Serialize)]
pub struct FailureRow {
    pub engine: Related,
    pub model: String,
    pub hardware: String,
    pub scenario: String,
    /// `2 of 3 failed`.
    pub extent: String,
    /// The last of the runs that did not end well.
    pub run: Related,
    pub note: String,
}

/// The latest health, and every cell with failures, the newest release first.
#[must_use]
pub fn of(catalog: &Catalog) -> (Vec<HealthRow>, Vec<FailureRow>) {
    let runs = catalog.runs_where(|record| record.kind != schema::run::Kind::Imported);
    let mut latest = Vec::new();
    for (key, runs) in catalog::latest_releases(&runs) {
        let mut models: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        for run in runs {
            models.entry(&run.record.model.id).or_default().push(run);
        }
        latest.extend(models.into_iter().map(|(model, runs)| row(&key, model, &runs)));
    }
    let mut failures = Vec::new();
    let mut releases: Vec<_> = catalog.releases().into_iter().collect();
    releases
        .sort_by(|(a, _), (b, _)| order::releases(&b.release, &a.release).then_with(|| a.cmp(b)));
    for (key, runs) in &releases {
        failures.extend(failures_of(key, runs));
    }
    (latest, failures)
}

/// The cells of a release in which launches failed or lost requests.
#[must_use]
pub fn failures_of(key: &ReleaseKey, runs: &[&Run]) -> Vec<FailureRow> {
    let went_wrong = |run: &&&Run| run.record.status != Status::Ok;
    let mut rows = Vec::new();
    for cell in catalog::cells(runs) {
        let wrong: Vec<&&Run> = cell.runs.iter().filter(went_wrong).collect();
        let Some(last) = wrong.last() else { continue };
        let word = match wrong.iter().all(|run| run.record.status == Status::Partial) {
            true => "lost requests",
            false => "failed",
        };
        rows.push(FailureRow {
            engine: Related {
                text: outside::name(&format!("{} {}", key.engine, key.release)),
                target: crate::pages::target(key),
            },
            model: outside::name(&cell.key.model),
            hardware: outside::name(&key.hardware),
            scenario: outside::name(&cell.key.scenario),
            extent: format!("{} of {} {word}", wrong.len(), cell.runs.len()),
            run: Related {
                text: outside::name(&last.record.id),
                target: Target::Run { id: last.record.id.clone(), record: last.path.to_owned() },
            },
            note: match note(last) {
                note if note.is_empty() => lost(last),
                note => note,
            },
        });
    }
    rows
}

/// What a run without a message says about its lost requests.
fn lost(run: &Run) -> String {
    let counts = run.record.counts.as_ref();
    let failures = counts.and_then(|counts| counts.failures.as_ref());
    let classes: Vec<String> =
        failures.into_iter().flatten().map(|(class, n)| format!("{n} {class}")).collect();
    let lost = counts.and_then(|counts| counts.requests_failed).unwrap_or(0);
    outside::message(&format!("{lost} requests failed: {}", classes.join(", ")))
}

fn row(key: &ReleaseKey, model: &str, runs: &[&Run]) -> HealthRow {
    let with = |status: Status| runs.iter().filter(move |run| run.record.status == status);
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    for run in with(Status::Failed).chain(with(Status::Skipped)) {
        let class = run.record.failure.as_ref().map(|failure| words::class(failure.class));
        *classes.entry(class.unwrap_or("no reason given")).or_default() += 1;
    }
    let classes: Vec<String> =
        classes.iter().map(|(class, count)| format!("{count} {class}")).collect();
    let invalid = runs.iter().filter(|run| run.record.validity.verdict == ValidityVerdict::Invalid);
    HealthRow {
        engine: Related {
            text: outside::name(&format!("{} {}", key.engine, key.release)),
            target: crate::pages::target(key),
        },
        model: Related {
            text: outside::name(model),
            target: Target::Model { model: model.to_owned() },
        },
        hardware: Related {
            text: outside::name(&key.hardware),
            target: Target::Hardware { hardware: key.hardware.clone() },
        },
        runs: runs.len(),
        ok: with(Status::Ok).count(),
        classes: classes.join(", "),
        partial: with(Status::Partial).count(),
        invalid: invalid.count(),
        retracted: runs.iter().filter(|run| run.retracted.is_some()).count(),
    }
}
