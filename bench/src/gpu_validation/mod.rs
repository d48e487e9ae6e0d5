//! GPU validation of a release on a machine without network and compiler, such as one that is
//! rented for an hour. A bundle is packed on a machine with network and compiler, run on the GPU
//! machine stage by stage, and its results are collected in the registry.
//!
//! `gpu-validation collect` turns the results of a bundle into records of runs and of kernels, pages
//! and a commit.

mod archive;
mod cubins;
mod each_test;
pub mod pack;
mod results;
pub mod run;

use std::path::{Path, PathBuf};
use std::process::Command;

use campaign::files;
use campaign::process::{self, describe};
use campaign::stop::Stop;
use campaign::world::World;
use schema::canonical::to_file_text;
use schema::exit::Exit;
use schema::gpu_validation::{BUNDLE_SCHEMA, ValidationBundle};
use schema::untrusted::parser_message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::results::collect;
use crate::cli::{CollectFlags, GpuValidation, HereFlags};

/// File name of the facts about a bundle (its release, stages and limits), in the bundle's folder
/// and in that of its results.
const DESCRIPTION: &str = "bundle.json";
/// File name of the facts about the measured machine, in the folder of a bundle's results.
const MACHINE: &str = "machine.json";

/// Returns the path of a file of the stage `stage` in the results' folder: its report (extension
/// `json`), or an output of its command (`stdout`, `stderr`).
fn stage_file(results: &Path, stage: &str, extension: &str) -> PathBuf {
    results.join("stages").join(format!("{stage}.{extension}"))
}

/// Returns the path in a bundle of the workload manifest that was drawn for a scenario with a
/// tokenizer.
fn plan_file(bundle: &Path, scenario: &str, tokenizer: &str) -> PathBuf {
    bundle.join("plans").join(format!("{scenario}-{tokenizer}.json"))
}

/// Runs a subcommand of `gpu-validation`: pack, here, run or collect.
///
/// # Errors
/// The command line is wrong, the machine does not fit, a program is missing or does not build, a
/// file cannot be obtained, read or written, git or the registry refuses the records, or the run is
/// interrupted. A failing stage is no error, but gives exit code 1.
pub fn run(world: &World, step: &GpuValidation) -> Result<Exit, Stop> {
    match step {
        GpuValidation::Pack(flags) => pack::run(world, flags).map(|_| Exit::Well),
        GpuValidation::Here(flags) => here(world, flags),
        GpuValidation::Run(flags) => run::run(world, flags),
        GpuValidation::Collect(flags) => collect(world, flags),
    }
}

/// Packs a GPU validation, runs the bundle on this machine, and collects its results, also those of
/// stages that failed.
fn here(world: &World, flags: &HereFlags) -> Result<Exit, Stop> {
    let bundle = pack::run(world, &flags.pack)?;
    let results = bundle.with_file_name(format!("results-{}", read_bundle(&bundle)?.campaign));
    let mut validate = Command::new(bundle.join(pack::SCRIPT_NAME));
    validate.arg("--out").arg(&results);
    let status = process::show(&mut validate, &world.interrupt)?;
    // One failed stage does not make the figures of the others worthless.
    if !status.success() && status.code() != Some(Exit::Worse.code().into()) {
        let said = describe(status);
        return Err(Stop::environment(format!("the stages could not be run: {said}")));
    }
    collect(world, &CollectFlags { results, registry: flags.registry.clone() })
}

/// Reads `bundle.json`, the facts about a bundle (such as its release and stages), from `dir`, the
/// folder of the bundle or of its results.
fn read_bundle(dir: &Path) -> Result<ValidationBundle, Stop> {
    let path = dir.join(DESCRIPTION);
    let described: ValidationBundle = read_json(&path)?;
    let found = &described.schema;
    if found != BUNDLE_SCHEMA {
        return Err(Stop::wrong_use(format!(
            "`{}` is a `{found}`, and this program reads `{BUNDLE_SCHEMA}`",
            path.display()
        )));
    }
    Ok(described)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Stop> {
    serde_json::from_str(&files::read_text(path)?).map_err(|error| {
        let said = parser_message(&error);
        Stop::wrong_use(format!("`{}` cannot be read: {said}", path.display()))
    })
}

fn write_json<T: Serialize>(path: &Path, document: &T) -> Result<(), Stop> {
    let text = to_file_text(document)?;
    Ok(files::write_whole(path, text.as_bytes())?)
}
