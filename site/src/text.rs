//! Text table of a release for a terminal of 100 columns, from the same view as its pages.

use anyhow::{Result, anyhow};
use judge::diff::words::plural;
use judge::table::{COLUMNS, wrapped};

use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::outside;
use crate::view::caveat::caveats;
use crate::view::figure::Figure;
use crate::view::model::{self, Detail, ModelView};
use crate::view::release::{extent, notices};

/// Number of spaces between two columns of a table.
const GAP: usize = 2;

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
        out.push_str(&format!("{}\n", wrapped(&format!("note: {notice}"), 2)));
    }
    for caveat in caveats(&cells) {
        out.push_str(&format!("{}\n", wrapped(&format!("note: {caveat}"), 2)));
    }
    for model in &model::all(&cells) {
        out.push_str(&format!("\n{}, {}\n", model.model, model.config));
        for part in tables(&model.detail) {
            out.push_str(&format!("\n{part}"));
        }
        out.push_str(&findings(model));
    }
    out.push_str("\nMedian over the runs of the newest campaign, ± half of their range.\n");
    out
}

/// Formats the table of every metric of a model as tables that fit a terminal, each with as many
/// scenarios as there is room for.
fn tables(detail: &Detail) -> Vec<String> {
    let mut rows = vec![[vec![String::new()], detail.scenarios.clone()].concat()];
    rows.push([vec!["runs".to_owned()], detail.launches.clone()].concat());
    for row in detail.rows.iter().filter(|row| row.figures.iter().any(|found| !found.missing)) {
        let name = format!("{} {}", row.head.title, row.head.unit).replace(" /s", "/s");
        rows.push(line(name.trim(), &row.figures));
    }
    rows.push(line("Failed requests", &detail.failed));
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let (first, mut used) = (width(0).unwrap_or(0), 0);
    for column in 1..=detail.scenarios.len() {
        let needed = GAP + width(column).unwrap_or(0);
        match parts.last_mut().filter(|_| used + needed <= COLUMNS) {
            Some(part) => part.push(column),
            None => {
                parts.push(vec![column]);
                used = first;
            }
        }
        used += needed;
    }
    let part = |columns: &Vec<usize>| {
        let pick = |row: &Vec<String>| {
            let own = columns.iter().map(|column| row[*column].clone());
            std::iter::once(row[0].clone()).chain(own).collect()
        };
        aligned(&rows.iter().map(pick).collect::<Vec<Vec<String>>>())
    };
    parts.iter().map(part).collect()
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
                text.push_str(&format!("{:GAP$}{cell:>width$}", ""));
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

/// Formats the groups of runs that have a finding; runs without one are not listed.
fn findings(model: &ModelView) -> String {
    let mut out = String::new();
    for group in model.groups.iter().filter(|group| !group.finding.is_empty()) {
        let runs = plural(group.count, "run");
        let (state, finding, example) = (&group.state, &group.finding, &group.example);
        let text = format!("{runs} {state}, {finding}: for example {example}");
        out.push_str(&format!("{}\n", wrapped(&text, 2)));
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}
