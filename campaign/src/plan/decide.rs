//! Planning of a campaign: turns the command line into variants, hardware, cells, planned runs and
//! the printed plan, before anything is built.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use judge::alternation::pooled::{Planned, family};
use schema::random::seed_of;
use schema::run::HardwareFacts;
use schema::target::Target;

use crate::build::contenders;
use crate::build::variants::{self, Origin, Wanted};
use crate::build::venv::Venv;
use crate::catalog::{Engine, ScenarioEntry};
use crate::cli::{ReleaseBench, Servers};
use crate::executor::slurm::partition;
use crate::executor::{LOCAL, SLURM};
use crate::inputs::{Input, Obtained};
use crate::node::hardware::{self, Machine};
use crate::node::server::ask_running;
use crate::plan::brief::{Availability, Brief, CellBrief, Jobs};
use crate::plan::commands;
use crate::plan::estimate::{self, Of};
use crate::plan::prerequisites;
use crate::plan::revision;
use crate::plan::room::{self, Room};
use crate::plan::suitable;
use crate::plan::target;
use crate::plan::{self, Cell, Plan, PlannedAlternation, PlannedRun, Round};
use crate::server_spec::ReadyCell;
use crate::stop::{Stop, wrong_use};
use crate::world::{Ids, World};

/// Id of the comparison policy that says how many pairs of runs the screening and confirmation
/// stages of a comparison of releases plan in a cell.
pub const POLICY: &str = "release";
/// Hardware id of a server that does not run on this machine (`--url`).
const ELSEWHERE: &str = "remote";

/// A campaign's decided plan, before the first build.
#[derive(Debug)]
pub struct Decided {
    pub wanted: Vec<Wanted>,
    pub plan: Plan,
    /// Scenarios of the plan, one for each cell, in the order of the plan's cells.
    pub scenarios: Vec<ScenarioEntry>,
    pub hardware: HardwareFacts,
    pub brief: Brief,
    /// Generator of ids for runs that are planned later, such as confirmation runs.
    pub ids: Ids,
    /// Extent of the alternating comparisons; `None` where there are none.
    pub alternation: Option<PlannedAlternation>,
    /// True when the campaign's records will be committed to the registry at its end: those of
    /// releases are, those of a working tree or of a server started by somebody else are not.
    pub commits: bool,
    /// Repository whose `results/` receives the campaign's records.
    pub registry: PathBuf,
}

