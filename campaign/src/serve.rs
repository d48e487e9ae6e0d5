//! The command `serve`, which builds a release, fetches a model of the suite and serves it in the
//! foreground, and the command `fetch`, which only downloads models and datasets into the cache.

use std::os::unix::process::CommandExt;
use std::process::Command;

use schema::exit::Exit;

use crate::build::variants::{REDLINE, build_one, named};
use crate::catalog::unknown;
use crate::cli::{Fetch, Packages, Serve};
use crate::inputs::Input;
use crate::lock::Lock;
use crate::node::hardware;
use crate::plan::decide::inputs_of;
use crate::plan::{self, revision, target};
use crate::process::ProcessError;
use crate::server_spec::{Filling, command_line};
use crate::stop::Stop;
use crate::world::World;

/// Default port of `redline serve`.
const PORT: u16 = 23333;

/// Builds the release, fetches the model, and replaces this process with the server (`exec`).
///
/// # Errors
/// The clone is in use by another campaign or cannot be locked; a file of the suite is missing, is
/// invalid, or lacks a program or flag that the server needs; the release or the model cannot be
/// obtained; the command is interrupted; or the server cannot be started.
pub fn serve(world: &World, flags: &Serve) -> Result<Exit, Stop> {
    // A build beside a running campaign would take the cores that it measures on.
    let lock = Lock::take(&world.places.lock(), world.pid)?;
    let model_file = world.catalog.model(&flags.model)?;
    let engine = world.catalog.engine(REDLINE)?;
    let spec =
        build_one(world, &named(world, &engine, Some(&flags.release), Packages::default())?)?;
    world.step(&format!("Fetch {}", flags.model));
    let model = world.obtain(&Input::model(&flags.model, &model_file))?;
    // The lock protects builds only: a campaign may start while this server runs.
    drop(lock);
    let (extra, port) = split_port(&flags.flags);
    let name = model.served();
    let filling = Filling {
        random_weights: model.random_weights,
        flags: &extra,
        ..spec.filling(&name, port)
    };
    let line = command_line(&spec.engine.file, filling)?;
    world.step(&format!("Serve {}", flags.model));
    let Some((program, args)) = line.argv.split_first() else {
        return Err(Stop::wrong_use("the engine's file names no program to start"));
    };
    // `exec` makes the server this process, so that signals and the exit code are its own.
    let source = Command::new(program).args(args).exec();
    Err(ProcessError::Start { program: program.clone(), source }.into())
}

/// Splits the user's server flags into all flags except `--port N` or `--port=N`, and the port, by
/// default [`PORT`]: the engine's command line sets the port itself.
fn split_port(flags: &[String]) -> (Vec<String>, u16) {
    let mut rest = Vec::new();
    let mut port = PORT;
    let mut words = flags.iter().peekable();
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--port=") {
            Some(value) => Some(value.to_owned()),
            None if word == "--port" => words.peek().map(|value| (*value).clone()),
            None => None,
        };
        match value.and_then(|value| value.parse().ok()) {
            Some(number) => {
                port = number;
                if word == "--port" {
                    words.next();
                }
            }
            None => rest.push(word.clone()),
        }
    }
    (rest, port)
}

/// Downloads the named inputs, or all that the target matching this machine needs, and prints their
/// paths. A dataset's file that the user gives is remembered.
///
/// # Errors
/// An id is unknown, the given file has another hash, a file of the suite is missing or invalid, no
/// target matches this machine, an input cannot be obtained, or the command is interrupted.
pub fn fetch(world: &World, flags: &Fetch) -> Result<Exit, Stop> {
    let mut inputs = match flags.ids.is_empty() && flags.dataset.is_none() {
        true => of_target(world)?,
        false => flags.ids.iter().map(|id| input(world, id)).collect::<Result<Vec<_>, _>>()?,
    };
    if let Some(id) = &flags.dataset {
        let dataset = Input::dataset(id, &world.catalog.dataset(id)?);
        if let Some(path) = &flags.from {
            world.step(&format!("Verify {}", path.display()));
            world.remember(&dataset, path)?;
        }
        inputs.push(dataset);
    }
    for input in inputs {
        world.step(&format!("Fetch {}", input.id));
        let obtained = world.obtain(&input)?;
        world.console.answer(&format!("{}  {}", input.id, obtained.path.display()))?;
    }
    Ok(Exit::Well)
}

fn of_target(world: &World) -> Result<Vec<Input>, Stop> {
    let machine = hardware::detect(world)?;
    let targets = world.catalog.targets()?;
    let (_, target) = target::choose(&targets, None, &machine.gpus, false)?;
    // Includes the concurrency sweep, so that a later comparison needs no download.
    let mut cells = plan::cells(target, &[], &plan::scenarios(target, true))?;
    let scenarios = revision::choose(world, &mut cells)?;
    inputs_of(world, &cells, &scenarios)
}

/// Returns the input for the model named `id`, or if there is none, for the dataset of that name; a
/// name that is neither is an error.
fn input(world: &World, id: &str) -> Result<Input, Stop> {
    let (models, datasets) = (world.catalog.ids("model")?, world.catalog.ids("dataset")?);
    if models.iter().any(|model| model == id) {
        return Ok(Input::model(id, &world.catalog.model(id)?));
    }
    if datasets.iter().any(|dataset| dataset == id) {
        return Ok(Input::dataset(id, &world.catalog.dataset(id)?));
    }
    Err(unknown("input", id, &[datasets, models].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_among_the_flags_replaces_the_usual_one() {
        for (flags, rest, port) in [
            ("--threads 2", "--threads 2", PORT),
            ("--port 80 --threads 2", "--threads 2", 80),
            ("--threads 2 --port=0", "--threads 2", 0),
            ("--port x", "--port x", PORT),
        ] {
            let words: Vec<String> = flags.split(' ').map(str::to_owned).collect();
            let (left, found) = split_port(&words);
            assert_eq!((left.join(" ").as_str(), found), (rest, port), "{flags}");
        }
    }
}
