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
    pub id: String,
    pub record_sha256: String,
    pub engine: EngineFacts,
    pub hardware: HardwareFacts,
    pub time: Time,
    pub benches: Vec<KernelBench>,
    /// A model of the same release beside limits of the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_bench: Option<ModelBench>,
    pub absent: Absent,
}

/// A model's steps and its largest kernels, each beside a limit that the same process measured: what
/// `redline bench MODEL --json` prints. Weights, keys and values come from memory, as they do in a
/// server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelBench {
    pub model: String,
    pub device: String,
    pub threads: u64,
    /// The type that products are computed in.
    pub dtype: String,
    pub prefill: Vec<PrefillBench>,
    pub decode: Vec<DecodeBench>,
    #[serde(default)]
    pub products: Vec<ProductBench>,
    #[serde(default)]
    pub attention: Vec<AttentionBench>,
    pub limits: BenchLimits,
}

/// A prompt of so many tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefillBench {
    pub tokens: u64,
    pub tokens_per_s: f64,
    /// Share of the arithmetic limit.
    pub limit_share: f64,
}

/// One token for each of `batch` sequences, after `context` tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecodeBench {
    pub batch: u64,
    pub context: u64,
    pub tokens_per_s: f64,
    /// Share of the limit of memory; none where it is not known how large the weights are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_share: Option<f64>,
}

/// `rows` by a matrix of `n` by `k` that is stored as `weight_dtype`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProductBench {
    pub rows: u64,
    pub n: u64,
    pub k: u64,
    pub weight_dtype: String,
    pub dtype: String,
    pub ops_per_s: f64,
    /// Share of the arithmetic limit of `dtype`.
    pub limit_share: f64,
}

/// `rows` of one sequence over `context` positions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttentionBench {
    pub rows: u64,
    pub context: u64,
    pub kv_bytes_per_s: f64,
    pub flops_per_s: f64,
    pub limit_share: f64,
    /// Which limit that is a share of.
    pub limit: String,
}

/// What a machine reached when it did nothing else, on as many threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchLimits {
    pub int8_ops_per_s: f64,
    /// None where the processor has no products of bf16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_flops_per_s: Option<f64>,
    pub f32_flops_per_s: f64,
    pub read_bytes_per_s: f64,
}

/// One op at one shape.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelBench {
    pub op: String,
    /// Shape letters with sizes, such as `T512_K576_N1536`.
    pub shape: String,
    pub dtype: String,
    /// Instruction set: `avx512`, `avx2`, `portable`, `sm_90a`.
    pub isa: String,
    pub device: String,
    pub median_ns: f64,
    /// Median absolute deviation.
    pub mad_ns: f64,
    pub samples: u64,
    /// Bytes that one call must move, as the shape implies.
    pub bytes: Option<u64>,
    /// Floating-point operations of one call.
    pub flops: Option<u64>,
    /// Share of the machine's limit for this op.
    pub limit_share: Option<f64>,
}
