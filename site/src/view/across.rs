//! View of a release on all hardware: its figures, changes since the release before, failures, and
//! the cost of its campaigns.

use schema::campaign::CampaignRecord;
use schema::run::Kind;
use schema::verdict::VerdictKind;
use serde::Serialize;

use super::by_hardware::CampaignLine;
use super::diff::{self, ChangedFlag, Count, DiffRow, Pair};
use super::health::{self, FailureRow};
use super::heat;
use super::overview::Matrix;
use super::release::{extent, notices};
use super::words;
use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::chart::Chart;
use crate::judged::Judged;
use crate::link::Target;
use crate::{order, outside};

/// View of a release on all hardware.
#[derive(Debug, Clone, Serialize)]
pub struct AcrossView {
    pub engine: String,
    pub release: String,
    pub extent: String,
    pub notices: Vec<String>,
    pub hardware: Vec<OnHardware>,
    pub failures: Vec<FailureRow>,
    /// Number of failing cells beyond those listed; the health page lists all.
    pub more_failures: usize,
    pub campaigns: Vec<CampaignLine>,
    /// Command that measures the release again; `None` where all its figures were published
    /// elsewhere.
    pub again: Option<String>,
}

/// Part of the view about the release on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct OnHardware {
    pub hardware: String,
    pub device: String,
    pub target: Target,
    pub extent: String,
    pub matrix: Matrix,
    pub since: Option<Since>,
}

/// Changes since the release before, on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct Since {
    pub baseline: String,
    pub target: Target,
    pub conclusion: String,
    pub counts: Vec<Count>,
    /// Chart of the output throughput of each model in each scenario, relative to the release
    /// before.
    pub heat: Option<Chart>,
    /// Rows whose verdict claims a change, worst first.
    pub rows: Vec<DiffRow>,
    /// Models, each with a flag whose effective value differs.
    pub changed: Vec<(String, ChangedFlag)>,
    /// Noise of the compared campaigns, per metric: `Output tokens ±1.3 %`.
    pub noise: Vec<String>,
}

/// Largest number of failing cells that the page of a release lists.
const FAILURES_MAX: usize = 60;
/// Largest number of rows in the table of verdicts; the comparison's own page has all.
const ROWS_MAX: usize = 60;

impl AcrossView {
    /// Builds the view of `engine` at `release`.
    pub fn new(catalog: &Catalog, judged: &Judged, engine: &str, release: &str) -> Self {
        let mut keys: Vec<(ReleaseKey, Vec<&Run>)> = catalog
            .releases()
            .into_iter()
            .filter(|(key, _)| key.engine == engine && key.release == release)
            .collect();
        keys.sort_by(|(a, _), (b, _)| order::natural(&a.hardware, &b.hardware));
        let runs: Vec<&Run> = keys.iter().flat_map(|(_, runs)| runs).copied().collect();
        let mut failures: Vec<FailureRow> =
            keys.iter().flat_map(|(key, runs)| health::failures_of(key, runs)).collect();
        let more_failures = failures.len().saturating_sub(FAILURES_MAX);
        failures.truncate(FAILURES_MAX);
        let campaigns = catalog.registry.campaigns.iter();
        let mut again = vec!["cargo", "xtask", "release-bench", release];
        if engine != "redline" {
            again.extend(["--engine", engine]);
        }
        let again: Vec<String> = again.into_iter().map(str::to_owned).collect();
        Self {
            engine: outside::name(engine),
            release: outside::name(release),
            extent: extent(&runs, &catalog::cells(&runs)),
            notices: notices(&runs),
            hardware: keys.iter().map(|(key, runs)| on_hardware(judged, key, runs)).collect(),
            failures,
            more_failures,
            campaigns: campaigns
                .filter(|stored| measures(&stored.record, engine, release))
                .map(|stored| CampaignLine::new(&stored.path, &stored.record))
                .collect(),
            again: runs
                .iter()
                .any(|run| run.record.kind != Kind::Imported)
                .then(|| outside::command(&again)),
        }
    }
}

/// True when `campaign` planned runs of the release.
pub fn measures(campaign: &CampaignRecord, engine: &str, release: &str) -> bool {
    campaign.plan.iter().any(|run| run.engine == engine && run.release == release)
}

fn on_hardware(judged: &Judged, key: &ReleaseKey, runs: &[&Run]) -> OnHardware {
    let cells = catalog::cells(runs);
    OnHardware {
        hardware: outside::name(&key.hardware),
        device: super::fact::device(runs),
        target: crate::pages::target(key),
        extent: extent(runs, &cells),
        matrix: Matrix::new(&cells),
        since: judged.leading_to(key).map(|(pair, diff)| since(pair, diff)),
    }
}

fn since(pair: &Pair, found: &judge::diff::Diff) -> Since {
    let claims = |row: &&judge::diff::Row| {
        !matches!(
            row.verdict.verdict,
            VerdictKind::Unchanged | VerdictKind::Inconclusive | VerdictKind::ChangedConfig
        )
    };
    let mut rows: Vec<&judge::diff::Row> = found.rows().filter(claims).collect();
    rows.sort_by_key(|row| (diff::rank(row.verdict.verdict), !row.gates));
    rows.truncate(ROWS_MAX);
    let mut changed: Vec<(String, ChangedFlag)> = Vec::new();
    for cell in &found.cells {
        for flag in cell.changed.iter().chain(&cell.moved) {
            let entry = (outside::name(&cell.cell.model), ChangedFlag::of(flag));
            if !changed.contains(&entry) && changed.len() < ROWS_MAX {
                changed.push(entry);
            }
        }
    }
    Since {
        baseline: outside::name(&pair.baseline),
        target: pair.target(),
        conclusion: diff::conclusion(found),
        counts: diff::counts(found),
        heat: heat::of(pair, found),
        rows: rows.into_iter().map(diff::line).collect(),
        changed,
        noise: words::noise(found.noise_pct.values().flatten()),
    }
}
