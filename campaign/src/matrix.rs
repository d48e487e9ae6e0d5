//! The command `matrix`: for each target, model, scenario and engine of the suite it prints whether
//! figures are measured, published elsewhere, planned or impossible, and the commands that measure
//! what is planned.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use judge::coverage::{Coverage, Covering, PlannedCell};
use judge::order;
use judge::records::Registry;
use judge::table::{columns, wrapped};
use schema::exit::Exit;
use schema::run::Kind;
use schema::target::{Accelerator, Target};

use crate::build::variants::REDLINE;
use crate::catalog::{Engine, unknown};
use crate::cli::Matrix;
use crate::git::Git;
use crate::plan::release::{newest, read_history};
use crate::plan::scenarios;
use crate::plan::target::{accelerator, needs_device};
use crate::stop::Stop;
use crate::world::World;

/// Text of a cell without figures that the engine could fill.
const PLANNED: &str = "planned";
/// Word in a command that stands for a release, where none of the engine is known.
const VERSION: &str = "VERSION";

/// Prints the matrix of the targets that `flags` name, by default of all.
///
/// # Errors
/// A target is unknown, a file of the suite is invalid, git fails, or a file or folder cannot be read.
pub fn run(world: &World, flags: &Matrix) -> Result<Exit, Stop> {
    let targets = world.catalog.targets()?;
    if let Some(id) = flags.targets.iter().find(|id| !targets.contains_key(*id)) {
        let known: Vec<String> = targets.keys().cloned().collect();
        return Err(unknown("target", id, &known));
    }
    let root = flags.registry.as_ref().unwrap_or(&world.places.root);
    let registry = store::load_figures(&[&root.join("results")], &|_| true)?;
    let covering = Covering::of(&registry);
    let mut engines = Vec::new();
    for id in world.catalog.ids("engine")? {
        let engine = world.catalog.engine(&id)?;
        let release = release_to_measure(world, &engine, &registry)?;
        engines.push(PlannedEngine { engine, release });
    }
    let is_wanted = |id: &String| flags.targets.is_empty() || flags.targets.contains(id);
    for (id, target) in targets.iter().filter(|(id, _)| is_wanted(id)) {
        let matrix = Grid::of(world, (id, target), &engines, &covering)?;
        world.console.answer(&matrix.to_string())?;
    }
    Ok(Exit::Well)
}

/// Engine of the suite, and the release that commands measure.
struct PlannedEngine {
    engine: Engine,
    /// Name of the release; `None` where none is known.
    release: Option<String>,
}

/// Returns the release of an engine that commands measure: of Redline the newest of this clone, of an
/// engine that is built from source the newest that its file pins, else the newest that a record names.
fn release_to_measure(
    world: &World,
    engine: &Engine,
    registry: &Registry,
) -> Result<Option<String>, Stop> {
    if engine.id == REDLINE {
        let git = Git::open(&world.places.root, &world.interrupt)?;
        return Ok(newest(&read_history(&git, &[])?));
    }
    if let Some(source) = &engine.file.source {
        return Ok(Some(format!("v{}", source.newest.version)));
    }
    let is_version = |name: &str| {
        let version = name.trim_start_matches('v');
        version.starts_with(|first: char| first.is_ascii_digit())
    };
    let of_engine = registry
        .standing()
        .map(|stored| &stored.record)
        .filter(|run| run.kind != Kind::Simulated && run.engine.name == engine.id)
        .map(|run| run.engine.release.as_str())
        .filter(|name| is_version(name));
    Ok(order::newest(of_engine).map(str::to_owned))
}

/// Matrix of one target.
struct Grid {
    target: String,
    /// Heading, and a line for each model and scenario.
    lines: Vec<Vec<String>>,
    /// Reasons why engines cannot serve models, in the order of their numbers.
    reasons: Vec<String>,
    /// Commands that measure what is planned.
    commands: Vec<String>,
}

