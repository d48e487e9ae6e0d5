//! Sentences of a lab's page: its method, what was left out, and why there is no conclusion.

use judge::diff::policy;
use judge::lab::{Effect, Found, Next, Row};
use schema::lab::{Combine, LabStage};
use schema::metric::{Better, by_name};

use super::Lab;
use crate::format::{self, or_dash};
use crate::outside;
use crate::view::finding::Tone;

/// Returns the name of a lab stage on pages.
pub fn stage(stage: LabStage) -> &'static str {
    match stage {
        LabStage::Engines => "engines",
        LabStage::Options => "options",
        LabStage::Combinations => "combinations",
        LabStage::Confirm => "confirmation",
    }
}

/// Formats the gain of a lab candidate in percent: `+3.2 %`; `-` without an effect.
pub fn gain(effect: Option<&Effect>) -> String {
    or_dash(effect, |effect| format::change(effect.gain_pct))
}

/// Formats the interval of a gain: `+1.0 to +5.4 %`; `-` without an effect.
pub fn interval(effect: Option<&Effect>) -> String {
    or_dash(effect, |effect| format::interval(effect.interval_pct))
}

/// Formats a p-value with three decimals; a value below 0.001 only as an upper bound.
pub fn p(p: f64) -> String {
    if p < 0.001 { "p below 0.001".to_owned() } else { format!("p = {p:.3}") }
}

/// Formats the newer release that supersedes the recommended one: `superseded by v0.10.0 (2.2 times
/// the output tokens/s)`; `None` where there is none.
pub fn superseded(lab: &Lab) -> Option<String> {
    let newer = lab.superseded?;
    let times = newer.times.map(|times| {
        // One decimal, because machines differ by more than that from day to day.
        format!(" ({times:.1} times the output tokens/s)")
    });
    let release = outside::name(&newer.release);
    Some(format!("superseded by {release}{}", times.unwrap_or_default()))
}

/// Returns the words for the finding about a lab candidate, their urgency, and a sentence with the
/// reason.
pub fn found(row: &Row) -> (&'static str, Tone, String) {
    match &row.found {
        Found::Gain => ("gain", Tone::Firm, String::new()),
        Found::NoGain => ("no gain", Tone::Soft, String::new()),
        Found::Dropped => {
            ("dropped", Tone::Soft, "in the worse half of what was still open".to_owned())
        }
        Found::Undecided => {
            ("undecided", Tone::Soft, "its launches differ too much to say".to_owned())
        }
        Found::Failed(failure) => {
            let share = failure
                .survived
                .map(|share| format!("{:.1} % of the requests were answered: ", share * 100.0));
            let reason = format!("{}{}", share.unwrap_or_default(), failure.reason);
            ("failed", Tone::Loud, outside::message(&reason))
        }
        Found::OutOfBounds { metric, profile, median } => {
            let reason = format!("the median of `{metric}` is {median:.0} under `{profile}`");
            ("out of bounds", Tone::Loud, outside::message(&reason))
        }
        Found::NotExplored { reason } => ("not explored", Tone::Soft, outside::message(reason)),
    }
}

/// Returns an explanation of the lab's method for readers of its page, in a few sentences.
pub fn method(lab: &Lab) -> Vec<String> {
    let policy = policy::standard().file;
    let file = lab.file();
    let floor = min_effect_pct(lab);
    let title = lab.metric().map_or("the objective", |metric| metric.title);
    let (first, second, last) = (policy.pairs_min, policy.screen_pairs, policy.confirm_pairs);
    let mut sentences = vec![
        format!(
            "What counts is {title} under {} that count alike. Every launch is a fresh server and one \
             run. Candidates and their reference are launched next to each other in blocks, one launch \
             of each, so that a machine that wanders does so for all of them.",
            match file.profiles.len() {
                1 => "one profile".to_owned(),
                count => format!("{count} profiles"),
            }
        ),
        format!(
            "A gain is the ratio to the reference of the same block, averaged over profiles in \
             logarithms. It is called one where it is {floor} % or more, the floor below which nothing \
             is ever called a change, and where chance alone would show as much in fewer than \
             {} of 100 cases. An option is without gain where it is sure by the same measure to be below \
             the floor.",
            format::exactly(policy.alpha * 100.0)
        ),
        format!(
            "After {first} launches each, and again after {second}, the worse half of those of which \
             nothing is known is dropped (successive halving); {last} launches are the most. Dropped is \
             not refuted: it was too little to go on with."
        ),
        format!(
            "The best and the runner-up are launched {last} times anew beside the baseline. The p of no \
             gain is adjusted for their number (Holm), and half the floor suffices, since an effect that \
             was selected for its size comes out smaller. Intervals are of {} % confidence; those of \
             single profiles inform and decide nothing.",
            format::exactly(policy.confidence * 100.0)
        ),
    ];
    sentences.extend(bounds(lab));
    sentences
}

