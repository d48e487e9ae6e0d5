//! Decision of a comparison: ship, hold or inconclusive, with its reasons in one sentence.

use std::collections::BTreeMap;

use schema::comparison::{
    AppliedWaiver, Decision, DecisionKind, Diff, Outputs, OutputsChange, Row,
};
use schema::metric::{Better, METRICS};
use schema::verdict::VerdictKind;

use super::words::{change, is_not_worse, plural, size_of, too_few_starts, until};

/// Decides about the candidate of `diff`, from its rows, outputs and waivers.
///
/// *Hold* where a release-blocking metric regressed or failed without a waiver, or outputs changed
/// without an explanation; else *inconclusive* where a release-blocking metric is undecided and may be
/// worse, or nothing was compared; else *ship*. A metric that is decided over the scenarios of a model
/// together may be undecided in one of them.
pub fn of(diff: &Diff) -> Decision {
    let blocking: Vec<&Row> = diff.rows().filter(|row| row.gates).collect();
    let failing: Vec<&Row> = blocking.iter().copied().filter(|row| row.verdict.fails()).collect();
    let unexplained = diff.outputs.iter().any(Outputs::is_unexplained);
    let decided_together = |row: &Row| {
        let mut pooled = diff.pooled_of(&row.verdict.cell);
        pooled.any(|all| all.verdict.metric == row.verdict.metric && !is_open(all))
    };
    let undecided = blocking.iter().copied().filter(|row| is_open(row) && !decided_together(row));
    let open: Vec<&Row> = undecided.collect();
    let (verdict, reasons) = if !failing.is_empty() || unexplained {
        (DecisionKind::Hold, hold(&failing, unexplained))
    } else if blocking.is_empty() {
        let reason = if diff.cells.is_empty() {
            "no scenario was measured with both releases"
        } else {
            "no release-blocking metric was measured"
        };
        (DecisionKind::Inconclusive, vec![reason.to_owned()])
    } else if !open.is_empty() {
        (DecisionKind::Inconclusive, inconclusive(&open, &blocking))
    } else {
        (DecisionKind::Ship, ship(diff, &blocking))
    };
    let mut name = verdict.name().to_owned();
    name[..1].make_ascii_uppercase();
    Decision { verdict, sentence: format!("{name}: {}.", reasons.join("; ")) }
}

/// True where it is not known whether the metric became worse.
fn is_open(row: &Row) -> bool {
    match row.verdict.verdict {
        VerdictKind::Inconclusive => !is_not_worse(row),
        kind => kind == VerdictKind::ChangedConfig,
    }
}

/// Returns the reasons to hold: the worst regression or failure, the number of others, and changed
/// outputs that nothing explains.
fn hold(failing: &[&Row], unexplained: bool) -> Vec<String> {
    let mut worst: Vec<&Row> = failing.to_vec();
    worst.sort_by(|a, b| size(b).total_cmp(&size(a)));
    let mut reasons: Vec<String> = worst.first().map(|row| failure(row)).into_iter().collect();
    if let others @ 1.. = worst.len().saturating_sub(1) {
        reasons.push(format!("{} regressed or failed too", metrics(others)));
    }
    if unexplained {
        reasons.push("outputs changed and nothing explains it".to_owned());
    }
    reasons
}

/// Returns the rank of a failing row: a new failure before any regression, regressions by size.
fn size(row: &Row) -> f64 {
    match row.verdict.verdict {
        VerdictKind::NewFailure => f64::INFINITY,
        _ => row.verdict.effect_pct.map_or(0.0, |effect| (effect / 100.0).ln_1p().abs()),
    }
}

fn failure(row: &Row) -> String {
    let scenario = row.verdict.scenario();
    match (row.verdict.verdict, row.verdict.effect_pct) {
        (VerdictKind::NewFailure, _) => {
            format!("runs or requests of {scenario} fail that did not fail before")
        }
        (_, Some(effect)) => {
            format!("{} of {scenario} regressed, {}", row.title, change((effect, effect)))
        }
        (_, None) => format!("{} of {scenario} regressed", row.title),
    }
}

