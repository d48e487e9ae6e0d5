//! View of a scenario: its question and workload, and the figures of each engine's latest release.

use schema::metric::{Metric, by_name};
use schema::run::Kind;
use serde::Serialize;

use super::fact::{self, Fact};
use super::figure::{self, Figure, Head};
use super::pager::PartLink;
use super::release::{Related, SUMMARY, extent, launches};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::format::{self, Scale};
use crate::link::Target;
use crate::{order, outside, questions};

/// View of a scenario's page.
#[derive(Debug, Clone, Serialize)]
pub struct ByScenario {
    pub scenario: String,
    /// Question that the scenario answers; `None` for a scenario that is not the suite's.
    pub question: Option<String>,
    pub extent: String,
    pub facts: Vec<Fact>,
    pub heads: Vec<Head>,
    pub rows: Vec<ScenarioRow>,
    pub pager: Vec<PartLink>,
}

/// Row of the scenario's table: a release in one configuration on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct ScenarioRow {
    pub model: Related,
    pub hardware: Related,
    pub engine: Related,
    pub config: String,
    pub claimed: bool,
    pub n: String,
    pub figures: Vec<Figure>,
}

impl ByScenario {
    /// Builds the view of `scenario` (given as `id@rev`) without rows, and the rows separately,
    /// because they are split into pages.
    pub fn new(catalog: &Catalog, scenario: &str) -> (Self, Vec<ScenarioRow>) {
        let runs = catalog.runs_where(|record| catalog::scenario(record) == scenario);
        let latest = catalog::latest_releases(&runs);
        let mut cells: Vec<Cell> = latest.values().flat_map(|runs| catalog::cells(runs)).collect();
        cells.sort_by(|a, b| {
            order::natural(&a.key.model, &b.key.model)
                .then_with(|| hardware(a).cmp(hardware(b)))
                .then_with(|| a.key.cmp(&b.key))
        });
        let every: Vec<&Cell> = cells.iter().collect();
        let columns: Vec<(&Metric, Scale)> = SUMMARY
            .iter()
            .filter_map(|name| by_name(name))
            .map(|metric| (metric, figure::scale(metric, &every)))
            .collect();
        let first = runs.first().map(|run| run.record);
        let question = first.and_then(|r| questions::of(&r.scenario.id, r.scenario.rev));
        let view = Self {
            scenario: outside::name(scenario),
            question,
            extent: extent(&runs, &catalog::cells(&runs)),
            facts: facts(&runs),
            heads: columns.iter().map(|(metric, scale)| Head::of(metric, *scale)).collect(),
            rows: Vec::new(),
            pager: Vec::new(),
        };
        (view, cells.iter().filter_map(|cell| row(cell, &columns)).collect())
    }
}

fn hardware<'a>(cell: &'a Cell) -> &'a str {
    cell.runs.first().map_or("", |run| run.record.hardware.id.as_str())
}

fn row(cell: &Cell, columns: &[(&Metric, Scale)]) -> Option<ScenarioRow> {
    let record = cell.runs.first()?.record;
    let key = ReleaseKey::of(record);
    Some(ScenarioRow {
        model: Related {
            text: outside::name(&record.model.id),
            target: Target::Model { model: record.model.id.clone() },
        },
        hardware: Related {
            text: outside::name(&key.hardware),
            target: Target::Hardware { hardware: key.hardware.clone() },
        },
        engine: Related {
            text: outside::name(&format!("{} {}", key.engine, key.release)),
            target: crate::pages::target(&key),
        },
        config: outside::name(&cell.key.config),
        claimed: record.kind == Kind::Imported,
        n: launches(cell),
        figures: columns.iter().map(|(metric, scale)| Figure::of(metric, *scale, cell)).collect(),
    })
}

fn facts(runs: &[&Run]) -> Vec<Fact> {
    vec![
        fact::fact("Requests", runs, "scenario.requests", |r| {
            let arrival = r.scenario.arrival.as_ref();
            let when = arrival.map(|a| format!(", {}", super::words::arrival(a)));
            Some(format!("{}{}", format::whole(r.scenario.requests?), when.unwrap_or_default()))
        }),
        fact::fact("Tokens a request", runs, "counts", |r| {
            let counts = r.counts.as_ref()?;
            let requests = format::as_f64(counts.requests_planned.filter(|n| *n > 0)?);
            let each = |tokens: u64| format::rounded(format::as_f64(tokens) / requests, None);
            let (input, output) = (counts.input_tokens?, counts.output_tokens_requested?);
            // A run that lost requests counts only the tokens of the others.
            (counts.requests_ok == counts.requests_planned)
                .then(|| format!("{} in, {} out on average", each(input), each(output)))
        }),
        fact::fact("Tier", runs, "scenario.tier", |r| {
            Some(super::words::tier(r.scenario.tier).to_owned())
        }),
        fact::fact("Prompts sent as", runs, "scenario.prompt_form", |r| {
            r.scenario.prompt_form.map(|form| super::words::prompt_form(form).to_owned())
        }),
        fact::fact("Seed", runs, "scenario.seed", |r| r.scenario.seed.map(|seed| seed.to_string())),
        fact::hash("File", runs, "scenario.file_sha256", |r| r.scenario.file_sha256.clone()),
        fact::hash("Workload", runs, "scenario.manifest_sha256", |r| {
            r.scenario.manifest_sha256.clone()
        }),
        fact::hash("Data set", runs, "scenario.dataset_sha256", |r| {
            r.scenario.dataset_sha256.clone()
        }),
    ]
}
