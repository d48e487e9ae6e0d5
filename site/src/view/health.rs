//! View of failures: how many runs of each release succeeded, and every cell in which some failed.
//! No failure is hidden.

use std::collections::BTreeMap;

use judge::validity::headline;
use judge::{facts, order};
use minijinja::{Value, context};
use schema::run::{Kind, Level, Status, ValidityVerdict};

use super::model::note;
use super::words;
use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::link::Link;
use crate::outside;

/// Builds the view of the page about failures, with success and validity of the runs of the latest
/// releases, published ones left out. Returns separately, because they are split into pages, one
/// row for each cell of any release in which runs failed or lost requests, newest release first.
pub fn view(catalog: &Catalog) -> (Value, Vec<Value>) {
    // A published report does not show which of its runs failed.
    let runs = catalog.runs_where(|record| record.kind != Kind::Imported);
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
    let view = context! {
        // Rows about the latest release of each engine on each hardware, one per model: how many
        // runs succeeded and failed.
        latest,
        // Rows of the reasons for which runs are DEGRADED or INVALID, such as a clock that was set
        // during the run.
        doubts,
    };
    (view, failures)
}

/// Collects the reasons for which a release's runs are DEGRADED or INVALID, one row for each id of
/// a reason. Reasons of VALID runs are only notes, and failed runs are among the failures.
fn doubts_of(key: &ReleaseKey, runs: &[&Run]) -> Vec<Value> {
    let mut reasons: BTreeMap<&str, Vec<(&Run, &str)>> = BTreeMap::new();
    let judged = runs.iter().filter(|run| run.record.status == Status::Ok);
    for run in judged.clone().filter(|run| headline(run.record) != ValidityVerdict::Valid) {
        for reason in &run.record.validity.reasons {
            let (id, sentence) = words::reason(reason);
            reasons.entry(id).or_default().push((run, sentence));
        }
        // An error rule makes a run INVALID that the load generator found VALID.
        for check in run.broken().filter(|check| check.level == Level::Error) {
            let sentence = check.detail.as_deref().unwrap_or_default();
            reasons.entry(&check.rule).or_default().push((run, sentence));
        }
    }
    let row = |(id, of): (&str, Vec<(&Run, &str)>)| {
        let (last, sentence) = of.last()?;
        Some(context! {
            engine => Link::release(key),
            hardware => Link::hardware(&key.hardware),
            reason => outside::name(id),
            extent => format!("{} of {}", of.len(), judged.clone().count()),
            run => Link::run(last),
            note => outside::message(sentence),
        })
    };
    reasons.into_iter().filter_map(row).collect()
}

/// Builds one row for each cell of a release that has runs whose status is not `ok`: runs that
/// failed, were skipped or lost requests.
pub fn failures_of(key: &ReleaseKey, runs: &[&Run]) -> Vec<Value> {
    let went_wrong = |run: &&&Run| run.record.status != Status::Ok;
    let mut rows = Vec::new();
    for cell in catalog::cells(runs) {
        let wrong: Vec<&&Run> = cell.runs.iter().filter(went_wrong).collect();
        let Some(last) = wrong.last() else { continue };
        let word = match wrong.iter().all(|run| run.record.status == Status::Partial) {
            true => "lost requests",
            false => "failed",
        };
        rows.push(context! {
            engine => Link::release(key),
            model => outside::name(&cell.key.model),
            hardware => outside::name(&key.hardware),
            scenario => outside::name(&cell.key.scenario),
            extent => format!("{} of {} {word}", wrong.len(), cell.runs.len()),
            run => Link::run(last),
            note => Some(note(last)).filter(|note| !note.is_empty()).unwrap_or_else(|| lost(last)),
        });
    }
    rows
}

/// Returns a sentence about the failed requests of a run, for a run that has no failure message.
fn lost(run: &Run) -> String {
    let counts = run.record.counts.as_ref();
    let failures = counts.and_then(|counts| counts.failures.as_ref());
    let classes: Vec<String> =
        failures.into_iter().flatten().map(|(class, n)| format!("{n} {class}")).collect();
    let lost = match facts::failures(run.record) {
        Some(lost) => format!("{lost} requests failed"),
        None => "failures not reported".to_owned(),
    };
    let classes = classes.join(", ");
    outside::message(format!("{lost}: {classes}").trim_end_matches(": "))
}

fn row(key: &ReleaseKey, model: &str, runs: &[&Run]) -> Value {
    let with = |status: Status| runs.iter().filter(move |run| run.record.status == status);
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    for run in with(Status::Failed).chain(with(Status::Skipped)) {
        let class = run.record.failure.as_ref().map(|failure| words::class(failure.class));
        *classes.entry(class.unwrap_or("no reason given")).or_default() += 1;
    }
    let classes: Vec<String> =
        classes.iter().map(|(class, count)| format!("{count} {class}")).collect();
    let of_verdict = |verdict: ValidityVerdict| {
        runs.iter().filter(|run| headline(run.record) == verdict).count()
    };
    context! {
        engine => Link::release(key),
        model => Link::model(model),
        hardware => Link::hardware(&key.hardware),
        runs => runs.len(),
        ok => with(Status::Ok).count(),
        classes => classes.join(", "),
        partial => with(Status::Partial).count(),
        degraded => of_verdict(ValidityVerdict::Degraded),
        invalid => of_verdict(ValidityVerdict::Invalid),
        retracted => runs.iter().filter(|run| run.retracted.is_some()).count(),
    }
}
