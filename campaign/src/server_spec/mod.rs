//! Server specification, which all stages of a campaign pass on: which engine in which release and
//! configuration is started from which program, and which model and scenario it serves. Plain data:
//! it starts nothing. The submodules build its command line, as a process or in a container.

mod command_line;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::path::{Path, PathBuf};

use schema::run::EngineFacts;
use schema::target::Accelerator;
use serde::{Deserialize, Serialize};

use crate::build::venv::{FINISHED, OUTSIDE};
use crate::catalog::{Engine, ScenarioEntry};
use crate::files::size;
use crate::inputs::Obtained;
use crate::plan::{Cell, Variant};
pub use command_line::{
    CommandLine, Container, Filling, Runtime, ServerSettings, command_line, container_env,
    container_line, container_name, image_name, image_of, recorded_line,
};

/// Server specification of one variant: its engine, and the program or image that was built or
/// found for its release, with its flags.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerSpec {
    pub engine: Engine,
    pub built: BuiltVariant,
}

impl ServerSpec {
    /// Returns a copy of the specification with `variant` as its variant; engine, program and image
    /// stay.
    pub fn with_variant(&self, variant: Variant) -> Self {
        Self { built: BuiltVariant { variant, ..self.built.clone() }, ..self.clone() }
    }

    /// Returns the path of the server's program, or its name on the PATH.
    pub fn binary(&self) -> &Path {
        self.built.binary.as_deref().unwrap_or(Path::new(&self.engine.id))
    }

    /// Returns the values of the command line that starts the server for `model` on `port` of this
    /// machine, with the flags of the variant.
    pub fn filling<'a>(&'a self, model: &'a str, port: u16) -> Filling<'a> {
        Filling {
            flags: &self.built.variant.flags,
            ..Filling::measured(&self.engine.id, self.binary(), model, port)
        }
    }
}

/// A variant with the program or image that was built or found for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuiltVariant {
    #[serde(rename = "side")]
    pub variant: Variant,
    pub facts: EngineFacts,
    /// Path of the server's program; `None` for a server that is already running or runs in a
    /// container, and for a program named like its engine on the `PATH`.
    pub binary: Option<PathBuf>,
    /// Version that the server must report; `None` if the reported version is not compared.
    pub version: Option<String>,
    /// Container image that the server runs in; `None` for a server that runs as a process.
    pub image: Option<Contained>,
    /// Folder of the virtual environment that has the server's programs and packages; `None` for a
    /// server of another kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub venv: Option<PathBuf>,
}

impl BuiltVariant {
    /// Returns the built variant whose server is a program on this machine.
    pub fn program(
        variant: Variant,
        facts: EngineFacts,
        binary: PathBuf,
        version: Option<String>,
    ) -> Self {
        Self { variant, facts, binary: Some(binary), version, image: None, venv: None }
    }

    /// Returns the environment variables that the server's process gets beside this program's own:
    /// `env`, and those by which it finds programs and packages of its virtual environment before
    /// those of `search_path`, the folders of the `PATH`.
    pub fn process_env(
        &self,
        env: &BTreeMap<String, String>,
        search_path: &[PathBuf],
    ) -> BTreeMap<String, String> {
        let mut all = env.clone();
        if let Some(venv) = &self.venv {
            let programs = venv.join("bin");
            let folders = iter::once(&programs).chain(search_path);
            let folders: Vec<_> = folders.map(|folder| folder.to_string_lossy()).collect();
            all.insert("PATH".to_owned(), folders.join(":"));
            // Python ignores both where they are empty.
            for name in OUTSIDE {
                all.insert(name.to_owned(), String::new());
            }
        }
        all
    }
}

/// A container image and the runtime that runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contained {
    pub runtime: Runtime,
    pub image: String,
    /// File to which Enroot has imported the image; `None` for other runtimes, which know it by its
    /// name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Platform of the GPUs that the image is built for, by which a container gets the machine's.
    #[serde(default, skip_serializing_if = "Accelerator::is_default")]
    pub accelerator: Accelerator,
}

/// A cell of a campaign with its fetched inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadyCell {
    pub cell: Cell,
    pub scenario: ScenarioEntry,
    pub model: Obtained,
    /// Dataset with the conversations for the prompts; `None` for a scenario that generates its
    /// prompts.
    pub dataset: Option<Obtained>,
    /// Path of the file with the tokenizer; the model file itself if it embeds one.
    pub tokenizer: PathBuf,
    /// Path of the workload manifest, which was sampled before the run; `None` if the load
    /// generator samples the requests in the run.
    pub plan: Option<PathBuf>,
}

impl ReadyCell {
    /// Lists the existing files and folders that the cell's runs with `variants` read, each with
    /// its current size in bytes; a folder has size 0.
    pub fn inputs(&self, variants: &[ServerSpec]) -> Vec<(PathBuf, u64)> {
        let mut paths = vec![&self.scenario.path, &self.model.path, &self.tokenizer];
        paths.extend(self.dataset.as_ref().map(|dataset| &dataset.path));
        paths.extend(self.plan.as_ref());
        let venvs = variants.iter().filter_map(|variant| variant.built.venv.as_ref());
        let finished: Vec<PathBuf> = venvs.map(|venv| venv.join(FINISHED)).collect();
        paths.extend(&finished);
        for variant in variants {
            paths.push(&variant.engine.path);
            paths.extend(variant.built.binary.as_ref().filter(|path| path.is_absolute()));
        }
        let sized = paths.into_iter().filter_map(|path| Some((path.clone(), size(path)?)));
        sized.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Returns true if two versions are equal after a leading `v`, and a local build tag that follows a
/// `+`, are removed from each.
pub fn is_same(found: &str, wanted: &str) -> bool {
    let public = |version: &str| version.split('+').next().map(str::to_owned);
    public(found.trim_start_matches('v')) == public(wanted.trim_start_matches('v'))
}
