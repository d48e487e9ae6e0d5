//! Model and data set files: where an input comes from, and the hash that it must have.

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `suite/models/<id>.toml`. The id is the file's stem. Either `sources` and `sha256` are given, or
/// one source that is a name on the hub, or `config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Tried in order; the first that can be had is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<InputSource>,
    /// SHA-256 of the file that is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// What the `config.json` of a published model says of its shape: random weights of that shape
    /// are served, so that speed can be measured where the checkpoint cannot be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    /// Tokens of the longest sequence that it was made for, where `config` does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Of the weights, for whoever reads this file: no program acts on it.
    pub licence: String,
    /// `embedded`, or a file stem under `suite/datasets/`.
    pub tokenizer: String,
}

/// Where a model's weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights<'a> {
    /// A file of that SHA-256.
    File {
        /// Tried in order.
        sources: &'a [InputSource],
        /// Of the file.
        sha256: &'a str,
    },
    /// What the hub has under that name, in its newest revision that the local cache holds.
    Hub {
        /// Its name there.
        id: &'a str,
    },
    /// The engine makes them up, for a model of this `config.json`.
    Random {
        /// What `config.json` says.
        config: &'a Map<String, Value>,
    },
}

impl ModelFile {
    /// Tokens of the longest sequence that it was made for; none where the file does not say.
    #[must_use]
    pub fn context_tokens(&self) -> Option<u64> {
        let of_config = || self.config.as_ref()?.get("max_position_embeddings")?.as_u64();
        self.context_tokens.or_else(of_config)
    }

    /// Where the weights come from; none where the file says neither or both.
    #[must_use]
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

/// `suite/datasets/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatasetFile {
    /// Tried in order; the first that can be had is used.
    pub sources: Vec<InputSource>,
    /// SHA-256 of the file as it comes from its package.
    pub sha256: String,
    /// Of the data, for whoever reads this file: no program acts on it.
    pub licence: String,
    /// What must be mended before the file can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

/// One way to come by an input. Exactly one of `pip`, `sdist`, `npm` and `hub` is
/// given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputSource {
    /// `name==version`, by `pip download --no-deps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pip: Option<String>,
    /// `name==version`, the file of a source distribution from the index that pip would use. No
    /// code of it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sdist: Option<String>,
    /// `name@version`, by `npm pack --ignore-scripts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub npm: Option<String>,
    /// Hub id, looked up in the local Hugging Face cache only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<String>,
    /// Path inside the package or snapshot; of a source distribution, the name of its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Path inside that file of a source distribution, where not all of it is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
}

/// How a file that was published broken is mended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repair {
    /// What is done.
    pub method: RepairMethod,
    /// SHA-256 of the mended file.
    pub sha256: String,
}

/// What is broken, and what is done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RepairMethod {
    /// The JSON array was cut in mid-string: it is closed after its last whole object.
    CloseJsonArray,
}

/// Reads a model file.
///
/// # Errors
/// The text is not TOML of this shape, or does not say where the weights come from.
pub fn parse_model(text: &str) -> Result<ModelFile, Box<toml::de::Error>> {
    let file: ModelFile = toml::from_str(text)?;
    if file.weights().is_none() {
        let message = "either `sources` and `sha256` are needed, or the name of a model on the hub, or `config`";
        return Err(Box::new(toml::de::Error::custom(message)));
    }
    Ok(file)
}

/// Reads a data set file.
///
/// # Errors
/// The text is not TOML of this shape.
pub fn parse_dataset(text: &str) -> Result<DatasetFile, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
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
}
