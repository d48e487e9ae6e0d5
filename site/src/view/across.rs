//! View of a release on all hardware: its figures, changes since the release before, failures, and
//! the cost of its campaigns.

use std::collections::BTreeMap;

use judge::diff::words::{claims, conclusion};
use judge::diff::{Diff, Row};
use judge::order;
use minijinja::{Value, context};
use schema::campaign::CampaignRecord;
use schema::run::Kind;
use schema::verdict::VerdictKind;

use super::diff::{self, ChangedFlag, DiffRow};
use super::release::{extent, notices};
use super::{fact, figure, health, subjects, table, words};
use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::chart::{Chart, HeatCell, HeatRow, heat};
use crate::judged::{Judged, Pair};
use crate::link::Target;
use crate::outside;

/// Largest number of failing cells that the page of a release on all hardware lists.
const FAILURES_MAX: usize = 60;
/// Largest number of rows in a release page's table of verdicts; the comparison's own page has all.
const ROWS_MAX: usize = 60;

/// Builds the view of `engine` at `release` on all hardware.
pub fn view(catalog: &Catalog, judged: &Judged, engine: &str, release: &str) -> Value {
    let releases = catalog.releases().into_iter();
    let mut keys: Vec<(ReleaseKey, Vec<&Run>)> =
        releases.filter(|(key, _)| key.engine == engine && key.release == release).collect();
    keys.sort_by(|(a, _), (b, _)| order::natural(&a.hardware, &b.hardware));
    let runs: Vec<&Run> = keys.iter().flat_map(|(_, runs)| runs).copied().collect();
    let mut failures: Vec<Value> =
        keys.iter().flat_map(|(key, runs)| health::failures_of(key, runs)).collect();
    let more_failures = failures.len().saturating_sub(FAILURES_MAX);
    failures.truncate(FAILURES_MAX);
    let campaigns = catalog.registry.campaigns.iter();
    let campaigns = campaigns.filter(|stored| measures(&stored.record, engine, release));
    let mut again = vec!["cargo", "xtask", "release-bench", release];
    if engine != "redline" {
        again.extend(["--engine", engine]);
    }
    let is_measured = runs.iter().any(|run| run.record.kind != Kind::Imported);
    context! {
        engine => outside::name(engine),
        release => outside::name(release),
        extent => extent(&runs, &catalog::cells(&runs)),
        notices => notices(&runs),
        hardware => keys
            .iter()
            .map(|(key, runs)| on_hardware(judged, key, runs))
            .collect::<Value>(),
        failures,
        // Number of failing cells beyond those listed; the health page lists all.
        more_failures,
        campaigns => campaigns
            .map(|stored| subjects::campaign(&stored.path, &stored.record))
            .collect::<Value>(),
        // Command that measures the release again; none where all its figures were published
        // elsewhere.
        again => is_measured.then(|| outside::command(&again)),
    }
}

/// True when `campaign` planned runs of this release of this engine.
pub fn measures(campaign: &CampaignRecord, engine: &str, release: &str) -> bool {
    campaign.plan.iter().any(|run| run.engine == engine && run.release == release)
}

fn on_hardware(judged: &Judged, key: &ReleaseKey, runs: &[&Run]) -> Value {
    let cells = catalog::cells(runs);
    context! {
        hardware => outside::name(&key.hardware),
        device => fact::device(runs),
        target => Target::ReleaseOn(key.clone()),
        extent => extent(runs, &cells),
        matrix => table::matrix(&cells),
        since => judged.leading_to(key).map(|(pair, diff)| since(pair, diff)),
    }
}

/// Builds the view of the changes since the release before, on one hardware.
fn since(pair: &Pair, found: &Diff) -> Value {
    let mut changed: Vec<(String, ChangedFlag)> = Vec::new();
    for cell in &found.cells {
        for flag in cell.changed.iter().chain(&cell.moved) {
            let entry = (outside::name(&cell.cell.model), ChangedFlag::of(flag));
            if !changed.contains(&entry) && changed.len() < ROWS_MAX {
                changed.push(entry);
            }
        }
    }
    context! {
        baseline => outside::name(&pair.baseline),
        target => pair.target(),
        conclusion => conclusion(found),
        counts => diff::counts(found),
        heat => heat_table(pair, found),
        // Rows whose verdict claims a change, worst first.
        rows => claims(found).into_iter().take(ROWS_MAX).map(diff::line).collect::<Value>(),
        // Models, each with a flag whose effective value differs.
        changed,
        noise => words::noise(found.noise_pct.values().flatten()),
    }
}

/// Smallest number of cells for which a heat table is drawn; fewer cells are read faster in the
/// table of verdicts.
const CELLS_MIN: usize = 3;

/// Draws the output throughput of each model and scenario relative to the release before, as `found`
/// compares the releases of `pair`; `None` where there are too few cells.
fn heat_table(pair: &Pair, found: &Diff) -> Option<Chart> {
    let mut rows: BTreeMap<(&str, &str), BTreeMap<&str, &Row>> = BTreeMap::new();
    for row in found.rows().filter(|row| row.verdict.metric == figure::output().name) {
        let cell = &row.verdict.cell;
        rows.entry((&cell.model, &cell.config)).or_default().insert(&cell.scenario, row);
    }
    let mut scenarios: Vec<&str> = rows.values().flat_map(BTreeMap::keys).copied().collect();
    if scenarios.len() < CELLS_MIN {
        return None;
    }
    scenarios.sort_by(|a, b| order::scenarios(a, b));
    scenarios.dedup();
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(a, _), (b, _)| order::natural(a.0, b.0).then_with(|| a.1.cmp(b.1)));
    let heads: Vec<String> = scenarios.iter().map(|name| outside::name(name)).collect();
    let mut table = Vec::new();
    let mut drawn = Vec::new();
    for ((model, config), found) in &rows {
        let label = outside::name(&format!("{model} {config}"));
        let cells: Vec<HeatCell> =
            scenarios.iter().map(|name| heat_cell(found.get(name))).collect();
        let texts = cells.iter().map(|cell| cell.text.clone());
        table.push(std::iter::once(label.clone()).chain(texts).collect());
        drawn.push(HeatRow { label, cells });
    }
    let title = format!("Output tokens per second since {}", outside::name(&pair.baseline));
    let caption = "Shaded where a verdict claims a change: the deeper, the larger. Bare: nothing is \
                   claimed, and the figure is an estimate.";
    let columns = std::iter::once("Model".to_owned()).chain(heads.clone());
    Some(Chart::new(&title, caption, heat(&heads, &drawn), columns, table))
}

fn heat_cell(row: Option<&&Row>) -> HeatCell {
    let Some(row) = row else {
        return HeatCell { text: "-".into(), title: "not compared".into(), better_pct: None };
    };
    let DiffRow { effect, interval, verdict, .. } = diff::line(row);
    let claims = matches!(
        row.verdict.verdict,
        VerdictKind::Regressed | VerdictKind::Improved | VerdictKind::Unchanged
    );
    HeatCell {
        title: format!("{verdict}: {effect}, from {interval}"),
        text: effect,
        // An estimate without a claim gets no shade, which would look like a verdict.
        better_pct: row.verdict.effect_pct.filter(|_| claims),
    }
}
