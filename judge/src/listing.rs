//! List of all rules for people to read, built from the constants that the checks use.

use std::fmt::Write as _;

use schema::run::Level;
use serde::Serialize;

use crate::finding::STORAGE_RULES;
use crate::groups::GROUP_RULES;
use crate::rule::{Family, Rule};
use crate::submission::SUBMISSION_RULES;
use crate::table::columns;

/// One rule in the list of rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleLine {
    /// Id of the rule: `S..`, `E..` or `W..`.
    pub id: &'static str,
    /// Severity of the rule as a word: a broken `storage` rule makes a registry unsound; a broken
    /// `error` or `warning` is shown beside a run; a broken `submission` rule is about records that
    /// somebody submits.
    pub level: &'static str,
    /// First revision of the quality rules that contains the rule; storage rules, submission rules
    /// and rules of the load generator have none.
    pub since: Option<u32>,
    /// Phrase that names the records or files which the rule judges.
    pub applies_to: String,
    /// Names of the metric families that are doubtful where the rule is broken; empty for a storage
    /// or submission rule.
    pub affects: String,
    /// Claim of the rule that must hold, in a few words.
    pub title: &'static str,
}

/// Returns every rule: storage rules, submission rules, rules over several runs, then rules over one
/// record.
pub fn rules() -> Vec<RuleLine> {
    let storage = STORAGE_RULES.iter().map(|rule| RuleLine {
        id: rule.id,
        level: "storage",
        since: None,
        applies_to: "every file".to_owned(),
        affects: String::new(),
        title: rule.title,
    });
    let submission = SUBMISSION_RULES.iter().map(|rule| RuleLine {
        id: rule.id,
        level: "submission",
        since: None,
        applies_to: "submitted records".to_owned(),
        affects: String::new(),
        title: rule.title,
    });
    let over_several = GROUP_RULES.iter().map(|rule| RuleLine {
        id: rule.id,
        level: rule.level.name(),
        since: Some(rule.since),
        applies_to: rule.scope.to_owned(),
        affects: affects(Family::ALL),
        title: rule.title,
    });
    let quality = crate::RULES.iter().map(|rule| RuleLine {
        id: rule.id,
        level: rule.level.name(),
        since: rule.since,
        applies_to: rule.applies_to(),
        affects: affects(rule.affects),
        title: rule.title,
    });
    storage.chain(submission).chain(over_several).chain(quality).collect()
}

/// Formats the reference page of findings as Markdown: what each rule claims and why, when the load
/// generator reports it, which metrics it makes doubtful, and what the others may still be used for.
pub fn reference() -> String {
    let mut text = REFERENCE.to_owned();
    // Writing to a string cannot fail.
    for rule in crate::RULES.iter() {
        let _ = write!(text, "\n## {}: {}\n\n{}\n\n", rule.id, rule.title, rule.why);
        for reason in rule.conditions.iter().filter_map(|one| one.reason) {
            let (id, verdict, when) =
                (reason.id, reason.verdict.name().to_uppercase(), reason.when);
            let _ = writeln!(text, "- Reported as `{id}`, {verdict}, when {when}.");
        }
        let level = if rule.level == rule.level_on_cpu {
            rule.level.name().to_owned()
        } else {
            format!("{}, {} without a GPU", rule.level.name(), rule.level_on_cpu.name())
        };
        let _ = writeln!(text, "- Judges {}; severity {level}.", rule.applies_to());
        let _ = writeln!(text, "- {}", permitted(rule));
    }
    for rule in GROUP_RULES {
        let _ = write!(text, "\n## {}: {}\n\n{}\n\n", rule.id, rule.title, rule.why);
        let _ = writeln!(text, "- Judges {}; severity {}.", rule.scope, rule.level.name());
        let _ = writeln!(text, "- {}", consequence(rule.level, "all metrics", None));
    }
    for rule in SUBMISSION_RULES {
        let _ = write!(text, "\n## {}: {}\n\n{}\n\n", rule.id, rule.title, rule.why);
        let _ =
            writeln!(text, "- Judges submitted records; its findings are shown to the maintainer.");
    }
    text
}

