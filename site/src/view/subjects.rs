//! Views of the subjects of measurements: a model with its engines side by side, a hardware with
//! its campaigns, a scenario with the figures of each engine's latest release.

use judge::{Stored, order};
use minijinja::{Value, context};
use schema::campaign::CampaignRecord;
use schema::event::EventKind;
use schema::run::Kind;

use super::fact::{self, Fact, fact, hash};
use super::figure::{Column, launches};
use super::overview;
use super::release::{SUMMARY, extent};
use super::trends::LINES_MAX;
use super::{pick, side_by_side, words};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::format::{self, or_dash};
use crate::judged::Judged;
use crate::link::{Link, Target};
use crate::{outside, questions};

/// Builds the view of a model's page: facts about the model, the engines that serve it side by side
/// on each hardware, and trends. `labs` are links to the labs about the model.
pub fn model(
    catalog: &Catalog,
    judged: &Judged,
    model: &str,
    trends: &[Value],
    labs: Vec<Link>,
) -> Value {
    let runs = catalog.runs_where(|record| record.model.id == model);
    let frontier = Link::new(
        "Throughput and speed per user, and your price",
        Target::Frontier { model: model.to_owned() },
    );
    let hardware = catalog::names(&runs, |record| &record.hardware.id);
    let engines_on = |hardware| side_by_side::view(catalog, model, hardware);
    context! {
        model => outside::name(model),
        extent => extent(&runs, &catalog::cells(&runs)),
        picks => pick::table(catalog, judged, (Some(model), None)),
        facts => fact::model(&runs),
        hardware => hardware.into_iter().map(engines_on).collect::<Value>(),
        related => [vec![frontier], labs].concat(),
        trends => trends.iter().take(LINES_MAX).cloned().collect::<Value>(),
        more_trends => trends.len().saturating_sub(LINES_MAX),
    }
}

/// Largest number of campaigns that a hardware's page lists, newest first; each release page lists
/// its own.
const CAMPAIGNS_MAX: usize = 60;

/// Builds the view of a hardware's page: the machine, engines, models and releases that ran on it,
/// trends, cost and noise of its campaigns, and when it changed. `kernels` and `labs` are links to
/// pages of kernel benchmarks and of labs.
pub fn hardware(
    (catalog, judged): (&Catalog, &Judged),
    hardware: &str,
    trends: &[Value],
    kernels: Vec<Link>,
    labs: Vec<Link>,
) -> Value {
    let runs = catalog.runs_where(|record| record.hardware.id == hardware);
    // Paths end in ids, which begin with their time: the reverse order is newest first.
    let campaigns = catalog.registry.campaigns.iter().rev();
    let campaigns = campaigns.filter(|stored| stored.record.hardware == hardware);
    let events = catalog.registry.events_that_stand();
    let epochs = events.filter(|event| event.kind == EventKind::Epoch).filter(|event| {
        let part = event.cell.as_deref().and_then(|cell| cell.split('/').nth(1));
        part.is_some_and(|part| part == "*" || part == hardware)
    });
    let epoch = |event: &schema::event::Event| {
        context! {
            since => outside::name(event.since.as_deref().unwrap_or(&event.at)),
            cells => outside::message(&event.subject()),
            reason => outside::message(&event.reason),
        }
    };
    let models = catalog::names(&runs, |record| &record.model.id);
    context! {
        hardware => outside::name(hardware),
        picks => pick::table(catalog, judged, (None, Some(hardware))),
        latest => overview::latest_on(catalog, hardware),
        environment => vec![fact::machine(&runs)],
        models => models.into_iter().map(Link::model).collect::<Value>(),
        releases => releases(catalog, hardware),
        kernels,
        labs,
        trends => trends.iter().take(LINES_MAX).cloned().collect::<Value>(),
        more_trends => trends.len().saturating_sub(LINES_MAX),
        campaigns => campaigns.take(CAMPAIGNS_MAX).map(campaign).collect::<Value>(),
        epochs => epochs.map(epoch).collect::<Value>(),
    }
}

fn releases(catalog: &Catalog, hardware: &str) -> Vec<Link> {
    let keys = catalog.releases().into_keys();
    let mut keys: Vec<ReleaseKey> = keys.filter(|key| key.hardware == hardware).collect();
    keys.sort_by(|a, b| {
        a.engine.cmp(&b.engine).then_with(|| order::releases(&b.release, &a.release))
    });
    keys.iter().map(Link::release).collect()
}