/// Plans the campaign that the flags of `release-bench` request.
///
/// # Errors
/// The flags contradict each other, a named file of the suite is missing or invalid, a release
/// cannot be resolved, a server does not answer, a model or server does not suit the engine, the
/// machine does not match the target, a file cannot be read, or the command is interrupted.
pub fn decide(world: &World, flags: &ReleaseBench) -> Result<Decided, Stop> {
    world.step("Plan the campaign");
    let engine = world.catalog.engine(&flags.engine)?;
    let mut wanted = variants_of(world, flags, &engine)?;
    let machine = hardware::detect(world)?;
    let targets = world.catalog.targets()?;
    let named = flags.target.as_deref();
    // A dry run may plan for any machine, and a scheduler's nodes are not this machine.
    let elsewhere = flags.dry_run || flags.execution.executor != LOCAL;
    let (target_id, target) = target::choose(&targets, named, &machine.gpus, elsewhere)?;
    let on_gpu = target::needs_device(target);
    // Facts of this machine would be wrong for a node elsewhere, which reports its own.
    let hardware = match target::is_here(target, &machine.gpus) {
        true => hardware_facts(&machine, on_gpu, flags.url.as_deref()),
        false => HardwareFacts { id: target_id.to_owned(), ..HardwareFacts::default() },
    };
    let mut cells = cells(flags, (target_id, target))?;
    let scenarios = revision::choose(world, &mut cells)?;
    suitable::refuse_without_chat(&wanted, &scenarios)?;
    // A server that is already running has its weights; only one that is started needs the check.
    if flags.url.is_none() {
        suitable::fit(world, &mut wanted, &cells, target)?;
    }

    let room = || room_in_cache(world, &cells, &machine, on_gpu);
    let planned: Vec<Planned<'_>> = cells
        .iter()
        .zip(&scenarios)
        .map(|(cell, entry)| (&*cell.model, Some(&entry.scenario.arrival)))
        .collect();
    let stages = stages(world, flags, (target.repeats, &planned), room)?;
    let Stages { alternation, repeats, confirm_pairs, .. } = stages;
    let mut ids = Ids::new(world.clock.unix_ms(), world.random);
    let campaign = ids.next_id();
    let (runs, random_order_seed) = match flags.servers {
        Servers::PerRun => {
            let round = Round::first(cells.len(), wanted.len(), repeats);
            (plan::interleave(&round, || ids.next_id()), None)
        }
        Servers::PerModel => per_model(world, &engine, (&cells, repeats), &mut ids)?,
    };
    let variants = wanted.iter().map(|wanted| wanted.variant.clone()).collect();
    let plan = Plan { campaign, variants, cells, runs, random_order_seed };

    let commits = !flags.uncommitted && wanted.iter().all(|wanted| wanted.origin.commits());
    let registry = flags.execution.registry.clone().unwrap_or_else(|| world.places.root.clone());
    let results = registry.join("results");
    // The Python of another machine is not known.
    let is_known = !flags.dry_run || target::is_here(target, &machine.gpus);
    let memory_percent = alternation.and_then(|planned| planned.memory_percent);
    let in_turns = (memory_percent, flags.gate.is_some());
    let brief = Brief {
        campaign: plan.campaign.clone(),
        variants: wanted.iter().map(Wanted::title).collect(),
        commands: commands::lines(world, (&wanted, &plan.cells), in_turns, on_gpu)?,
        jobs: jobs(world, flags, &plan, alternation.is_some()),
        hardware: hardware.id.clone(),
        target: target_id.to_owned(),
        on_gpu,
        cells: cell_briefs(world, (&plan, &scenarios), repeats, (&results, &hardware.id))?,
        confirm_pairs,
        alternation_us: alternation.map(|planned| planned.budget_us),
        pairs_because: stages.pairs_because,
        servers: (plan.variants.len() == 1 && flags.url.is_none() && flags.gate.is_none())
            .then_some(flags.servers),
        packages: packages(world, &wanted, is_known)?,
        inputs: input_briefs(world, &plan.cells, &scenarios)?,
        missing: prerequisites::missing(
            world,
            &flags.execution.executor,
            &wanted,
            (target, &machine.gpus, &plan.cells),
        )?,
        quirks: quirks(&wanted),
        records: records_line(world, &plan, commits, &registry),
    };
    Ok(Decided { wanted, plan, scenarios, hardware, brief, ids, alternation, commits, registry })
}

/// Plans the runs of one variant that share a server for each model and repeat. Returns the seed of
/// their order as well.
fn per_model(
    world: &World,
    engine: &Engine,
    (cells, repeats): (&[Cell], u32),
    ids: &mut Ids,
) -> Result<(Vec<PlannedRun>, Option<u64>), Stop> {
    suitable::refuse_without_reset(engine)?;
    let seed = seed_of(world.random);
    Ok((plan::per_model(cells, repeats, seed, || ids.next_id()), Some(seed)))
}

/// Returns the cells that the flags ask for: of a gate, by default, the target's first model under
/// its scenarios for gates.
fn cells(flags: &ReleaseBench, (id, target): (&str, &Target)) -> Result<Vec<Cell>, Stop> {
    let is_gate = flags.gate.is_some();
    let scenario_ids = match flags.scenarios.is_empty() {
        true if is_gate => target.gate_scenarios.clone(),
        true => plan::scenarios(target, flags.baseline.is_some()),
        false => flags.scenarios.clone(),
    };
    let first = target.models.first().filter(|_| is_gate && flags.models.is_empty());
    let models = first.map_or_else(|| flags.models.clone(), |model| vec![model.id.clone()]);
    let mut cells = plan::cells(target, &models, &scenario_ids)?;
    let is_wanted = |cell: &Cell| {
        flags.only.iter().any(|(model, id)| (model, id) == (&cell.model, &cell.scenario))
    };
    cells.retain(|cell| flags.only.is_empty() || is_wanted(cell));
    if cells.is_empty() {
        return Err(wrong_use!("target `{id}` names no scenario for this")
            .with_hint("name one with `--scenario`"));
    }
    Ok(cells)
}

/// What a campaign does after it has measured each cell, and how often it measures before.
struct Stages {
    /// Extent of the alternating comparisons; `None` where there are none.
    alternation: Option<PlannedAlternation>,
    /// Number of runs of each variant in a cell.
    repeats: u32,
    /// Number of pairs of confirmation runs; `None` without a confirmation stage.
    confirm_pairs: Option<u32>,
    /// Why pairs of runs decide and no alternating comparison; `None` where they do not.
    pairs_because: Option<String>,
}

