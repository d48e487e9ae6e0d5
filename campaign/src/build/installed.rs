//! Engines where they are installed: in a virtual environment, on this machine or in a container
//! image. Asks the Python there for the engine's package and for the packages beside it, and makes
//! the facts of a record from the answer. It installs nothing but images.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use schema::canonical::sha256_hex;
use schema::engine::Package;
use schema::run::{BuildFacts, EngineFacts};
use schema::target::Accelerator;
use serde::Deserialize;
use tempfile::TempDir;

use super::venv::OUTSIDE;
use crate::catalog::Engine;
use crate::files::{FileError, write_whole};
use crate::plan::Variant;
use crate::process::{Written, capture, describe, show};
use crate::server_spec::{BuiltVariant, Contained, Runtime, is_same};
use crate::stop::{Stop, environment};
use crate::world::World;

/// Text between the name of a container image and the hex digits of its digest.
pub const DIGEST: &str = "@sha256:";
/// Python script that looks for an installed package of an engine, and lists all packages.
const SCRIPT: &str = include_str!("installed.py");

/// Place where an engine is installed.
#[derive(Debug, Clone)]
pub enum Place {
    /// Virtual environment in this folder.
    Venv(PathBuf),
    /// Packages of the Python that is on the `PATH` of this machine.
    Machine,
    /// Container image.
    Image(Contained),
}

impl Place {
    /// Returns the place as part of a message: `on this machine`.
    fn shown(&self) -> String {
        match self {
            Self::Venv(_) => "in its virtual environment".to_owned(),
            Self::Machine => "on this machine".to_owned(),
            Self::Image(image) => format!("in `{}`", image.image),
        }
    }

    /// Builds the command that runs Python where the server would run.
    fn python(&self) -> Command {
        match self {
            Self::Venv(dir) => {
                let mut command = Command::new(dir.join("bin/python3"));
                // As for the server, which must not see packages from outside.
                for name in OUTSIDE {
                    command.env_remove(name);
                }
                command
            }
            Self::Machine => Command::new("python3"),
            Self::Image(Contained { runtime, image, file, .. }) => {
                let mut command = Command::new(runtime.program());
                match (runtime, file) {
                    (Runtime::Apptainer, _) => {
                        command.args(["exec", &format!("docker://{image}"), "python3"])
                    }
                    (Runtime::Enroot, Some(file)) => {
                        let script = file.with_file_name(COMMAND);
                        command.args(["start", "--rc"]).arg(script).arg(file).arg("python3")
                    }
                    _ => command.args(["run", "--rm", "--entrypoint", "python3", image]),
                };
                command
            }
        }
    }
}

/// Installed package of an engine, parsed from the JSON that the Python script prints.
#[derive(Debug, Deserialize)]
struct Found {
    name: String,
    version: String,
    /// SHA-256 of the hashes of the package's files; `None` if the package does not list them.
    files_sha256: Option<String>,
    /// All installed packages as `name==version`, sorted.
    packages: Vec<String>,
}

/// Returns the variant of an engine that is installed in `place`, where `version` has to be the
/// installed one; any version fits where it is `None`. What an image has that is no Python package is
/// known by the image alone.
///
/// # Errors
/// The package or the requested version of it is not installed, Python or the container runtime
/// cannot be run, or the wait is interrupted.
pub fn variant(
    world: &World,
    (engine, variant): (&Engine, &Variant),
    version: Option<&str>,
    place: Place,
) -> Result<BuiltVariant, Stop> {
    let mut build = BuildFacts { patches: Some(Vec::new()), ..BuildFacts::default() };
    let mut facts = EngineFacts {
        name: variant.engine.clone(),
        release: variant.release.clone(),
        dirty: Some(false),
        features: Some(Vec::new()),
        ..EngineFacts::default()
    };
    // Only of a package it is known how its releases are numbered.
    let mut installed = None;
    if let Some(package) = &engine.file.package {
        let found = find(world, package, version, &place)?;
        facts.binary_sha256 = found.files_sha256;
        build.source_url = Some(format!("{}=={}", found.name, found.version));
        let lines: String = found.packages.iter().map(|line| format!("{line}\n")).collect();
        build.packages_sha256 = Some(sha256_hex(lines.as_bytes()));
        build.packages = Some(found.packages);
        installed = Some(found.version);
    }
    let (venv, image) = match place {
        Place::Venv(dir) => (Some(dir), None),
        Place::Machine => (None, None),
        Place::Image(image) => (None, Some(image)),
    };
    // A tag can be moved to another image, a digest cannot.
    facts.image_digest = image.as_ref().and_then(|image| digest(world, image));
    build.image = image.as_ref().map(|image| image.image.clone());
    facts.build = Some(build);
    let (variant, version) = (variant.clone(), installed);
    Ok(BuiltVariant { variant, facts, binary: None, version, image, venv })
}

fn find(
    world: &World,
    package: &Package,
    version: Option<&str>,
    place: &Place,
) -> Result<Found, Stop> {
    let mut ask = place.python();
    ask.args(["-c", SCRIPT]).args(&package.names);
    let written = capture(&mut ask, &world.interrupt)?;
    let found = read_found(&written, package, place)?;
    match version.filter(|version| !is_same(&found.version, version)) {
        None => Ok(found),
        Some(version) => {
            let Found { name, version: other, .. } = found;
            let place_shown = place.shown();
            let stop = environment!("{name} {other} is installed {place_shown}, not {version}");
            Err(with_advice(stop, place))
        }
    }
}

