//! View of a lab's conclusion: the command, the baseline and the recommended configuration under
//! each profile, and how certain that is.

use judge::lab::{Conclusion, Confirmed, Effect};
use judge::summary;
use minijinja::{Value, context};
use schema::lab::{Candidate, LabFile, LabStage};
use schema::metric::Metric;

use super::{Lab, words};
use crate::catalog::Run;
use crate::format::Scale;
use crate::outside;
use crate::view::command;
use crate::view::figure::{self, Column};

/// Names of the metrics that are shown in addition to the lab's objective.
const OTHERS: [&str; 2] = ["ttft_us_p50", "tpot_us_p50"];

/// Stages in the order in which a candidate's runs are searched: fresh runs first, because the runs
/// by which a candidate was selected overstate its gain.
const STAGES: [LabStage; 4] =
    [LabStage::Confirm, LabStage::Combinations, LabStage::Options, LabStage::Engines];

/// Returns the result of `candidate` in the confirmation stage; `None` where that stage did not run
/// it.
pub fn confirmed<'a>(found: &'a Conclusion, candidate: &Candidate) -> Option<&'a Confirmed> {
    found.confirmed.iter().find(|confirmed| confirmed.row.candidate == *candidate)
}

/// Builds the view of the lab's conclusion, the first part of its page; `None` while the lab has
/// none, or where its objective is an unknown metric.
pub fn view(lab: &Lab) -> Option<Value> {
    let found = lab.concluded()?;
    let baseline = LabFile::plain(0);
    let recommended = found.recommended.as_ref();
    // The baseline itself can be recommended.
    let other = recommended.filter(|candidate| **candidate != baseline);
    let winner = other.and_then(|candidate| confirmed(found, candidate));
    let effect = winner.and_then(|winner| winner.row.effect.as_ref());
    let metric = lab.metric()?;
    Some(context! {
        headline => headline(lab, recommended),
        // Newer release of the recommended engine; empty where there is none.
        superseded => words::superseded(lab).unwrap_or_default(),
        // Size and certainty of the gain, in a sentence.
        sure => sure(lab, found, winner),
        // Recorded command of the recommended server; empty where no run recorded it.
        serve => recommended.map_or_else(String::new, |candidate| serve(lab, candidate)),
        flags => outside::command(&lab.file().flags(recommended.unwrap_or(&baseline))),
        head => column(lab, metric).head(),
        baseline => lab.title(&baseline),
        recommended => other.map_or_else(String::new, |candidate| lab.title(candidate)),
        rows => rows(lab, metric, other.zip(winner)),
        // Gain of the recommended configuration over all profiles.
        gain => words::gain(effect),
        interval => words::interval(effect),
        beside => other.map_or_else(Vec::new, |candidate| other_metrics(lab, candidate)),
    })
}

fn headline(lab: &Lab, recommended: Option<&Candidate>) -> String {
    match recommended {
        Some(candidate) if *candidate == LabFile::plain(0) => format!(
            "The baseline, {}: nothing that was tried is confirmed to be better, by {} % or more",
            lab.title(candidate),
            words::min_effect_pct(lab)
        ),
        Some(candidate) => lab.title(candidate),
        None => "Nothing: no candidate runs within the bounds".to_owned(),
    }
}

fn sure(lab: &Lab, found: &Conclusion, winner: Option<&Confirmed>) -> String {
    let launches = found.runs;
    let Some(winner) = winner else {
        let tried = match found.confirmed.len() {
            0 => "No candidate was good enough to be launched anew".to_owned(),
            1 => "One candidate was launched anew, and its gain was not confirmed".to_owned(),
            count => format!("{count} candidates were launched anew, and no gain was confirmed"),
        };
        return format!("{tried}. The lab asked for {launches} launches in all.");
    };
    let pairs = winner.row.effect.map_or(0, |effect| effect.pairs);
    let gain = words::gain(winner.row.effect.as_ref());
    let interval = words::interval(winner.row.effect.as_ref());
    let profiles = lab.file().profiles.len();
    let over = if profiles == 1 { "under its profile" } else { "over all profiles" };
    format!(
        "{gain} ({interval}) {over}, {}, on {pairs} fresh launches of each side under each profile, next \
         to each other and apart from those by which it was selected. The lab asked for {launches} \
         launches in all.",
        words::p(winner.p_adjusted)
    )
}

/// Returns the command that started the candidate's server, as its latest stage recorded it; empty
/// where no run did.
fn serve(lab: &Lab, candidate: &Candidate) -> String {
    let runs = STAGES.iter().flat_map(|stage| {
        let launches = lab.launches(*stage, candidate);
        lab.profiles().flat_map(move |profile| lab.runs_of(launches, profile))
    });
    let mut lines = runs.filter_map(|run| command::serve(run.record));
    lines.next().map(|serve| serve.line).unwrap_or_default()
}

/// Returns the runs of `candidate` under a profile, from the latest stage that has some; empty
/// where none has.
fn freshest<'a>(lab: &Lab<'a>, candidate: &Candidate, profile: usize) -> Vec<&'a Run<'a>> {
    let of = |stage: &LabStage| lab.runs_of(lab.launches(*stage, candidate), profile);
    STAGES.iter().map(of).find(|runs| !runs.is_empty()).unwrap_or_default()
}

/// Builds the column of a metric over all runs of the lab, so that all its figures have one unit.
fn column(lab: &Lab, metric: &'static Metric) -> Column {
    let found = summary::of_metric(metric, lab.runs.iter().map(|run| run.record));
    Column { metric, scale: Scale::fit(metric.unit, found.map_or(0.0, |found| found.median)) }
}

/// Builds the rows that show baseline and recommended configuration under each profile.
fn rows(lab: &Lab, metric: &'static Metric, winner: Option<(&Candidate, &Confirmed)>) -> Value {
    let scale = column(lab, metric).scale;
    let row = |profile: usize| {
        let baseline = freshest(lab, &LabFile::plain(0), profile);
        let effect: Option<&Effect> =
            winner.and_then(|(_, winner)| winner.row.profiles.get(profile)?.as_ref());
        let recommended = winner.map(|(candidate, _)| freshest(lab, candidate, profile));
        context! {
            profile => lab.profile(profile),
            launches => baseline.len(),
            baseline => lab.figure(metric, &baseline, scale),
            recommended => lab.figure(metric, &recommended.unwrap_or_default(), scale),
            gain => words::gain(effect),
            interval => words::interval(effect),
        }
    };
    lab.profiles().map(row).collect()
}

/// Builds the rows of metrics other than the objective, for both configurations under each profile.
fn other_metrics(lab: &Lab, candidate: &Candidate) -> Vec<Value> {
    let mut rows = Vec::new();
    let metrics = OTHERS.map(figure::metric).into_iter();
    for metric in metrics.filter(|metric| metric.name != lab.file().objective.metric) {
        let column = column(lab, metric);
        for profile in lab.profiles() {
            let figure = |candidate: &Candidate| {
                lab.figure(metric, &freshest(lab, candidate, profile), column.scale)
            };
            rows.push(context! {
                profile => lab.profile(profile).text,
                head => column.head(),
                baseline => figure(&LabFile::plain(0)),
                recommended => figure(candidate),
            });
        }
    }
    rows
}
