//! Waivers of a comparison: events that accept a regression, a new failure or changed outputs until
//! a given day.

use schema::comparison::{AppliedWaiver, Diff, Outputs};
use schema::event::{Event, OUTPUTS};
use schema::verdict::Cell;

use super::{decision, words};
use crate::records::Registry;

/// Applies the waivers of `registry` that have not ended at `unix_s` (seconds since 1970) to the
/// failing verdicts and unexplained outputs of `diff`, and decides again.
pub fn apply(diff: &mut Diff, registry: &Registry, unix_s: i64) {
    let release = diff.candidate.clone();
    let mut applied: Vec<AppliedWaiver> = Vec::new();
    let of_cells = diff.cells.iter_mut().flat_map(|cell| &mut cell.rows);
    // A waiver of all scenarios, whose pattern has `*` there, accepts what they show together.
    for row in diff.pooled.iter_mut().chain(of_cells) {
        if !row.verdict.fails() {
            continue;
        }
        let found = registry.waiver(&row.verdict.cell, &row.verdict.metric, &release, unix_s);
        let Some(event) = found else { continue };
        row.verdict.waiver = Some(text(event));
        note(&mut applied, event, &row.title, Some(&row.verdict.scenario()));
    }
    for outputs in diff.outputs.iter_mut().filter(|outputs| outputs.is_unexplained()) {
        if let Some(event) = registry.waiver(&cell_of(outputs), OUTPUTS, &release, unix_s) {
            let until = words::until(event.expires.as_deref());
            outputs.explanation = Some(format!("accepted by a waiver {until}: {}", event.reason));
            note(&mut applied, event, "Outputs", None);
        }
    }
    diff.waivers = applied;
    diff.decision = decision::of(diff);
}

/// Returns the cell by which a waiver of outputs is found. It has no scenario, because the fixed
/// prompts are the same in all of them: the waiver's pattern has `*` there.
fn cell_of(outputs: &Outputs) -> Cell {
    Cell {
        engine: outputs.engine.clone(),
        hardware: outputs.hardware.clone(),
        model: outputs.model.clone(),
        config: outputs.config.clone(),
        scenario: String::new(),
    }
}

fn text(event: &Event) -> String {
    format!("{} ({}, event {})", event.reason, words::until(event.expires.as_deref()), event.id)
}

/// Adds a waived verdict to the list of applied waivers; one waiver of a metric is listed once, with
/// all its scenarios.
fn note(applied: &mut Vec<AppliedWaiver>, event: &Event, title: &str, scenario: Option<&str>) {
    let same = |waiver: &&mut AppliedWaiver| (&*waiver.event, &*waiver.title) == (&event.id, title);
    let scenarios = scenario.map(str::to_owned);
    match applied.iter_mut().find(same) {
        Some(waiver) => waiver.scenarios.extend(scenarios),
        None => applied.push(AppliedWaiver {
            event: event.id.clone(),
            title: title.to_owned(),
            scenarios: scenarios.into_iter().collect(),
            reason: event.reason.clone(),
            accepted_by: event.accepted_by.clone(),
            until: event.expires.clone(),
        }),
    }
}