/// First part of the reference page of findings.
const REFERENCE: &str = "\
# Findings

A finding is a rule that a record fails. Pages show it beside the run, with the rule's id. This page \
is generated from the rules in `judge/src/rules` by `cargo xtask codegen`; \
`cargo xtask rules` prints the same list as a table.

- A failed rule of severity *error* excludes the metrics that it affects from rankings, charts, \
summaries and comparisons: their figures appear only where failures are listed.
- A failed rule of severity *warning* leaves its metrics in place. They are marked, because the \
deviation is one that a reader can allow for.
- The load generator also reports findings on its own run, with an id in words. DEGRADED marks the \
metrics that the rule affects, INVALID excludes them, and VALID is a note.
- Metrics that a rule does not affect may be used as if it had not failed.
";

/// Says which metrics a failed rule makes doubtful, and which it leaves usable.
fn permitted(rule: &Rule) -> String {
    if rule.affects == Family::ALL {
        return consequence(rule.level, "all metrics", None);
    }
    if rule.affects.is_empty() {
        return "Excludes nothing: the finding is shown beside the figures.".to_owned();
    }
    let rest: Vec<Family> =
        Family::ALL.iter().copied().filter(|family| !rule.affects.contains(family)).collect();
    consequence(rule.level, &affects(rule.affects), Some(&affects(&rest)))
}

fn consequence(level: Level, doubtful: &str, rest: Option<&str>) -> String {
    let what = if level == Level::Error { "Excludes" } else { "Marks" };
    match rest {
        Some(rest) => format!("{what}: {doubtful}. Still usable: {rest}, memory and start-up."),
        None => format!("{what}: {doubtful}."),
    }
}

/// Formats the names of metric families: `ttft, itl`, or `all metrics`.
fn affects(families: &[Family]) -> String {
    if families == Family::ALL {
        return "all metrics".to_owned();
    }
    if families.is_empty() {
        return "no metric".to_owned();
    }
    let names = families.iter().map(|family| format!("{family:?}").to_lowercase());
    names.collect::<Vec<_>>().join(", ")
}

/// Formats the rules as a text table, one line per rule.
pub fn table(rules: &[RuleLine]) -> String {
    let mut lines = vec![
        ["RULE", "LEVEL", "SINCE", "APPLIES TO", "AFFECTS", "CLAIM"].map(str::to_owned).to_vec(),
    ];
    lines.extend(rules.iter().map(|rule| {
        vec![
            rule.id.to_owned(),
            rule.level.to_owned(),
            rule.since.map(|since| since.to_string()).unwrap_or_default(),
            rule.applies_to.clone(),
            rule.affects.clone(),
            rule.title.to_owned(),
        ]
    }));
    columns(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_reference_explains_every_rule_and_every_reason() {
        let page = reference();
        for rule in crate::RULES.iter() {
            assert!(page.contains(&format!("\n## {}: {}\n\n{}", rule.id, rule.title, rule.why)));
        }
        for reason in crate::rules::reasons() {
            assert!(page.contains(&format!("`{}`", reason.id)), "{}", reason.id);
        }
        assert!(page.contains("Still usable: "));
        assert!(GROUP_RULES.iter().all(|rule| page.contains(rule.why)));
    }

    #[test]
    fn every_rule_is_listed_once() {
        let listed = rules();
        let ids: BTreeSet<&str> = listed.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), listed.len());
        let of_files = STORAGE_RULES.len() + SUBMISSION_RULES.len();
        assert_eq!(listed.len(), of_files + GROUP_RULES.len() + crate::RULES.len());
        let text = table(&listed);
        assert!(listed.iter().all(|rule| text.contains(rule.title)));
    }
}
