//! Prints the next round or the conclusion of a lab as text for a terminal.

use schema::lab::{Candidate, LabFile, LabOutline, LabStage};
use schema::shell;

use super::arm::{Effect, Found, Row};
use super::explore::Conclusion;
use super::replay::Next;
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
    format!("{recommended}{flags}\n  after {} launches\n{}", conclusion.runs, columns(&lines))
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
        LabStage::Confirm => "confirm",
    }
}

fn found(found: &Found) -> String {
    match found {
        Found::Gain => "gain".to_owned(),
        Found::NoGain => "no gain".to_owned(),
        Found::Dropped => "dropped".to_owned(),
        Found::Undecided => "undecided".to_owned(),
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
