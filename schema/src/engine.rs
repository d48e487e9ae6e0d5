//! An engine file: how an OpenAI-compatible server is started, asked and read.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `suite/engines/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineFile {
    pub title: String,
    pub launch: Launch,
    pub ready: Ready,
    pub info: Info,
    pub cache: Cache,
    pub request: Request,
    /// What the suite reads from `/metrics`, by the suite's name for it.
    pub metrics: BTreeMap<String, String>,
    /// Figures that a program of the engine measures by itself, without a server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, FigureTool>,
    /// Where the engine comes from, if it is one that Redline fetches and builds to stand beside
    /// its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// The command line. `{binary}`, `{model}`, `{tp}`, `{port}` are filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Flags that set the number of threads, with `{threads}` for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<String>,
    /// Flags that ready it for as many requests as a scenario sends at once, where it is not ready
    /// for them by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load: Vec<String>,
    /// Flags that have it make up weights of the model's shape; none where it cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub random_weights: Vec<String>,
    /// How long a start may take before it is called a hang.
    pub timeout_s: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// Route that answers 200 once the server can serve.
    pub route: String,
}

/// How version and effective configuration are learnt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Info {
    pub dialect: InfoDialect,
    pub route: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InfoDialect {
    /// `/server_info` as Redline's contract has it.
    Redline,
    /// `/props` of `llama-server`.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
}

/// How the prefix cache is emptied and its hits are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// `POST` route that empties the prefix cache; none means a fresh launch is the only way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_route: Option<String>,
    /// What stands in the server's log before the size of its KV cache in MiB, for an engine that
    /// writes all of it at the start and does not count the pages that it has touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_log: Option<String>,
}

/// A program that prints a figure: as JSON, one document or one a line, or in plain words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FigureTool {
    /// `{binary}`, `{binaries}` (the folder that it lies in), `{model}`, `{threads}`, and for a
    /// perplexity `{text}`, are filled in.
    pub argv: Vec<String>,
    /// JSON pointer (RFC 6901) to a number, or to a list of repeats, in each document. The median
    /// of all counts. Exactly one of `pointer` and `after` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// What stands before the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A source distribution that is built with CMake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// `name==version`; its file is fetched, and no code of it runs before the build.
    pub sdist: String,
    /// Name of that file.
    pub file: String,
    pub sha256: String,
    pub licence: String,
    /// Folder inside it that CMake configures.
    pub folder: String,
    /// CMake's settings.
    pub cmake: Vec<String>,
    /// Programs to build, the server first.
    pub programs: Vec<String>,
}

/// What a request may carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub route: String,
    /// Prompts go as token ids, else as text.
    pub token_ids: bool,
    pub ignore_eos: bool,
    /// Output ids can be asked for with `return_token_ids`.
    pub return_token_ids: bool,
    /// A running count can be asked for with `stream_options.continuous_usage_stats`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usage_per_chunk: bool,
}

/// Reads an engine file.
///
/// # Errors
/// The text is not TOML of this shape.
pub fn parse(text: &str) -> Result<EngineFile, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
}
