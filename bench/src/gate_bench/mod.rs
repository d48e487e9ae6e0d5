//! The command `gate-bench`: trials of the gate with planted changes and with identical code, and
//! the tables of what it found. The judgement is that of the gate itself.

mod build;
mod estimators;
mod planted;
mod table;
mod trial;

use std::collections::BTreeMap;
use std::time::Duration;

use campaign::files::{Lines, read_lines};
use campaign::lock::Lock;
use campaign::node::hardware::{self, Machine};
use campaign::plan::decide::ready_cells;
use campaign::plan::room::{self, Room};
use campaign::plan::{cells, revision, scenarios, target};
use campaign::server_spec::ReadyCell;
use campaign::world::Ids;
use campaign::{Stop, World};
use judge::alternation::compare::minutes;
use schema::exit::Exit;
use schema::random::SplitMix64;

use self::build::Builder;
use self::planted::{Kind, Planted, next};
use self::trial::{Bench, Trial};
use crate::cli::GateBench;
use crate::write_table;

/// File with the finished trials, relative to the clone's root.
const TRIALS: &str = "docs/method/gate-trials.jsonl";
/// Page that contains the tables, relative to the clone's root.
const DOCUMENT: &str = "docs/method/gate.md";
/// Command named in the marker of the page before the tables of trials.
const COMMAND: &str = "cargo xtask gate-bench --document";
/// Command named in the marker of the page before the table of estimators.
const ESTIMATORS: &str = "cargo xtask gate-bench --estimators DIR --document";
/// Kind whose trials show the half-widths of intervals.
const SAME: &str = "same";
/// Time of each scenario for the half-widths, in microseconds.
const WHOLE_US: u64 = 600_000_000;

/// Runs `gate-bench` and prints its tables.
///
/// # Errors
/// A file cannot be read, is not valid or cannot be written; the folder of `--estimators` has no
/// alternations; or the page has no place for the table. Trials are run without `--kept` and
/// `--estimators`, and then also: a kind is unknown, there are trials and `--resume` is not given,
/// another process holds the clone's lock, the machine's target names no scenario for a gate, two
/// servers have no room side by side, a program is missing or does not build, a patch does not
/// apply, an input cannot be obtained, the machine or a tool fails, or the command is interrupted.
/// Finished trials stay.
pub fn run(world: &World, flags: &GateBench) -> Result<Exit, Stop> {
    let planted = Planted::read(&world.places.root)?;
    let path = world.places.root.join(TRIALS);
    if let Some(folder) = &flags.estimators {
        let trials = read_lines::<Trial>(&path)?.lines;
        let same = planted.kinds.iter().filter(|kind| kind.patch.is_none());
        let same: Vec<&str> = same.map(|kind| kind.id.as_str()).collect();
        let same: Vec<&Trial> =
            trials.iter().filter(|trial| same.contains(&trial.kind.as_str())).collect();
        return answer(world, flags, ESTIMATORS, &estimators::render(folder, &same)?);
    }
    if !flags.kept {
        let kinds = planted.select(&flags.kinds)?;
        let _lock = Lock::take(&world.places.lock(), world.pid)?;
        let (lines, earlier) = Lines::open::<Trial>(&path)?;
        if !flags.resume && !earlier.lines.is_empty() {
            let count = earlier.lines.len();
            return Err(Stop::wrong_use(format!("`{TRIALS}` has trials already: {count}"))
                .with_hint("`--resume` adds to them, `--kept` prints their table"));
        }
        world.tools.check()?;
        let session = Session { world, flags, lines, done: count(&earlier.lines) };
        session.run(&planted, &kinds)?;
    }
    let trials = read_lines::<Trial>(&path)?.lines;
    answer(world, flags, COMMAND, &table::render(&planted, &trials))
}

/// Prints a table, and writes it into the page where the flags say so.
fn answer(world: &World, flags: &GateBench, command: &str, table: &str) -> Result<Exit, Stop> {
    if flags.document {
        write_table(world, DOCUMENT, command, table)?;
    }
    world.console.answer(table)?;
    Ok(Exit::Well)
}

/// Counts the trials of each kind that decide something.
fn count(trials: &[Trial]) -> BTreeMap<String, u32> {
    let mut done = BTreeMap::new();
    for trial in trials.iter().filter(|trial| !trial.whole) {
        *done.entry(trial.kind.clone()).or_insert(0) += 1;
    }
    done
}

/// Session of trials in progress.
#[derive(Debug)]
struct Session<'a> {
    world: &'a World,
    flags: &'a GateBench,
    lines: Lines,
    /// Number of finished trials of each kind.
    done: BTreeMap<String, u32>,
}

