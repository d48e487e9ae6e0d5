//! GPU validation of a release on a machine without network and compiler, such as one that is
//! rented for an hour. A bundle is packed here, run there stage by stage, and its results are
//! collected here.

pub mod collect;
pub mod pack;
pub mod run;

use std::path::{Path, PathBuf};

use schema::canonical::to_file_text;
use schema::exit::Exit;
use schema::gpu_validation::{BUNDLE_SCHEMA, ValidationBundle};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::GpuValidation;
use campaign::files;
use campaign::stop::Stop;
use campaign::world::World;

/// Description of a bundle, in its folder and in that of its results: release and stages.
const DESCRIPTION: &str = "bundle.json";
/// Facts about the machine on which results were measured, in the results' folder.
const MACHINE: &str = "machine.json";

/// File of a stage in the results' folder: its report (`json`), or an output of its command
/// (`stdout`, `stderr`).
fn stage_file(results: &Path, stage: &str, extension: &str) -> PathBuf {
    results.join("stages").join(format!("{stage}.{extension}"))
}

/// Workload manifest of a scenario in a bundle, drawn with a tokenizer.
fn plan_file(bundle: &Path, scenario: &str, tokenizer: &str) -> PathBuf {
    bundle.join("plans").join(format!("{scenario}-{tokenizer}.json"))
}

/// Runs a subcommand of `gpu-validation`.
///
/// # Errors
/// Wrong use, an unfit machine, or an interruption. A failing stage is no error.
pub fn run(world: &World, step: &GpuValidation) -> Result<Exit, Stop> {
    match step {
        GpuValidation::Pack(flags) => pack::run(world, flags),
        GpuValidation::Run(flags) => run::run(world, flags),
        GpuValidation::Collect(flags) => collect::run(world, flags),
    }
}

/// Reads the description of the bundle, or of results of a bundle, in `dir`.
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
    serde_json::from_str(&files::read_text(path)?)
        .map_err(|error| Stop::wrong_use(format!("`{}` cannot be read: {error}", path.display())))
}

fn write_json<T: Serialize>(path: &Path, document: &T) -> Result<(), Stop> {
    let text = to_file_text(document)?;
    Ok(files::write_whole(path, text.as_bytes())?)
}
