//! Sentences that stand below the decision of a comparison: caveats, waivers and large changes.
//! Display only.

use schema::comparison::{AppliedWaiver, CellDiff, Diff, FlagChange, Outputs, Row, RunShare};

use super::grouped::{self, LargeChange, Visible};
use super::outputs;
use super::words::{change, sizes, too_few_starts, until};

/// Returns the sentences that stand below the decision: outputs, moved defaults, DEGRADED runs, and
/// which scenarios were judged together or not at all.
pub fn caveats(diff: &Diff) -> Vec<String> {
    let cells: Vec<&CellDiff> = diff.cells.iter().collect();
    let several = diff.outputs.len() > 1;
    let of_model = |outputs: &Outputs| {
        let of = if several {
            format!("{}, {}: ", outputs.model, outputs.config)
        } else {
            String::new()
        };
        of + &outputs::sentence(outputs)
    };
    let mut caveats: Vec<String> = diff.outputs.iter().map(of_model).collect();
    for flag in grouped::flags(&cells, |cell| &cell.moved) {
        caveats.push(format!("The default of {}; it belongs to the release.", became(flag)));
    }
    for flag in grouped::flags(&cells, |cell| &cell.changed) {
        caveats.push(format!("The commands differ in {}, so nothing is judged.", became(flag)));
    }
    caveats.extend(degraded(diff));
    caveats.extend(diff.pooled.iter().filter_map(|row| some_of_all(row, several)));
    caveats.extend(too_few(&cells));
    caveats.extend(seen(&grouped::visible(&cells)));
    caveats
}

/// Returns the sentence about a metric that was decided over scenarios together before all of them had
/// ended; `None` for others. It names the model where there are several.
fn some_of_all(row: &Row, several: bool) -> Option<String> {
    let together = row.verdict.together.as_ref()?;
    let (ended, all) = (together.scenarios.len(), together.of);
    let cell = &row.verdict.cell;
    let of = if several { format!("{}, {}: ", cell.model, cell.config) } else { String::new() };
    (ended < all).then(|| {
        let names = together.scenarios.join(", ");
        let decided = format!("decided when {ended} of {all} had ended ({names})");
        format!("{of}{} over scenarios together: {decided}.", row.title)
    })
}

/// Returns the sentence about scenarios in which a metric had too few starts to be judged; `None` where
/// there is none.
fn too_few(cells: &[&CellDiff]) -> Option<String> {
    let has_few = |cell: &&&CellDiff| cell.rows.iter().any(|row| too_few_starts(row).is_some());
    let names: Vec<String> =
        cells.iter().filter(has_few).map(|cell| cell.cell.scenario.clone()).collect();
    let scenarios = grouped::scenarios(&names, cells.len());
    (!names.is_empty()).then(|| format!("Too few starts to judge a metric alone: {scenarios}."))
}

/// Returns the sentence about the changes of release-blocking metrics that the comparison would have
/// shown; `None` where no metric has pairs.
fn seen(visible: &[Visible]) -> Option<String> {
    let part = |visible: &Visible| format!("{} {}", visible.title, sizes(visible.range_pct));
    let parts: Vec<String> =
        visible.iter().filter(|visible| visible.range_pct.1 > 0.0).map(part).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "Smallest changes that this comparison shows four times in five, by scenario: {}.",
            parts.join(", ")
        )
    })
}

/// Formats a flag with its values: `dtype changed from "f32" to "int8"`.
fn became(change: &FlagChange) -> String {
    let FlagChange { flag, baseline, candidate } = change;
    format!("{flag} changed from {} to {}", baseline.join(" or "), candidate.join(" or "))
}

/// Returns the sentence about the share of DEGRADED runs of each release; `None` without runs.
fn degraded(diff: &Diff) -> Option<String> {
    let (before, after) = (diff.baseline_degraded, diff.candidate_degraded);
    let share =
        |share: RunShare, release: &str| format!("{} of {} with {release}", share.count, share.of);
    (before.of + after.of > 0).then(|| {
        format!(
            "Degraded runs: {} and {}.",
            share(before, &diff.baseline),
            share(after, &diff.candidate)
        )
    })
}

/// Returns the sentence of a waiver: what it accepts, until when, who accepted it, and why.
pub fn waiver(waiver: &AppliedWaiver) -> String {
    let AppliedWaiver { event, title, scenarios, reason, accepted_by, until: end } = waiver;
    let of =
        if scenarios.is_empty() { String::new() } else { format!(" of {}", scenarios.join(", ")) };
    let by = accepted_by.as_deref().map_or_else(String::new, |name| format!(" by {name}"));
    format!("{title}{of}, waived{by} {} (event {event}): {reason}", until(end.as_deref()))
}

/// Returns the sentence about a large change of a metric that is not release-blocking.
pub fn large(found: &LargeChange, all: usize) -> String {
    let LargeChange { title, worse, range_pct, scenarios } = found;
    let way = if *worse { "worse" } else { "better" };
    let size = change(*range_pct);
    format!("{title} {size} ({way}) in {}", grouped::scenarios(scenarios, all))
}