/// Returns the reasons for no conclusion: the largest regression that could not be excluded, and how
/// many of the `blocking` metrics are undecided or have a changed configuration. `open` are those that
/// are undecided in a scenario and over scenarios together.
fn inconclusive(open: &[&Row], blocking: &[&Row]) -> Vec<String> {
    let of_kind = |kind| open.iter().copied().filter(move |row: &&Row| row.verdict.verdict == kind);
    let undecided: Vec<&Row> = of_kind(VerdictKind::Inconclusive).collect();
    let changed = of_kind(VerdictKind::ChangedConfig).count();
    let mut reasons: Vec<String> = not_excluded(&undecided).into_iter().collect();
    let (count, all) = (alone(&undecided), alone(blocking));
    if count > 0 {
        let are = if count == 1 { "is" } else { "are" };
        reasons.push(format!("{count} of {} {are} undecided", metrics(all)));
    }
    let all_open = blocking.iter().filter(|row| is_open(row)).count();
    reasons.extend(together_only(all_open - open.len(), (count == 0).then_some(all)));
    if let together @ 1.. = undecided.len() - count {
        let are = if together == 1 { "is" } else { "are" };
        reasons.push(format!("{} {are} undecided over scenarios together", metrics(together)));
    }
    if changed > 0 {
        let was = if changed == 1 { "was" } else { "were" };
        reasons.push(format!("{} {was} measured with a changed configuration", metrics(changed)));
    }
    reasons
}

/// Returns the words for `count` metrics of single scenarios that are undecided there and decided over
/// scenarios together; `None` for none. `all` is the number of metrics of scenarios, where the sentence
/// has not named it yet.
fn together_only(count: usize, all: Option<usize>) -> Option<String> {
    let are = if count == 1 { "is" } else { "are" };
    let more = all.map_or_else(|| "more".to_owned(), |all| format!("of {}", metrics(all)));
    (count > 0).then(|| format!("{count} {more} {are} decided over scenarios together only"))
}

/// Returns the number of rows about metrics of single scenarios: rows about scenarios together are
/// metrics that scenarios count already.
fn alone(rows: &[&Row]) -> usize {
    rows.iter().filter(|row| !row.verdict.is_together()).count()
}

/// Returns the largest regression that the intervals of the `undecided` metrics include, or what kept
/// one of them from being judged; `None` where no metric is undecided.
fn not_excluded(undecided: &[&Row]) -> Option<String> {
    let judged = undecided.iter().filter(|row| too_few_starts(row).is_none());
    let bounds = judged.filter_map(|row| Some((harm(row)?, row)));
    if let Some((bound, row)) = bounds.max_by(|a, b| a.0.total_cmp(&b.0)) {
        let (size, title, scenario) = (size_of(bound), &row.title, row.verdict.scenario());
        return Some(if bound > 0.0 {
            format!("a regression of up to {size} of {title} in {scenario} could not be excluded")
        } else {
            format!("an improvement of {title} in {scenario} was not confirmed")
        });
    }
    if let Some((few, row)) = undecided.iter().find_map(|row| Some((too_few_starts(row)?, row))) {
        return Some(format!("{} in {} had {few}", row.title, row.verdict.scenario()));
    }
    (!undecided.is_empty()).then(|| "too few pairs of runs have valid figures".to_owned())
}

/// Returns the worst effect, as a regression in percent, that the interval of a row includes; zero
/// or less where the interval excludes every regression. `None` without an interval.
fn harm(row: &Row) -> Option<f64> {
    let (low, high) = row.verdict.interval_pct?;
    Some(match row.better {
        Better::Lower => high,
        Better::Higher => -low,
    })
}