impl Session<'_> {
    /// Builds the baseline and the kinds, and runs trials until the session's end. Everything is
    /// built first, so that no compiler runs between trials.
    fn run(mut self, planted: &Planted, kinds: &[&Kind]) -> Result<(), Stop> {
        let (world, flags) = (self.world, self.flags);
        let machine = hardware::detect(world)?;
        let (cells, on_gpu) = self.cells(&machine)?;
        let kinds = match flags.seven {
            true => planted.select(&[SAME.to_owned()])?,
            false => kinds.to_vec(),
        };
        let builder = Builder::of_head(world)?;
        let baseline = builder.baseline()?;
        let mut candidates = BTreeMap::new();
        for kind in &kinds {
            candidates.insert(kind.id.as_str(), builder.candidate(kind)?);
        }
        let hardware = machine.facts(&machine.id(on_gpu));
        let whole_us = WHOLE_US * cells.len() as u64;
        let bench = Bench {
            world,
            hardware: &hardware,
            commit: builder.commit(),
            baseline: &baseline,
            cells: &cells,
            budget_us: if flags.seven { whole_us } else { flags.budget_us },
            whole: flags.seven,
        };
        let mut ids = Ids::new(world.clock.unix_ms(), world.random);
        let mut random = SplitMix64(world.clock.unix_ms());
        let end = flags
            .hours
            .map(|hours| world.clock.elapsed() + Duration::from_secs_f64(hours * 3600.0));
        let beyond = flags.hours.is_some() || flags.trials.is_some() || flags.seven;
        let most = if flags.seven { Some(1) } else { flags.trials };
        let mut run = 0;
        while most.is_none_or(|most| run < most)
            && end.is_none_or(|end| world.clock.elapsed() < end)
            && let Some(kind) = next(&kinds, &self.done, beyond, &mut random)
        {
            world.interrupt.check()?;
            run += 1;
            world.step(&format!("Trial {run}: {}", kind.id));
            let trial = bench.trial(kind, &candidates[kind.id.as_str()], &mut ids)?;
            self.lines.append(&trial)?;
            world.console.note(&said(&trial));
            if !trial.whole {
                *self.done.entry(trial.kind).or_insert(0) += 1;
            }
        }
        Ok(())
    }

    /// Returns the cells of the gate, or with `--seven` of a comparison of releases, with their
    /// inputs, and true where they need a GPU.
    fn cells(&self, machine: &Machine) -> Result<(Vec<ReadyCell>, bool), Stop> {
        let world = self.world;
        let targets = world.catalog.targets()?;
        let (id, target) = target::choose(&targets, None, &machine.gpus, false)?;
        let model = target.models.first().map(|model| model.id.clone());
        let wanted = match self.flags.seven {
            true => scenarios(target, true),
            false => target.gate_scenarios.clone(),
        };
        let mut cells = cells(target, &Vec::from_iter(model), &wanted)?;
        if cells.is_empty() {
            return Err(Stop::wrong_use(format!("target `{id}` names no scenario for a gate")));
        }
        let entries = revision::choose(world, &mut cells)?;
        world.step("Fetch inputs");
        let mut ready = ready_cells(world, &cells, &entries)?;
        let on_gpu = target::needs_device(target);
        for cell in &mut ready {
            match room::of(&cell.model, cell.cell.tp, machine, on_gpu) {
                Room::Both { memory_percent: Some(percent) } => {
                    cell.cell.settings.memory_percent = Some(percent);
                }
                Room::Both { memory_percent: None } => {}
                Room::One { said } => return Err(Stop::environment(said)),
            }
        }
        Ok((ready, on_gpu))
    }
}

/// Formats the outcome of a trial in one line.
fn said(trial: &Trial) -> String {
    let found = trial.found_us.map(|us| format!("found after {}, ", minutes(us)));
    let (found, decision) = (found.unwrap_or_default(), trial.decision.name());
    format!("{}: {found}{decision}, {}", trial.kind, minutes(trial.spent_us))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn planted_changes_apply_to_this_tree() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let planted = Planted::read(root).unwrap();
        let mut named = std::collections::BTreeSet::new();
        for kind in &planted.kinds {
            for metric in &kind.worse {
                assert!(judge::alternation::measures(metric), "{}: {metric}", kind.id);
            }
            let Some(patch) = kind.patch_in(root) else { continue };
            let mut git = Command::new("git");
            let git = git.arg("apply").arg("--check").arg(&patch).current_dir(root);
            let ended = git.output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert!(ended.status.success(), "{}: {said}", kind.id);
            named.insert(patch);
        }
        let files = campaign::files::files_below(&root.join(planted::FOLDER));
        let patches =
            files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "patch"));
        assert_eq!(patches.collect::<std::collections::BTreeSet<_>>(), named);
        assert!(planted.kinds.iter().any(|kind| kind.id == SAME && kind.patch.is_none()));
        assert!(planted.select(&["beauty".to_owned()]).is_err());
    }
}
