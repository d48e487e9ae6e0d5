//! Badges: short remarks that a reader must see before trusting a row, such as failures, validity
//! and broken rules.

use std::collections::BTreeMap;

use schema::run::{Kind, Level, Status, ValidityVerdict};
use serde::Serialize;

use super::words;
use crate::catalog::{Cell, Run};
use crate::{format, outside};

/// Urgency of a badge, which decides its order and color.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    /// The figure is missing or INVALID.
    Loud,
    /// The figure needs a second look.
    Firm,
    /// The badge gives additional information.
    Soft,
}

/// A badge: a few words in a box, with an explaining sentence as tooltip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Badge {
    pub text: String,
    pub title: String,
    pub tone: Tone,
}

/// Findings of one rule over some runs.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub rule: String,
    /// True when the method page describes the rule.
    pub known: bool,
    pub level: &'static str,
    /// Number of runs in which the rule is broken.
    pub count: usize,
    /// Extent of the finding: `3 of 3`.
    pub runs: String,
    /// Claim of the broken rule.
    pub title: String,
    pub detail: String,
}

/// Returns the badges of a cell, most urgent first.
pub fn of_cell(cell: &Cell) -> Vec<Badge> {
    let mut badges = of_runs(&cell.runs);
    let counted = cell.counted().count();
    if counted == 1 {
        badges.push(badge(Tone::Soft, "n=1", "a single run: its noise is unknown"));
    }
    if cell.key.text_prompts {
        let why = "prompts went as text: compare only with runs that did the same";
        badges.push(badge(Tone::Soft, "text prompts", why));
    }
    badges.sort_by_key(|badge| badge.tone);
    badges
}

/// Returns the badges that any of `runs` causes, most urgent first.
pub fn of_runs(runs: &[&Run]) -> Vec<Badge> {
    let mut badges = Vec::new();
    let retracted: Vec<&str> = runs.iter().filter_map(|run| run.retracted.as_deref()).collect();
    if let Some(reason) = retracted.first() {
        badges.push(badge(Tone::Loud, &of(retracted.len(), runs.len(), "retracted"), reason));
    }
    failures(runs, &mut badges);
    for (verdict, tone) in
        [(ValidityVerdict::Invalid, Tone::Loud), (ValidityVerdict::Degraded, Tone::Firm)]
    {
        let found: Vec<&&Run> =
            runs.iter().filter(|run| run.record.validity.verdict == verdict).collect();
        if let Some(first) = found.first() {
            let text = of(found.len(), runs.len(), verdict.name());
            badges.push(badge(tone, &text, &first.record.validity.reasons.join("; ")));
        }
    }
    if runs.iter().any(|run| run.record.kind == Kind::Imported) {
        let why = "read from a published report; nobody here saw it run";
        badges.push(badge(Tone::Firm, "imported, unverified", why));
    }
    if runs.iter().any(|run| run.record.kind == Kind::Simulated) {
        badges.push(badge(Tone::Firm, "simulated", "made by a simulator; no server ran"));
    }
    if runs.iter().any(|run| run.record.model.weights.as_deref() == Some("random")) {
        let why = "seeded random weights of the model's shape: speed is real, answers are not";
        badges.push(badge(Tone::Firm, "random weights", why));
    }
    for finding in findings(runs) {
        let tone = if finding.level == "error" { Tone::Firm } else { Tone::Soft };
        badges.push(badge(tone, &finding.rule, &finding.detail));
    }
    badges.sort_by_key(|badge| badge.tone);
    badges
}

fn failures(runs: &[&Run], badges: &mut Vec<Badge>) {
    let failed: Vec<&&Run> = runs
        .iter()
        .filter(|run| matches!(run.record.status, Status::Failed | Status::Skipped))
        .collect();
    if let Some(first) = failed.first() {
        let why = match &first.record.failure {
            Some(failure) => format!(
                "{} while {}: {}",
                words::class(failure.class),
                words::phase(failure.phase),
                failure.message
            ),
            None => "no reason was recorded".to_owned(),
        };
        let word = first.record.status.name();
        badges.push(badge(Tone::Loud, &of(failed.len(), runs.len(), word), &why));
    }
    let requests: u64 =
        runs.iter().filter_map(|run| run.record.counts.as_ref()?.requests_failed).sum();
    if requests > 0 {
        let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
        let counts = runs.iter().filter_map(|run| run.record.counts.as_ref()?.failures.as_ref());
        for (class, count) in counts.flatten() {
            *classes.entry(class).or_default() += count;
        }
        let classes: Vec<String> =
            classes.iter().map(|(class, count)| format!("{count} {class}")).collect();
        let text = format!("{} requests failed", format::whole(requests));
        badges.push(badge(Tone::Loud, &text, &classes.join(", ")));
    }
}

/// Returns the quality rules that `runs` break, errors first.
pub fn findings(runs: &[&Run]) -> Vec<Finding> {
    let mut found: BTreeMap<(bool, &str), (usize, &str)> = BTreeMap::new();
    for run in runs {
        for check in run.checks().filter(|check| !check.ok) {
            let detail = check.detail.as_deref().unwrap_or("no detail");
            let entry =
                found.entry((check.level == Level::Warning, &check.rule)).or_insert((0, detail));
            entry.0 += 1;
        }
    }
    let finding = |((warning, rule), (count, detail)): ((bool, &str), (usize, &str))| Finding {
        known: judge::rule(rule).is_some(),
        rule: outside::name(rule),
        level: if warning { "warning" } else { "error" },
        count,
        runs: format!("{count} of {}", runs.len()),
        title: judge::rule(rule).map_or("", |rule| rule.title).to_owned(),
        detail: outside::message(detail),
    };
    found.into_iter().map(finding).collect()
}

/// Removes the badges that all `rows` share and returns them, so that a page shows them once. A
/// single row keeps all of its badges.
pub fn take_common<'a>(rows: impl Iterator<Item = &'a mut Vec<Badge>>) -> Vec<Badge> {
    let mut rows: Vec<&mut Vec<Badge>> = rows.collect();
    let [first, rest @ ..] = rows.as_slice() else { return Vec::new() };
    if rest.is_empty() {
        return Vec::new();
    }
    let everywhere = |badge: &&Badge| rest.iter().all(|row| row.contains(badge));
    let common: Vec<Badge> = first.iter().filter(everywhere).cloned().collect();
    for row in &mut rows {
        row.retain(|badge| !common.contains(badge));
    }
    common
}

fn badge(tone: Tone, text: &str, title: &str) -> Badge {
    Badge { text: outside::name(text), title: outside::message(title), tone }
}

fn of(count: usize, all: usize, word: &str) -> String {
    if count == all { word.to_owned() } else { format!("{count} of {all} {word}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_rows_say_is_said_once() {
        let badges = |texts: &[&str]| -> Vec<Badge> {
            texts.iter().map(|text| badge(Tone::Soft, text, "why")).collect()
        };
        let mut rows = [badges(&["imported", "W04"]), badges(&["W11", "imported"])];
        assert_eq!(take_common(rows.iter_mut()), badges(&["imported"]));
        assert_eq!(rows, [badges(&["W04"]), badges(&["W11"])]);
        let mut alone = [badges(&["imported"])];
        assert!(take_common(alone.iter_mut()).is_empty() && alone[0].len() == 1);
        // The same rule with another detail is another badge, so both stay.
        let mut rows = [badges(&["W04"]), vec![badge(Tone::Soft, "W04", "another")]];
        assert!(take_common(rows.iter_mut()).is_empty());
    }
}
