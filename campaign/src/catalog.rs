//! The suite's catalog: reads scenarios, models, datasets, targets, engines, policies and GPU
//! validations from their TOML files in `suite/`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schema::canonical::sha256_hex;
use schema::engine::EngineFile;
use schema::exit::Exit;
use schema::gpu_validation::GpuValidation;
use schema::model::{DatasetFile, ModelFile};
use schema::policy::PolicyFile;
use schema::scenario::Scenario;
use schema::target::Target;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::stop::Ends;

#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("{kind} `{id}` is unknown; known are {}", .known.join(", "))]
    Unknown { kind: &'static str, id: String, known: Vec<String> },
    #[error("cannot read {kind} `{id}`: {detail}")]
    Unreadable { kind: &'static str, id: String, detail: String },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Ends for CatalogError {
    fn exit(&self) -> Exit {
        match self {
            Self::File(error) => error.exit(),
            _ => Exit::Unsound,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { kind, .. } => {
                let folder = folder(kind);
                Some(format!("{folder} are the files of `suite/{folder}/`"))
            }
            _ => None,
        }
    }
}

/// A scenario, and the id, path and SHA-256 of its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenarioEntry {
    pub id: String,
    pub path: PathBuf,
    pub file_sha256: String,
    pub scenario: Scenario,
}

/// The engine under test and its file in `suite/engines/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    pub id: String,
    pub path: PathBuf,
    pub file: EngineFile,
}

impl Engine {
    /// Server flags that set the number of threads.
    pub fn thread_flags(&self, threads: u32) -> Vec<String> {
        let fill = |word: &String| word.replace("{threads}", &threads.to_string());
        self.file.launch.threads.iter().map(fill).collect()
    }

    /// Server flags for a measurement under load: threads, and what the engine's file adds.
    pub fn loaded_flags(&self, threads: u32) -> Vec<String> {
        [self.thread_flags(threads), self.file.launch.load.clone()].concat()
    }
}

/// The folder `suite/` with one TOML file per scenario, model, dataset, target and engine.
#[derive(Debug, Clone)]
pub struct Catalog {
    dir: PathBuf,
}

impl Catalog {
    /// Makes the catalog of the folder `suite`.
    pub fn new(suite: &Path) -> Self {
        Self { dir: suite.to_owned() }
    }

    /// Reads the scenario `id` from `suite/scenarios/`.
    ///
    /// # Errors
    /// No such scenario, or its file is invalid.
    pub fn scenario(&self, id: &str) -> Result<ScenarioEntry, CatalogError> {
        let (path, text) = self.text("scenario", id)?;
        let scenario = Scenario::parse(&text).map_err(unreadable("scenario", id))?;
        let file_sha256 = sha256_hex(text.as_bytes());
        Ok(ScenarioEntry { id: id.to_owned(), path, file_sha256, scenario })
    }

    /// Reads the model `id` from `suite/models/`.
    ///
    /// # Errors
    /// No such model, or its file is invalid.
    pub fn model(&self, id: &str) -> Result<ModelFile, CatalogError> {
        let (_, text) = self.text("model", id)?;
        schema::model::parse_model(&text).map_err(unreadable("model", id))
    }

    /// Reads the dataset `id` from `suite/datasets/`.
    ///
    /// # Errors
    /// No such dataset, or its file is invalid.
    pub fn dataset(&self, id: &str) -> Result<DatasetFile, CatalogError> {
        let (_, text) = self.text("dataset", id)?;
        schema::model::parse_dataset(&text).map_err(unreadable("dataset", id))
    }

    /// Reads the GPU validation `id` from `suite/proofs/`.
    ///
    /// # Errors
    /// No such GPU validation, or its file is invalid.
    pub fn validation(&self, id: &str) -> Result<GpuValidation, CatalogError> {
        let (_, text) = self.text("validation", id)?;
        schema::gpu_validation::parse(&text).map_err(unreadable("validation", id))
    }

    /// Reads the comparison policy `id` from `suite/policies/`.
    ///
    /// # Errors
    /// No such policy, or its file is invalid.
    pub fn policy(&self, id: &str) -> Result<PolicyFile, CatalogError> {
        let (_, text) = self.text("policy", id)?;
        schema::policy::parse(&text).map_err(unreadable("policy", id))
    }

