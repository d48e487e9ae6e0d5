//! Check of a server's outputs: greedy tokens for fixed prompts, their reference, and perplexity.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Check of the server's outputs: greedy tokens for fixed prompts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Correctness {
    /// Number of fixed prompts in the output check.
    pub prompts: Option<u64>,
    /// SHA-256 of all output token ids, lower-case hex; equal for the same binary, instruction set
    /// and data type. Null where an answer has no tokens.
    pub tokens_sha256: Option<String>,
    /// Source of the output token ids; left out where there is no hash of them, and in older
    /// records, where they are the engine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids_source: Option<IdsSource>,
    /// Name of the reference whose outputs `agreement` compares with; null where nothing was
    /// compared.
    pub reference: Option<String>,
    /// Share of the reference's output tokens that the server also chooses after the same tokens
    /// before them (teacher forcing), from 0 to 1; null where nothing was compared. `reference` names
    /// an engine and its release, not the model: outputs of another model, whose token ids mean other
    /// text, agree in nothing, and the share is 0.
    pub agreement: Option<f64>,
    /// Prompts and output token ids of the check, in order; left out where the engine does not
    /// report them, and in older records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<FixedOutput>,
    /// Perplexity of a fixed English text, `exp` of the mean negative log-probability of its tokens
    /// after the first. It compares only with that of the same tokenizer. Left out where the engine
    /// does not offer the log-probabilities of prompts, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
}

/// Token ids of a fixed prompt, and those of the greedy output for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FixedOutput {
    /// Token ids of the fixed prompt.
    pub prompt: Vec<u32>,
    /// Token ids that greedy decoding gives after the fixed prompt.
    pub output: Vec<u32>,
}

/// Greedy outputs to compare a server's outputs with: those of a reference program, or of an earlier
/// run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceOutputs {
    /// Text that names the origin of the reference outputs, such as engine and release, or a
    /// program with its build and the model's weights.
    pub reference: String,
    /// Prompts with the outputs to expect.
    pub cases: Vec<ReferenceCase>,
}

/// Token ids of one prompt, and the token ids that greedy decoding gives for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceCase {
    /// Token ids of the reference's prompt.
    pub prompt: Vec<u32>,
    /// Token ids that the reference gives after the prompt.
    pub greedy: Vec<u32>,
}

/// Source of the output token ids behind a digest. Digests from different sources are not
/// comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IdsSource {
    /// Given: the output token ids are those that the engine reported.
    Given,
    /// Retokenized: the suite's own tokenizer makes the ids of the answers' text; different ids for
    /// the same text go unnoticed.
    Retokenized,
}
