//! `kernel.v1`: micro-benchmarks of single ops.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{Absent, EngineFacts, HardwareFacts, Time};

/// The schema name that a kernels record carries.
pub const SCHEMA: &str = "kernel.v1";

/// One run of all op benches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelRecord {
    /// Always `kernel.v1`.
    pub schema: String,
    /// ULID.
    pub id: String,
    /// SHA-256 over the canonical JSON of the record without this field.
    pub record_sha256: String,
    /// What was measured.
    pub engine: EngineFacts,
    /// On which machine.
    pub hardware: HardwareFacts,
    /// When.
    pub time: Time,
    /// One for each op and shape.
    pub benches: Vec<KernelBench>,
    /// A model of the same release beside limits of the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_bench: Option<ModelBench>,
    /// Why each null is one.
    pub absent: Absent,
}

/// A model's steps and its largest kernels, each beside a limit that the same process measured: what
/// `redline bench MODEL --json` prints. Weights, keys and values come from memory, as they do in a
/// server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelBench {
    /// Its id.
    pub model: String,
    /// As the engine names it.
    pub device: String,
    /// That it computed with.
    pub threads: u64,
    /// The type that products are computed in.
    pub dtype: String,
    /// Prompts.
    pub prefill: Vec<PrefillBench>,
    /// Steps of one token a sequence.
    pub decode: Vec<DecodeBench>,
    /// Its largest products of matrices.
    #[serde(default)]
    pub products: Vec<ProductBench>,
    /// Its attention.
    #[serde(default)]
    pub attention: Vec<AttentionBench>,
    /// What the machine reached beside it.
    pub limits: BenchLimits,
}

/// A prompt of so many tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefillBench {
    /// Of the prompt.
    pub tokens: u64,
    /// Median over repeats.
    pub tokens_per_s: f64,
    /// Share of the arithmetic limit.
    pub limit_share: f64,
}

/// One token for each of `batch` sequences, after `context` tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecodeBench {
    /// Sequences.
    pub batch: u64,
    /// Tokens before, of each.
    pub context: u64,
    /// Of all sequences, median over repeats.
    pub tokens_per_s: f64,
    /// Share of the limit of memory; none where it is not known how large the weights are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_share: Option<f64>,
}

/// `rows` by a matrix of `n` by `k` that is stored as `weight_dtype`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProductBench {
    /// Of the left side.
    pub rows: u64,
    /// Output columns.
    pub n: u64,
    /// Contraction.
    pub k: u64,
    /// Type in which the matrix is stored.
    pub weight_dtype: String,
    /// Type that is computed in.
    pub dtype: String,
    /// A multiplication and an addition are two.
    pub ops_per_s: f64,
    /// Share of the arithmetic limit of `dtype`.
    pub limit_share: f64,
}

/// `rows` of one sequence over `context` positions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttentionBench {
    /// Tokens that ask.
    pub rows: u64,
    /// Positions that they look at.
    pub context: u64,
    /// Keys and values that were read.
    pub kv_bytes_per_s: f64,
    /// A multiplication and an addition are two.
    pub flops_per_s: f64,
    /// Of the limit that is nearer.
    pub limit_share: f64,
    /// Which limit that is a share of.
    pub limit: String,
}

/// What a machine reached when it did nothing else, on as many threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchLimits {
    /// Products of 8-bit integers; a multiplication and an addition are two.
    pub int8_ops_per_s: f64,
    /// None where the processor has no products of bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_flops_per_s: Option<f64>,
    /// Products of f32.
    pub f32_flops_per_s: f64,
    /// From memory.
    pub read_bytes_per_s: f64,
}

/// One op at one shape.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelBench {
    /// Its name.
    pub op: String,
    /// Shape letters with sizes, such as `T512_K576_N1536`.
    pub shape: String,
    /// That it computes in.
    pub dtype: String,
    /// Instruction set: `avx512`, `avx2`, `portable`, `sm_90a`.
    pub isa: String,
    /// `cpu`, `cuda`.
    pub device: String,
    /// Of one call.
    pub median_ns: f64,
    /// Median absolute deviation.
    pub mad_ns: f64,
    /// How many.
    pub samples: u64,
    /// Bytes that one call must move, as the shape implies.
    pub bytes: Option<u64>,
    /// Floating-point operations of one call.
    pub flops: Option<u64>,
    /// Share of the machine's limit for this op.
    pub limit_share: Option<f64>,
}
