//! A workload manifest: every request of a run, fixed before the run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::{CanonicalError, sha256_of};
use crate::run::PromptForm;

/// All requests of a scenario with one tokenizer and seed. Its hash must come out the same on
/// every machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Always `manifest.v1`.
    pub schema: String,
    /// `id@rev`.
    pub scenario: String,
    /// That it was drawn with.
    pub seed: u64,
    /// How prompts go over the wire.
    pub prompt_form: PromptForm,
    /// None where the pack makes its own prompts.
    pub dataset_sha256: Option<String>,
    /// Of the tokenizer that it was drawn with.
    pub tokenizer_sha256: String,
    /// In the order in which they are sent.
    pub requests: Vec<ManifestRequest>,
}

/// One request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestRequest {
    /// Scheduled send, from the start of the run; of a request that has one before it, from that
    /// one's end.
    pub send_us: u64,
    /// Position of the request whose end this one waits for: the turn before of its conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Prompt ids; of a text prompt, the ids that the suite's own tokenizer gives.
    pub prompt: Vec<u32>,
    /// Prompt text, where the form is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Length that is asked for.
    pub output_tokens: u64,
}

impl Manifest {
    /// SHA-256 over the canonical JSON of the manifest.
    ///
    /// # Errors
    /// Never in practice: every field has a JSON form.
    pub fn sha256(&self) -> Result<String, CanonicalError> {
        sha256_of(self)
    }

    /// Sum of prompt lengths in tokens.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.prompt.len() as u64).sum()
    }

    /// Sum of requested output lengths in tokens.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.output_tokens).sum()
    }
}
