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
}

/// The command line. `{binary}`, `{model}`, `{tp}`, `{port}` are filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
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
}

/// How the prefix cache is emptied and its hits are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// `POST` route that empties the prefix cache; none means a fresh launch is the only way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_route: Option<String>,
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
}

/// Reads an engine file.
///
/// # Errors
/// The text is not TOML of this shape.
pub fn parse(text: &str) -> Result<EngineFile, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
}
