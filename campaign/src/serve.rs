//! The command `serve`: builds a release, fetches a model of the suite, and serves it in the
//! foreground.

use std::os::unix::process::CommandExt;
use std::process::Command;

use schema::exit::Exit;

use crate::build::origin::{Origin, Wanted};
use crate::build::variants::build_one;
use crate::cli::Serve;
use crate::git::Git;
use crate::inputs::Input;
use crate::launch::{Filling, command_line};
use crate::lock::Lock;
use crate::plan::Variant;
use crate::plan::release;
use crate::process::ProcessError;
use crate::stop::Stop;
use crate::world::World;

/// Default port of `redline serve`.
const PORT: u16 = 23333;

/// Builds the release, fetches the model, and replaces this process with the server.
///
/// # Errors
/// The release or the model cannot be obtained, or the server cannot be started.
pub fn run(world: &World, flags: &Serve) -> Result<Exit, Stop> {
    // A build beside a running campaign would take the cores that it measures on.
    let lock = Lock::take(&world.places.lock(), world.pid)?;
    let model_file = world.catalog.model(&flags.model)?;
    let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
    let history = release::read_history(&git, &[&flags.release])?;
    let found = release::resolve(&history, &flags.release)?;
    let engine = world.catalog.engine("redline")?;
    let variant = Variant::plain(&engine.id, &found.name);
    let spec = build_one(world, &Wanted { variant, engine, origin: Origin::Release(found) })?;
    world.console.step(world.clock.elapsed(), &format!("Fetch {}", flags.model));
    let model = world.fetcher().obtain(&Input::model(&flags.model, &model_file))?;
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
    world.console.step(world.clock.elapsed(), &format!("Serve {}", flags.model));
    let Some((program, args)) = line.argv.split_first() else {
        return Err(Stop::wrong_use("the engine's file names no program to start"));
    };
    // `exec` makes the server this process, so that signals and the exit code are its own.
    let source = Command::new(program).args(args).exec();
    Err(ProcessError::Start { program: program.clone(), source }.into())
}

/// Takes `--port N` out of the user's server flags and returns it separately, since the engine's
/// command line sets the port itself.
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
