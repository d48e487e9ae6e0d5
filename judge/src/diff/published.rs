//! Published figures of two releases, side by side: what others printed for each, and the ratio. They
//! were measured on different days, so that there is no verdict.

use std::collections::BTreeMap;

use schema::run::{Kind, PrintedRow, RunRecord};

use super::Filter;
use crate::facts::is_believed;
use crate::order;
use crate::records::Registry;

/// Results that others published for two releases with one model, under one scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Published<'a> {
    /// Result of the release that is compared with.
    pub baseline: &'a RunRecord,
    /// Result of the other release.
    pub candidate: &'a RunRecord,
    /// Numbers that both results print, in the candidate's order.
    pub rows: Vec<PublishedRow>,
}

/// Number that two published results print under one label.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedRow {
    /// Title of the section that the row stands in; `None` for a row before the first section.
    pub section: Option<String>,
    /// Label of the row, as both print it.
    pub label: String,
    /// Text of the baseline's result, with all its digits.
    pub baseline: String,
    /// Text of the candidate's result, with all its digits.
    pub candidate: String,
    /// Candidate's number divided by the baseline's; `None` where one is not positive.
    pub ratio: Option<f64>,
}

/// What two published results must have in common to stand beside each other: model, scenario, number
/// of requests, ranks and flags.
type Key<'a> = (&'a str, String, Option<u64>, Option<u32>, &'a [String]);

/// Returns the published results of `baseline` and `candidate` side by side, by model and scenario;
/// `None` where a release has no results within the filter, or was measured here. Of several results of
/// a release with the same model, scenario, ranks and flags, the first in the order of paths is taken;
/// INVALID ones are left out.
pub fn published<'a>(
    registry: &'a Registry,
    baseline: &str,
    candidate: &str,
    filter: &Filter,
) -> Option<Vec<Published<'a>>> {
    let of = |release: &str| -> Vec<&'a RunRecord> {
        let runs = registry.of_releases().map(|run| &run.record);
        runs.filter(|run| filter.covers(run) && run.engine.release == release).collect()
    };
    let (before, after) = (of(baseline), of(candidate));
    let is_measured = |run: &&RunRecord| run.kind != Kind::Imported;
    if [&before, &after].iter().any(|runs| runs.is_empty() || runs.iter().any(is_measured)) {
        return None;
    }
    let (before, after) = (by_key(before), by_key(after));
    let both = after.into_iter().filter_map(|(key, candidate)| {
        let baseline = *before.get(&key)?;
        Some(Published { baseline, candidate, rows: rows(baseline, candidate) })
    });
    let mut found: Vec<Published<'a>> = both.filter(|found| !found.rows.is_empty()).collect();
    found.sort_by(|a, b| {
        let (a, b) = (a.candidate, b.candidate);
        order::natural(&a.model.id, &b.model.id)
            .then_with(|| order::scenarios(&scenario(a), &scenario(b)))
    });
    Some(found)
}

fn by_key(runs: Vec<&RunRecord>) -> BTreeMap<Key<'_>, &RunRecord> {
    let mut found = BTreeMap::new();
    for run in runs.into_iter().filter(|run| is_believed(run)) {
        let tp = run.server.as_ref().and_then(|server| server.tp);
        let key = (run.model.id.as_str(), scenario(run), run.scenario.requests, tp, flags(run));
        found.entry(key).or_insert(run);
    }
    found
}

fn scenario(run: &RunRecord) -> String {
    format!("{}@{}", run.scenario.id, run.scenario.rev)
}

/// Returns the words of a server's command from its first flag on. The words before, an image or a
/// program, differ between releases.
fn flags(run: &RunRecord) -> &[String] {
    let argv = run.server.as_ref().and_then(|server| server.argv.as_deref()).unwrap_or_default();
    let first = argv.iter().position(|word| word.starts_with('-')).unwrap_or(argv.len());
    &argv[first..]
}

fn rows(baseline: &RunRecord, candidate: &RunRecord) -> Vec<PublishedRow> {
    let before = printed(baseline);
    let row = |row: &PrintedRow| {
        let is_same =
            |other: &&PrintedRow| (&other.section, &other.label) == (&row.section, &row.label);
        let other = before.iter().find(is_same)?;
        let (from, to) = (number(&other.text)?, number(&row.text)?);
        Some(PublishedRow {
            section: row.section.clone(),
            label: row.label.clone(),
            baseline: other.text.clone(),
            candidate: row.text.clone(),
            ratio: (from > 0.0 && to > 0.0).then(|| to / from),
        })
    };
    printed(candidate).iter().filter_map(row).collect()
}

fn printed(run: &RunRecord) -> &[PrintedRow] {
    let printed = run.source.as_ref().and_then(|source| source.printed.as_ref());
    printed.map(|printed| printed.rows.as_slice()).unwrap_or_default()
}

fn number(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use samples::Sample;
    use schema::run::{Printed, Source};

    use super::*;
    use crate::Stored;

    fn registry(records: Vec<RunRecord>) -> Registry {
        let stored = |record| Stored { path: String::new(), root: 0, record };
        Registry { runs: records.into_iter().map(stored).collect(), ..Registry::default() }
    }

    fn row(label: &str, text: &str) -> PrintedRow {
        PrintedRow { section: None, label: label.to_owned(), text: text.to_owned() }
    }

    /// Returns, for tests, an imported result of a release that prints `rows`.
    fn result(release: &str, serial: u64, rows: &[PrintedRow]) -> RunRecord {
        let sample = Sample { release: release.to_owned(), serial, ..Sample::default() };
        let printed = Some(Printed { rows: rows.to_vec(), ..Printed::default() });
        RunRecord {
            kind: Kind::Imported,
            campaign: None,
            source: Some(Source { printed, ..Source::default() }),
            ..sample.record()
        }
    }

    #[test]
    fn numbers_that_both_pages_print_have_a_ratio_and_other_rows_are_left_out() {
        let old = [row("Backend", "lmdeploy"), row("Throughput", "1,000.50"), row("Old", "1")];
        let new = [row("Backend", "lmdeploy"), row("Throughput", "1500.75"), row("New", "1")];
        let registry = registry(vec![result("v0.9.2", 1, &old), result("v0.10.0", 2, &new)]);
        let found = published(&registry, "v0.9.2", "v0.10.0", &Filter::default());
        let found = found.expect("both were published");
        assert_eq!(found.len(), 1);
        let [row] = found[0].rows.as_slice() else { panic!("{found:?}") };
        assert_eq!((row.baseline.as_str(), row.candidate.as_str()), ("1,000.50", "1500.75"));
        assert_eq!(row.ratio, Some(1.5));
    }

    #[test]
    fn a_release_that_was_measured_is_compared_and_other_loads_do_not_stand_side_by_side() {
        let rows = [row("Throughput", "1")];
        let old = result("v0.9.2", 1, &rows);
        let mut new = result("v0.10.0", 2, &rows);
        new.scenario.requests = Some(7);
        let both = registry(vec![old.clone(), new.clone()]);
        let none = Some(Vec::new());
        assert_eq!(published(&both, "v0.9.2", "v0.10.0", &Filter::default()), none);
        new.kind = Kind::Measured;
        let both = registry(vec![old, new]);
        assert_eq!(published(&both, "v0.9.2", "v0.10.0", &Filter::default()), None);
    }
}
