//! `kernel.v1`: record of micro-benchmarks of single operations, such as matmul and attention, and
//! of a whole model's speed compared with limits of the machine.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{EngineFacts, HardwareFacts, Time};

/// Schema name of a kernel record.
pub const SCHEMA: &str = "kernel.v1";

/// Record of the kernel benchmarks of one engine build on a machine: those that `cargo xtask
/// kernels` ran, or those in the outputs of a GPU validation's stages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelRecord {
    /// Name of this schema, always `kernel.v1`.
    pub schema: String,
    /// ULID of the kernel record; for a GPU validation, that of its campaign.
    pub id: String,
    /// SHA-256 of the record's canonical JSON without this field, lower-case hex.
    pub record_sha256: String,
    /// Engine (release, commit, build) whose kernels were measured.
    pub engine: EngineFacts,
    /// Machine that the benchmarks ran on.
    pub hardware: HardwareFacts,
    /// Start, end and duration of the benchmarks.
    pub time: Time,
    /// Benchmark results, one for each operation, shape, data type and instruction set.
    pub benches: Vec<KernelBench>,
    /// Speed of a whole model with the same engine build, compared with hardware limits measured on
    /// the same machine; left out where no model was benchmarked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_bench: Option<ModelBench>,
    /// Speeds of further models, or of the same model on other devices or numbers of threads, in the
    /// order in which they were measured; left out where there are none, and in older records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_model_benches: Vec<ModelBench>,
    /// Reason for each null field, by its dotted path, in records of suites before v0.11; left out
    /// since.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
}

impl KernelRecord {
    /// Returns the speeds of all models that were benchmarked, in the order in which they were
    /// measured.
    pub fn model_benches(&self) -> impl Iterator<Item = &ModelBench> {
        self.model_bench.iter().chain(&self.further_model_benches)
    }
}

/// Output of `redline bench MODEL --json`: speed of a model's steps and of its largest kernels,
/// each compared with a hardware limit that the same process measured. Weights and KV cache are
/// read from memory, as in a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelBench {
    /// Model that was benchmarked: its id in a kernel record, and its name as the engine finds it
    /// in the output of `redline bench`.
    pub model: String,
    /// Device that computed, as the engine names it.
    pub device: String,
    /// Number of threads that computed in the benchmark; left out for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u64>,
    /// Data type in which matrices are multiplied.
    pub dtype: String,
    /// Speed of prefill (prompt processing), one entry for each prompt length.
    pub prefill: Vec<PrefillBench>,
    /// Speed of decode steps (one token per sequence), one entry for each batch and context.
    pub decode: Vec<DecodeBench>,
    /// Speed of multiplying by the largest matrix of the model's layers, one entry for each number
    /// of rows.
    #[serde(default)]
    pub products: Vec<ProductBench>,
    /// Speed of the model's attention, one entry for each benchmarked shape.
    #[serde(default)]
    pub attention: Vec<AttentionBench>,
    /// Hardware limits that the machine reached in the same process.
    pub limits: BenchLimits,
}

/// Prefill benchmark: processing of one prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefillBench {
    /// Length of the prompt, in tokens.
    pub tokens: u64,
    /// Prompt tokens per second, median over repeats.
    pub tokens_per_s: f64,
    /// Fraction of the machine's arithmetic limit that the prefill reached, from 0 to 1, counting
    /// only multiplications by the layers' matrices.
    pub limit_share: f64,
}

/// Decode benchmark: one token for each of `batch` sequences with `context` earlier tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecodeBench {
    /// Number of sequences in the step.
    pub batch: u64,
    /// Number of earlier tokens in each sequence.
    pub context: u64,
    /// Output tokens per second of all sequences together, median over repeats.
    pub tokens_per_s: f64,
    /// Fraction of the machine's memory bandwidth limit that the decode steps reached, counted as
    /// if each read the weights and the KV cache once; left out where the size of the weights is
    /// not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_share: Option<f64>,
}

/// Matmul benchmark: `rows` times a matrix of `n` by `k` that is stored as `weight_dtype`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProductBench {
    /// Number of rows of the left matrix.
    pub rows: u64,
    /// Number of output columns of the matmul.
    pub n: u64,
    /// Length of the contraction (inner dimension).
    pub k: u64,
    /// Data type in which the weight matrix is stored.
    pub weight_dtype: String,
    /// Data type in which the matmul is computed.
    pub dtype: String,
    /// Operations per second; a multiply and an add are two operations.
    pub ops_per_s: f64,
    /// Fraction of the machine's arithmetic limit in `dtype` that the matmul reached.
    pub limit_share: f64,
}

/// Attention benchmark: `rows` query tokens of one sequence, which are the last of its `context`
/// positions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttentionBench {
    /// Number of query tokens in the attention benchmark.
    pub rows: u64,
    /// Number of positions of the sequence; each query attends to the positions up to its own.
    pub context: u64,
    /// Number of bytes of keys and values read per second, counted as if a call read each of them
    /// once.
    pub kv_bytes_per_s: f64,
    /// Floating-point operations per second; a multiply and an add are two operations.
    pub flops_per_s: f64,
    /// Fraction of the nearer hardware limit (f32 arithmetic or memory bandwidth) that the
    /// attention reached.
    pub limit_share: f64,
    /// Name of the hardware limit of which `limit_share` is a fraction: `read_bytes_per_s` or
    /// `f32_flops_per_s`.
    pub limit: String,
}

/// Hardware limits: the speed that the machine reached with nothing else running, on as many
/// threads as the benchmarks, or on the GPU of the benchmarks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchLimits {
    /// Limit of 8-bit integer matmul in operations per second; a multiply and an add are two. Left
    /// out for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_ops_per_s: Option<f64>,
    /// Limit of bf16 matmul in FLOP per second; left out where the CPU has no bf16 instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_flops_per_s: Option<f64>,
    /// Limit of f32 matmul in FLOP per second; left out for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f32_flops_per_s: Option<f64>,
    /// Limit of memory reads, in bytes per second.
    pub read_bytes_per_s: f64,
}

/// Kernel benchmark: time of one operation at one shape.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelBench {
    /// Name of the benchmarked operation, such as `matmul_int8`.
    pub op: String,
    /// Shape as letters with sizes, such as `T512_K576_N1536`.
    pub shape: String,
    /// Data type that the benchmark's name states, such as that of the weights or of the KV cache;
    /// a model's name may stand before the data type.
    pub dtype: String,
    /// Instruction set that the kernel was built for, such as `avx512`, `portable` or `sm_90a`.
    pub isa: String,
    /// Device that computes: `cpu` or `cuda`.
    pub device: String,
    /// Median time of one call of the operation, in nanoseconds.
    pub median_ns: f64,
    /// Median absolute deviation of the time of a call of the operation, in nanoseconds.
    pub mad_ns: f64,
    /// Number of timed samples from which the median time of a call is taken.
    pub samples: u64,
    /// Number of bytes that one call of the operation must move, as its shape implies; null where
    /// it is not known.
    pub bytes: Option<u64>,
    /// Number of floating-point operations of one call of the benchmarked operation; null where it
    /// is not known.
    pub flops: Option<u64>,
    /// Fraction of the machine's limit that the benchmarked operation reached; null where the
    /// operation's work, or a limit for it, is not known.
    pub limit_share: Option<f64>,
}
