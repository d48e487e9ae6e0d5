//! View of a lab's conclusion: the command, the baseline and the recommended configuration under
//! each profile, and how certain that is.

use judge::lab::{Conclusion, Confirmed, Effect};
use judge::summary;
use schema::lab::{Candidate, LabFile, LabStage};
use schema::metric::{Metric, by_name};
use serde::Serialize;

use super::{Lab, Place, words};
use crate::catalog::Run;
use crate::format::Scale;
use crate::outside;
use crate::view::figure::{Figure, Head};
use crate::view::model::serve_line;

/// View of the conclusion, which a reader sees first.
#[derive(Debug, Clone, Serialize)]
pub struct ConclusionView {
    pub headline: String,
    /// Size and certainty of the gain, in a sentence.
    pub sure: String,
    /// Recorded command of the recommended server; empty where no run recorded it.
    pub serve: String,
    pub flags: String,
    pub head: Head,
    pub baseline: String,
    /// Title of the recommended configuration; empty where the baseline itself is recommended.
    pub recommended: String,
    pub rows: Vec<ProfileRow>,
    /// Gain of the recommended configuration over all profiles.
    pub gain: String,
    pub interval: String,
    /// Rows of metrics that the objective does not count.
    pub beside: Vec<BesideRow>,
}

/// Baseline and recommended configuration under one profile.
#[derive(Debug, Clone, Serialize)]
pub struct ProfileRow {
    pub profile: Place,
    pub baseline: Figure,
    pub recommended: Figure,
    pub gain: String,
    pub interval: String,
    pub launches: usize,
}

/// A further metric of both configurations under one profile.
#[derive(Debug, Clone, Serialize)]
pub struct BesideRow {
    pub profile: String,
    pub head: Head,
    pub baseline: Figure,
    pub recommended: Figure,
}

/// Metrics that are shown in addition to the objective.
const BESIDE: [&str; 2] = ["ttft_us_p50", "tpot_us_p50"];

/// Stages in the order in which a candidate's runs are searched: fresh runs first, because runs by
/// which a candidate was selected flatter it.
const STAGES: [LabStage; 4] =
    [LabStage::Confirm, LabStage::Combinations, LabStage::Options, LabStage::Engines];

/// Result of `candidate` in the confirmation stage.
pub fn confirmed<'a>(found: &'a Conclusion, candidate: &Candidate) -> Option<&'a Confirmed> {
    found.confirmed.iter().find(|confirmed| confirmed.row.candidate == *candidate)
}

impl ConclusionView {
    /// Builds the view; `None` while the lab has no conclusion.
    pub fn new(lab: &Lab) -> Option<Self> {
        let found = lab.concluded()?;
        let baseline = LabFile::plain(0);
        let recommended = found.recommended.as_ref();
        let other = recommended.filter(|candidate| **candidate != baseline);
        let winner = other.and_then(|candidate| confirmed(found, candidate));
        let shown = recommended.unwrap_or(&baseline);
        let effect = winner.and_then(|winner| winner.row.effect.as_ref());
        let metric = lab.metric()?;
        let scale = scale(lab, metric);
        Some(Self {
            headline: headline(lab, recommended),
            sure: sure(lab, found, winner),
            serve: recommended.map_or_else(String::new, |candidate| serve(lab, candidate)),
            flags: outside::command(&lab.file().flags(shown)),
            head: Head::of(metric, scale),
            baseline: lab.title(&baseline),
            recommended: other.map_or_else(String::new, |candidate| lab.title(candidate)),
            rows: rows(lab, metric, other.zip(winner)),
            gain: words::gain(effect),
            interval: words::interval(effect),
            beside: other.map_or_else(Vec::new, |candidate| beside(lab, candidate)),
        })
    }
}

fn headline(lab: &Lab, recommended: Option<&Candidate>) -> String {
    match recommended {
        Some(candidate) if *candidate == LabFile::plain(0) => format!(
            "The baseline, {}: nothing that was tried is confirmed to be better, by {} % or more",
            lab.title(candidate),
            words::floor_pct(lab)
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

/// Command that started the candidate's server, as its latest stage recorded it.
fn serve(lab: &Lab, candidate: &Candidate) -> String {
    let runs = STAGES.iter().flat_map(|stage| {
        let launches = lab.launches(*stage, candidate);
        (0..lab.file().profiles.len()).flat_map(move |profile| lab.runs_of(launches, profile))
    });
    let mut lines = runs.filter_map(|run| serve_line(run.record.server.as_ref()?));
    lines.next().unwrap_or_default()
}

/// Runs of `candidate` under a profile, from the latest stage that has some.
fn freshest<'a>(lab: &Lab<'a>, candidate: &Candidate, profile: usize) -> Vec<&'a Run<'a>> {
    let of = |stage: &LabStage| lab.runs_of(lab.launches(*stage, candidate), profile);
    STAGES.iter().map(of).find(|runs| !runs.is_empty()).unwrap_or_default()
}

/// Scale that fits all runs of the lab, so that there is one unit.
fn scale(lab: &Lab, metric: &Metric) -> Scale {
    let found = summary::of_metric(metric, lab.runs.iter().map(|run| run.record));
    Scale::fit(metric.unit, found.map_or(0.0, |found| found.median))
}

fn rows(lab: &Lab, metric: &Metric, winner: Option<(&Candidate, &Confirmed)>) -> Vec<ProfileRow> {
    let scale = scale(lab, metric);
    let row = |profile: usize| {
        let baseline = freshest(lab, &LabFile::plain(0), profile);
        let effect: Option<&Effect> =
            winner.and_then(|(_, winner)| winner.row.profiles.get(profile)?.as_ref());
        let recommended = winner.map(|(candidate, _)| freshest(lab, candidate, profile));
        ProfileRow {
            profile: lab.profile(profile),
            launches: baseline.len(),
            baseline: lab.figure(metric, &baseline, scale),
            recommended: lab.figure(metric, &recommended.unwrap_or_default(), scale),
            gain: words::gain(effect),
            interval: words::interval(effect),
        }
    };
    (0..lab.file().profiles.len()).map(row).collect()
}

fn beside(lab: &Lab, candidate: &Candidate) -> Vec<BesideRow> {
    let mut rows = Vec::new();
    let metrics = BESIDE.iter().filter_map(|name| by_name(name));
    for metric in metrics.filter(|metric| metric.name != lab.file().objective.metric) {
        let scale = scale(lab, metric);
        for profile in 0..lab.file().profiles.len() {
            let figure = |candidate| lab.figure(metric, &freshest(lab, candidate, profile), scale);
            rows.push(BesideRow {
                profile: lab.profile(profile).text,
                head: Head::of(metric, scale),
                baseline: figure(&LabFile::plain(0)),
                recommended: figure(candidate),
            });
        }
    }
    rows
}
