//! View of a hardware: engines and models that run on it, cost and noise of its campaigns, and
//! when it changed.

use schema::campaign::CampaignRecord;
use schema::event::EventKind;
use serde::Serialize;

use super::fact::{self, FactGroup};
use super::overview::{HardwareView, latest_on};
use super::release::Related;
use super::trends::{LINES_MAX, TrendLine};
use super::words;
use crate::catalog::Catalog;
use crate::link::Target;
use crate::{format, order, outside};

/// View of a hardware's page.
#[derive(Debug, Clone, Serialize)]
pub struct ByHardware {
    pub hardware: String,
    /// Latest release of each engine on the hardware.
    pub latest: HardwareView,
    pub environment: Vec<FactGroup>,
    pub models: Vec<Related>,
    pub releases: Vec<Related>,
    pub kernels: Vec<Related>,
    pub labs: Vec<Related>,
    /// Trends of release-blocking metrics on the hardware.
    pub trends: Vec<TrendLine>,
    pub more_trends: usize,
    pub campaigns: Vec<CampaignLine>,
    pub epochs: Vec<EpochLine>,
}

/// Cost of a campaign, and the noise of its machine.
#[derive(Debug, Clone, Serialize)]
pub struct CampaignLine {
    pub id: String,
    pub record: Target,
    pub releases: String,
    pub command: String,
    pub runs: String,
    pub wall: String,
    pub expected: String,
    /// Noise per metric, as a release differs from itself: `Output tokens ±1.3 %`.
    pub noise: Vec<String>,
}

/// Epoch: a time at which the machine or its data changed.
#[derive(Debug, Clone, Serialize)]
pub struct EpochLine {
    pub since: String,
    pub cells: String,
    pub reason: String,
}

impl ByHardware {
    /// Builds the view of `hardware`. `kernels` are links to its kernel benchmarks, and `trends`
    /// its trends.
    pub fn new(
        catalog: &Catalog,
        hardware: &str,
        kernels: Vec<Related>,
        mut trends: Vec<TrendLine>,
    ) -> Self {
        let more_trends = trends.len().saturating_sub(LINES_MAX);
        trends.truncate(LINES_MAX);
        let runs = catalog.runs_where(|record| record.hardware.id == hardware);
        let names = |read: fn(&schema::run::RunRecord) -> &str| {
            let mut names: Vec<&str> = runs.iter().map(|run| read(run.record)).collect();
            names.sort_by(|a, b| order::natural(a, b));
            names.dedup();
            names
        };
        let model = |name: &str| Related {
            text: outside::name(name),
            target: Target::Model { model: name.to_owned() },
        };
        // Paths end in ids, which begin with their time: the reverse order is newest first.
        let campaigns = catalog.registry.campaigns.iter().rev();
        let events = catalog.registry.events_that_stand();
        let epochs = events.filter(|event| event.kind == EventKind::Epoch).filter(|event| {
            let part = event.cell.as_deref().and_then(|cell| cell.split('/').nth(1));
            part.is_some_and(|part| part == "*" || part == hardware)
        });
        Self {
            hardware: outside::name(hardware),
            latest: latest_on(catalog, hardware),
            environment: vec![fact::machine_group(&runs)],
            models: names(|record| &record.model.id).into_iter().map(model).collect(),
            releases: releases(catalog, hardware),
            kernels,
            labs: Vec::new(),
            trends,
            more_trends,
            campaigns: campaigns
                .filter(|stored| stored.record.hardware == hardware)
                .take(CAMPAIGNS_MAX)
                .map(|stored| CampaignLine::new(&stored.path, &stored.record))
                .collect(),
            epochs: epochs
                .map(|event| EpochLine {
                    since: outside::name(event.since.as_deref().unwrap_or(&event.at)),
                    cells: outside::message(&event.subject()),
                    reason: outside::message(&event.reason),
                })
                .collect(),
        }
    }
}

/// Largest number of campaigns that a hardware's page lists, newest first; each release page lists
/// its own.
const CAMPAIGNS_MAX: usize = 60;

fn releases(catalog: &Catalog, hardware: &str) -> Vec<Related> {
    let mut keys: Vec<_> =
        catalog.releases().into_keys().filter(|key| key.hardware == hardware).collect();
    keys.sort_by(|a, b| {
        a.engine.cmp(&b.engine).then_with(|| order::releases(&b.release, &a.release))
    });
    let related = |key: &crate::catalog::ReleaseKey| Related {
        text: outside::name(&format!("{} {}", key.engine, key.release)),
        target: crate::pages::target(key),
    };
    keys.iter().map(related).collect()
}

impl CampaignLine {
    /// Builds the line of a campaign whose record has the path `path`.
    pub fn new(path: &str, campaign: &CampaignRecord) -> Self {
        let spent = |name: &str| {
            let us = campaign.budget.get(name).and_then(serde_json::Value::as_u64);
            us.map_or_else(|| "-".to_owned(), format::seconds)
        };
        Self {
            id: outside::name(&campaign.id),
            record: Target::Record { path: path.to_owned() },
            releases: outside::name(&campaign.releases.join(", ")),
            command: outside::command(
                &[vec!["cargo".to_owned(), "xtask".to_owned()], campaign.command.clone()].concat(),
            ),
            runs: format::whole(u64::try_from(campaign.plan.len()).unwrap_or(u64::MAX)),
            wall: spent("wall_us"),
            expected: spent("wall_us_expected"),
            noise: words::noise(campaign.noise_floor.iter().flatten()),
        }
    }
}
