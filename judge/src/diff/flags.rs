//! Differences of configuration between the runs of two releases. Only flags that both report are
//! compared, so that a flag added later is not a change. A change is attributed to the command
//! that asks for it, or to a release that moved a default.

use std::collections::{BTreeMap, BTreeSet};

use schema::comparison::FlagChange;
use schema::run::RunRecord;
use serde_json::Value;

/// Returns the server flags that the runs of both releases report and for which no value occurs in
/// both releases, ordered by name.
pub fn changed(baseline: &[&RunRecord], candidate: &[&RunRecord]) -> Vec<FlagChange> {
    let (before, after) = (values(baseline), values(candidate));
    before
        .into_iter()
        .filter_map(|(flag, baseline)| {
            let candidate = after.get(&flag)?;
            // A flag may vary between the runs of one release; only disjoint values are a change.
            baseline.is_disjoint(candidate).then(|| FlagChange {
                flag,
                baseline: baseline.into_iter().collect(),
                candidate: candidate.iter().cloned().collect(),
            })
        })
        .collect()
}

/// Server flags whose values differ between two releases, divided by whether a server command names
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differing {
    /// Flags whose values differ and that a server command of either release names.
    pub asked: Vec<FlagChange>,
    /// Flags whose values differ although no server command names them: defaults that moved between
    /// the releases.
    pub moved: Vec<FlagChange>,
}

/// Returns the flags that [`changed`] finds, divided into those that a server command names and
/// moved defaults.
pub fn differing(baseline: &[&RunRecord], candidate: &[&RunRecord]) -> Differing {
    let commands = baseline.iter().chain(candidate);
    let named: BTreeSet<String> = commands
        .filter_map(|run| run.server.as_ref()?.argv.as_ref())
        .flatten()
        .filter(|argument| argument.starts_with("--"))
        .map(|argument| flag_name(argument.split('=').next().unwrap_or_default()))
        .collect();
    let changes = changed(baseline, candidate).into_iter();
    let (asked, moved) = changes.partition(|change| named.contains(&flag_name(&change.flag)));
    Differing { asked, moved }
}

/// Normalizes the name of a flag: `--max-num-seqs` and `max_num_seqs` are one flag.
fn flag_name(text: &str) -> String {
    text.trim_start_matches('-').replace('_', "-")
}

/// Returns the values of each flag over the runs, each value as JSON text.
fn values(runs: &[&RunRecord]) -> BTreeMap<String, BTreeSet<String>> {
    let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for server in runs.iter().filter_map(|run| run.server.as_ref()) {
        for (flag, value) in server.config.iter().flatten() {
            let value = match value {
                // An integer and a float of the same value are one value.
                Value::Number(number) => {
                    number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string())
                }
                other => other.to_string(),
            };
            values.entry(flag.clone()).or_default().insert(value);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use samples::Sample;

    fn run(flags: &[(&str, Value)]) -> RunRecord {
        let flags = flags.iter().map(|(flag, value)| ((*flag).to_owned(), value.clone()));
        Sample { flags: flags.collect(), ..Sample::default() }.record()
    }

    #[test]
    fn a_flag_that_one_side_does_not_know_is_no_change() {
        let (old, new) = (run(&[]), run(&[("new-flag", Value::from(1))]));
        assert_eq!(changed(&[&old], &[&new]), []);
    }

    #[test]
    fn a_default_that_moved_is_named_with_both_values() {
        let new = run(&[("max-batch-size", Value::from(256))]);
        let found = changed(&[&run(&[])], &[&new]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].flag.as_str(), &*found[0].baseline[0]), ("max-batch-size", "128"));
        assert_eq!(found[0].candidate, ["256"]);
    }

    #[test]
    fn one_value_in_common_is_no_change() {
        let (a, b) = (run(&[("x", Value::from(1))]), run(&[("x", Value::from(2))]));
        assert_eq!(changed(&[&a, &b], &[&b]), []);
        assert_eq!(changed(&[&run(&[("x", Value::from(1.0))])], &[&a]), []);
    }
}