/// Returns the reasons to ship: improvements by metric, waived regressions, and changed outputs.
fn ship(diff: &Diff, blocking: &[&Row]) -> Vec<String> {
    let of_kind = |kind| blocking.iter().copied().filter(move |row| row.verdict.verdict == kind);
    let mut reasons = Vec::new();
    let improved = ranges(of_kind(VerdictKind::Improved));
    if !improved.is_empty() {
        let words = improved.iter().map(|(title, range)| format!("{title} {}", change(*range)));
        reasons.push(words.collect::<Vec<_>>().join(", "));
    }
    let waived: Vec<String> =
        diff.waivers.iter().filter_map(|waiver| accepted(waiver, blocking)).collect();
    if improved.is_empty() && waived.is_empty() {
        reasons.push("no release-blocking metric changed".to_owned());
    }
    reasons.extend(waived);
    let not_worse = not_worse(blocking);
    let all = not_worse.is_none().then(|| alone(blocking));
    reasons.extend(not_worse);
    reasons.extend(together_only(blocking.iter().filter(|row| is_open(row)).count(), all));
    let differ = |outputs: &&Outputs| outputs.change == OutputsChange::Differ;
    if let Some(outputs) = diff.outputs.iter().find(differ) {
        let explanation = outputs.explanation.as_deref().unwrap_or_default();
        reasons.push(format!("outputs changed ({explanation})"));
    }
    reasons
}

/// Returns the words for the metrics of scenarios that are undecided between unchanged and better, with
/// the largest regression that their intervals include; `None` where there are none.
fn not_worse(blocking: &[&Row]) -> Option<String> {
    let alone = blocking.iter().filter(|row| !row.verdict.is_together());
    let (rows, all) = (alone.clone().filter(|row| is_not_worse(row)), alone.count());
    let count = rows.clone().count();
    let worst = rows.filter_map(|row| Some((harm(row)?, row))).max_by(|a, b| a.0.total_cmp(&b.0));
    let (bound, row) = worst?;
    let are = if count == 1 { "is" } else { "are" };
    let mut words =
        format!("{count} of {} {are} undecided between unchanged and better", metrics(all));
    // A smaller loss would read as one of 0.0 %.
    if bound >= 0.05 {
        let (bound, title, scenario) = (size_of(bound), &row.title, row.verdict.scenario());
        words += &format!(" (a loss of {bound} at most: {title} in {scenario})");
    }
    Some(words)
}

/// Formats the regressions that a waiver accepts, with its last day; `None` for a waiver of outputs.
fn accepted(waiver: &AppliedWaiver, blocking: &[&Row]) -> Option<String> {
    let own = blocking.iter().copied().filter(|row| {
        row.verdict.waiver.is_some()
            && row.title == waiver.title
            && waiver.scenarios.contains(&row.verdict.scenario())
    });
    let (title, scenarios) = (&waiver.title, waiver.scenarios.join(", "));
    let regressed = match ranges(own).first() {
        Some((_, range)) => format!("{title} of {scenarios} regressed, {}", change(*range)),
        None if waiver.scenarios.is_empty() => return None,
        None => format!("{title} of {scenarios}"),
    };
    Some(format!("{regressed}, waived {}", until(waiver.until.as_deref())))
}

/// Returns title and smallest and largest effect, in percent, of each metric of `rows`, in the order
/// of [`METRICS`].
fn ranges<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<(&'a str, (f64, f64))> {
    let mut found: BTreeMap<usize, (&str, (f64, f64))> = BTreeMap::new();
    for row in rows {
        let place = METRICS.iter().position(|metric| metric.name == row.verdict.metric);
        let (Some(place), Some(effect)) = (place, row.verdict.effect_pct) else { continue };
        let range = &mut found.entry(place).or_insert((&row.title, (effect, effect))).1;
        *range = (range.0.min(effect), range.1.max(effect));
    }
    found.into_values().collect()
}

fn metrics(count: usize) -> String {
    plural(count, "release-blocking metric")
}
