//! Plan of a campaign: variants, cells, and planned runs in their interleaved order. Pure: the same
//! request gives the same plan.

pub(crate) mod brief;
mod commands;
pub mod decide;
pub(crate) mod estimate;
pub(crate) mod fit;
mod prerequisites;
pub mod release;
pub mod revision;
pub mod room;
mod suitable;
pub mod target;

use std::collections::BTreeSet;

use schema::random::SplitMix64;
use schema::target::Target;
use schema::verdict::Stage;
use serde::{Deserialize, Serialize};

use crate::server_spec::ServerSettings;
use crate::stop::{Stop, wrong_use};

/// A variant: one release of an engine with one set of server flags. Campaigns compare variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    pub engine: String,
    pub release: String,
    #[serde(rename = "variant")]
    /// Name of the variant, from `--variant` or of a lab's candidate; `None` for the engine's
    /// default flags.
    pub name: Option<String>,
    /// Server flags of the variant, beyond those of every server of the engine.
    pub flags: Vec<String>,
}

impl Variant {
    /// Returns the variant that runs a release with the engine's default flags.
    pub fn plain(engine: &str, release: &str) -> Self {
        let (engine, release) = (engine.to_owned(), release.to_owned());
        Self { engine, release, name: None, flags: Vec::new() }
    }

    /// Returns the title of the variant: `v0.9.2` or `v0.9.2 (big-batch)`.
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("{} ({name})", self.release),
            None => self.release.clone(),
        }
    }
}

/// A cell of a campaign: one model under one scenario, with its tensor-parallel size and settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    pub model: String,
    pub tp: u32,
    pub scenario: String,
    /// Server settings that the target fixes for the model.
    #[serde(rename = "asked")]
    pub settings: ServerSettings,
}

/// A planned run: a cell, a variant, and the run's position in the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRun {
    /// ULID of the run, assigned when it is planned.
    pub run: String,
    #[serde(rename = "side")]
    pub variant: usize,
    pub cell: usize,
    /// Number of the run's block in the campaign. A block contains one run of each variant that is
    /// measured in a cell; the runs of baseline and candidate in a block are a pair.
    pub block: u32,
    pub position: u32,
    /// Number of the variant's repeat in the cell, counted from 1 in each stage of a comparison, or
    /// through all rounds of a lab.
    pub repeat: u32,
    /// Stage of the campaign that the run belongs to: `confirm` for a run that confirms a
    /// difference, `None` for every other run.
    pub stage: Option<Stage>,
    /// Number of the server, in the campaign, that the run shares with the runs around it; `None`
    /// for a run that starts its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u32>,
}

/// A campaign's plan: variants, cells, and the runs that were planned before its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub campaign: String,
    #[serde(rename = "sides")]
    pub variants: Vec<Variant>,
    pub cells: Vec<Cell>,
    #[serde(rename = "slots")]
    pub runs: Vec<PlannedRun>,
    /// Seed by which the order of the runs on each server was drawn; `None` where none share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_order_seed: Option<u64>,
}

/// Combines the target's models with the scenarios into cells, each once; `models` restricts them,
/// empty means all.
///
/// # Errors
/// A model is not in the target, so that its tensor-parallel size is unknown.
pub fn cells(target: &Target, models: &[String], scenarios: &[String]) -> Result<Vec<Cell>, Stop> {
    let listed: Vec<&str> = target.models.iter().map(|model| model.id.as_str()).collect();
    if let Some(id) = models.iter().find(|id| !listed.contains(&id.as_str())) {
        return Err(wrong_use!("the target has no model `{id}`; it lists {}", listed.join(", ")));
    }
    let wanted = |id: &str| models.is_empty() || models.iter().any(|model| model == id);
    let mut cells = Vec::new();
    for model in target.models.iter().filter(|model| wanted(&model.id)) {
        for scenario in scenarios {
            let (model_id, scenario) = (model.id.clone(), scenario.clone());
            let settings = ServerSettings {
                seed: model.seed,
                context_tokens: model.context_tokens,
                memory_percent: model.memory_percent,
            };
            let cell = Cell { model: model_id, tp: model.tp, scenario, settings };
            // A scenario may be in the target's list and in its concurrency sweep.
            if !cells.contains(&cell) {
                cells.push(cell);
            }
        }
    }
    Ok(cells)
}

/// Request for planned runs of a campaign: which cells, which variants, how many repeats.
#[derive(Debug, Clone)]
pub struct Round {
    /// Indices, in the plan, of the cells that run.
    pub cells: Vec<usize>,
    /// Number of variants that run: the first ones of the plan.
    pub variants: usize,
    /// Number of runs of each variant in each cell.
    pub repeats: u32,
    /// Number of the first block of the requested runs.
    pub block: u32,
    /// Stage of the requested runs: `confirm` for confirmation runs, `None` for others, such as
    /// those of the screening stage.
    pub stage: Option<Stage>,
}

impl Round {
    /// Returns the request for the screening stage: `repeats` runs of each of the first `variants`
    /// variants in each of the first `cells` cells.
    pub fn first(cells: usize, variants: usize, repeats: u32) -> Self {
        Self { cells: (0..cells).collect(), variants, repeats, block: 0, stage: None }
    }
}

