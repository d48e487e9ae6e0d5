//! The suite's catalog: reads scenarios, models, datasets, targets, engines, policies and GPU
//! validations from their TOML files in `suite/`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use schema::canonical::sha256_hex;
use schema::engine::EngineFile;
use schema::gpu_validation::GpuValidation;
use schema::model::{DatasetFile, ModelFile, WeightsFormat};
use schema::policy::PolicyFile;
use schema::scenario::{Scenario, id_of};
use schema::target::{Accelerator, DeviceKind, Target};
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::stop::{Stop, wrong_use};

/// A scenario of the suite, with the id, path and SHA-256 of its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenarioEntry {
    pub id: String,
    pub path: PathBuf,
    pub file_sha256: String,
    pub scenario: Scenario,
}

impl ScenarioEntry {
    /// Returns the name `id@rev`, by which records cite the revision.
    pub fn cited(&self) -> String {
        format!("{}@{}", self.id, self.scenario.rev)
    }
}

/// An engine that the suite has a file for: id, path and content of the file in `suite/engines/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    pub id: String,
    pub path: PathBuf,
    pub file: EngineFile,
}

impl Engine {
    /// Returns the server flags that set the number of threads to `threads`; none if the engine's
    /// file names none.
    pub fn thread_flags(&self, threads: u32) -> Vec<String> {
        let fill = |word: &String| word.replace("{threads}", &threads.to_string());
        self.file.launch.threads.iter().map(fill).collect()
    }

    /// Returns the server flags for a measurement under load: those that set the number of threads
    /// to `threads`, and those that the engine's file lists for load.
    pub fn loaded_flags(&self, threads: u32) -> Vec<String> {
        [self.thread_flags(threads), self.file.launch.load.clone()].concat()
    }

    /// Returns why the engine cannot serve the model `id` on GPUs of the platform `on` or, with
    /// `None`, on a CPU, by the engine's and the model's file; `None` where nothing is known against
    /// it.
    pub fn cannot_serve(
        &self,
        id: &str,
        model: &ModelFile,
        on: Option<Accelerator>,
    ) -> Option<Unservable> {
        let (engine, launch) = (&self.id, &self.file.launch);
        let found = |field, why| Some(Unservable { field, why });
        if model.config.is_some() && launch.random_weights.is_empty() {
            let why = format!("`{id}` has random weights, which engine `{engine}` cannot generate");
            return found("launch.random_weights", why);
        }
        let (device, name) = match on {
            Some(_) => (DeviceKind::Gpu, "GPUs"),
            None => (DeviceKind::Cpu, "CPUs"),
        };
        if !launch.devices.is_empty() && !launch.devices.contains(&device) {
            return found(
                "launch.devices",
                format!("engine `{engine}` does not compute on {name}"),
            );
        }
        let has_rocm = launch.image.as_ref().is_some_and(|image| image.rocm.is_some());
        if on == Some(Accelerator::Rocm) && !has_rocm {
            let why = format!("engine `{engine}` publishes no image for GPUs of AMD");
            return found("launch.image.rocm", why);
        }
        let cpu = self.file.package.as_ref().and_then(|package| package.cpu.as_ref());
        let of_cpu = cpu.map(|cpu| &cpu.weights).filter(|read| on.is_none() && !read.is_empty());
        let (read, field) = match of_cpu {
            Some(read) => (read, "package.cpu.weights"),
            None => (&launch.weights, "launch.weights"),
        };
        let format = model.format().filter(|_| !read.is_empty())?;
        if read.contains(&format) {
            return None;
        }
        let name = match format {
            WeightsFormat::Gguf => "GGUF",
            WeightsFormat::Safetensors => "safetensors",
        };
        let place = if of_cpu.is_some() { " on CPUs" } else { "" };
        found(field, format!("engine `{engine}` does not read {name}{place}, the format of `{id}`"))
    }
}

/// Reason why an engine cannot serve a model on a kind of device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unservable {
    /// Field of the engine's file that says so.
    pub field: &'static str,
    /// Sentence that names engine and model.
    pub why: String,
}

/// Catalog of the folder `suite/`, which has one TOML file per scenario, model, dataset, target,
/// engine, policy, lab and GPU validation.
#[derive(Debug, Clone)]
pub struct Catalog {
    dir: PathBuf,
}

impl Catalog {
    /// Returns the catalog of the folder `suite`, from which nothing is read yet.
    pub fn new(suite: &Path) -> Self {
        Self { dir: suite.to_owned() }
    }

    /// Reads the scenario of the file `stem` from `suite/scenarios/`: its newest revision has the
    /// scenario's id as stem, an older one `id@rev`.
    ///
    /// # Errors
    /// No such scenario, or its file cannot be read or is invalid.
    pub fn scenario(&self, stem: &str) -> Result<ScenarioEntry, Stop> {
        let (path, text) = self.text("scenario", stem)?;
        let scenario = Scenario::parse(&text).map_err(unreadable("scenario", stem))?;
        let file_sha256 = sha256_hex(text.as_bytes());
        Ok(ScenarioEntry { id: id_of(stem).to_owned(), path, file_sha256, scenario })
    }