fn read_found(written: &Written, package: &Package, place: &Place) -> Result<Found, Stop> {
    let names = package.names.join(" or ");
    if !written.status.success() {
        let said = written.last_said().unwrap_or("it says nothing");
        return Err(environment!("cannot tell if {names} is installed: {said}"));
    }
    serde_json::from_str(&written.stdout)
        .map_err(|_| with_advice(environment!("{names} is not installed {}", place.shown()), place))
}

fn with_advice(stop: Stop, place: &Place) -> Stop {
    stop.with_hint(match place {
        Place::Venv(dir) => format!("remove `{}`: it is then made again", dir.display()),
        Place::Machine => {
            "leave `--installed` out: each release then gets a virtual environment of its own"
                .to_owned()
        }
        Place::Image(_) => {
            "is it an image of that engine and release? `[launch.image]` of the engine's file in \
             `suite/engines/` names those of releases"
                .to_owned()
        }
    })
}

/// Pulls the container image `image` if this machine does not have it. Apptainer does so when it runs
/// the image, and Enroot gets a file of it in the cache. The container is one for CUDA unless the
/// caller changes that.
///
/// # Errors
/// The container runtime cannot be run or cannot pull the image, a file of the cache cannot be
/// written, or the wait is interrupted.
pub fn pull(world: &World, runtime: Runtime, image: String) -> Result<Contained, Stop> {
    let file = match runtime {
        Runtime::Apptainer => None,
        Runtime::Enroot => Some(import(world, &image)?),
        Runtime::Docker | Runtime::Podman => {
            let mut inspect = Command::new(runtime.program());
            inspect.args(["image", "inspect", &image]);
            if !capture(&mut inspect, &world.interrupt)?.status.success() {
                run(world, &image, Command::new(runtime.program()).args(["pull", &image]))?;
            }
            None
        }
    };
    Ok(Contained { runtime, image, file, accelerator: Accelerator::default() })
}

/// Pulls a candidate image, and names it by its digest: a tag can be moved to another image while it
/// is measured.
///
/// # Errors
/// The image has no digest, or anything that [`pull`] fails with.
pub fn pull_by_digest(world: &World, runtime: Runtime, image: &str) -> Result<Contained, Stop> {
    let pulled = pull(world, runtime, image.to_owned())?;
    if let Some(image) = with_digest(world, runtime, image) {
        return Ok(Contained { image, ..pulled });
    }
    world.interrupt.check()?;
    Err(environment!("{} knows no digest of `{image}`", runtime.program()).with_hint(
        "an image has one once it was pushed to a registry, which may run on this machine, or \
         pulled from one",
    ))
}

/// Name of the script, beside imported images, that Enroot runs in place of an image's own to start
/// any command.
const COMMAND: &str = "command.sh";

/// Imports a container image with Enroot, and returns the path of its file in the cache.
fn import(world: &World, image: &str) -> Result<PathBuf, Stop> {
    let dir = world.cache.dir.join("images");
    let file = dir.join(format!("{}.sqsh", image.replace(['/', ':'], "+")));
    if !file.is_file() {
        write_whole(&dir.join(COMMAND), b"exec \"$@\"\n")?;
        let temp = TempDir::new_in(&dir).map_err(FileError::at("write in", &dir))?;
        let imported = temp.path().join("image.sqsh");
        // Enroot separates the host of a registry by `#`.
        let uri = match image.split_once('/') {
            Some((host, rest)) if host.contains('.') => format!("docker://{host}#{rest}"),
            _ => format!("docker://{image}"),
        };
        let mut enroot = Command::new(Runtime::Enroot.program());
        enroot.args(["import", "--output"]).arg(&imported).arg(uri);
        run(world, image, &mut enroot)?;
        fs::rename(&imported, &file).map_err(FileError::at("write", &file))?;
    }
    Ok(file)
}

/// Runs a command that gets `image`. Its output goes to standard error, because standard output is for
/// the campaign's own result.
fn run(world: &World, image: &str, command: &mut Command) -> Result<(), Stop> {
    world.step(&format!("Pull {image}"));
    let status = show(command.stdout(Stdio::from(io::stderr())), &world.interrupt)?;
    if status.success() {
        return Ok(());
    }
    let (program, how) = (command.get_program().to_string_lossy(), describe(status));
    Err(environment!("`{program}` ended with {how} for `{image}`; what it said stands above"))
}

/// Returns the digest, `sha256:...`, by which the registry of images knows a container image; `None`
/// where [`with_digest`] finds none.
fn digest(world: &World, image: &Contained) -> Option<String> {
    let name = with_digest(world, image.runtime, &image.image)?;
    name.split_once('@').map(|(_, digest)| digest.to_owned())
}

/// Returns the name of a container image with its digest, `NAME@sha256:...`: a name that has one, or
/// what Docker or Podman report. `None` if they report none; Apptainer and Enroot report none at all.
fn with_digest(world: &World, runtime: Runtime, image: &str) -> Option<String> {
    if image.contains(DIGEST) {
        return Some(image.to_owned());
    }
    if runtime.runs_processes() {
        return None;
    }
    let mut ask = Command::new(runtime.program());
    ask.args(["image", "inspect", "--format", "{{index .RepoDigests 0}}", image]);
    let written = capture(&mut ask, &world.interrupt).ok()?;
    let name = written.stdout.trim();
    name.contains(DIGEST).then(|| name.to_owned())
}
