//! View of the overview: the best engines, open regressions, progress of each hardware's latest
//! releases, and links to every page.

use judge::best::{Candidate, LEVELS};
use judge::diff::Row;
use judge::order;
use minijinja::{Value, context};
use rayon::prelude::*;
use schema::run::Status;

use super::figure::Figure;
use super::lab::{self, Lab};
use super::release::{day, extent};
use super::{diff, fact, table};
use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::format::{Scale, or_dash};
use crate::judged::{self, Judged, Pair, Ranked};
use crate::link::{Link, Target};
use crate::outside;

/// Largest number of open regressions that the overview lists; each comparison lists its own.
const OPEN_MAX: usize = 60;

/// Builds the view of the overview, the site's first page. `kernels` are links to the pages of
/// kernel benchmarks.
pub fn view(catalog: &Catalog, judged: &Judged, kernels: Vec<Link>) -> Value {
    let mut open: Vec<Value> = judged.open().map(|(pair, row)| open(pair, row)).collect();
    let more_open = open.len().saturating_sub(OPEN_MAX);
    open.truncate(OPEN_MAX);
    let mut scenarios = catalog.scenarios();
    scenarios.sort_by(|a, b| order::scenarios(a, b));
    let hardware = catalog.names(|record| &record.hardware.id).into_iter();
    let models = catalog.names(|record| &record.model.id).into_iter();
    context! {
        runs => catalog.runs.len(),
        best => best(catalog),
        // Regressions in the latest release of an engine.
        open,
        more_open,
        hardware => hardware.map(|hardware| latest_on(catalog, hardware)).collect::<Value>(),
        releases => releases(catalog),
        diffs => judged.diffs.iter().rev().map(|(pair, _)| pair.link()).collect::<Value>(),
        labs => lab::all(catalog, judged).iter().map(Lab::line).collect::<Value>(),
        models => models.map(Link::model).collect::<Value>(),
        scenarios => scenarios.iter().map(|scenario| Link::scenario(scenario)).collect::<Value>(),
        kernels,
    }
}

/// Builds the line about a regression: a metric that got worse in one cell.
fn open(pair: &Pair, row: &Row) -> Value {
    context! {
        diff => pair.link(),
        model => outside::name(&row.verdict.cell.model),
        row => diff::line(row),
    }
}

/// Builds the table of the best engine for each model on each hardware, at each service level, with
/// measured and published figures in separate rows.
fn best(catalog: &Catalog) -> Value {
    // Each ranking reads every run of the registry, so they are made in parallel.
    let rank = |(model, hardware): &(&str, &str)| {
        let ranked = judged::best(catalog, model, hardware);
        [false, true].map(|published| best_row(model, hardware, &ranked, published))
    };
    let rows: Vec<_> = catalog.places().par_iter().map(rank).collect();
    context! {
        // Name and meaning of each service level.
        levels => LEVELS.map(|level| (level.name, level.meaning)),
        rows => rows.into_iter().flatten().flatten().collect::<Value>(),
    }
}

/// Builds the row of the best engines of one model on one hardware, by measured or by published
/// figures: for each service level the candidate of `judge` that stands for the ranking. `None`
/// where no engine meets the limits of any level.
fn best_row(model: &str, hardware: &str, ranked: &[Ranked], published: bool) -> Option<Value> {
    let ranked = ranked.iter().filter(|ranked| ranked.published == published);
    let levels: Vec<Option<&Candidate>> = ranked.map(|of| of.answer.foremost()).collect();
    let measured = levels.iter().flatten().filter_map(|found| found.measured_at.as_deref()).max();
    let at = |found: &Candidate| {
        let key = ReleaseKey::new(&found.cell.engine, &found.release, hardware);
        context! {
            engine => Link::release(&key),
            scenario => outside::name(&found.cell.scenario),
            figure => Figure::median(&found.figure, Scale::PER_SECOND),
        }
    };
    levels.iter().any(Option::is_some).then(|| {
        context! {
            model => Link::model(model),
            hardware => Link::hardware(hardware),
            claimed => published,
            measured => or_dash(measured, day),
            levels => levels.iter().map(|found| found.map(at)).collect::<Value>(),
        }
    })
}

/// Returns a line for each release of each engine, by engine and the latest release first, for the
/// overview.
fn releases(catalog: &Catalog) -> Value {
    let releases = catalog.releases();
    let mut keys: Vec<&ReleaseKey> = releases.keys().collect();
    keys.sort_by(|a, b| {
        a.engine
            .cmp(&b.engine)
            .then_with(|| order::releases(&b.release, &a.release))
            .then_with(|| order::natural(&a.hardware, &b.hardware))
    });
    let line = |group: &[&ReleaseKey]| {
        let runs: Vec<&Run> = group.iter().flat_map(|key| releases[*key].iter().copied()).collect();
        let (engine, release) = (group[0].engine.clone(), group[0].release.clone());
        let on = |key: &&ReleaseKey| Link::new(&key.hardware, Target::ReleaseOn((*key).clone()));
        context! {
            release =>
                Link::new(&format!("{engine} {release}"), Target::Release { engine, release }),
            hardware => group.iter().map(on).collect::<Value>(),
            extent => extent(&runs, &catalog::cells(&runs)),
        }
    };
    keys.chunk_by(|a, b| (&a.engine, &a.release) == (&b.engine, &b.release)).map(line).collect()
}

/// Builds the view of `hardware` with the latest release of each engine on it.
pub fn latest_on(catalog: &Catalog, hardware: &str) -> Value {
    let here = catalog.releases().into_iter().filter(|(key, _)| key.hardware == hardware);
    let runs: Vec<&Run> = here.flat_map(|(_, runs)| runs).collect();
    let latest = catalog::latest_releases(&runs);
    let shown: Vec<&Run> = latest.values().flatten().copied().collect();
    let engine = |(key, runs): (&ReleaseKey, &Vec<&Run>)| {
        let cells = catalog::cells(runs);
        context! {
            engine => outside::name(&key.engine),
            release => outside::name(&key.release),
            target => Target::ReleaseOn(key.clone()),
            extent => extent(runs, &cells),
            progress => progress(catalog, key, runs),
            matrix => table::matrix(&cells),
        }
    };
    context! {
        hardware => outside::name(hardware),
        page => Target::Hardware { hardware: hardware.to_owned() },
        device => fact::device(&shown),
        engines => latest.iter().map(engine).collect::<Value>(),
    }
}

/// Returns the progress of the release `key`: numbers of its runs that succeeded, that failed or
/// lost requests, and that were planned but have no record.
fn progress(catalog: &Catalog, key: &ReleaseKey, runs: &[&Run]) -> Value {
    let known = |id: &str| runs.iter().any(|run| run.record.id == id);
    let campaigns = catalog.registry.campaigns.iter().map(|stored| &stored.record);
    let missing = campaigns
        .filter(|campaign| campaign.hardware == key.hardware)
        .flat_map(|campaign| &campaign.plan)
        .filter(|plan| plan.engine == key.engine && plan.release == key.release)
        .filter(|plan| !known(&plan.run))
        .count();
    let done = runs.iter().filter(|run| run.record.status == Status::Ok).count();
    context! { done, failed => runs.len() - done, missing }
}
