//! View of failures: how many runs of each release succeeded, and every cell in which some failed.
//! No failure is hidden.

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

/// View of the health page, of everything that was measured here.
#[derive(Debug, Clone, Serialize)]
pub struct HealthView {
    /// Latest release of each engine on each hardware; only on the first part of the page.
    pub latest: Vec<HealthRow>,
    /// Reasons for which runs are DEGRADED or INVALID, such as a clock that was set meanwhile;
    /// only on the first part of the page.
    pub doubts: Vec<DoubtRow>,
    pub failures: Vec<FailureRow>,
    /// Number of cells with failures, over all parts of the page.
    pub failing: usize,
    pub pager: Vec<PartLink>,
}

/// Row of the health table: a release that serves one model on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct HealthRow {
    pub engine: Related,
    pub model: Related,
    pub hardware: Related,
    pub runs: usize,
    pub ok: usize,
    /// Classes of failures with their number, `3 out of memory, 1 crash`; empty where there are
    /// none.
    pub classes: String,
    pub partial: usize,
    pub degraded: usize,
    pub invalid: usize,
    pub retracted: usize,
}

/// Row about a reason for which runs of a release are DEGRADED or INVALID.
#[derive(Debug, Clone, Serialize)]
pub struct DoubtRow {
    pub engine: Related,
    pub hardware: Related,
    /// Id of the reason, with which its sentence begins; `-` for a sentence without id.
    pub reason: String,
    /// Extent of the reason: `2 of 12`.
    pub extent: String,
    /// Last run that has the reason.
    pub run: Related,
    /// Sentence of the reason in that run.
    pub note: String,
}

/// Row about a cell in which runs failed or lost requests.
#[derive(Debug, Clone, Serialize)]
pub struct FailureRow {
    pub engine: Related,
    pub model: String,
    pub hardware: String,
    pub scenario: String,
    /// Extent of the failures: `2 of 3 failed`.
    pub extent: String,
    /// Last run that failed or lost requests.
    pub run: Related,
    pub note: String,
}

/// Collects the health of the latest releases, the reasons for doubt about them, and every cell
/// with failures (newest release first).
pub fn of(catalog: &Catalog) -> (Vec<HealthRow>, Vec<DoubtRow>, Vec<FailureRow>) {
    // A published report does not show which of its runs failed.
    let runs = catalog.runs_where(|record| record.kind != schema::run::Kind::Imported);
    let (mut latest, mut doubts) = (Vec::new(), Vec::new());
    for (key, runs) in catalog::latest_releases(&runs) {
        doubts.extend(doubts_of(&key, &runs));
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
    (latest, doubts, failures)
}

/// Collects the reasons for which a release's runs are DEGRADED or INVALID, by id. Reasons of
/// VALID runs are only notes, and failed runs are among the failures.
fn doubts_of(key: &ReleaseKey, runs: &[&Run]) -> Vec<DoubtRow> {
    let mut reasons: BTreeMap<&str, Vec<(&Run, &str)>> = BTreeMap::new();
    let judged = runs.iter().filter(|run| run.record.status == Status::Ok);
    for run in judged.clone().filter(|run| run.record.validity.verdict != ValidityVerdict::Valid) {
        for reason in &run.record.validity.reasons {
            let (id, sentence) = words::reason(reason);
            reasons.entry(id).or_default().push((run, sentence));
        }
    }
    let row = |(id, said): (&str, Vec<(&Run, &str)>)| {
        let (last, sentence) = said.last()?;
        Some(DoubtRow {
            engine: release(key),
            hardware: hardware(key),
            reason: outside::name(id),
            extent: format!("{} of {}", said.len(), judged.clone().count()),
            run: permalink(last),
            note: outside::message(sentence),
        })
    };
    reasons.into_iter().filter_map(row).collect()
}

fn release(key: &ReleaseKey) -> Related {
    Related {
        text: outside::name(&format!("{} {}", key.engine, key.release)),
        target: crate::pages::target(key),
    }
}

fn hardware(key: &ReleaseKey) -> Related {
    Related {
        text: outside::name(&key.hardware),
        target: Target::Hardware { hardware: key.hardware.clone() },
    }
}

fn permalink(run: &Run) -> Related {
    Related {
        text: outside::name(&run.record.id),
        target: Target::Run { id: run.record.id.clone(), record: run.path.to_owned() },
    }
}

/// Returns the cells of a release in which runs failed or lost requests.
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
            engine: release(key),
            model: outside::name(&cell.key.model),
            hardware: outside::name(&key.hardware),
            scenario: outside::name(&cell.key.scenario),
            extent: format!("{} of {} {word}", wrong.len(), cell.runs.len()),
            run: permalink(last),
            note: match note(last) {
                note if note.is_empty() => lost(last),
                note => note,
            },
        });
    }
    rows
}

/// Sentence about the lost requests of a run that has no message.
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
    let of_verdict = |verdict: ValidityVerdict| {
        runs.iter().filter(|run| run.record.validity.verdict == verdict).count()
    };
    HealthRow {
        engine: release(key),
        model: Related {
            text: outside::name(model),
            target: Target::Model { model: model.to_owned() },
        },
        hardware: hardware(key),
        runs: runs.len(),
        ok: with(Status::Ok).count(),
        classes: classes.join(", "),
        partial: with(Status::Partial).count(),
        degraded: of_verdict(ValidityVerdict::Degraded),
        invalid: of_verdict(ValidityVerdict::Invalid),
        retracted: runs.iter().filter(|run| run.retracted.is_some()).count(),
    }
}
