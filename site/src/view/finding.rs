//! Findings that a reader must see before trusting a row: failures, validity, and broken rules. Pages
//! show them as badges.

use std::collections::BTreeMap;

use judge::facts;
use judge::rule::Rule;
use judge::validity::{self, headline};
use schema::run::{Check, Kind, Level, RunRecord, Status, ValidityVerdict};
use serde::Serialize;

use super::words;
use crate::catalog::{Cell, Run, distinct};
use crate::link::block_number;
use crate::{format, outside};

/// Sentence for pages: why rules about waits of the client are retired.
const WAITS: &str = "Every wait of the client counted then, also where the kernel had stamped the \
                     exact receive times.";

/// Urgency of a finding or verdict on a page, which decides its order and color.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    /// Loud: runs or requests failed, or a figure is retracted, INVALID, out of bounds or worse
    /// than before; shown first.
    Loud,
    /// Firm: a reason to look at a figure again, or a gain or improvement that a verdict claims.
    Firm,
    /// Soft: additional information.
    Soft,
}

/// Badge about the runs of a row: a few words in a box, with an explaining sentence as tooltip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub text: String,
    pub title: String,
    pub tone: Tone,
}

/// Findings of one quality rule over some runs.
#[derive(Debug, Clone, Serialize)]
pub struct RuleFindings {
    pub rule: String,
    /// True when the method page describes the rule.
    pub known: bool,
    pub level: &'static str,
    /// Number of runs in which the rule is broken.
    pub count: usize,
    /// Extent of the rule's findings: number of runs that break the rule, of all runs (`3 of 3`).
    pub runs: String,
    /// Name of the finding in a few words; empty for a rule that this version does not have.
    pub finding: String,
    /// Claim of the quality rule that is broken; empty for a rule that this version does not have.
    pub title: String,
    /// Reason why the rule matters, as a sentence; empty for a rule that this version does not have.
    pub why: String,
    /// Families of metrics that are doubtful where the rule is broken, in words.
    pub affects: String,
    pub detail: String,
}

/// Returns the findings about a cell, most urgent first.
pub fn of_cell(cell: &Cell) -> Vec<Finding> {
    let mut found = of_runs(&cell.current());
    if cell.counted().count() == 1 {
        found.push(finding(Tone::Soft, "n=1", "a single run: its noise is unknown"));
    }
    if cell.key.text_prompts {
        let why = "prompts went as text: compare only with runs that did the same";
        found.push(finding(Tone::Soft, "text prompts", why));
    }
    found.sort_by_key(|finding| finding.tone);
    found
}

/// Returns the findings about any of `runs`, most urgent first.
pub fn of_runs(runs: &[&Run]) -> Vec<Finding> {
    let mut found = Vec::new();
    let retracted: Vec<&str> = runs.iter().filter_map(|run| run.retracted.as_deref()).collect();
    if let Some(reason) = retracted.first() {
        found.push(finding(Tone::Loud, &of(retracted.len(), runs.len(), "retracted"), reason));
    }
    if let [Run { twin: Some(twin), .. }] = runs {
        let text = format!("same figures as {}", block_number(twin));
        found.push(finding(Tone::Soft, &text, "quoted again by its report, not measured again"));
    }
    failures(runs, &mut found);
    if runs.iter().any(|run| run.record.kind == Kind::Imported) {
        let why = "read from a published report; nobody here saw it run";
        found.push(finding(Tone::Firm, "imported, unverified", why));
    }
    let records: Vec<&RunRecord> = runs.iter().map(|run| run.record).collect();
    found.extend(figures(&records));
    found.extend(by_rule(runs).iter().filter(|broken| !is_moot(broken, &records)).map(of_rule));
    found.sort_by_key(|finding| finding.tone);
    found
}

/// Returns the findings about the figures of `records`, most urgent first: their validity, random
/// weights, and the rules that the records break. Whether they were published elsewhere is left to
/// the caller.
pub fn of_records(records: &[&RunRecord]) -> Vec<Finding> {
    let broken: Vec<Check> = records.iter().flat_map(|record| judge::failed(record)).collect();
    let mut found = figures(records);
    let broken = by_check(broken.iter(), records.len());
    found.extend(broken.iter().filter(|broken| !is_moot(broken, records)).map(of_rule));
    found.sort_by_key(|finding| finding.tone);
    found
}