/// Extent of alternating comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedAlternation {
    /// Time that they may take, in microseconds.
    pub budget_us: u64,
    /// Number of equal parts of the error probability, of which each release-blocking metric of a
    /// cell has one.
    pub family: u32,
    /// Share of a GPU's memory, in percent, that each of the two servers may use; `None` on a
    /// processor.
    pub memory_percent: Option<u32>,
}

impl Plan {
    /// Returns the releases of the plan's first two variants, baseline and candidate, if they are
    /// two releases of one engine, else `None`.
    pub fn compared(&self) -> Option<(&str, &str)> {
        let (first, second) = (self.variants.first()?, self.variants.get(1)?);
        (first.engine == second.engine && first.release != second.release)
            .then_some((first.release.as_str(), second.release.as_str()))
    }

    /// Returns engine and release of every variant, without repetition.
    pub fn releases(&self) -> Vec<(&str, &str)> {
        let mut seen = BTreeSet::new();
        let all = self.variants.iter().map(|of| (of.engine.as_str(), of.release.as_str()));
        all.filter(|of| seen.insert(*of)).collect()
    }
}

/// Returns the ids of a target's scenarios. A comparison of releases adds those of the concurrency
/// sweep, because their latencies are release-blocking metrics.
pub fn scenarios(target: &Target, compares: bool) -> Vec<String> {
    let sweep = if compares { target.gate_scenarios.as_slice() } else { &[] };
    target.scenarios.iter().chain(sweep).cloned().collect()
}

/// Plans the runs of a round in their order. The repeats of a cell follow each other, and each
/// block runs every variant once, in alternating direction (A B, B A, A B, ...), so that drift of
/// the machine affects all variants alike.
pub fn interleave(round: &Round, mut next_id: impl FnMut() -> String) -> Vec<PlannedRun> {
    let Round { cells, variants, repeats, block, stage } = round;
    let (stage, mut block) = (*stage, *block);
    let mut runs = Vec::new();
    for &cell in cells {
        for repeat in 1..=*repeats {
            let mut order: Vec<usize> = (0..*variants).collect();
            // Alternating directions cancel a drift that is linear in time.
            if repeat % 2 == 0 {
                order.reverse();
            }
            for (position, variant) in (0..).zip(order) {
                runs.push(PlannedRun {
                    run: next_id(),
                    variant,
                    cell,
                    block,
                    position,
                    repeat,
                    stage,
                    server: None,
                });
            }
            block += 1;
        }
    }
    runs
}

/// Plans `repeats` runs of one variant in each cell, with one server for all scenarios of a model
/// in a repeat, in random order. The same `seed` gives the same order.
pub fn per_model(
    cells: &[Cell],
    repeats: u32,
    seed: u64,
    mut next_id: impl FnMut() -> String,
) -> Vec<PlannedRun> {
    let mut random = SplitMix64(seed);
    let (mut runs, mut server) = (Vec::new(), 0);
    let all: Vec<usize> = (0..cells.len()).collect();
    for of_model in all.chunk_by(|a, b| is_same_server(&cells[*a], &cells[*b])) {
        for repeat in 1..=repeats {
            let mut order = of_model.to_vec();
            random.shuffle(&mut order);
            for (block, cell) in (runs.len()..).zip(order) {
                runs.push(PlannedRun {
                    run: next_id(),
                    variant: 0,
                    cell,
                    block: u32::try_from(block).unwrap_or(u32::MAX),
                    position: 0,
                    repeat,
                    stage: None,
                    server: Some(server),
                });
            }
            server += 1;
        }
    }
    runs
}

/// Groups planned runs as jobs, in the order of the runs: one job for each group of consecutive runs
/// of one cell, or on one server.
pub fn by_job(runs: &[PlannedRun]) -> impl Iterator<Item = &[PlannedRun]> {
    runs.chunk_by(|a, b| match a.server {
        None => a.cell == b.cell,
        Some(_) => a.server == b.server,
    })
}

/// Returns true if one server can serve both cells: they differ in nothing but the scenario.
fn is_same_server(a: &Cell, b: &Cell) -> bool {
    (&a.model, a.tp, &a.settings) == (&b.model, b.tp, &b.settings)
}

/// Parses the value `ENGINE@VERSION` of `--beside` into an engine's id and its release.
///
/// # Errors
/// The text does not have that form.
pub fn parse_other_engine(text: &str) -> Result<(String, String), String> {
    match text.split_once('@') {
        Some((engine, release)) if !engine.is_empty() && !release.is_empty() => {
            Ok((engine.to_owned(), release.to_owned()))
        }
        _ => Err("expected ENGINE@VERSION, such as `redline@v0.9.2`".to_owned()),
    }
}

