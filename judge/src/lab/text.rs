//! Prints the next round or the conclusion of a lab as text for a terminal.

use std::collections::BTreeSet;

use schema::lab::{Axis, Candidate, LabEngine, LabFile, LabOutline, LabStage};
use schema::metric::{Unit, by_name};
use schema::policy::PolicyFile;
use schema::scenario::Arrival;
use schema::shell;

use super::arm::{Effect, Found, Row};
use super::candidates::axes;
use super::explore::{Conclusion, count, finalists_max};
use super::factorial::{Contrast, Factorial, Screening};
use super::outline::{OptionRuns, option_runs};
use super::replay::Next;
use crate::diff::words::plural;
use crate::table::columns;

/// Formats the next step of a lab: a round as a few lines, or the conclusion as a table.
pub fn text(lab: &LabFile, next: &Next) -> String {
    match next {
        Next::Round(round) => {
            let launches = round.candidates.len() * lab.profiles.len();
            let names = round.candidates.iter().map(|candidate| title(lab, candidate));
            format!(
                "next: {}, {launches} launches {} times\n  {}",
                stage(round.stage),
                round.repeats,
                names.collect::<Vec<_>>().join("\n  ")
            )
        }
        Next::Conclusion(conclusion) => concluded(lab, conclusion),
    }
}

/// Formats the cost estimate of a lab: its least and largest number of rounds and runs, and the
/// smallest budget that leads to a conclusion.
pub fn outlined(outline: &LabOutline) -> String {
    let LabOutline { runs_least, runs_enough, runs_most, rounds_least, rounds_most, .. } = outline;
    format!(
        "rounds: {rounds_least} to {rounds_most}\nlaunches: {runs_least} to {runs_most}; a budget \
         below {runs_enough} concludes nothing"
    )
}

fn concluded(lab: &LabFile, conclusion: &Conclusion) -> String {
    let head = ["STAGE", "CANDIDATE", "GAIN", "INTERVAL", "PAIRS", "FOUND"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    let confirmed = conclusion.confirmed.iter().map(|confirmed| {
        let found = if confirmed.is_gain { "confirmed" } else { "not confirmed" };
        (&confirmed.row, found.to_owned())
    });
    let rows = conclusion.rows.iter().map(|row| (row, found(&row.found)));
    lines.extend(rows.chain(confirmed).map(|(row, found)| line(lab, row, found)));
    let recommended = match &conclusion.recommended {
        Some(candidate) if *candidate == LabFile::plain(0) => {
            format!("recommended: the baseline, {}", title(lab, candidate))
        }
        Some(candidate) => format!("recommended: {}", title(lab, candidate)),
        None => "recommended: nothing: no candidate runs within the bounds".to_owned(),
    };
    let flags = conclusion.recommended.as_ref().map(|candidate| shell::line(&lab.flags(candidate)));
    let flags = flags.filter(|flags| !flags.is_empty());
    let flags = flags.map_or(String::new(), |flags| format!("\n  flags: {flags}"));
    let screening = conclusion.screening.as_ref().map(|found| screened(lab, found));
    let screening = screening.map_or(String::new(), |text| format!("\n{text}"));
    let table = columns(&lines);
    format!("{recommended}{flags}\n  after {} launches\n{table}{screening}", conclusion.runs)
}

/// Formats the effects that a factorial design has shown as a table.
fn screened(lab: &LabFile, found: &Screening) -> String {
    let head = ["OPTION OR PAIR", "EFFECT"].map(str::to_owned).to_vec();
    let line = |of: &Contrast| {
        let effect = of.gain_pct.map_or("undecidable".to_owned(), |pct| format!("{pct:+.1} %"));
        vec![contrast(lab, of), effect]
    };
    let lines: Vec<_> = std::iter::once(head).chain(found.effects.iter().map(line)).collect();
    let Screening { planned, measured, error_pct, .. } = found;
    format!(
        "effects from {measured} of {planned} configurations, standard error {error_pct:.1} %; of a \
         pair, half of what its second option adds to the first\n{}",
        columns(&lines)
    )
}

/// Returns the options whose effect `contrast` is: `kv f16`, or pairs that a design cannot tell
/// apart: `kv f16 with threads 1 or batch 4 with mode fast`.
pub fn contrast(lab: &LabFile, contrast: &Contrast) -> String {
    let pairs = contrast.candidates.iter().map(|of| options(lab, of).join(" with "));
    pairs.collect::<Vec<_>>().join(" or ")
}

/// Returns the options of a candidate, in the order of axes.
fn options(lab: &LabFile, candidate: &Candidate) -> Vec<String> {
    let chosen = |axis: &Axis| {
        let option = candidate.options.get(&axis.name)?;
        Some(format!("{} {option}", axis.name))
    };
    axes(lab, candidate.engine).filter_map(chosen).collect()
}

/// Describes the factorial design of each engine that a lab may tune, and the confirmation after it,
/// in the words of a plan. Empty for other labs.
pub fn designs(lab: &LabFile, policy: &PolicyFile) -> Vec<String> {
    let design = |(index, engine): (usize, &LabEngine)| {
        let factorial = Factorial::of(lab, index)?;
        let (runs, repeats) = (factorial.design.runs, factorial.design.repeats());
        let each = plural(repeats as usize, "run");
        let aliased = factorial.design.groups().iter().map(Vec::len).max().unwrap_or(0);
        let resolution = match aliased {
            0 | 1 => "it tells every pair from every other".to_owned(),
            most => format!("resolution IV: up to {most} pairs have one estimate"),
        };
        let (id, options) = (&engine.id, options(lab, &factorial.all()).join(", "));
        Some(format!("{runs} configurations of {id} with {options}, {each} each; {resolution}"))
    };
    let mut lines: Vec<String> = lab.engines.iter().enumerate().filter_map(design).collect();
    let all = (0..lab.engines.len()).filter_map(|engine| Factorial::of(lab, engine));
    let left_out = all.flat_map(|factorial| {
        let left_out = factorial.left_out().into_iter();
        left_out.map(|(option, high)| (options(lab, &option).concat(), high)).collect::<Vec<_>>()
    });
    let line = |(option, high): (String, &str)| {
        format!("{option} is not tried: the design has `{high}` of this axis")
    };
    lines.extend(left_out.map(line));
    if !lines.is_empty() {
        let (most, pairs) = (finalists_max(lab), policy.confirm_pairs);
        lines.push(format!("then the baseline and at most {} others, {pairs} runs each", most - 1));
    }
    lines
}

/// Says in the words of a plan which profiles, each with its arrival process, cannot show a gain in the
/// objective: requests that arrive at a fixed rate have the throughput of that rate. `None` where
/// every profile can.
pub fn without_gain<'a>(
    lab: &LabFile,
    profiles: impl Iterator<Item = (&'a str, &'a Arrival)>,
) -> Option<String> {
    let metric = by_name(&lab.objective.metric).filter(|metric| metric.unit == Unit::PerSecond)?;
    let is_rate =
        |arrival: &Arrival| !matches!(arrival, Arrival::AllAtOnce | Arrival::Closed { .. });
    let fixed = profiles.filter(|(_, arrival)| is_rate(arrival));
    let fixed: BTreeSet<&str> = fixed.map(|(profile, _)| profile).collect();
    (!fixed.is_empty()).then(|| {
        format!(
            "no option can gain {} under {}, whose requests arrive at a fixed rate, unless the server \
             falls behind it: bound latencies there",
            metric.name,
            Vec::from_iter(fixed).join(", ")
        )
    })
}