/// Returns the bounds of the lab's objective as one sentence; `None` without bounds.
fn bounds(lab: &Lab) -> Option<String> {
    let bounds = &lab.file().objective.bounds;
    let each = bounds.iter().map(|(name, limit)| {
        let is_least = by_name(name).is_some_and(|metric| metric.better == Better::Higher);
        let side = if is_least { "at least" } else { "at most" };
        format!("`{name}` {side} {}", format::exactly(*limit))
    });
    let each: Vec<String> = each.collect();
    let sentence = format!("Under every profile the median has to keep {}.", each.join(", "));
    (!each.is_empty()).then(|| outside::message(&sentence))
}

/// Returns the minimum effect of the objective's metric, in percent; 0 for an unknown metric.
pub fn min_effect_pct(lab: &Lab) -> f64 {
    lab.metric().map_or(0.0, |metric| metric.floor_pct)
}

/// Returns the sentences that a reader must see before the rest of the lab's page.
pub fn notices(lab: &Lab) -> Vec<String> {
    let mut sentences = Vec::new();
    let retracted: Vec<&str> = lab.runs.iter().filter_map(|run| run.retracted.as_deref()).collect();
    if let Some(reason) = retracted.first() {
        let runs = match retracted.len() {
            1 => "One of its runs was taken back".to_owned(),
            count => format!("{count} of its runs were taken back"),
        };
        sentences.push(outside::message(&format!("{runs}: {reason}")));
    }
    if let Next::Round(round) = &lab.replay.next {
        sentences.push(format!(
            "This lab has no conclusion: its runs do not answer all that it asks. The next round is of \
             the stage {}, from block {} on.",
            stage(round.stage),
            round.block
        ));
    }
    let now = policy::standard().quoted;
    if let Some(then) = lab.campaign.policy.as_ref().filter(|then| then.sha256 != now.sha256) {
        sentences.push(outside::message(&format!(
            "It was launched under the policy {}@{}; what follows is by {}@{}.",
            then.id, then.rev, now.id, now.rev
        )));
    }
    sentences
}

/// Returns sentences about what the lab did not explore: options, combinations, and values that its
/// file does not name.
pub fn unexplored(lab: &Lab) -> Vec<String> {
    let file = lab.file();
    let mut sentences = Vec::new();
    if let Some(engine) = explored(lab) {
        for (index, other) in file.engines.iter().enumerate().filter(|(index, _)| *index != engine)
        {
            let axes = file.axes.iter().filter(|axis| axis.engine == file.engines[index].id);
            let names: Vec<&str> = axes.map(|axis| axis.name.as_str()).collect();
            let options =
                if names.is_empty() { "its options".to_owned() } else { names.join(", ") };
            sentences.push(outside::message(&format!(
                "Of {} {}: {options}. Only the engine that is best by its own flags is tuned.",
                other.id, other.version
            )));
        }
    }
    let rows = lab.concluded().into_iter().flat_map(|found| &found.rows);
    for row in rows {
        if let Found::NotExplored { reason } = &row.found {
            sentences.push(outside::message(&format!("{}: {reason}.", lab.title(&row.candidate))));
        }
    }
    sentences.truncate(LISTED_MAX);
    sentences.extend(match file.combine {
        Combine::Grid => None,
        Combine::OneAtATime => Some("Options together: each was tried alone.".to_owned()),
        Combine::Staged => Some(
            "Options together that did not help alone; of those that did, more than two at a time, \
             but for the best of each axis all at once."
                .to_owned(),
        ),
    });
    sentences.push(
        "Values between and beyond those of the file, flags that it does not name, other engines and \
         other releases."
            .to_owned(),
    );
    sentences
}

/// Largest number of sentences about engines and candidates that were not explored; the tables have
/// all candidates.
const LISTED_MAX: usize = 24;

/// Returns the index, in the lab's file, of the engine whose options were tried; `None` where no
/// options were.
pub fn explored(lab: &Lab) -> Option<usize> {
    let rows = lab.concluded().into_iter().flat_map(|found| &found.rows);
    let mut options = rows.filter(|row| row.stage == LabStage::Options);
    let launched = || {
        let launches = &lab.replay.launches;
        launches.iter().find(|of| of.stage == LabStage::Options).map(|of| of.candidate.engine)
    };
    options.next().map(|row| row.candidate.engine).or_else(launched)
}
