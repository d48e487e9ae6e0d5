//! Sentences below a release's table: which of its figures are doubtful, and which rows are not
//! comparable. Knows runs and their verdicts, not how a row marks them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use judge::diff::words::plural;
use judge::validity::{self, headline};
use schema::run::{RunRecord, ValidityVerdict};

use super::{finding, words};
use crate::catalog::{Cell, Run, distinct};
use crate::outside;

/// Largest number of rows that a sentence names; more are counted.
const NAMES_MAX: usize = 6;

/// Returns the sentences about the runs of `cells`: verdicts that are not VALID, today and on the day
/// of the runs, cells that a single run measured, servers that several runs shared, and cells of
/// different campaigns.
pub fn caveats(cells: &[Cell]) -> Vec<String> {
    let runs: Vec<&Run> = cells.iter().flat_map(Cell::current).collect();
    let mut caveats = doubtful(&runs);
    caveats.extend(by_the_rules_of_the_day(&runs));
    let once = cells.iter().filter(|cell| cell.counted().count() == 1).count();
    if once > 0 {
        let of = plural(cells.len(), "row");
        caveats.push(format!("{once} of {of} measured by a single run: the noise is not known."));
    }
    caveats.extend(shared_servers(&runs));
    caveats.extend(several_campaigns(cells));
    caveats
}

/// Returns the sentences about the runs whose headline verdict is not VALID, one for each verdict and
/// rule.
fn doubtful(runs: &[&Run]) -> Vec<String> {
    let mut found: BTreeMap<(Reverse<ValidityVerdict>, &str), usize> = BTreeMap::new();
    for run in runs {
        let verdict = headline(run.record);
        for rule in validity::causes(run.record).iter().filter_map(|rule| judge::rule(rule)) {
            *found.entry((Reverse(verdict), rule.id)).or_default() += 1;
        }
    }
    let sentence = |((Reverse(verdict), id), count): ((Reverse<ValidityVerdict>, &str), usize)| {
        let rule = judge::rule(id)?;
        let (is, all) = (if count == 1 { "is" } else { "are" }, runs.len());
        let affects = words::families(rule.affects);
        Some(format!(
            "{count} of {all} runs {is} {}: {} ({id}). {} It affects {affects}.",
            verdict.name(),
            rule.finding,
            rule.why
        ))
    };
    found.into_iter().filter_map(sentence).collect()
}

/// Returns the sentences about the verdicts that `runs` had on the day on which they were stored;
/// `None` where no run was worse than it is today.
fn by_the_rules_of_the_day(runs: &[&Run]) -> Option<String> {
    let records: Vec<&RunRecord> = runs.iter().map(|run| run.record).collect();
    if !records.iter().any(|record| validity::stored_headline(record) > headline(record)) {
        return None;
    }
    let share = |verdict: ValidityVerdict| {
        let is_of = |record: &&&RunRecord| validity::stored_headline(record) == verdict;
        let count = records.iter().filter(is_of).count();
        (count > 0).then(|| format!("{count} of {} were {}", records.len(), verdict.name()))
    };
    let verdicts = [ValidityVerdict::Invalid, ValidityVerdict::Degraded];
    let shares: Vec<String> = verdicts.into_iter().filter_map(share).collect();
    let rules = finding::retired(&records);
    let names: Vec<String> =
        rules.iter().map(|rule| format!("{} ({})", rule.finding, rule.id)).collect();
    let why = if names.is_empty() {
        String::new()
    } else {
        format!(" Retired since: {}. {}", names.join(", "), finding::whys(&rules))
    };
    Some(format!(
        "These verdicts are by today's rules. By the rules of the day on which the runs were stored, \
         {}.{why}",
        shares.join(" and ")
    ))
}

/// Returns the sentence about runs whose server had served other runs before; `None` where each run
/// had a fresh one.
fn shared_servers(runs: &[&Run]) -> Option<String> {
    let before = |run: &&Run| run.record.campaign.as_ref()?.server_runs_before;
    let before: Vec<u32> = runs.iter().filter_map(before).filter(|count| *count > 0).collect();
    let most = usize::try_from(*before.iter().max()?).unwrap_or(usize::MAX);
    let up_to = if most > 1 { "up to " } else { "" };
    Some(format!(
        "{} of {} used a server that had served {up_to}{} before. Start-up and peak memory are those \
         of the first run of a server.",
        before.len(),
        plural(runs.len(), "run"),
        plural(most, "other run")
    ))
}

/// Returns the sentences about cells whose figures come from different campaigns, with the time of
/// each campaign; `None` where all come from one.
fn several_campaigns(cells: &[Cell]) -> Option<String> {
    let mut campaigns: BTreeMap<&str, Vec<&Cell>> = BTreeMap::new();
    for cell in cells {
        if let Some(slot) = cell.records().next().and_then(|record| record.campaign.as_ref()) {
            campaigns.entry(slot.id.as_str()).or_default().push(cell);
        }
    }
    if campaigns.len() < 2 {
        return None;
    }
    let (most, _) = campaigns.iter().max_by_key(|(_, own)| own.len())?;
    let named = campaigns.iter().filter(|(id, _)| *id != most);
    let mut parts: Vec<String> =
        named.map(|(_, own)| format!("{} at {}", names(own, cells), start(own))).collect();
    parts.push(format!("the others at {}", start(&campaigns[most])));
    Some(format!(
        "Rows of different campaigns are not comparable: the machine or its load may have changed. \
         Measured (UTC): {}.",
        parts.join(", ")
    ))
}