impl Grid {
    fn of(
        world: &World,
        (id, target): (&str, &Target),
        engines: &[PlannedEngine],
        covering: &Covering<'_>,
    ) -> Result<Self, Stop> {
        let on_gpu = needs_device(target);
        let titles = engines.iter().map(|one| one.engine.id.clone());
        let heading = ["model", "tp", "scenario"].map(str::to_owned).into_iter().chain(titles);
        let mut grid = Self {
            target: id.to_owned(),
            lines: vec![heading.collect()],
            reasons: Vec::new(),
            commands: Vec::new(),
        };
        // Also the concurrency sweep, whose runs are figures of a release like others.
        let mut revisions: Vec<(String, u32)> = Vec::new();
        for scenario in scenarios(target, true) {
            let rev = world.catalog.scenario(&scenario)?.scenario.rev;
            if !revisions.iter().any(|(known, _)| *known == scenario) {
                revisions.push((scenario, rev));
            }
        }
        // For each engine the scenarios that are planned, by model.
        let mut planned = vec![BTreeMap::<&str, Vec<&str>>::new(); engines.len()];
        for model in &target.models {
            let file = world.catalog.model(&model.id)?;
            let refused: Vec<Option<String>> = engines
                .iter()
                .map(|one| one.engine.cannot_serve(&model.id, &file, accelerator(target)))
                .map(|found| found.map(|found| grid.numbered(found.why)))
                .collect();
            for (scenario, rev) in &revisions {
                let mut line = vec![model.id.clone(), model.tp.to_string(), scenario.clone()];
                for (index, PlannedEngine { engine, .. }) in engines.iter().enumerate() {
                    let cell = PlannedCell {
                        engine: &engine.id,
                        hardware: on_gpu.then_some(id),
                        model: &model.id,
                        tp: model.tp,
                        scenario,
                        rev: *rev,
                    };
                    let text = match (covering.coverage(&cell), &refused[index]) {
                        (Coverage::Measured { release, runs }, _) => format!("{release} x{runs}"),
                        (Coverage::Published { release }, _) => format!("({release})"),
                        (Coverage::Nothing, Some(refused)) => refused.clone(),
                        (Coverage::Nothing, None) => PLANNED.to_owned(),
                    };
                    if text == PLANNED {
                        planned[index].entry(&model.id).or_default().push(scenario);
                    }
                    line.push(text);
                }
                grid.lines.push(line);
            }
        }
        let planned = engines.iter().zip(&planned);
        grid.commands =
            planned.flat_map(|(engine, planned)| commands(engine, (id, target), planned)).collect();
        Ok(grid)
    }

    /// Returns the text of cells that are impossible for the reason `why`, with its number.
    fn numbered(&mut self, why: String) -> String {
        let known = self.reasons.iter().position(|known| *known == why);
        let number = known.unwrap_or_else(|| {
            self.reasons.push(why);
            self.reasons.len() - 1
        });
        format!("impossible [{}]", number + 1)
    }
}

impl std::fmt::Display for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = format!("{}\n{}\n", self.target, columns(&self.lines));
        let legend = "RELEASE xN: measured in the newest revision of the scenario, without variants, N \
                      runs; (RELEASE): published elsewhere, not verified";
        let _ = writeln!(text, "\n{}", wrapped(legend, 4));
        for (number, why) in (1..).zip(&self.reasons) {
            let _ = writeln!(text, "{}", wrapped(&format!("[{number}] {why}"), 4));
        }
        if !self.commands.is_empty() {
            text += "\nMeasure what is planned:\n";
        }
        for command in &self.commands {
            let _ = writeln!(text, "  {command}");
        }
        if self.commands.iter().any(|command| command.contains(VERSION)) {
            let _ = writeln!(text, "{VERSION} stands for a release: no record names one yet");
        }
        f.write_str(&text)
    }
}

/// Returns the commands that measure the scenarios `planned`, by model, of a target with an engine. One
/// command measures all models that lack the same scenarios.
fn commands(
    PlannedEngine { engine, release }: &PlannedEngine,
    (id, target): (&str, &Target),
    planned: &BTreeMap<&str, Vec<&str>>,
) -> Vec<String> {
    let mut alike: BTreeMap<&[&str], Vec<&str>> = BTreeMap::new();
    for (model, scenarios) in planned {
        alike.entry(scenarios).or_default().push(model);
    }
    let is_in_image = accelerator(target) == Some(Accelerator::Rocm)
        || (engine.id != REDLINE && engine.file.package.is_none() && engine.file.source.is_none());
    let command = |(scenarios, models): (&[&str], Vec<&str>)| {
        let version = release.as_deref().unwrap_or(VERSION);
        let mut command = format!("cargo xtask release-bench {version}");
        if engine.id != REDLINE {
            let _ = write!(command, " --engine {}", engine.id);
        }
        let _ = write!(command, " --target {id}");
        if is_in_image {
            command.push_str(" --container docker");
        }
        if models.len() < target.models.len() {
            for model in models {
                let _ = write!(command, " --model {model}");
            }
        }
        // Without a baseline a campaign measures these, and no concurrency sweep.
        if scenarios != target.scenarios {
            for scenario in scenarios {
                let _ = write!(command, " --scenario {scenario}");
            }
        }
        command
    };
    alike.into_iter().map(command).collect()
}