/// Says in the words of a plan how many runs each engine of a lab takes before the confirmation:
/// beside the other engines, and for its options, which are tried if it is the best. An engine without
/// such runs has no line.
pub fn shares(lab: &LabFile, policy: &PolicyFile) -> Vec<String> {
    let between = |least: u32, most: u32| match least < most {
        true => format!("{least} to {most}"),
        false => most.to_string(),
    };
    let profiles = count(lab.profiles.len());
    let runs = |pairs: u32| pairs.saturating_mul(profiles);
    let is_alone = lab.engines.len() == 1;
    let beside = between(runs(policy.pairs_min), runs(policy.confirm_pairs));
    let beside = (!is_alone).then(|| format!("{beside} runs beside the other engines"));
    let condition = if is_alone { "" } else { " if it is the best" };
    let share = |(index, engine): (usize, &LabEngine)| {
        let options = option_runs(lab, policy, index).map(|OptionRuns { least, wanted, most }| {
            let limit = match most < wanted {
                true => format!(" (its own limit, of {wanted} that they might want)"),
                false => String::new(),
            };
            format!("{} runs for its options{condition}{limit}", between(least, most))
        });
        let parts: Vec<String> = beside.clone().into_iter().chain(options).collect();
        (!parts.is_empty()).then(|| format!("{}: {}", engine.id, parts.join(", then ")))
    };
    lab.engines.iter().enumerate().filter_map(share).collect()
}

fn line(lab: &LabFile, row: &Row, found: String) -> Vec<String> {
    let of = |show: fn(&Effect) -> String| row.effect.as_ref().map_or("-".to_owned(), show);
    vec![
        stage(row.stage).to_owned(),
        title(lab, &row.candidate),
        of(|effect| format!("{:+.1} %", effect.gain_pct)),
        of(|Effect { interval_pct: (low, high), .. }| format!("{low:+.1} to {high:+.1} %")),
        of(|effect| effect.pairs.to_string()),
        found,
    ]
}

/// Returns the title of a lab candidate: `redline v0.9.2, kv f16, threads 1`.
pub fn title(lab: &LabFile, candidate: &Candidate) -> String {
    let engine = &lab.engines[candidate.engine];
    let mut title = format!("{} {}", engine.id, engine.version);
    for (axis, option) in &candidate.options {
        title.push_str(&format!(", {axis} {option}"));
    }
    title
}

fn stage(stage: LabStage) -> &'static str {
    match stage {
        LabStage::Engines => "engines",
        LabStage::Options => "options",
        LabStage::Combinations => "combinations",
        LabStage::Factorial => "factorial",
        LabStage::Confirm => "confirm",
    }
}

fn found(found: &Found) -> String {
    match found {
        Found::Gain => "gain".to_owned(),
        Found::NoGain => "no gain".to_owned(),
        Found::Dropped => "dropped".to_owned(),
        Found::Undecided => "undecided".to_owned(),
        Found::Screened => "in the design".to_owned(),
        Found::Failed(failure) => match failure.survived {
            Some(share) => format!("failed, {:.1} % answered: {}", share * 100.0, failure.reason),
            None => format!("failed: {}", failure.reason),
        },
        Found::OutOfBounds { metric, profile, median } => {
            format!("out of bounds: median of {metric} is {median:.0} under {profile}")
        }
        Found::NotExplored { reason } => format!("not explored: {reason}"),
    }
}