/// Plans the stages of a campaign on a target that measures `usual` runs of each release in the cells
/// `planned`; `room` says whether two servers fit side by side.
///
/// # Errors
/// The policy is missing or invalid, `room` fails, or a gate has no room.
fn stages(
    world: &World,
    flags: &ReleaseBench,
    (usual, planned): (u32, &[Planned<'_>]),
    room: impl FnOnce() -> Result<Room, Stop>,
) -> Result<Stages, Stop> {
    let compares = flags.baseline.is_some();
    let policy = world.catalog.policy(POLICY)?;
    let budget_us = match &flags.gate {
        Some(request) => request.budget_us,
        None => u64::from(policy.alternate_s) * 1_000_000 * planned.len() as u64,
    };
    let second = (compares && !flags.no_confirm) || flags.gate.is_some();
    let (alternation, pairs_because) = match second.then(room).transpose()? {
        Some(Room::Both { memory_percent }) => {
            (Some(PlannedAlternation { budget_us, family: family(planned), memory_percent }), None)
        }
        Some(Room::One { said }) if flags.gate.is_some() => return Err(room::none(&said)),
        Some(Room::One { said }) => (None, Some(said)),
        None => (None, None),
    };
    // Where pairs of runs decide, their number is part of the statistics, so the policy sets it.
    let pairs = compares && alternation.is_none();
    let usual = if pairs { policy.screen_pairs } else { usual };
    let repeats = if flags.gate.is_some() { 0 } else { flags.repeats.unwrap_or(usual) };
    let confirm_pairs = (pairs && second).then_some(policy.confirm_pairs);
    Ok(Stages { alternation, repeats, confirm_pairs, pairs_because })
}

/// Resolves the variants that the flags ask for.
fn variants_of(world: &World, flags: &ReleaseBench, engine: &Engine) -> Result<Vec<Wanted>, Stop> {
    match (&flags.url, &flags.gate) {
        (Some(url), _) => {
            let probe = ask_running(world, url, engine)?;
            Ok(vec![variants::running(engine, probe, flags.release.as_deref())?])
        }
        (None, Some(request)) => contenders::variants(world, request, flags.packages),
        (None, None) => variants::wanted(world, flags, engine),
    }
}

/// Returns whether two servers fit side by side for every model of the plan that the cache has; a
/// model that is still to be downloaded is checked once it is there.
fn room_in_cache(
    world: &World,
    cells: &[Cell],
    machine: &Machine,
    on_gpu: bool,
) -> Result<Room, Stop> {
    let mut found = Room::Both { memory_percent: None };
    for cell in cells {
        let input = Input::model(&cell.model, &world.catalog.model(&cell.model)?);
        if world.has(&input)? {
            match room::of(&world.obtain(&input)?, cell.tp, machine, on_gpu) {
                Room::One { said } => return Ok(Room::One { said }),
                both => found = both,
            }
        }
    }
    Ok(found)
}

/// Summarizes each cell for the printed plan, once per engine, with an estimate from the registry's
/// earlier runs and imported results.
fn cell_briefs(
    world: &World,
    (plan, scenarios): (&Plan, &[ScenarioEntry]),
    repeats: u32,
    (results, hardware): (&Path, &str),
) -> Result<Vec<CellBrief>, Stop> {
    let mut variants: BTreeMap<&str, u64> = BTreeMap::new();
    for variant in &plan.variants {
        *variants.entry(&variant.engine).or_default() += 1;
    }
    let mut briefs = Vec::new();
    for (cell, entry) in plan.cells.iter().zip(scenarios) {
        let newer = revision::newer(world, entry)?;
        for (engine, count) in &variants {
            let (model, scenario, rev) = (&cell.model, &entry.id, entry.scenario.rev);
            let of = Of { engine, hardware, model, scenario, rev };
            let (each, start_us) = estimate::of_run(results, of);
            briefs.push(CellBrief {
                engine: (*engine).to_owned(),
                model: model.clone(),
                tp: cell.tp,
                scenario: format!("{scenario}@{rev}"),
                runs: u64::from(repeats) * count,
                each,
                start_us,
                newer: newer.clone(),
            });
        }
    }
    Ok(briefs)
}

/// Returns the jobs of the plan on a scheduler, one for each cell where servers are compared
/// `in_turns`; `None` where this machine runs them.
fn jobs(world: &World, flags: &ReleaseBench, plan: &Plan, in_turns: bool) -> Option<Jobs> {
    let execution = &flags.execution;
    if execution.executor != SLURM {
        return None;
    }
    Some(Jobs {
        executor: SLURM,
        count: plan::by_job(&plan.runs).count() + if in_turns { plan.cells.len() } else { 0 },
        partition: partition(&execution.slurm_options, &world.slurm_env).map(str::to_owned),
    })
}

/// Describes the virtual environment of each release and wheel that needs one; its size only with
/// `is_known`.
fn packages(world: &World, wanted: &[Wanted], is_known: bool) -> Result<Vec<String>, Stop> {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut lines = Vec::new();
    for Wanted { engine, origin, .. } in wanted {
        let (version, device, wheel) = match origin {
            Origin::Venv { version, device } => (version, *device, None),
            Origin::Wheel { wheel, compared, device } => (compared, *device, Some(wheel)),
            _ => continue,
        };
        let name = wheel.map_or(version, |wheel| &wheel.file);
        // Variants of a release share its environment.
        if !seen.insert((&engine.id, name)) {
            continue;
        }
        if !is_known {
            lines.push(format!("{} {name}, to be installed, size unknown", engine.id));
            continue;
        }
        let venv = Venv::of(world, engine, (version, device))?;
        lines.push(match wheel {
            Some(wheel) => venv.planned_with(wheel)?,
            None => venv.planned()?,
        });
    }
    Ok(lines)
}

/// Collects the known peculiarities of the measured releases, without repetition.
fn quirks(wanted: &[Wanted]) -> Vec<String> {
    let mut quirks: Vec<String> = Vec::new();
    for Wanted { variant, engine, .. } in wanted {
        for quirk in engine.file.quirks.iter().filter(|quirk| quirk.is_of(&variant.release)) {
            let said = format!("{}: {}", engine.id, quirk.says);
            if !quirks.contains(&said) {
                quirks.push(said);
            }
        }
    }
    quirks
}

/// Fetches the models, datasets and tokenizers of every cell, each once, and returns the cells with
/// them.
///
/// # Errors
/// A file of the suite is missing or invalid, an input cannot be obtained, a file cannot be read or
/// written, or the command is interrupted.
pub fn ready_cells(
    world: &World,
    cells: &[Cell],
    scenarios: &[ScenarioEntry],
) -> Result<Vec<ReadyCell>, Stop> {
    let mut had: BTreeMap<String, Obtained> = BTreeMap::new();
    let mut obtain = |input: Input| -> Result<Obtained, Stop> {
        if let Some(obtained) = had.get(&input.id) {
            return Ok(obtained.clone());
        }
        let obtained = world.obtain(&input)?;
        had.insert(input.id.clone(), obtained.clone());
        Ok(obtained)
    };
    let mut ready = Vec::new();
    for (cell, scenario) in cells.iter().zip(scenarios) {
        let model_file = world.catalog.model(&cell.model)?;
        let model = obtain(Input::model(&cell.model, &model_file))?;
        let dataset = match &scenario.scenario.workload.dataset {
            Some(id) => Some(obtain(Input::dataset(id, &world.catalog.dataset(id)?))?),
            None => None,
        };
        // The load generator needs a tokenizer file even if the server's model embeds one.
        let (model, tokenizer) = match tokenizer_of(&model_file.tokenizer) {
            None => (model.clone(), model.path),
            Some(id) => {
                let tokenizer = obtain(Input::dataset(id, &world.catalog.dataset(id)?))?;
                let model = match model.random_weights {
                    true => world.with_tokenizer(model, &tokenizer)?,
                    false => model,
                };
                (model, tokenizer.path)
            }
        };
        let (cell, scenario) = (cell.clone(), scenario.clone());
        ready.push(ReadyCell { cell, scenario, model, dataset, tokenizer, plan: None });
    }
    Ok(ready)
}

/// Lists the ids of all inputs of the cells for the printed plan, each with where it comes from.
fn input_briefs(
    world: &World,
    cells: &[Cell],
    scenarios: &[ScenarioEntry],
) -> Result<Vec<(String, Availability)>, Stop> {
    let mut briefs = Vec::new();
    for input in inputs_of(world, cells, scenarios)? {
        let from = match (world.has(&input)?, input.hub) {
            (true, _) => Availability::Here,
            (false, Some(id)) => Availability::Hub(id),
            (false, None) => Availability::Download,
        };
        briefs.push((input.id, from));
    }
    Ok(briefs)
}

/// Returns every model and dataset that the cells need as inputs, each once, models first.
///
/// # Errors
/// A named file of the suite is missing, cannot be read or is invalid.
pub fn inputs_of(
    world: &World,
    cells: &[Cell],
    scenarios: &[ScenarioEntry],
) -> Result<Vec<Input>, Stop> {
    let models: BTreeSet<&str> = cells.iter().map(|cell| cell.model.as_str()).collect();
    let mut datasets: BTreeSet<String> =
        scenarios.iter().filter_map(|entry| entry.scenario.workload.dataset.clone()).collect();
    let mut inputs = Vec::new();
    for id in models {
        let file = world.catalog.model(id)?;
        datasets.extend(tokenizer_of(&file.tokenizer).map(str::to_owned));
        inputs.push(Input::model(id, &file));
    }
    for id in datasets {
        inputs.push(Input::dataset(&id, &world.catalog.dataset(&id)?));
    }
    Ok(inputs)
}

/// Returns the id of the dataset that holds a model's tokenizer; `None` when the model file embeds
/// its tokenizer.
fn tokenizer_of(named: &str) -> Option<&str> {
    (named != "embedded").then_some(named)
}

/// Returns the hardware facts of this machine, or only the id `remote` when `url` leads to another
/// machine.
fn hardware_facts(machine: &Machine, on_gpu: bool, url: Option<&str>) -> HardwareFacts {
    match url.is_none_or(is_here) {
        true => machine.facts(&machine.id(on_gpu)),
        false => HardwareFacts { id: ELSEWHERE.to_owned(), ..HardwareFacts::default() },
    }
}

/// Returns true for a URL whose host is this machine's loopback address.
fn is_here(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"].iter().any(|host| rest.starts_with(host))
}

fn records_line(world: &World, plan: &Plan, commits: bool, registry: &Path) -> String {
    if commits {
        let results = world.places.shown(&registry.join("results"));
        format!("{results}, committed on the branch that is checked out")
    } else {
        let staged = world.places.campaign(&plan.campaign).staged();
        format!("{}, never committed", world.places.shown(&staged))
    }
}

/// Id of the scenario of commands that measure one model without a target, such as `peer-bench`.
const DEFAULT_SCENARIO: &str = "sharegpt-lite";
/// Id of the target whose first model is the default of commands that measure one model, such as
/// `peer-bench`.
const DEFAULT_TARGET: &str = "cpu";

/// Returns the cell of a command that measures a single model: `model`, or by default the first
/// model of the target `cpu`, under the scenario `sharegpt-lite`.
///
/// # Errors
/// A target's or the model's file is missing or invalid, no model is given and the target `cpu`
/// lists none, or the model has random weights, which another engine could not load.
pub fn default_cell(world: &World, model: Option<&str>) -> Result<Cell, Stop> {
    let targets = world.catalog.targets()?;
    let first = targets.get(DEFAULT_TARGET).and_then(|target| target.models.first());
    let model = model.or(first.map(|model| model.id.as_str())).ok_or_else(|| {
        wrong_use!("target `{DEFAULT_TARGET}` lists no model").with_hint("give `--model ID`")
    })?;
    if world.catalog.model(model)?.config.is_some() {
        return Err(wrong_use!(
            "`{model}` has random weights, and this command needs a model file"
        ));
    }
    let (model, scenario) = (model.to_owned(), DEFAULT_SCENARIO.to_owned());
    Ok(Cell { model, tp: 1, scenario, ..Cell::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_elsewhere_is_not_described_by_this_machine() {
        let machine = Machine { cores: 2, ..Machine::default() };
        for (url, id) in [
            (None, "cpu-x-fxmxsx-2c"),
            (Some("http://127.0.0.1:80"), "cpu-x-fxmxsx-2c"),
            (Some("http://localhost:80/"), "cpu-x-fxmxsx-2c"),
            (Some("http://10.1.2.3:80"), "remote"),
            (Some("https://example.org"), "remote"),
        ] {
            assert_eq!(hardware_facts(&machine, false, url).id, id, "{url:?}");
        }
    }
}
