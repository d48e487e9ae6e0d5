//! Sorts runs into cells, and the runs of two releases in a cell into pairs.

use std::collections::{BTreeMap, BTreeSet};

use schema::comparison::SideCounts;
use schema::path::config_slug;
use schema::run::{FailureClass, Kind, PromptForm, RunRecord, Status};
use schema::verdict::{Cell, Stage};

use crate::facts::{is_believed, is_chat, is_failed, requests_failed};
use crate::order::ReleaseKey;

/// Runs of both releases in one cell.
#[derive(Debug, Default)]
pub struct CellRuns<'a> {
    /// Runs of the baseline, the release that the candidate is compared with, in the cell.
    pub baseline: Side<'a>,
    /// Runs of the candidate, the release that is judged, in the cell.
    pub candidate: Side<'a>,
}

/// Runs of one release in one cell, ordered by id.
#[derive(Debug, Default)]
pub struct Side<'a> {
    /// Runs of the release in the cell that are not retracted.
    pub all: Vec<&'a RunRecord>,
}

impl<'a> Side<'a> {
    /// Returns the runs whose figures are compared: status `ok`, no failed request, and a validity
    /// verdict that is not INVALID.
    pub fn usable(&self) -> Vec<&'a RunRecord> {
        self.all.iter().copied().filter(|run| is_usable(run)).collect()
    }

    /// Counts the runs by outcome (used, failed, lost or INVALID), and the failed requests of all
    /// runs.
    pub fn counts(&self) -> SideCounts {
        let mut counts = SideCounts::default();
        for run in &self.all {
            counts.requests_failed += requests_failed(run);
            if is_lost(run) {
                counts.lost += 1;
            } else if is_failed(run) {
                counts.failed += 1;
            } else if is_usable(run) {
                counts.used += 1;
            } else {
                counts.invalid += 1;
            }
        }
        counts
    }
}

fn is_usable(run: &RunRecord) -> bool {
    is_believed(run) && !is_failed(run)
}

/// True for a run that was skipped, or that failed because of the machine or the scheduler, which
/// says nothing about the engine.
fn is_lost(run: &RunRecord) -> bool {
    let class = run.failure.as_ref().map(|failure| failure.class);
    let of_nobody = matches!(class, Some(FailureClass::Infrastructure | FailureClass::Preempted));
    run.status == Status::Skipped || (run.status == Status::Failed && of_nobody)
}

/// Returns the cell of a run, without regard to other runs.
pub fn cell_of(run: &RunRecord) -> Cell {
    Cell {
        engine: run.engine.name.clone(),
        hardware: run.hardware.id.clone(),
        model: run.model.id.clone(),
        config: config_slug(run),
        scenario: format!("{}@{}", run.scenario.id, run.scenario.rev),
    }
}

/// Key of a server start, by which runs are sorted into cells: engine, hardware, model, command,
/// environment and variant.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ServerStart<'a> {
    engine: &'a str,
    hardware: &'a str,
    model: &'a str,
    argv: &'a [String],
    env: Option<&'a BTreeMap<String, String>>,
    variant: Option<&'a str>,
}

impl<'a> ServerStart<'a> {
    /// Returns the server start of a run; `None` where the server died before it reported its
    /// configuration, or where its command is unknown.
    fn of(run: &'a RunRecord) -> Option<Self> {
        let server = run.server.as_ref().filter(|server| server.config_sha256.is_some())?;
        Some(Self {
            engine: &run.engine.name,
            hardware: &run.hardware.id,
            model: &run.model.id,
            argv: server.argv.as_ref()?,
            env: server.env.as_ref(),
            variant: server.variant.as_deref(),
        })
    }
}

/// Assignment of runs to cells. Runs of one scenario that started an engine in the same way share a
/// cell even where a release moved a default, which renames its configuration; the newest release
/// names the cell.
#[derive(Debug, Default)]
pub struct Cells<'a> {
    configs: BTreeMap<ServerStart<'a>, (ReleaseKey, String)>,
}

impl<'a> Cells<'a> {
    /// Assigns `runs` to cells; the newest release in a cell names the cell's configuration.
    pub fn of(runs: impl Iterator<Item = &'a RunRecord>) -> Self {
        let mut configs: BTreeMap<ServerStart<'a>, (ReleaseKey, String)> = BTreeMap::new();
        for run in runs {
            let Some(asked) = ServerStart::of(run) else { continue };
            let named = (ReleaseKey::of(&run.engine.release), config_slug(run));
            let newest = configs.entry(asked).or_insert_with(|| named.clone());
            if *newest < named {
                *newest = named;
            }
        }
        Self { configs }
    }

    /// Returns the cell of a run: the assigned one, or that of [`cell_of`] for a run that was not
    /// assigned or whose server start is unknown.
    pub fn cell(&self, run: &RunRecord) -> Cell {
        let mut cell = cell_of(run);
        if let Some((_, config)) = ServerStart::of(run).and_then(|asked| self.configs.get(&asked)) {
            cell.config.clone_from(config);
        }
        cell
    }
}

