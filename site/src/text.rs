//! Text table of a release for the terminal, from the same view as its pages.

use anyhow::{Result, anyhow};

use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::outside;
use crate::view::figure::Figure;
use crate::view::model::{self, Detail, ModelView};
use crate::view::release::{extent, notices};

/// Formats the figures of the release `key` as plain text that ends in a line feed.
///
/// # Errors
///
/// The catalog has no runs of the engine's release on the hardware.
pub fn release(catalog: &Catalog, key: &ReleaseKey) -> Result<String> {
    let releases = catalog.releases();
    if let Some(runs) = releases.get(key) {
        return Ok(text(key, runs));
    }
    let known =
        releases.keys().map(|key| format!("{} {} on {}", key.engine, key.release, key.hardware));
    let known: Vec<String> = known.collect();
    let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
    Err(anyhow!(
        "no runs of `{} {}` on `{}`\n  hint: the registry has {}",
        key.engine,
        key.release,
        key.hardware,
        outside::message(&known)
    ))
}

fn text(key: &ReleaseKey, runs: &[&Run]) -> String {
    let cells = catalog::cells(runs);
    let [engine, release, hardware] =
        [&key.engine, &key.release, &key.hardware].map(|name| outside::name(name));
    let mut out = format!("{engine} {release} on {hardware}\n{}\n", extent(runs, &cells));
    for notice in notices(runs) {
        out.push_str(&format!("note: {notice}\n"));
    }
    for model in &model::all(&cells) {
        out.push_str(&format!("\n{}, {}\n\n", model.model, model.config));
        out.push_str(&aligned(&table(&model.detail)));
        out.push_str(&findings(model));
    }
    out.push_str("\nMedian over launches, ± half of their range. A single run has no ±.\n");
    out
}

fn table(detail: &Detail) -> Vec<Vec<String>> {
    let mut rows = vec![[vec![String::new()], detail.scenarios.clone()].concat()];
    rows.push([vec!["launches".to_owned()], detail.launches.clone()].concat());
    for row in &detail.rows {
        let name = format!("{} {}", row.head.title, row.head.unit).replace(" /s", "/s");
        rows.push(line(name.trim(), &row.figures));
    }
    rows.push(line("Failed requests", &detail.failed));
    rows
}

fn line(name: &str, figures: &[Figure]) -> Vec<String> {
    let mut cells = vec![name.to_owned()];
    cells.extend(figures.iter().map(|figure| {
        // Spreads have a column of fixed width, so that figures line up.
        format!("{} {:<6}", figure.text, figure.spread.as_deref().unwrap_or_default())
    }));
    cells
}

/// Aligns the columns of a text table to their widest cell, the first to the left, the others to
/// the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| widest(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut text = String::new();
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if index == 0 {
                text.push_str(&format!("{cell:<width$}"));
            } else {
                text.push_str(&format!("  {cell:>width$}"));
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

fn findings(model: &ModelView) -> String {
    let mut out = String::new();
    for finding in &model.findings {
        out.push_str(&format!(
            "{} {} in {} runs: {}\n",
            finding.level, finding.rule, finding.runs, finding.detail
        ));
    }
    for run in model.runs.iter().filter(|run| !run.note.is_empty()) {
        out.push_str(&format!("{} {}: {} ({})\n", run.scenario, run.state, run.note, run.id));
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}
