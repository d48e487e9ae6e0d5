//! Sentences of a lab's page: its method, what was left out, and why there is no conclusion.

use std::collections::BTreeMap;

use judge::diff::policy;
use judge::lab::{Effect, Found, Next, Row, Screening};
use schema::lab::{Combine, LabStage};
use schema::metric::{Better, by_name};

use super::Lab;
use crate::format::{self, Scale, or_dash};
use crate::outside;
use crate::view::finding::Tone;

/// Returns the name of a lab stage on pages.
pub fn stage(stage: LabStage) -> &'static str {
    match stage {
        LabStage::Engines => "engines",
        LabStage::Options => "options",
        LabStage::Combinations => "combinations",
        LabStage::Factorial => "factorial design",
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
            ("stopped early", Tone::Soft, "in the worse half; not shown to be worse".to_owned())
        }
        Found::Screened => {
            ("in the design", Tone::Soft, "its runs decide only together".to_owned())
        }
        Found::Undecided => ("undecided", Tone::Soft, "its runs differ too much to say".to_owned()),
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
    let title = objective(lab);
    let (first, second, last) = (policy.pairs_min, policy.screen_pairs, policy.confirm_pairs);
    let mut sentences = vec![
        format!(
            "The objective is {title} under {} of equal weight. Every run has a fresh server. Variants \
             and their reference run next to each other in blocks, one run of each, so that a change of \
             the machine meets all of them.",
            match file.profiles.len() {
                1 => "one profile".to_owned(),
                count => format!("{count} profiles"),
            }
        ),
        format!(
            "A gain is the geometric mean of the ratios to the reference of the same block. It is called \
             a gain where it is {floor} % or more, the minimum effect, at p < {}. A variant has no gain \
             where it is shown, at the same p, to be below the minimum effect.",
            format::exactly(policy.alpha)
        ),
    ];
    let screening = lab.concluded().and_then(|found| found.screening.as_ref());
    sentences.push(screening.map_or_else(
        || {
            format!(
                "After {first} runs each, and again after {second}, the worse half of the undecided \
                 variants is stopped early (successive halving): that does not show that they are \
                 worse. {last} runs are the most."
            )
        },
        design,
    ));
    let selected = match screening {
        Some(_) => "The selected variants are",
        None => "The best variant and the runner-up are",
    };
    sentences.push(format!(
        "{selected} measured {last} times again beside the baseline. Their p is adjusted for their \
         number (Holm), and half of the minimum effect is enough, since an effect that was selected for \
         its size comes out smaller. Intervals have a confidence of {} %; those of single profiles and \
         of other metrics decide nothing.",
        format::exactly(policy.confidence * 100.0)
    ));
    sentences.extend(bounds(lab));
    sentences
}

/// Returns an explanation of a factorial design for readers of the lab's page.
fn design(found: &Screening) -> String {
    let Screening { planned, measured, error_pct, .. } = found;
    format!(
        "The options ran together in {planned} configurations of a two-level factorial design, in which \
         no effect of an option is mixed with one of a pair (resolution IV; Box, Hunter and Hunter). \
         The effects are estimated by least squares from the {measured} configurations without a failed \
         run; {error_pct:.1} % is their standard error (Lenth). They only select what is measured \
         again: the best option, the best combination, and the pairs that interact most, each with \
         those that have the same estimate."
    )
}

/// Returns title and unit of the objective's metric, such as `Total tokens/s`.
pub fn objective(lab: &Lab) -> String {
    let Some(metric) = lab.metric() else { return "an unknown metric".to_owned() };
    match Scale::fit(metric.unit, 0.0).unit {
        "/s" => format!("{}/s", metric.title),
        _ => metric.title.to_owned(),
    }
}

/// Returns sentences about the bounds of the lab's objective: those of all profiles, and those of
/// single ones.
fn bounds(lab: &Lab) -> Vec<String> {
    let objective = &lab.file().objective;
    let within = |bounds: &BTreeMap<String, f64>| {
        let each = bounds.iter().map(|(name, limit)| {
            let is_least = by_name(name).is_some_and(|metric| metric.better == Better::Higher);
            let side = if is_least { "at least" } else { "at most" };
            format!("`{name}` {side} {}", format::exactly(*limit))
        });
        each.collect::<Vec<_>>().join(", ")
    };
    let all = (!objective.bounds.is_empty()).then(|| {
        format!("Under every profile the median must be within {}.", within(&objective.bounds))
    });
    let own = objective.by_profile.iter().map(|(profile, bounds)| {
        format!("Under `{profile}` the median must be within {}.", within(bounds))
    });
    all.into_iter().chain(own).map(|sentence| outside::message(&sentence)).collect()
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
            1 => "One of its runs was retracted".to_owned(),
            count => format!("{count} of its runs were retracted"),
        };
        sentences.push(outside::message(&format!("{runs}: {reason}")));
    }
    if let Next::Round(round) = &lab.replay.next {
        sentences.push(format!(
            "This lab has no conclusion yet: runs are missing. The next round is of the stage {}, from \
             block {} on.",
            stage(round.stage),
            round.block
        ));
    }
    let now = policy::standard().quoted;
    if let Some(then) = lab.campaign.policy.as_ref().filter(|then| then.sha256 != now.sha256) {
        sentences.push(outside::message(&format!(
            "It ran under the policy {}@{}; the results below follow {}@{}.",
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
                "Options of {} {}: {options}. Only the engine that is best by its own flags is tuned.",
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
        Combine::Factorial => Some(
            "Combinations of three options or more, except those of the design and the best of each \
             axis together; pairs whose estimate was not among the largest."
                .to_owned(),
        ),
        Combine::OneAtATime => Some("Combinations of options: each was tried alone.".to_owned()),
        Combine::Staged => Some(
            "Combinations of options that did not help alone; of those that did, combinations of more \
             than two, except the best of each axis all at once."
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
    let is_of_options = |stage| matches!(stage, LabStage::Options | LabStage::Factorial);
    let mut options = rows.filter(|row| is_of_options(row.stage));
    let launched = || {
        let launches = &lab.replay.launches;
        launches.iter().find(|of| is_of_options(of.stage)).map(|of| of.candidate.engine)
    };
    options.next().map(|row| row.candidate.engine).or_else(launched)
}
