//! View of the overview: picks of a configuration, open regressions, progress of each hardware's latest
//! releases, and links to every page.

use std::collections::BTreeSet;

use judge::diff::Row;
use judge::order;
use minijinja::{Value, context};
use schema::run::Status;

use super::lab::{self, Lab};
use super::release::extent;
use super::{diff, fact, pick, table};
use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::judged::{Judged, Pair};
use crate::link::{Link, Target};
use crate::outside;

/// Largest number of open regressions that the overview lists; each comparison lists its own.
const OPEN_MAX: usize = 60;

/// Name of Redline as an engine, whose latest release the overview tells of.
const OWN: &str = "redline";

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
        first => pick::foremost(judged),
        picks => pick::table(catalog, judged, (None, None)),
        latest => latest_verdict(judged),
        // Regressions in the latest release of an engine.
        open,
        more_open,
        hardware => hardware.map(|hardware| latest_on(catalog, hardware)).collect::<Value>(),
        releases => releases(catalog),
        diffs => pairs(judged).map(Pair::link).collect::<Value>(),
        labs => lab::all(catalog, judged).iter().map(Lab::line).collect::<Value>(),
        models => models.map(Link::model).collect::<Value>(),
        scenarios => scenarios.iter().map(|scenario| Link::scenario(scenario)).collect::<Value>(),
        kernels,
    }
}

/// Returns the pairs of consecutive releases that have a page, the judged ones first.
fn pairs<'j>(judged: &'j Judged) -> impl Iterator<Item = &'j Pair> {
    let compared = judged.diffs.iter().rev().map(|(pair, _)| pair);
    compared.chain(judged.published.iter().rev().map(|(pair, _)| pair))
}

/// Builds the line about a regression: a metric that got worse in one cell.
fn open(pair: &Pair, row: &Row) -> Value {
    context! {
        diff => pair.link(),
        model => outside::name(&row.verdict.cell.model),
        row => diff::line(row),
    }
}

/// Builds the line about the latest release: the comparison that leads to it, with its verdict in a
/// sentence. `None` where no release was compared with one before.
fn latest_verdict(judged: &Judged) -> Option<Value> {
    let of_own = || judged.diffs.iter().filter(|(pair, _)| pair.engine == OWN);
    let newest = order::newest(of_own().map(|(pair, _)| pair.candidate.as_str()))?;
    let (pair, found) = of_own().find(|(pair, _)| pair.candidate == newest)?;
    Some(context! {
        release => Link::release(&pair.releases()[1]),
        hardware => outside::name(&pair.hardware),
        since => Link::new(&format!("compared with {}", pair.baseline), pair.target()),
        verdict => outside::message(&found.decision.sentence),
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
    // Runs of labs are on the labs' pages, so neither their plans nor their runs count here.
    let known: BTreeSet<&str> = runs.iter().map(|run| run.record.id.as_str()).collect();
    let campaigns = catalog.registry.campaigns.iter().map(|stored| &stored.record);
    let missing = campaigns
        .filter(|campaign| campaign.lab.is_none())
        .filter(|campaign| campaign.hardware == key.hardware)
        .flat_map(|campaign| &campaign.plan)
        .filter(|plan| plan.engine == key.engine && plan.release == key.release)
        .filter(|plan| !known.contains(plan.run.as_str()))
        .count();
    let done = runs.iter().filter(|run| run.record.status == Status::Ok).count();
    context! { done, failed => runs.len() - done, missing }
}
