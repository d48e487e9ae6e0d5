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
    pub absent: Absent,
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
