//! A comparison as text for a terminal and as Markdown for a page or a pull request. Display only.

use std::fmt::Write as _;

use schema::metric::Unit;
use schema::verdict::{Cell, VerdictKind};

use crate::finding::plain;
use crate::list::columns;
use crate::summary::Summary;
use schema::comparison::{CellDiff, Diff, FlagChange, Row};

/// The comparison as tables in columns.
#[must_use]
pub fn text(diff: &Diff) -> String {
    let mut text = format!("{} -> {}\n", plain(&diff.baseline), plain(&diff.candidate));
    for cell in &diff.cells {
        let _ = writeln!(text, "\n{}", plain(&title(&cell.cell)));
        for line in facts(cell) {
            let _ = writeln!(text, "  {}", plain(&line));
        }
        let mut lines = vec![heads(diff)];
        lines.extend(cell.rows.iter().map(cells));
        for line in columns(&lines).lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    for line in missing(diff) {
        let _ = writeln!(text, "\n{}", plain(&line));
    }
    let _ = writeln!(text, "\n{}", diff.note);
    text
}

/// The comparison as Markdown.
#[must_use]
pub fn markdown(diff: &Diff) -> String {
    let mut text = format!("## {} -> {}\n", plain(&diff.baseline), plain(&diff.candidate));
    for cell in &diff.cells {
        let _ = writeln!(text, "\n### {}\n", plain(&title(&cell.cell)));
        for line in facts(cell) {
            let _ = writeln!(text, "- {}", plain(&line));
        }
        let heads = heads(diff);
        let _ = writeln!(text, "\n| {} |", heads.join(" | "));
        let rule: Vec<&str> =
            (0..heads.len()).map(|at| if (1..6).contains(&at) { "---:" } else { "---" }).collect();
        let _ = writeln!(text, "| {} |", rule.join(" | "));
        for row in &cell.rows {
            let cells: Vec<String> = cells(row).iter().map(|cell| plain(cell)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    for line in missing(diff) {
        let _ = writeln!(text, "\n{}", plain(&line));
    }
    let _ = writeln!(text, "\n{}", diff.note);
    text
}

fn title(cell: &Cell) -> String {
    let Cell { engine, hardware, model, config, scenario } = cell;
    format!("{engine} on {hardware}: {model}, {config}, {scenario}")
}

/// What is to be known before the figures are read.
fn facts(cell: &CellDiff) -> Vec<String> {
    let pairs = cell.rows.iter().map(|row| row.verdict.pairs).max().unwrap_or(0);
    let mut facts = Vec::new();
    if !cell.campaigns.is_empty() {
        let campaigns = plural(cell.campaigns.len(), "campaign");
        facts.push(format!("{}, interleaved in {campaigns}", plural(pairs as usize, "pair")));
    }
    facts.extend(cell.remarks.iter().cloned());
    facts.extend(cell.changed.iter().map(|change| {
        let FlagChange { flag, baseline, candidate } = change;
        format!("--{flag}: {} became {}", baseline.join(" or "), candidate.join(" or "))
    }));
    facts
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn missing(diff: &Diff) -> Vec<String> {
    let mut lines = Vec::new();
    if diff.cells.is_empty() {
        lines.push("No cell was measured with both releases.".to_owned());
    }
    let sides = [(&diff.baseline, &diff.baseline_only), (&diff.candidate, &diff.candidate_only)];
    for (release, cells) in sides {
        lines.extend(cells.iter().map(|cell| format!("Only {release}: {}", title(cell))));
    }
    if diff.retracted > 0 {
        lines.push(format!("{} left out as retracted.", plural(diff.retracted, "run")));
    }
    lines
}

fn heads(diff: &Diff) -> Vec<String> {
    let heads =
        ["metric", &diff.baseline, &diff.candidate, "effect", "95 % interval", "sees", "verdict"];
    heads.map(str::to_owned).to_vec()
}

fn cells(row: &Row) -> Vec<String> {
    let verdict = &row.verdict;
    let percent = |value: f64| format!("{value:+.1} %");
    vec![
        row.title.clone(),
        spread(row.baseline.as_ref(), row.unit),
        spread(row.candidate.as_ref(), row.unit),
        verdict.effect_pct.map_or("-".to_owned(), percent),
        verdict
            .interval_pct
            .map_or("-".to_owned(), |(low, high)| format!("{low:+.1} to {high:+.1} %")),
        verdict.mde_pct.map_or("-".to_owned(), |mde| format!("{mde:.1} %")),
        verdict_name(verdict.verdict).to_owned(),
    ]
}

/// Mean with its spread: `1316.8/s (CV 0.4 %, n 5)`.
fn spread(summary: Option<&Summary>, unit: Unit) -> String {
    let Some(summary) = summary else { return "-".to_owned() };
    let value = value(summary.mean, unit);
    match summary.cv {
        Some(cv) => format!("{value} (CV {:.1} %, n {})", cv * 100.0, summary.n),
        None => format!("{value} (n {})", summary.n),
    }
}

/// A value in the unit that people read.
#[must_use]
pub fn value(value: f64, unit: Unit) -> String {
    match unit {
        Unit::PerSecond => format!("{value:.1}/s"),
        Unit::Microseconds if value.abs() >= 1e6 => format!("{:.2} s", value / 1e6),
        Unit::Microseconds if value.abs() >= 1e3 => format!("{:.2} ms", value / 1e3),
        Unit::Microseconds => format!("{value:.0} us"),
        Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
        Unit::Count => format!("{value:.1}"),
    }
}

/// The word of a verdict, as records write it.
#[must_use]
pub fn verdict_name(kind: VerdictKind) -> &'static str {
    match kind {
        VerdictKind::Regressed => "regressed",
        VerdictKind::Improved => "improved",
        VerdictKind::Unchanged => "unchanged",
        VerdictKind::Inconclusive => "inconclusive",
        VerdictKind::ChangedConfig => "changed-config",
        VerdictKind::NewFailure => "new-failure",
        VerdictKind::FixedFailure => "fixed-failure",
    }
}