/// Sorts runs into cells, as runs of the release `baseline` or else of the candidate. Imported
/// records are left out, since they are never compared. A run whose server died before it reported
/// its configuration is part of every cell of its engine, hardware, model and scenario; where there
/// is none, it gets a cell of its own.
pub fn sort<'a>(
    runs: impl Iterator<Item = &'a RunRecord>,
    baseline: &str,
) -> BTreeMap<Cell, CellRuns<'a>> {
    let runs: Vec<_> = runs.filter(|run| run.kind != Kind::Imported).collect();
    let named = Cells::of(runs.iter().copied());
    let mut cells: BTreeMap<Cell, CellRuns<'a>> = BTreeMap::new();
    let mut unread = Vec::new();
    for run in runs {
        // The server died before it reported its configuration.
        if run.server.as_ref().is_none_or(|server| server.config_sha256.is_none()) {
            unread.push(run);
            continue;
        }
        let is_baseline = run.engine.release == baseline;
        side(cells.entry(named.cell(run)).or_default(), is_baseline).all.push(run);
    }
    for run in unread {
        let mut cell = cell_of(run);
        let like = |other: &&Cell| Cell { config: String::new(), ..(*other).clone() };
        cell.config.clear();
        let same: Vec<Cell> = cells.keys().filter(|key| like(key) == cell).cloned().collect();
        let is_baseline = run.engine.release == baseline;
        if same.is_empty() {
            side(cells.entry(cell_of(run)).or_default(), is_baseline).all.push(run);
        }
        // Its configuration is unknown, and each of these cells could be the one that it belongs
        // to.
        for cell in same {
            side(cells.entry(cell).or_default(), is_baseline).all.push(run);
        }
    }
    for runs in cells.values_mut() {
        runs.baseline.all.sort_by(|a, b| a.id.cmp(&b.id));
        runs.candidate.all.sort_by(|a, b| a.id.cmp(&b.id));
    }
    cells
}

fn side<'b, 'a>(cell: &'b mut CellRuns<'a>, baseline: bool) -> &'b mut Side<'a> {
    if baseline { &mut cell.baseline } else { &mut cell.candidate }
}

/// Interleaved block of a campaign in one cell: usable runs of both releases, made one after
/// another.
#[derive(Debug, Clone, Default)]
pub struct Block<'a> {
    /// Runs of the baseline in the block.
    pub baseline: Vec<&'a RunRecord>,
    /// Runs of the candidate in the block.
    pub candidate: Vec<&'a RunRecord>,
}

/// Blocks of one campaign in one cell, in the order in which they were run.
#[derive(Debug, Clone, Default)]
pub struct Blocks<'a> {
    /// Blocks of the screen, the first stage, in which every cell takes part; also those of a
    /// campaign without stages.
    pub screen: Vec<Block<'a>>,
    /// Blocks of the confirmation: fresh runs after the screen, which confirm or refute the changes
    /// that it suspects.
    pub confirm: Vec<Block<'a>>,
    /// Number of blocks that are not used as pairs, because their runs were made on different
    /// machines.
    pub torn: usize,
}

impl<'a> Block<'a> {
    /// Returns all runs of the block, those of the baseline first.
    pub fn runs(&self) -> impl Iterator<Item = &'a RunRecord> {
        self.baseline.iter().chain(&self.candidate).copied()
    }

    fn is_of_one_machine(&self) -> bool {
        let mut machines = self.runs().map(|run| &run.hardware);
        let first = machines.next();
        machines.all(|machine| Some(machine) == first)
    }
}

impl<'a> Blocks<'a> {
    /// Returns the blocks of a stage of the comparison: the confirmation, or the screen for any
    /// other stage.
    pub fn of(&self, stage: Stage) -> &[Block<'a>] {
        if stage == Stage::Confirm { &self.confirm } else { &self.screen }
    }
}

/// Returns the blocks in which both releases have usable runs, made on one machine, by campaign id,
/// which sorts the oldest campaign first. Blocks whose runs were made on several machines are only
/// counted.
pub fn blocks<'a>(runs: &CellRuns<'a>) -> BTreeMap<String, Blocks<'a>> {
    let mut blocks: BTreeMap<(&str, u32), (Option<Stage>, Block<'a>)> = BTreeMap::new();
    for run in runs.baseline.usable() {
        if let Some(slot) = &run.campaign {
            let (stage, block) = blocks.entry((&slot.id, slot.block)).or_default();
            *stage = slot.stage;
            block.baseline.push(run);
        }
    }
    for run in runs.candidate.usable() {
        if let Some(slot) = &run.campaign {
            blocks.entry((&slot.id, slot.block)).or_default().1.candidate.push(run);
        }
    }
    blocks.retain(|_, (_, block)| !block.baseline.is_empty() && !block.candidate.is_empty());
    let mut campaigns: BTreeMap<String, Blocks<'a>> = BTreeMap::new();
    for ((campaign, _), (stage, block)) in blocks {
        let of = campaigns.entry(campaign.to_owned()).or_default();
        match stage {
            _ if !block.is_of_one_machine() => of.torn += 1,
            Some(Stage::Confirm) => of.confirm.push(block),
            _ => of.screen.push(block),
        }
    }
    campaigns
}

/// Returns the distinct workloads of `runs`, each as prompt form, whether requests are chat, and
/// manifest hash. Form and hash are `None` where the record does not state them.
pub fn workloads<'a>(
    runs: impl Iterator<Item = &'a RunRecord>,
) -> BTreeSet<(Option<PromptForm>, bool, Option<&'a str>)> {
    let workload = |run: &'a RunRecord| {
        let scenario = &run.scenario;
        (scenario.prompt_form, is_chat(scenario), scenario.manifest_sha256.as_deref())
    };
    runs.map(workload).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_from_two_datasets_share_neither_cell_nor_workload() {
        let run = |rev: u32, manifest: &str| {
            let mut run = samples::Sample::default().record();
            run.scenario.rev = rev;
            run.scenario.manifest_sha256 = Some(manifest.to_owned());
            run
        };
        let (head, all) = (run(1, "of the head"), run(2, "of the whole file"));
        assert_ne!(cell_of(&head), cell_of(&all));
        assert_eq!(cell_of(&head), cell_of(&run(1, "of the whole file")));
        // A revision that was edited is not compared with itself either.
        assert_eq!(workloads([&head, &run(1, "of the whole file")].into_iter()).len(), 2);
    }
}
