//! A GPU validation: what a release shows on a machine that has no network and no compiler, such as
//! one that is lent for an hour. A bundle is packed here, run there stage by stage, and its results
//! are collected here.

pub mod collect;
mod kernels;
pub mod layout;
pub mod pack;
pub mod run;
mod stage;

use std::path::Path;

use schema::exit::Exit;
use schema::gpu_validation::{BUNDLE_SCHEMA, ValidationBundle};
use serde::de::DeserializeOwned;

use crate::cli::GpuValidation;
use campaign::files::{self, FileError};
use campaign::stop::{Ends, Stop};
use campaign::world::World;

/// The folder of a GPU validation's bundle or results that is not what it must be.
#[derive(Debug, thiserror::Error)]
pub enum ValidationError {
    #[error("`{path}` cannot be read: {detail}")]
    Unreadable { path: String, detail: String },
    #[error("`{path}` is a `{found}`, and this program reads `{BUNDLE_SCHEMA}`")]
    OtherSchema { path: String, found: String },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Ends for ValidationError {
    fn exit(&self) -> Exit {
        match self {
            Self::File(error) => error.exit(),
            _ => Exit::Unsound,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) => error.hint(),
            _ => None,
        }
    }
}

/// Runs a step of `gpu-validation`.
///
/// # Errors
/// Wrong use, an unfit machine, or an interruption; a stage that fails is no error.
pub fn run(world: &World, step: &GpuValidation) -> Result<Exit, Stop> {
    match step {
        GpuValidation::Pack(flags) => pack::run(world, flags),
        GpuValidation::Run(flags) => run::run(world, flags),
        GpuValidation::Collect(flags) => collect::run(world, flags),
    }
}

fn read_bundle(path: &Path) -> Result<ValidationBundle, ValidationError> {
    let described: ValidationBundle = read_json(path)?;
    if described.schema != BUNDLE_SCHEMA {
        let path = path.display().to_string();
        return Err(ValidationError::OtherSchema { path, found: described.schema });
    }
    Ok(described)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ValidationError> {
    let text = files::read_text(path)?;
    serde_json::from_str(&text).map_err(|error| ValidationError::Unreadable {
        path: path.display().to_string(),
        detail: error.to_string(),
    })
}