    /// Returns the path of the suite's file of `kind` (such as `"engine"`) named `id`.
    ///
    /// # Errors
    /// No such file.
    pub fn path(&self, kind: &'static str, id: &str) -> Result<PathBuf, CatalogError> {
        self.text(kind, id).map(|(path, _)| path)
    }

    /// Reads the engine `id` from `suite/engines/`; returns the file's path and content.
    ///
    /// # Errors
    /// No such engine, or its file is invalid.
    pub fn engine(&self, id: &str) -> Result<Engine, CatalogError> {
        let (path, text) = self.text("engine", id)?;
        let file = schema::engine::parse(&text).map_err(unreadable("engine", id))?;
        Ok(Engine { id: id.to_owned(), path, file })
    }

    /// Reads every target of `suite/targets/`, by id.
    ///
    /// # Errors
    /// A target's file is invalid.
    pub fn targets(&self) -> Result<BTreeMap<String, Target>, CatalogError> {
        let mut targets = BTreeMap::new();
        for id in self.ids("target")? {
            let (_, text) = self.text("target", &id)?;
            let target = schema::target::parse(&text).map_err(unreadable("target", &id))?;
            targets.insert(id, target);
        }
        Ok(targets)
    }

    /// Lists the ids of all files of `kind` in the suite, sorted.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn ids(&self, kind: &str) -> Result<Vec<String>, FileError> {
        let dir = self.dir.join(folder(kind));
        let mut ids = Vec::new();
        for entry in fs::read_dir(&dir).map_err(FileError::at("read the folder", &dir))? {
            let path = entry.map_err(FileError::at("read the folder", &dir))?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                ids.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
        ids.sort();
        Ok(ids)
    }

    fn text(&self, kind: &'static str, id: &str) -> Result<(PathBuf, String), CatalogError> {
        // An id from the command line becomes a path only if its file is listed, so `../x` cannot
        // escape.
        let known = self.ids(kind)?;
        if !known.iter().any(|other| other == id) {
            return Err(CatalogError::Unknown { kind, id: id.to_owned(), known });
        }
        let path = self.dir.join(folder(kind)).join(format!("{id}.toml"));
        let text = files::read_text(&path)?;
        Ok((path, text))
    }
}

/// Returns the folder of a kind below `suite/`: its plural.
fn folder(kind: &str) -> String {
    // `policy` has the plural `policies`, `engine` the plural `engines`.
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    }
}

fn unreadable<E: std::fmt::Display>(
    kind: &'static str,
    id: &str,
) -> impl FnOnce(E) -> CatalogError {
    let id = id.to_owned();
    move |error| CatalogError::Unreadable { kind, id, detail: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::scenario::Arrival;

    fn catalog() -> Catalog {
        Catalog::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite"))
    }

    #[test]
    fn every_target_names_pieces_that_exist() {
        let catalog = catalog();
        for (id, target) in catalog.targets().unwrap() {
            for scenario in target.scenarios.iter().chain(&target.gate_scenarios) {
                let entry = catalog.scenario(scenario).unwrap();
                if let Some(dataset) = &entry.scenario.workload.dataset {
                    catalog.dataset(dataset).unwrap();
                }
            }
            for model in &target.models {
                catalog.model(&model.id).unwrap_or_else(|error| panic!("{id}: {error}"));
            }
        }
    }

    #[test]
    fn latencies_gate_on_every_target() {
        let catalog = catalog();
        assert!(catalog.policy("release").is_ok());
        for (id, target) in catalog.targets().unwrap() {
            assert!(!target.gate_scenarios.is_empty(), "`{id}` has no rungs");
            for scenario in &target.gate_scenarios {
                let arrival = catalog.scenario(scenario).unwrap().scenario.arrival;
                assert!(matches!(arrival, Arrival::Closed { .. }), "`{scenario}` of `{id}`");
            }
        }
    }

    #[test]
    fn an_unknown_id_lists_the_known_ones() {
        let error = catalog().model("../../etc/passwd").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("known are ") && text.contains("smollm2"), "{text}");
        assert_eq!(error.exit(), Exit::Unsound);
    }
}