    /// Reads all revisions of the scenario `id` that the suite has, newest first; there is at least
    /// one.
    ///
    /// # Errors
    /// No such scenario, or a file cannot be read or is invalid.
    pub fn revisions(&self, id: &str) -> Result<Vec<ScenarioEntry>, Stop> {
        let mut revisions = vec![self.scenario(id)?];
        for stem in self.ids("scenario")?.iter().filter(|stem| *stem != id && id_of(stem) == id) {
            revisions.push(self.scenario(stem)?);
        }
        revisions.sort_by_key(|entry| Reverse(entry.scenario.rev));
        Ok(revisions)
    }

    /// Reads the model `id` from `suite/models/`.
    ///
    /// # Errors
    /// No such model, or its file cannot be read or is invalid.
    pub fn model(&self, id: &str) -> Result<ModelFile, Stop> {
        self.parsed("model", id, schema::model::parse_model)
    }

    /// Reads the dataset `id` from `suite/datasets/`.
    ///
    /// # Errors
    /// No such dataset, or its file cannot be read or is invalid.
    pub fn dataset(&self, id: &str) -> Result<DatasetFile, Stop> {
        self.parsed("dataset", id, schema::model::parse_dataset)
    }

    /// Reads the GPU validation `id` from `suite/validations/`.
    ///
    /// # Errors
    /// No such GPU validation, or its file cannot be read or is invalid.
    pub fn validation(&self, id: &str) -> Result<GpuValidation, Stop> {
        self.parsed("validation", id, schema::gpu_validation::parse)
    }

    /// Reads the comparison policy `id` from `suite/policies/`.
    ///
    /// # Errors
    /// No such comparison policy, or its file cannot be read or is invalid.
    pub fn policy(&self, id: &str) -> Result<PolicyFile, Stop> {
        self.parsed("policy", id, schema::policy::parse)
    }

    /// Returns the path of the suite's file of `kind` (such as `"engine"`) named `id`.
    ///
    /// # Errors
    /// No such file, or the file or its folder cannot be read.
    pub fn path(&self, kind: &str, id: &str) -> Result<PathBuf, Stop> {
        self.text(kind, id).map(|(path, _)| path)
    }

    /// Reads the engine `id` from `suite/engines/`; returns the file's path and content.
    ///
    /// # Errors
    /// No such engine, or its file cannot be read or is invalid.
    pub fn engine(&self, id: &str) -> Result<Engine, Stop> {
        let path = self.path("engine", id)?;
        let file = self.parsed("engine", id, schema::engine::parse)?;
        Ok(Engine { id: id.to_owned(), path, file })
    }

    /// Reads every target of `suite/targets/`, by id.
    ///
    /// # Errors
    /// The folder or a target's file cannot be read, or a target's file is invalid.
    pub fn targets(&self) -> Result<BTreeMap<String, Target>, Stop> {
        let read = |id: String| {
            let target = self.parsed("target", &id, schema::target::parse)?;
            Ok((id, target))
        };
        self.ids("target")?.into_iter().map(read).collect()
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

    fn text(&self, kind: &str, id: &str) -> Result<(PathBuf, String), Stop> {
        // An id from the command line becomes a path only if its file is listed, so `../x` cannot
        // escape.
        let known = self.ids(kind)?;
        if !known.iter().any(|other| other == id) {
            return Err(unknown(kind, id, &known));
        }
        let path = self.dir.join(folder(kind)).join(format!("{id}.toml"));
        let text = files::read_text(&path)?;
        Ok((path, text))
    }

    fn parsed<T, E: Display>(
        &self,
        kind: &str,
        id: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Stop> {
        parse(&self.text(kind, id)?.1).map_err(unreadable(kind, id))
    }
}

/// Builds the error of an id that no file of the suite has; `known` are the ids that exist.
pub fn unknown(kind: &str, id: &str, known: &[String]) -> Stop {
    let folder = folder(kind);
    wrong_use!("{kind} `{id}` is unknown; known are {}", known.join(", "))
        .with_hint(format!("{folder} are the files of `suite/{folder}/`"))
}

/// Returns the name of the folder below `suite/` that contains the files of `kind`: the plural of
/// `kind`.
fn folder(kind: &str) -> String {
    // `policy` has the plural `policies`, `engine` the plural `engines`.
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    }
}

fn unreadable<E: Display>(kind: &str, id: &str) -> impl FnOnce(E) -> Stop {
    let what = format!("cannot read {kind} `{id}`");
    move |error| wrong_use!("{what}: {error}")
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
    fn older_revisions_are_named_after_their_number() {
        let catalog = catalog();
        for stem in catalog.ids("scenario").unwrap().iter().filter(|stem| stem.contains('@')) {
            let entry = catalog.scenario(stem).unwrap();
            assert_eq!(entry.cited(), *stem);
            assert!(catalog.scenario(&entry.id).unwrap().scenario.rev > entry.scenario.rev);
        }
        let cited: Vec<String> =
            catalog.revisions("sharegpt").unwrap().iter().map(ScenarioEntry::cited).collect();
        assert_eq!(cited, ["sharegpt@2", "sharegpt@1"]);
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
        assert_eq!(error.exit(), schema::exit::Exit::Unsound);
    }
}
