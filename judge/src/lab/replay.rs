//! Finds how far a lab has come by repeating its decisions with the outcomes in its run records. An
//! interrupted campaign resumes there: runs that have a record are not made again.

use std::collections::BTreeMap;

use schema::lab::{Candidate, LabFile, LabStage, Round};
use schema::metric::by_name;
use schema::policy::PolicyFile;
use schema::run::{RunRecord, Status, ValidityVerdict};
use serde::Serialize;

use super::arm::{Failure, Launch, Outcomes};
use super::explore::{Conclusion, explore};

/// Next step of a lab: a round of runs to make, or its conclusion.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Next {
    /// Round: the next round of runs to make, because a run of it has no record.
    Round(Round),
    /// Conclusion: the lab has ended, and all of its runs are recorded.
    Conclusion(Conclusion),
}

/// State of a lab as its run records show it: its next step and the runs made so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// Next step of the lab: a round to run, or the conclusion.
    pub next: Next,
    /// Recorded runs by stage and candidate, in the order in which the lab requested them.
    pub launches: Vec<Launches>,
}

/// Recorded runs of one candidate in one stage of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Launches {
    /// Stage of the lab that the runs belong to.
    pub stage: LabStage,
    /// Lab candidate that the runs measured.
    pub candidate: Candidate,
    /// Ids of the run records: outer index is the profile, inner index the repeat.
    pub runs: Vec<Vec<String>>,
}

/// Repeats the decisions of a lab with the outcomes in its campaign's run records, up to the first
/// round with a run that has no record. Starts no run.
pub fn replay<'a>(
    lab: &LabFile,
    policy: &PolicyFile,
    runs_max: u32,
    runs: impl IntoIterator<Item = &'a RunRecord>,
) -> Replay {
    let mut slots: BTreeMap<Slot<'a>, &RunRecord> = BTreeMap::new();
    for run in runs {
        if let Some(slot) = &run.campaign {
            let variant = run.server.as_ref().and_then(|server| server.variant.as_deref());
            slots.insert((slot.block, &run.engine.name, variant), run);
        }
    }
    let mut launches = Vec::new();
    let measured = |round: &Round| {
        note(&mut launches, lab, round, &slots);
        let of = |candidate| outcomes(lab, round, candidate, &slots).ok_or_else(|| round.clone());
        round.candidates.iter().map(of).collect::<Result<Vec<_>, _>>()
    };
    let next = explore(lab, policy, runs_max, measured);
    Replay { next: next.map_or_else(Next::Round, Next::Conclusion), launches }
}

/// Key of one planned run: block, engine and variant.
type Slot<'a> = (u32, &'a str, Option<&'a str>);

/// Appends to `launches` the ids of those runs of a round that have a record.
fn note(
    launches: &mut Vec<Launches>,
    lab: &LabFile,
    round: &Round,
    slots: &BTreeMap<Slot<'_>, &RunRecord>,
) {
    let profiles = lab.profiles.len();
    for candidate in &round.candidates {
        let Some(engine) = lab.engines.get(candidate.engine) else { continue };
        let variant = candidate.variant();
        let same = |of: &Launches| of.stage == round.stage && of.candidate == *candidate;
        let index = launches.iter().position(same).unwrap_or_else(|| {
            let runs = vec![Vec::new(); profiles];
            launches.push(Launches { stage: round.stage, candidate: candidate.clone(), runs });
            launches.len() - 1
        });
        let of_round = (0..round.repeats).flat_map(|_| 0..profiles);
        for (block, profile) in (round.block..).zip(of_round) {
            let run = slots.get(&(block, engine.id.as_str(), variant.as_deref()));
            launches[index].runs[profile].extend(run.map(|run| run.id.clone()));
        }
    }
}

/// Returns the outcomes of a candidate in a round; `None` while runs are missing. After a failed
/// run the remaining runs of the round are not required.
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
                // After a failure the rest of the candidate's round need not be run.
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
            let bounds = lab.objective.bounded().into_iter();
            let bounded = bounds.filter_map(|name| Some((name.to_owned(), value(name)?))).collect();
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
        // The message has what happened in its first line and the server's log below, whose last
        // line says most.
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