/// Builds the line about a campaign: its cost, and the noise of its machine.
pub fn campaign(stored: &Stored<CampaignRecord>) -> Value {
    let campaign = &stored.record;
    let spent = |name: &str| {
        let us = campaign.budget.get(name).and_then(serde_json::Value::as_u64);
        or_dash(us, format::seconds)
    };
    let command = [vec!["cargo".to_owned(), "xtask".to_owned()], campaign.command.clone()].concat();
    context! {
        id => outside::name(&campaign.id),
        record => Target::Record { path: stored.path.clone() },
        releases => outside::name(&campaign.releases.join(", ")),
        command => outside::command(&command),
        runs => format::whole(u64::try_from(campaign.plan.len()).unwrap_or(u64::MAX)),
        wall => spent("wall_us"),
        expected => spent("wall_us_expected"),
        // A release differs from itself by as much: `Output tokens ±1.3 %`.
        noise => words::noise(campaign.noise_floor.iter().flatten()),
    }
}

/// Builds the view of the page of `scenario` (given as `id@rev`) without rows, and separately the
/// rows, because they are split into pages.
pub fn scenario(catalog: &Catalog, scenario: &str) -> (Value, Vec<Value>) {
    let runs = catalog.runs_where(|record| catalog::scenario(record) == scenario);
    let latest = catalog::latest_releases(&runs);
    let mut cells: Vec<Cell> = latest.values().flat_map(|runs| catalog::cells(runs)).collect();
    cells.sort_by(|a, b| {
        order::natural(&a.key.model, &b.key.model)
            .then_with(|| hardware_of(a).cmp(hardware_of(b)))
            .then_with(|| a.key.cmp(&b.key))
    });
    let columns = Column::all(&SUMMARY, &cells);
    let first = runs.first().map(|run| &run.record.scenario);
    let view = context! {
        scenario => outside::name(scenario),
        question => first.and_then(|scenario| questions::of(&scenario.id, scenario.rev)),
        extent => extent(&runs, &catalog::cells(&runs)),
        facts => workload(&runs),
        heads => columns.iter().map(Column::head).collect::<Value>(),
    };
    let row = |cell: &Cell| {
        let record = cell.runs.first()?.record;
        Some(context! {
            model => Link::model(&record.model.id),
            hardware => Link::hardware(&record.hardware.id),
            engine => Link::release(&ReleaseKey::of(record)),
            config => outside::line(&cell.key.config),
            claimed => record.kind == Kind::Imported,
            n => launches(cell),
            figures => columns.iter().map(|column| column.figure(cell)).collect::<Value>(),
        })
    };
    (view, cells.iter().filter_map(row).collect())
}

fn hardware_of<'a>(cell: &'a Cell) -> &'a str {
    cell.runs.first().map_or("", |run| run.record.hardware.id.as_str())
}

/// Returns the facts about the workload of a scenario, from the runs that measured it.
fn workload(runs: &[&Run]) -> Vec<Fact> {
    vec![
        fact("Requests", runs, "scenario.requests", words::requests),
        fact("Tokens per request", runs, "counts", |r| {
            let counts = r.counts.as_ref()?;
            let requests = format::as_f64(counts.requests_planned.filter(|n| *n > 0)?);
            let each = |tokens: u64| format::rounded(format::as_f64(tokens) / requests, None);
            let (input, output) = (counts.input_tokens?, counts.output_tokens_requested?);
            // A run that lost requests counts only the tokens of the others.
            (counts.requests_ok == counts.requests_planned)
                .then(|| format!("{} in, {} out on average", each(input), each(output)))
        }),
        fact("Tier", runs, "scenario.tier", |r| Some(r.scenario.tier.name().to_owned())),
        fact::prompt_form(runs),
        fact("Seed", runs, "scenario.seed", |r| r.scenario.seed.map(|seed| seed.to_string())),
        hash("File", runs, "scenario.file_sha256", |r| r.scenario.file_sha256.clone()),
        hash("Workload", runs, "scenario.manifest_sha256", |r| r.scenario.manifest_sha256.clone()),
        hash("Data set", runs, "scenario.dataset_sha256", |r| r.scenario.dataset_sha256.clone()),
    ]
}