/// Returns the findings about the validity of `records` and about what was served.
fn figures(records: &[&RunRecord]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (verdict, tone) in
        [(ValidityVerdict::Invalid, Tone::Loud), (ValidityVerdict::Degraded, Tone::Firm)]
    {
        let mut own = records.iter().filter(|record| headline(record) == verdict);
        let count = own.clone().count();
        if let Some(first) = own.next() {
            let text = of(count, records.len(), verdict.name());
            let causes = validity::causes(first);
            let words = causes.iter().filter_map(|id| judge::rule(id));
            let words: Vec<&str> = words.map(|rule| rule.finding).collect();
            found.push(finding(tone, &text, &words.join(", ")));
        }
    }
    let any = |test: fn(&RunRecord) -> bool| records.iter().any(|record| test(record));
    if any(|record| record.kind == Kind::Simulated) {
        found.push(finding(Tone::Firm, "simulated", "made by a simulator; no server ran"));
    }
    if any(|record| record.model.weights.as_deref() == Some("random")) {
        let why = "seeded random weights of the model's shape: speed is real, answers are not";
        found.push(finding(Tone::Firm, "random weights", why));
    }
    found.extend(invalid_then(records));
    found
}

/// Returns the badge of `records` that were INVALID by the rules of the day on which they were stored
/// and are not by today's; `None` where there is none.
fn invalid_then(records: &[&RunRecord]) -> Option<Finding> {
    let invalid = ValidityVerdict::Invalid;
    let was_invalid = |record: &&&RunRecord| {
        validity::stored_headline(record) == invalid && headline(record) != invalid
    };
    let own: Vec<&RunRecord> = records.iter().filter(was_invalid).copied().collect();
    if own.is_empty() {
        return None;
    }
    let rules = retired(&own);
    let ids: Vec<&str> = rules.iter().map(|rule| rule.id).collect();
    let by = if ids.is_empty() { String::new() } else { format!(" ({})", ids.join(", ")) };
    let text = of(own.len(), records.len(), "invalid by the rules of its day");
    Some(finding(Tone::Firm, &(text + &by), &whys(&rules)))
}

/// Returns the rules that are retired since and that made any of `records` worse, on the day on which
/// it was stored, than it is today, each once.
pub fn retired(records: &[&RunRecord]) -> Vec<&'static Rule> {
    let mut rules: Vec<&Rule> =
        records.iter().flat_map(|record| validity::stored_causes(record)).collect();
    rules.sort_by_key(|rule| rule.id);
    rules.dedup_by_key(|rule| rule.id);
    rules
}

/// Returns the reasons for which rules are retired, as sentences.
pub fn whys(rules: &[&Rule]) -> String {
    let why = |rule: &&Rule| rule.successor.and_then(judge::rule).map_or(WAITS, |next| next.why);
    distinct(rules.iter().map(why)).join(" ")
}

/// True for a finding of a retired rule without a successor, which is about waits of the client, that
/// makes no run of `records` doubtful.
fn is_moot(broken: &RuleFindings, records: &[&RunRecord]) -> bool {
    judge::rule(&broken.rule).is_some_and(|rule| rule.until.is_some())
        && !records.iter().any(|record| validity::causes(record).contains(&broken.rule))
}

/// Returns the badge of a rule that runs break: the finding in words with the rule's id, and what
/// the rule says. It is the same for all rows that break the rule, so that a page shows it once.
fn of_rule(broken: &RuleFindings) -> Finding {
    let tone = if broken.level == "error" { Tone::Firm } else { Tone::Soft };
    if broken.finding.is_empty() {
        return finding(tone, &broken.rule, &broken.detail);
    }
    let text = format!("{} ({})", broken.finding, broken.rule);
    finding(tone, &text, &format!("failed check: {}. {}", broken.title, broken.why))
}

