//! Comparison of two releases' outputs, from the hashes of the output token ids for fixed prompts
//! that each run's record holds. A changed output blocks a release unless something explains it.

use std::collections::{BTreeMap, BTreeSet};

use schema::alternation::OutputsCompared;
use schema::comparison::{FlagChange, Outputs, OutputsChange};
use schema::run::RunRecord;
use schema::verdict::Cell;

use super::Compared;
use crate::facts::{OutputsDigest, has_other_outputs, outputs_digest};
use crate::quantile::median;
use crate::summary::difference_pct;

/// Server flags, in normalized spelling, that set the number format of weights, activations or KV
/// cache. A different value changes outputs, so it explains outputs that differ.
const FORMAT_FLAGS: [&str; 8] = [
    "dtype",
    "kv-dtype",
    "kv-cache-dtype",
    "cache-type-k",
    "cache-type-v",
    "quantization",
    "quant-policy",
    "model-format",
];

/// Runs of both releases behind the figures of cells that differ in their scenario alone.
#[derive(Debug, Default)]
struct Sides<'a> {
    baseline: Vec<&'a RunRecord>,
    candidate: Vec<&'a RunRecord>,
    /// Explanations of changed outputs: flags of [`FORMAT_FLAGS`] whose values differ.
    explained: BTreeSet<String>,
}

