//! View of a lab's conclusion: what to serve, the command, what it gains in each metric and at what
//! cost, and the figures of baseline and recommended configuration under each profile.

use judge::lab::{Change, Conclusion, Confirmed};
use minijinja::{Value, context};
use schema::lab::{Candidate, LabFile};

use super::section::{changed, freshest, valid};
use super::{Lab, METRICS, STAGES, words};
use crate::format;
use crate::outside;
use crate::view::{command, figure};

/// Returns the result of `candidate` in the confirmation stage; `None` where that stage did not run
/// it.
pub fn confirmed<'a>(found: &'a Conclusion, candidate: &Candidate) -> Option<&'a Confirmed> {
    found.confirmed.iter().find(|confirmed| confirmed.row.candidate == *candidate)
}

/// Builds the view of the lab's conclusion, the first part of its page; `None` while the lab has
/// none.
pub fn view(lab: &Lab) -> Option<Value> {
    let found = lab.concluded()?;
    let baseline = LabFile::plain(0);
    let recommended = found.recommended.as_ref();
    // The baseline itself can be recommended.
    let other = recommended.filter(|candidate| **candidate != baseline);
    let winner = other.and_then(|candidate| confirmed(found, candidate));
    let changes = other.map_or_else(Vec::new, |candidate| changes(lab, candidate));
    let (costs, gains): (Vec<_>, Vec<_>) =
        changes.iter().partition(|(_, change)| change.is_better == Some(false));
    let text = |(title, change): &&(&str, Change)| {
        let interval = format::interval(change.interval_pct);
        format!("{title} {} ({interval})", format::change(change.pct))
    };
    Some(context! {
        headline => headline(lab, recommended),
        // Newer release of the recommended engine; empty where there is none.
        superseded => words::superseded(lab).unwrap_or_default(),
        // Size and certainty of the gain, in a sentence.
        sure => sure(lab, found, winner),
        // Recorded command of the recommended server; empty where no run recorded it.
        serve => recommended.map_or_else(String::new, |candidate| serve(lab, candidate)),
        // Flags of the recommended configuration that the baseline does not have.
        flags => outside::command(&other.map_or_else(Vec::new, |of| lab.own_flags(of))),
        // Change of each metric over all profiles: those for the worse are the cost.
        gains => gains.iter().map(text).collect::<Vec<_>>(),
        costs => costs.iter().map(text).collect::<Vec<_>>(),
        baseline => lab.title(&baseline),
        recommended => other.map_or_else(String::new, |candidate| lab.title(candidate)),
        rows => other.map_or_else(Vec::new, |candidate| rows(lab, candidate)),
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
            0 => "No variant was good enough to be measured again".to_owned(),
            1 => "One variant was measured again, and its gain was not confirmed".to_owned(),
            count => format!("{count} variants were measured again, and no gain was confirmed"),
        };
        return format!("{tried}. The lab ran {launches} times in all.");
    };
    let pairs = winner.row.effect.map_or(0, |effect| effect.pairs);
    let gain = words::gain(winner.row.effect.as_ref());
    let interval = words::interval(winner.row.effect.as_ref());
    let title = words::objective(lab);
    let profiles = lab.file().profiles.len();
    let over = if profiles == 1 { "under its profile" } else { "over all profiles" };
    format!(
        "{title} {gain} ({interval}) {over}, {}, on {pairs} fresh runs of each side under each profile, \
         next to each other and apart from those by which it was selected. The lab ran {launches} times \
         in all.",
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

/// Returns title and change over all profiles of each metric that the page shows.
fn changes(lab: &Lab, candidate: &Candidate) -> Vec<(&'static str, Change)> {
    let metrics = METRICS.map(figure::metric).into_iter();
    let of = |metric: &'static schema::metric::Metric| {
        Some((metric.title, changed(lab, metric, candidate, lab.profiles())?))
    };
    metrics.filter_map(of).collect()
}

/// Builds the rows that show baseline and recommended configuration under each profile, a row for
/// each metric: that of the objective, and those of every lab.
fn rows(lab: &Lab, candidate: &Candidate) -> Vec<Value> {
    let metrics = lab.metrics();
    let mut rows = Vec::new();
    for profile in lab.profiles() {
        for (index, metric) in metrics.iter().enumerate() {
            let column = lab.column(metric);
            let runs = |of: &Candidate| freshest(lab, of, profile);
            let (own, baseline) = (runs(candidate), runs(&LabFile::plain(0)));
            let found = changed(lab, column.metric, candidate, profile..profile + 1);
            rows.push(context! {
                profile => lab.profile(profile),
                // Number of rows of the profile in the first of them, else 0.
                span => if index == 0 { metrics.len() } else { 0 },
                head => column.head(),
                baseline => lab.figure(column.metric, &baseline, column.scale),
                recommended => lab.figure(column.metric, &own, column.scale),
                change => format::or_dash(found, |found| format::change(found.pct)),
                interval => format::or_dash(found, |found| format::interval(found.interval_pct)),
                worse => found.is_some_and(|found| found.is_better == Some(false)),
                n => own.len(),
                validity => valid(&own),
            });
        }
    }
    rows
}
