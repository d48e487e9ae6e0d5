//! A lab from its records: what they already answer is not launched again.

use std::collections::BTreeMap;

use schema::lab::{Candidate, LabFile, Round};
use schema::metric::by_name;
use schema::policy::PolicyFile;
use schema::run::{RunRecord, Status, ValidityVerdict};
use serde::Serialize;

use super::explore::{Conclusion, explore};
use super::outcome::{Failure, Launch, Outcomes};

/// What a lab does next.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Next {
    /// Launches are missing.
    Round(Round),
    Conclusion(Conclusion),
}

/// Replays the records of a lab's campaign up to the first round that is not whole.
#[must_use]
pub fn next<'a>(
    lab: &LabFile,
    policy: &PolicyFile,
    runs_max: u32,
    runs: impl IntoIterator<Item = &'a RunRecord>,
) -> Next {
    let mut slots: BTreeMap<Slot<'a>, &RunRecord> = BTreeMap::new();
    for run in runs {
        if let Some(slot) = &run.campaign {
            let variant = run.server.as_ref().and_then(|server| server.variant.as_deref());
            slots.insert((slot.block, &run.engine.name, variant), run);
        }
    }
    let measured = |round: &Round| {
        let of = |candidate| outcomes(lab, round, candidate, &slots).ok_or_else(|| round.clone());
        round.candidates.iter().map(of).collect::<Result<Vec<_>, _>>()
    };
    explore(lab, policy, runs_max, measured).map_or_else(Next::Round, Next::Conclusion)
}

/// Block, engine and variant: one launch.
type Slot<'a> = (u32, &'a str, Option<&'a str>);

/// What became of a candidate in a round; none while launches are missing. After a failure the rest
/// need not have been launched.
fn outcomes(
    lab: &LabFile,
    round: &Round,
    candidate: &Candidate,
    slots: &BTreeMap<Slot<'_>, &RunRecord>,
) -> Option<Outcomes> {
    let engine = lab.engines.get(candidate.engine)?;
    let variant = candidate.variant();
    let mut found = Outcomes(vec![Vec::new(); lab.profiles.len()]);
    let mut block = round.block;
    for _ in 0..round.repeats {
        for launches in &mut found.0 {
            let run = slots.get(&(block, engine.id.as_str(), variant.as_deref()));
            block += 1;
            match run {
                Some(run) => launches.push(launch(lab, run)),
                None => return found.failure().is_some().then_some(found),
            }
        }
    }
    Some(found)
}

fn launch(lab: &LabFile, run: &RunRecord) -> Launch {
    let value = |name: &str| by_name(name).and_then(|metric| metric.value(run));
    let figure = value(&lab.objective.metric).filter(|figure| *figure > 0.0);
    match figure {
        Some(value_of) if run.status == Status::Ok && is_believed(run) => {
            let bounds = lab.objective.bounds.keys();
            let bounded = bounds.filter_map(|name| Some((name.clone(), value(name)?))).collect();
            Launch::Measured { value: value_of, bounded }
        }
        _ => Launch::Failed(failure(run)),
    }
}

fn is_believed(run: &RunRecord) -> bool {
    run.validity.verdict != ValidityVerdict::Invalid
}

#[expect(clippy::cast_precision_loss, reason = "a run has fewer than 2^53 requests")]
fn failure(run: &RunRecord) -> Failure {
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let reason = match &run.failure {
        // What happened, and below it the server's own words, of which the last say most.
        Some(failure) => match failure.message.lines().skip(1).last() {
            Some(said) => format!("{}: {}", first_line(&failure.message), said.trim()),
            None => first_line(&failure.message),
        },
        None if !is_believed(run) => first_line(&run.validity.reasons.join("; ")),
        None => "not every request was answered".to_owned(),
    };
    let survived = run.counts.as_ref().and_then(|counts| {
        let planned = run.scenario.requests.filter(|planned| *planned > 0)?;
        Some(counts.requests_ok? as f64 / planned as f64)
    });
    Failure { reason, survived }
}
