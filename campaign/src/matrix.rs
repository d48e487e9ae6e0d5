//! The command `matrix`: for each target, model, scenario and engine of the suite it prints whether
//! figures are measured, published elsewhere, planned or impossible, and the commands that measure
//! what is planned.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use judge::coverage::{Coverage, Covering, PlannedCell};
use judge::table::{columns, wrapped};
use schema::exit::Exit;
use schema::target::{Accelerator, Target};

use crate::catalog::{Engine, unknown};
use crate::cli::Matrix;
use crate::plan::target::{accelerator, needs_device};
use crate::stop::Stop;
use crate::world::World;

/// Text of a cell without figures that the engine could fill.
const PLANNED: &str = "planned";

/// Prints the matrix of the targets that `flags` name, by default of all.
///
/// # Errors
/// A target is unknown, a file of the suite is invalid, or a file or folder cannot be read.
pub fn run(world: &World, flags: &Matrix) -> Result<Exit, Stop> {
    let targets = world.catalog.targets()?;
    if let Some(id) = flags.targets.iter().find(|id| !targets.contains_key(*id)) {
        let known: Vec<String> = targets.keys().cloned().collect();
        return Err(unknown("target", id, &known));
    }
    let root = flags.registry.as_ref().unwrap_or(&world.places.root);
    let registry = store::load_figures(&[&root.join("results")], &|_| true)?;
    let covering = Covering::of(&registry);
    let engines = world.catalog.ids("engine")?;
    let engines = engines.iter().map(|id| world.catalog.engine(id));
    let engines = engines.collect::<Result<Vec<_>, _>>()?;
    let is_wanted = |id: &String| flags.targets.is_empty() || flags.targets.contains(id);
    for (id, target) in targets.iter().filter(|(id, _)| is_wanted(id)) {
        let matrix = Grid::of(world, (id, target), &engines, &covering)?;
        world.console.answer(&matrix.to_string())?;
    }
    Ok(Exit::Well)
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
        engines: &[Engine],
        covering: &Covering<'_>,
    ) -> Result<Self, Stop> {
        let on_gpu = needs_device(target);
        let titles = engines.iter().map(|engine| engine.id.clone());
        let heading = ["model", "tp", "scenario"].map(str::to_owned).into_iter().chain(titles);
        let mut grid = Self {
            target: id.to_owned(),
            lines: vec![heading.collect()],
            reasons: Vec::new(),
            commands: Vec::new(),
        };
        // For each engine the scenarios that are planned, by model.
        let mut planned = vec![BTreeMap::<&str, Vec<&str>>::new(); engines.len()];
        for model in &target.models {
            let file = world.catalog.model(&model.id)?;
            let refused: Vec<Option<String>> = engines
                .iter()
                .map(|engine| engine.cannot_serve(&model.id, &file, accelerator(target)))
                .map(|found| found.map(|found| grid.numbered(found.why)))
                .collect();
            for scenario in &target.scenarios {
                let mut line = vec![model.id.clone(), model.tp.to_string(), scenario.clone()];
                for (index, engine) in engines.iter().enumerate() {
                    let cell = PlannedCell {
                        engine: &engine.id,
                        hardware: on_gpu.then_some(id),
                        model: &model.id,
                        scenario,
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
        let legend = "RELEASE xN: measured, N runs; (RELEASE): published elsewhere, not verified";
        let _ = writeln!(text, "\n{legend}");
        for (number, why) in (1..).zip(&self.reasons) {
            let _ = writeln!(text, "{}", wrapped(&format!("[{number}] {why}"), 4));
        }
        if !self.commands.is_empty() {
            text += "\nMeasure what is planned:\n";
        }
        for command in &self.commands {
            let _ = writeln!(text, "  {command}");
        }
        f.write_str(&text)
    }
}

/// Returns the commands that measure the scenarios `planned`, by model, of a target with an engine. One
/// command measures all models that lack the same scenarios.
fn commands(
    engine: &Engine,
    (id, target): (&str, &Target),
    planned: &BTreeMap<&str, Vec<&str>>,
) -> Vec<String> {
    let mut alike: BTreeMap<&[&str], Vec<&str>> = BTreeMap::new();
    for (model, scenarios) in planned {
        alike.entry(scenarios).or_default().push(model);
    }
    let command = |(scenarios, models): (&[&str], Vec<&str>)| {
        let mut command = String::from("cargo xtask release-bench VERSION");
        if engine.id != crate::build::variants::REDLINE {
            let _ = write!(command, " --engine {}", engine.id);
        }
        let _ = write!(command, " --target {id}");
        if accelerator(target) == Some(Accelerator::Rocm) {
            command.push_str(" --container docker");
        }
        if models.len() < target.models.len() {
            for model in models {
                let _ = write!(command, " --model {model}");
            }
        }
        if scenarios.len() < target.scenarios.len() {
            for scenario in scenarios {
                let _ = write!(command, " --scenario {scenario}");
            }
        }
        command
    };
    alike.into_iter().map(command).collect()
}