fn failures(runs: &[&Run], found: &mut Vec<Finding>) {
    let is_failed = |run: &&&Run| matches!(run.record.status, Status::Failed | Status::Skipped);
    let failed: Vec<&&Run> = runs.iter().filter(is_failed).collect();
    if let Some(first) = failed.first() {
        let failure = first.record.failure.as_ref().map(words::failure);
        let why = failure.unwrap_or_else(|| "no reason was recorded".to_owned());
        let word = first.record.status.name();
        found.push(finding(Tone::Loud, &of(failed.len(), runs.len(), word), &why));
    }
    let requests: u64 = runs.iter().filter_map(|run| facts::failures(run.record)).sum();
    if requests > 0 {
        let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
        let counts = runs.iter().filter_map(|run| run.record.counts.as_ref()?.failures.as_ref());
        for (class, count) in counts.flatten() {
            *classes.entry(class).or_default() += count;
        }
        let classes: Vec<String> =
            classes.iter().map(|(class, count)| format!("{count} {class}")).collect();
        let text = format!("{} requests failed", format::whole(requests));
        found.push(finding(Tone::Loud, &text, &classes.join(", ")));
    }
}

/// Returns the findings of the quality rules that `runs` break, one entry for each rule, errors
/// first.
pub fn by_rule(runs: &[&Run]) -> Vec<RuleFindings> {
    by_check(runs.iter().flat_map(|run| run.broken()), runs.len())
}

/// Groups the failed checks `broken` of `all` runs by rule, errors first.
fn by_check<'a>(broken: impl Iterator<Item = &'a Check>, all: usize) -> Vec<RuleFindings> {
    let mut found: BTreeMap<(bool, &str), (usize, &str)> = BTreeMap::new();
    for check in broken {
        let detail = check.detail.as_deref().unwrap_or("no detail");
        let entry =
            found.entry((check.level == Level::Warning, &check.rule)).or_insert((0, detail));
        entry.0 += 1;
    }
    let finding = |((warning, rule), (count, detail)): ((bool, &str), (usize, &str))| {
        let known = judge::rule(rule);
        RuleFindings {
            known: known.is_some(),
            rule: outside::name(rule),
            level: if warning { "warning" } else { "error" },
            count,
            runs: format!("{count} of {all}"),
            finding: known.map_or("", |rule| rule.finding).to_owned(),
            title: known.map_or("", |rule| rule.title).to_owned(),
            why: known.map_or("", |rule| rule.why).to_owned(),
            affects: known.map_or_else(String::new, |rule| words::families(rule.affects)),
            detail: outside::message(detail),
        }
    };
    found.into_iter().map(finding).collect()
}

/// Removes from each of `rows` the findings that all rows have, and returns those findings, so that
/// a page shows them once. A single row keeps all of its findings, and none is returned.
pub fn take_common(rows: &mut [Vec<Finding>]) -> Vec<Finding> {
    let [first, rest @ ..] = &*rows else { return Vec::new() };
    if rest.is_empty() {
        return Vec::new();
    }
    let everywhere = |finding: &&Finding| rest.iter().all(|row| row.contains(finding));
    let common: Vec<Finding> = first.iter().filter(everywhere).cloned().collect();
    for row in rows {
        row.retain(|finding| !common.contains(finding));
    }
    common
}

fn finding(tone: Tone, text: &str, title: &str) -> Finding {
    Finding { text: outside::name(text), title: outside::message(title), tone }
}

fn of(count: usize, all: usize, word: &str) -> String {
    if count == all { word.to_owned() } else { format!("{count} of {all} {word}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_rows_say_is_said_once() {
        let findings = |texts: &[&str]| -> Vec<Finding> {
            texts.iter().map(|text| finding(Tone::Soft, text, "why")).collect()
        };
        let mut rows = [findings(&["imported", "W04"]), findings(&["W11", "imported"])];
        assert_eq!(take_common(&mut rows), findings(&["imported"]));
        assert_eq!(rows, [findings(&["W04"]), findings(&["W11"])]);
        let mut alone = [findings(&["imported"])];
        assert!(take_common(&mut alone).is_empty() && alone[0].len() == 1);
        // The same rule with another detail is another finding, so both stay.
        let mut rows = [findings(&["W04"]), vec![finding(Tone::Soft, "W04", "another")]];
        assert!(take_common(&mut rows).is_empty());
    }
}
