//! List of all rules for people to read, built from the constants that the checks use.

use serde::Serialize;

use crate::finding::STORAGE_RULES;
use crate::groups::GROUP_RULES;
use crate::rule::Family;
use crate::table::columns;

/// One rule in the list of rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleLine {
    /// Id of the rule: `S..`, `E..` or `W..`.
    pub id: &'static str,
    /// Severity of the rule as a word: a broken `storage` rule makes a registry unsound; a broken
    /// `error` or `warning` is shown beside a run.
    pub level: &'static str,
    /// First revision of the quality rules that contains the rule; storage rules and rules of the
    /// load generator have none.
    pub since: Option<u32>,
    /// Phrase that names the records or files which the rule judges.
    pub applies_to: String,
    /// Names of the metric families that are doubtful where the rule is broken; empty for a storage
    /// rule.
    pub affects: String,
    /// Claim of the rule that must hold, in a few words.
    pub title: &'static str,
}

/// Returns every rule: storage rules, then rules over several runs, then rules over one record.
pub fn rules() -> Vec<RuleLine> {
    let storage = STORAGE_RULES.iter().map(|rule| RuleLine {
        id: rule.id,
        level: "storage",
        since: None,
        applies_to: "every file".to_owned(),
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
    storage.chain(over_several).chain(quality).collect()
}

/// Formats the names of metric families: `ttft, itl`, or `all metrics`.
fn affects(families: &[Family]) -> String {
    if families == Family::ALL {
        return "all metrics".to_owned();
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
    fn every_rule_is_listed_once() {
        let listed = rules();
        let ids: BTreeSet<&str> = listed.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), listed.len());
        assert_eq!(listed.len(), STORAGE_RULES.len() + GROUP_RULES.len() + crate::RULES.len());
        let text = table(&listed);
        assert!(listed.iter().all(|rule| text.contains(rule.title)));
    }
}
