//! Workload manifest: every request of a run, drawn before the run starts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::{CanonicalError, sha256_of};
use crate::run::PromptForm;

/// Workload manifest: all requests of a scenario for one tokenizer and seed. Every machine draws
/// the same manifest with the same hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Name of this schema, always `manifest.v1`.
    pub schema: String,
    /// Scenario of the manifest, as `id@rev`.
    pub scenario: String,
    /// Seed that the requests were drawn with.
    pub seed: u64,
    /// Form of the prompts on the wire: token ids or text.
    pub prompt_form: PromptForm,
    /// SHA-256 of the dataset file, lower-case hex; null where the sampler needs no dataset.
    pub dataset_sha256: Option<String>,
    /// SHA-256 of the tokenizer that prompts were made with, lower-case hex: of `tokenizer.json`,
    /// or of the tokenizer metadata of a GGUF file; null where prompts were made without one.
    pub tokenizer_sha256: Option<String>,
    /// Measured requests in the order in which the sampler gives them; samples and later turns
    /// refer to them by their index, from 0.
    pub requests: Vec<ManifestRequest>,
}

/// Request of a manifest: prompt, output length and send time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestRequest {
    /// Scheduled send time in microseconds from the start of the run; for a request with `after`,
    /// time to wait from the end of that request, in microseconds. 0 in a closed loop.
    pub send_us: u64,
    /// Index in the manifest, from 0, of the request whose end this request waits for, the previous
    /// turn of its conversation; left out where it waits for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Token ids of the prompt; for a text prompt, the ids from the suite's own tokenizer, and none
    /// where the prompt was made without a tokenizer.
    pub prompt: Vec<u32>,
    /// Text of the prompt; left out where prompts are sent as token ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Number of output tokens that the request asks for.
    pub output_tokens: u64,
}

impl Manifest {
    /// Returns the SHA-256 of the manifest's canonical JSON, lower-case hex.
    ///
    /// # Errors
    /// Never in practice: every field has a JSON form.
    pub fn sha256(&self) -> Result<String, CanonicalError> {
        sha256_of(self)
    }

    /// Returns the total length of all prompts, in tokens; 0 for prompts that were made without a
    /// tokenizer.
    pub fn input_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.prompt.len() as u64).sum()
    }

    /// Returns the total requested output length, in tokens.
    pub fn output_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.output_tokens).sum()
    }
}