/// Formats the names of the cells `own`, with their model where `cells` have several.
fn names(own: &[&Cell], cells: &[Cell]) -> String {
    let models = distinct(cells.iter().map(|cell| &cell.key.model)).len();
    let name = |cell: &&Cell| match models {
        1 => outside::name(&cell.key.scenario),
        _ => outside::name(&format!("{} {}", cell.key.model, cell.key.scenario)),
    };
    if own.len() > NAMES_MAX {
        return plural(own.len(), "row");
    }
    distinct(own.iter().map(name)).join(", ")
}

/// Formats the time at which the first run of `cells` was started, to the minute.
fn start(cells: &[&Cell]) -> String {
    let records = cells.iter().flat_map(|cell| cell.records());
    let starts = records.filter_map(|record| record.time.as_ref()?.started_at.as_deref());
    let first = starts.min().map(|at| outside::short_hash(at, 16).replace('T', " "));
    first.unwrap_or_else(|| "an unknown time".to_owned())
}

#[cfg(test)]
mod tests {
    use samples::registry as sample;
    use samples::{Sample, campaign_id};
    use schema::run::{Check, Level};
    use schema::scenario::Arrival;

    use super::*;
    use crate::catalog::{self, Catalog};

    /// Returns the caveats and the marks of the first row of a release with these runs.
    fn said(records: Vec<RunRecord>) -> (Vec<String>, Vec<String>) {
        let registry = sample::registry(records);
        let catalog = Catalog::of(&registry);
        let runs: Vec<&Run> = catalog.runs.iter().collect();
        let cells = catalog::cells(&runs);
        let marks = finding::of_cell(&cells[0]).into_iter().map(|finding| finding.text).collect();
        (caveats(&cells), marks)
    }

    /// Returns two runs of one cell, the first one changed by `change`.
    fn two(change: impl Fn(&mut RunRecord)) -> Vec<RunRecord> {
        let record = |serial: u64| Sample { serial, seed: serial, ..Sample::default() }.record();
        let mut records = vec![record(1), record(2)];
        change(&mut records[0]);
        records
    }

    fn broken(rule: &str, level: Level) -> Check {
        Check { rule: rule.to_owned(), level, ok: false, detail: None }
    }

    #[test]
    fn verdicts_by_the_rules_of_the_day_are_said_where_they_were_worse() {
        let (caveats, marks) = said(two(|record| {
            record.checks.push(broken("E16", Level::Error));
            let invalid = ("output_tokens_per_s".to_owned(), ValidityVerdict::Invalid);
            record.validity.metrics = [invalid].into();
        }));
        let expected = "These verdicts are by today's rules. By the rules of the day on which the \
                        runs were stored, 1 of 2 were invalid. Retired since: short steady state \
                        (E16). A short window measures mostly ramp-up and drain. Where all requests \
                        are sent at once, both belong to the workload: its figures are those of the \
                        whole run.";
        assert_eq!(caveats, [expected]);
        let mark = "1 of 2 invalid by the rules of its day (E16)".to_owned();
        assert!(marks.contains(&mark), "{marks:?}");
        assert_eq!(said(two(|_| {})).0, [""; 0]);
    }

    #[test]
    fn a_retired_rule_about_waits_marks_only_rows_with_a_doubtful_run() {
        for (stamped, marked) in [(true, false), (false, true)] {
            let (caveats, marks) = said(two(|record| {
                record.checks.push(broken("W14", Level::Warning));
                record.checks_rev = 6;
                record.scenario.arrival = Some(Arrival::Closed { concurrency: 32 });
                record.validity.verdict = ValidityVerdict::Degraded;
                record.validity.reasons = vec!["kernel-gap: bytes waited 9 ms".to_owned()];
                let client = record.client.as_mut().unwrap();
                (client.error_pct, client.coalesced_read_share) = (None, Some(0.0));
                client.kernel_timestamps = Some(stamped);
            }));
            assert_eq!(marks.contains(&"late reads (W14)".to_owned()), marked, "{marks:?}");
            let retired = caveats.iter().any(|text| text.contains("Retired since: late reads"));
            assert_eq!(retired, !marked, "{caveats:?}");
        }
    }

    #[test]
    fn runs_that_shared_a_server_are_counted() {
        let (caveats, _) = said(two(|record| {
            record.campaign.as_mut().unwrap().server_runs_before = Some(1);
        }));
        let expected = "1 of 2 runs used a server that had served 1 other run before. Start-up and \
                        peak memory are those of the first run of a server.";
        assert_eq!(caveats, [expected]);
    }

    #[test]
    fn rows_of_different_campaigns_are_named_with_their_time() {
        let run = |scenario: &str, serial: u64, campaign: u64| {
            let campaign = (campaign_id(campaign), 0, 0);
            let scenario = scenario.to_owned();
            Sample { scenario, serial, campaign, ..Sample::default() }.record()
        };
        let mut records =
            vec![run("chat-lite-c4", 1, 1), run("balanced-lite", 2, 2), run("sharegpt-lite", 3, 2)];
        let time = records[0].time.as_mut().unwrap();
        time.started_at = Some("2025-12-31T16:58:11Z".to_owned());
        let (caveats, _) = said(records.clone());
        let expected = "Rows of different campaigns are not comparable: the machine or its load may \
                        have changed. Measured (UTC): chat-lite-c4@1 at 2025-12-31 16:58, the others \
                        at 2026-01-01 00:00.";
        assert_eq!(caveats.last().map(String::as_str), Some(expected), "{caveats:?}");
        let (one, _) = said(records[1..].to_vec());
        assert!(!one.iter().any(|text| text.contains("campaigns")), "{one:?}");
    }
}