/// Compares the outputs of both releases, once for each engine, hardware, model and configuration
/// of `compared`: the fixed prompts are the same in every scenario.
pub(super) fn of(compared: &[Compared<'_>]) -> Vec<Outputs> {
    let mut groups: BTreeMap<Cell, Sides<'_>> = BTreeMap::new();
    for cell in compared {
        let group = Cell { scenario: String::new(), ..cell.cell.clone() };
        let sides = groups.entry(group).or_default();
        let (baseline, candidate) = cell.behind();
        sides.baseline.extend(baseline);
        sides.candidate.extend(candidate);
        let moved = cell.differing.moved.iter().map(|change| (change, "the default of "));
        let asked = cell.differing.asked.iter().map(|change| (change, ""));
        let formats = moved.chain(asked).filter(|(change, _)| is_format(change));
        sides.explained.extend(formats.map(|(change, whose)| explanation(change, whose)));
    }
    groups.into_iter().map(|(cell, sides)| outputs(cell, &sides)).collect()
}

fn is_format(change: &FlagChange) -> bool {
    let name = change.flag.trim_start_matches('-').replace('_', "-");
    FORMAT_FLAGS.contains(&name.as_str())
}

/// Formats a flag that explains changed outputs: `the default of dtype changed from f32 to int8`.
fn explanation(change: &FlagChange, whose: &str) -> String {
    let values = |values: &[String]| values.join(" or ").replace('"', "");
    let (before, after) = (values(&change.baseline), values(&change.candidate));
    format!("{whose}{} changed from {before} to {after}", change.flag)
}

fn outputs(cell: Cell, sides: &Sides<'_>) -> Outputs {
    let (before, after) = (digests(&sides.baseline), digests(&sides.candidate));
    let kinds = |digests: &BTreeSet<OutputsDigest>| -> BTreeSet<(Option<u64>, bool)> {
        digests.iter().map(|digest| (digest.prompts, digest.is_retokenized)).collect()
    };
    let change = if before.is_empty() || after.is_empty() || kinds(&before) != kinds(&after) {
        OutputsChange::NotCompared
    } else if after.is_subset(&before) {
        OutputsChange::Same
    } else {
        OutputsChange::Differ
    };
    let differ = change == OutputsChange::Differ;
    let unstable = [(&sides.baseline, &before), (&sides.candidate, &after)].into_iter();
    let unstable = unstable.filter(|(_, digests)| has_other_outputs(digests));
    let measured = agreement(&sides.candidate).or_else(|| agreement(&sides.baseline));
    let (agreement, reference) = measured.unzip();
    Outputs {
        engine: cell.engine,
        hardware: cell.hardware,
        model: cell.model,
        config: cell.config,
        change,
        prompts: after.iter().find_map(|digest| digest.prompts),
        requests: None,
        agreement,
        reference,
        explanation: if differ { explained(sides) } else { None },
        perplexity: perplexity(&sides.baseline).zip(perplexity(&sides.candidate)),
        unstable: unstable
            .filter_map(|(runs, _)| Some(runs.first()?.engine.release.clone()))
            .collect(),
    }
}

/// Returns what explains changed outputs: flags, else the data type that the weights are computed
/// in; `None` where neither changed.
fn explained(sides: &Sides<'_>) -> Option<String> {
    if !sides.explained.is_empty() {
        return Some(Vec::from_iter(sides.explained.iter().cloned()).join(", "));
    }
    let dtypes = |runs: &[&RunRecord]| -> BTreeSet<String> {
        runs.iter().filter_map(|run| run.model.dtype.clone()).collect()
    };
    let (before, after) = (dtypes(&sides.baseline), dtypes(&sides.candidate));
    let changed = !before.is_empty() && !after.is_empty() && before.is_disjoint(&after);
    let names = |dtypes: BTreeSet<String>| Vec::from_iter(dtypes).join(" or ");
    changed.then(|| {
        format!("weights are computed in {} and no longer in {}", names(after), names(before))
    })
}

/// Returns the distinct hashes of outputs among `runs`.
fn digests(runs: &[&RunRecord]) -> BTreeSet<OutputsDigest> {
    runs.iter().filter_map(|run| outputs_digest(run)).collect()
}

/// Returns the median perplexity of the fixed text among `runs`; `None` where no run measured it.
fn perplexity(runs: &[&RunRecord]) -> Option<f64> {
    let found = runs.iter().filter_map(|run| run.correctness.as_ref()?.perplexity);
    median(&found.collect::<Vec<f64>>())
}

/// Returns the smallest measured agreement among `runs`, with its reference; `None` where no run
/// measured one, or the runs name several references. A run that was compared with another run of
/// its own release says nothing about two releases.
fn agreement(runs: &[&RunRecord]) -> Option<(f64, String)> {
    let measured = runs.iter().filter_map(|run| {
        let found = run.correctness.as_ref()?;
        let reference = found.reference.as_deref()?;
        let is_own = reference.ends_with(&run.engine.release);
        Some((found.agreement?, reference)).filter(|_| !is_own)
    });
    let measured: Vec<(f64, &str)> = measured.collect();
    let (_, reference) = measured.first()?;
    if measured.iter().any(|(_, other)| other != reference) {
        return None;
    }
    let least = measured.iter().map(|(share, _)| *share).min_by(f64::total_cmp)?;
    Some((least, (*reference).to_owned()))
}

/// Returns a sentence about outputs that an alternating comparison compared request by request.
fn of_requests(outputs: &Outputs, OutputsCompared { compared, differ }: OutputsCompared) -> String {
    match (outputs.change, &outputs.explanation) {
        (OutputsChange::Same, _) => format!("Outputs of all {compared} requests are the same."),
        (OutputsChange::NotCompared, _) => "Outputs were not compared.".to_owned(),
        (OutputsChange::Differ, Some(why)) => {
            format!("Outputs differ in {differ} of {compared} requests: {why}.")
        }
        (OutputsChange::Differ, None) => {
            format!("Outputs differ in {differ} of {compared} requests, and nothing explains it.")
        }
    }
}

/// Returns a sentence about the outputs of one model: whether they are the same, differ or were not
/// compared, the explanation and the agreement.
pub fn sentence(outputs: &Outputs) -> String {
    let prompts = |which: &str| {
        outputs.prompts.map_or_else(String::new, |n| format!(" {which} {n} fixed prompts"))
    };
    // One hash over all prompts does not tell how many of them differ.
    let some = prompts("in at least one of");
    if let Some(found) = outputs.requests {
        return of_requests(outputs, found);
    }
    let mut sentence = match outputs.change {
        OutputsChange::Same => format!("Outputs are the same{}", prompts("for")),
        OutputsChange::NotCompared => "Outputs were not compared".to_owned(),
        OutputsChange::Differ => match &outputs.explanation {
            Some(explanation) => format!("Outputs differ{some}: {explanation}"),
            None => format!("Outputs differ{some}, and nothing explains it"),
        },
    };
    match (outputs.agreement, &outputs.reference) {
        (Some(share), Some(reference)) => {
            sentence +=
                &format!("; {:.1} % of the tokens of {reference} are chosen", share * 100.0);
        }
        _ if outputs.change == OutputsChange::Differ => {
            sentence += "; by how much was not measured"
        }
        _ => {}
    }
    if let Some((before, after)) = outputs.perplexity {
        let change = difference_pct(after, before).unwrap_or(0.0);
        sentence +=
            &format!("; perplexity of a fixed text {before:.3}, then {after:.3} ({change:+.2} %)");
    }
    if !outputs.unstable.is_empty() {
        let releases = outputs.unstable.join(" and ");
        sentence += &format!("; runs of {releases} gave different outputs for the same prompts");
    }
    sentence + "."
}
