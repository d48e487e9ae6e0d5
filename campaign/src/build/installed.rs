//! Engines that are Python packages: checks that the requested release is the installed one, on
//! this machine or in a container image.

use std::process::Command;

use schema::engine::Package;
use schema::run::{BuildFacts, EngineFacts};
use serde::Deserialize;

use crate::catalog::Engine;
use crate::plan::Variant;
use crate::process::{Written, capture};
use crate::server_spec::container::Runtime;
use crate::server_spec::{BuiltVariant, Contained, image_name, image_of, is_same};
use crate::stop::Stop;
use crate::world::World;

const SCRIPT: &str = include_str!("installed.py");

/// Output of the script that looks for a package.
#[derive(Debug, Deserialize)]
struct Found {
    name: String,
    version: String,
    files_sha256: Option<String>,
}

/// Returns the built variant of an installed package.
///
/// # Errors
/// The package is not installed, or another release of it is.
pub fn find(
    world: &World,
    (engine, variant): (&Engine, &Variant),
    version: &str,
    container: Option<Runtime>,
) -> Result<BuiltVariant, Stop> {
    let none = Package { names: Vec::new() };
    let package = engine.file.package.as_ref().unwrap_or(&none);
    let image = contained(engine, variant, container)?;
    let place = match &image {
        Some(image) => format!("in `{}`", image.image),
        None => "on this machine".to_owned(),
    };
    let mut ask = question(image.as_ref());
    ask.args(["-c", SCRIPT]).args(&package.names);
    let written = capture(&mut ask, &world.interrupt)?;
    let found = read(&written, package, &place)?;
    if !is_same(&found.version, version) {
        let Found { name, version: found, .. } = found;
        let message = format!("{name} {found} is installed {place}, not {version}");
        return Err(Stop::environment(message).with_hint(format!(
            "`python3 -m pip install {name}=={version}`: numbers under another release's name would \
             help nobody"
        )));
    }
    // A tag can be moved to another image, a digest cannot.
    let digest = image.as_ref().and_then(|image| digest(world, image));
    Ok(BuiltVariant {
        variant: variant.clone(),
        facts: facts(variant, found, image.as_ref(), digest),
        binary: None,
        version: Some(version.to_owned()),
        image,
    })
}

fn contained(
    engine: &Engine,
    variant: &Variant,
    runtime: Option<Runtime>,
) -> Result<Option<Contained>, Stop> {
    let Some(runtime) = runtime else { return Ok(None) };
    let image = image_of(&engine.file, &engine.id)?;
    Ok(Some(Contained { runtime, image: image_name(image, &variant.release) }))
}

/// Makes the command that runs Python where the server would run.
fn question(image: Option<&Contained>) -> Command {
    let Some(Contained { runtime, image }) = image else {
        return Command::new("python3");
    };
    let mut command = Command::new(runtime.program());
    match runtime {
        Runtime::Apptainer => command.args(["exec", &format!("docker://{image}"), "python3"]),
        _ => command.args(["run", "--rm", "--entrypoint", "python3", image]),
    };
    command
}

fn read(written: &Written, package: &Package, place: &str) -> Result<Found, Stop> {
    let names = package.names.join(" or ");
    if !written.status.success() {
        let said = written.last_said().unwrap_or("it says nothing");
        return Err(Stop::environment(format!("cannot tell if {names} is installed: {said}")));
    }
    serde_json::from_str(&written.stdout).map_err(|_| {
        let first = package.names.first().map_or("", String::as_str);
        Stop::environment(format!("{names} is not installed {place}")).with_hint(format!(
            "`python3 -m pip install {first}==VERSION` in an environment whose programs come first on \
             the PATH, or `--container docker`"
        ))
    })
}

/// Digest of a container image, if its runtime reports one.
fn digest(world: &World, image: &Contained) -> Option<String> {
    if image.runtime == Runtime::Apptainer {
        return None;
    }
    let mut ask = Command::new(image.runtime.program());
    ask.args(["image", "inspect", "--format", "{{index .RepoDigests 0}}", &image.image]);
    let written = capture(&mut ask, &world.interrupt).ok()?;
    let digest = written.stdout.trim().rsplit('@').next()?.to_owned();
    digest.starts_with("sha256:").then_some(digest)
}

fn facts(
    variant: &Variant,
    found: Found,
    image: Option<&Contained>,
    image_digest: Option<String>,
) -> EngineFacts {
    EngineFacts {
        name: variant.engine.clone(),
        release: variant.release.clone(),
        dirty: Some(false),
        binary_sha256: found.files_sha256,
        features: Some(Vec::new()),
        image_digest,
        build: Some(BuildFacts {
            source_url: Some(format!("{}=={}", found.name, found.version)),
            image: image.map(|image| image.image.clone()),
            patches: Some(Vec::new()),
            ..BuildFacts::default()
        }),
        ..EngineFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_a_build_makes_no_other_release() {
        assert!(is_same("0.17.1+cpu", "0.17.1") && is_same("v0.17.1", "0.17.1"));
        for (found, wanted) in [("0.10.1.1", "0.10.1"), ("0.10.1.dev3+gabc", "0.10.1"), ("", "1")] {
            assert!(!is_same(found, wanted), "{found} was taken for {wanted}");
        }
    }
}