/// Parses the value `NAME='FLAGS'` of `--variant` into a name and server flags. Flags are split at
/// spaces; quotes keep a value with spaces together.
///
/// # Errors
/// There is no `=`, the name is not one of 1 to 40 lower-case letters, digits and hyphens, a quote
/// is not closed, or there are no flags.
pub fn parse_variant(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, flags) = text.split_once('=').ok_or("expected NAME='FLAGS'")?;
    let fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > 40 || !name.bytes().all(fit) {
        return Err(format!("`{name}` is not a name of lower-case letters, digits and hyphens"));
    }
    let flags =
        shell_words::split(flags).map_err(|_| format!("a quote stays open in `{flags}`"))?;
    if flags.is_empty() {
        return Err(format!("variant `{name}` has no flags"));
    }
    Ok((name.to_owned(), flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interleaved(cells: usize, variants: usize, repeats: u32) -> String {
        let mut count = 0;
        let runs = interleave(&Round::first(cells, variants, repeats), || {
            count += 1;
            count.to_string()
        });
        assert!(runs.iter().map(|run| run.run.parse::<u32>().unwrap()).is_sorted());
        let mut text = String::new();
        let mut block = None;
        for run in runs {
            if block.replace(run.block).is_some_and(|before| before != run.block) {
                text.push(' ');
            }
            assert_eq!(run.position == 0, text.is_empty() || text.ends_with(' '));
            text.push(char::from(b'A' + u8::try_from(run.variant).unwrap()));
            text.push_str(&format!("{}", run.cell));
        }
        text
    }

    #[test]
    fn variants_run_forwards_and_backwards_in_turn() {
        assert_eq!(interleaved(1, 2, 4), "A0B0 B0A0 A0B0 B0A0");
        assert_eq!(interleaved(2, 2, 3), "A0B0 B0A0 A0B0 A1B1 B1A1 A1B1");
        assert_eq!(interleaved(1, 3, 2), "A0B0C0 C0B0A0");
        assert_eq!(interleaved(4, 1, 3), "A0 A0 A0 A1 A1 A1 A2 A2 A2 A3 A3 A3");
    }

    #[test]
    fn every_variant_of_a_cell_runs_once_a_block() {
        let runs = interleave(&Round::first(3, 2, 5), String::new);
        assert_eq!(runs.len(), 30);
        for pair in runs.chunks(2) {
            assert_eq!((pair[0].block, pair[0].cell), (pair[1].block, pair[1].cell));
            assert_ne!(pair[0].variant, pair[1].variant);
        }
    }

    #[test]
    fn one_server_serves_all_scenarios_of_a_model_in_a_repeat() {
        let cell = |model: &str, scenario: &str| Cell {
            model: model.to_owned(),
            scenario: scenario.to_owned(),
            ..Cell::default()
        };
        let of = |model| ["a", "b", "c", "d"].map(|scenario| cell(model, scenario));
        let cells = [of("m"), of("n")].concat();
        let runs = per_model(&cells, 3, 7, String::new);
        assert_eq!(runs.len(), 24);
        assert!((0..).zip(&runs).all(|(block, run)| run.block == block && run.position == 0));
        let servers: Vec<&[PlannedRun]> = runs.chunk_by(|a, b| a.server == b.server).collect();
        assert_eq!(servers.len(), 6);
        for (number, runs) in servers.iter().enumerate() {
            let mut of_server: Vec<usize> = runs.iter().map(|run| run.cell).collect();
            of_server.sort_unstable();
            let first = number / 3 * 4;
            assert_eq!(of_server, (first..first + 4).collect::<Vec<_>>());
            assert!(runs.iter().all(|run| run.repeat as usize == number % 3 + 1));
        }
        let order = |seed| -> Vec<usize> {
            per_model(&cells, 3, seed, String::new).iter().map(|run| run.cell).collect()
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
    }

    #[test]
    fn a_variant_is_a_name_and_flags() {
        let read = |text| parse_variant(text).map(|(name, flags)| format!("{name}: {flags:?}"));
        assert_eq!(
            read("big=--max-batch-size 8 --name 'a b'").unwrap(),
            r#"big: ["--max-batch-size", "8", "--name", "a b"]"#
        );
        for bad in ["big", "=--x", "Big=--x", "a/b=--x", "a=", "a='--x"] {
            assert!(read(bad).is_err(), "`{bad}` was taken");
        }
    }

    #[test]
    fn a_model_that_the_target_does_not_list_is_refused() {
        let target = schema::target::parse(
            "match = {}\nscenarios = [\"a\", \"b\"]\nrepeats = 3\n\
             gate_scenarios = [\"rung\"]\n\
             models = [{ id = \"m\", tp = 1 }, { id = \"n\", tp = 2 }]\n",
        )
        .unwrap();
        assert_eq!(scenarios(&target, false), ["a", "b"]);
        assert_eq!(scenarios(&target, true), ["a", "b", "rung"]);
        assert_eq!(cells(&target, &[], &scenarios(&target, false)).unwrap().len(), 4);
        let one = cells(&target, &["n".into()], &["b".into(), "b".into()]).unwrap();
        assert_eq!(
            one,
            [Cell { model: "n".into(), tp: 2, scenario: "b".into(), ..Cell::default() }]
        );
        let error = cells(&target, &["x".into()], &["a".into()]).unwrap_err();
        assert_eq!(error.to_string(), "error: the target has no model `x`; it lists m, n");
    }
}
