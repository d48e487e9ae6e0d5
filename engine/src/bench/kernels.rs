//! Measures matrix multiplication and attention of the CPU by themselves, in the shapes of a model,
//! compared with the limits of the machine.

use std::fmt;

use serde::Serialize;

use super::cases::{Case, Matmul, Step};
use super::setup::Setup;
use super::{Limits, median_seconds};
use engine_core::clock::Clock;
use engine_core::{DeviceError, KvType};
use engine_cpu::{Cpu, Isa};
use engine_model::{MatrixShape, ModelInfo};

/// Numbers of rows with which matrix multiplications are measured, one after the other: that of a
/// large decoding batch, and that of a prefill chunk.
const MATMUL_ROWS: [usize; 2] = [64, 512];
/// Number of positions over which attention is measured; where the model's longest sequence has
/// fewer, attention is measured over those.
const CONTEXT: usize = 8000;
/// Number of rows of the prefill chunk whose attention is measured.
const CHUNK_ROWS: usize = 512;
/// Memory in bytes that the layers of a measured case may fill together with weights, or with keys
/// and values; a case with one larger layer exceeds it.
const LAYERS_BYTES: usize = 128 << 20;

/// Measurement of multiplying rows of activations with the largest matrix of a layer.
#[derive(Debug, Serialize)]
pub(super) struct MatmulFigures {
    rows: usize,
    n: usize,
    k: usize,
    weight_dtype: &'static str,
    dtype: &'static str,
    ops_per_s: f64,
    /// Measured operations per second as a share of the machine's limit for arithmetic in `dtype`,
    /// 0 to 1.
    limit_share: f64,
}

/// Measurement of attention for the last `rows` of the `context` positions of one sequence.
#[derive(Debug, Serialize)]
pub(super) struct AttentionFigures {
    rows: usize,
    context: usize,
    /// Rate of reading keys and values in bytes per second, counted as if each was read once per
    /// layer.
    kv_bytes_per_s: f64,
    flops_per_s: f64,
    /// Share that attention reaches of a limit of the machine, 0 to 1: the larger one of its shares
    /// of memory bandwidth and of arithmetic.
    limit_share: f64,
    /// Name of the limit to which `limit_share` belongs: `read_bytes_per_s`,
    /// `bf16_flops_per_s` or `f32_flops_per_s`.
    limit: &'static str,
}

/// Settings with which CPU kernels are measured: instruction set, number of threads, time source,
/// and the machine's limits.
pub(super) struct Kernels<'a> {
    pub isa: Isa,
    pub threads: usize,
    pub clock: Clock,
    pub limits: &'a Limits,
}

impl Kernels<'_> {
    /// Creates the device on which a case is created, with `memory` bytes for the case's layers.
    fn setup(&self, memory: usize) -> Setup<Cpu> {
        Setup::new(Cpu::new(self.isa, self.threads), memory)
    }

    /// Returns the median time in seconds of one call of the case.
    fn seconds(&self, mut case: Case) -> Result<f64, DeviceError> {
        let calls = || (0..case.layers).try_for_each(|_| (case.run)());
        Ok(median_seconds(self.clock, calls)? / case.layers as f64)
    }

    /// Measures the largest matrix multiplication of a layer, for a decoding batch and for a
    /// prefill chunk.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub(super) fn matmuls(&self, info: &ModelInfo) -> Result<Vec<MatmulFigures>, DeviceError> {
        let MatrixShape { n, k, weight_type } = info.largest_matrix;
        let figures = |t: usize| {
            let matmul = Matmul { t, k, n, weight_type };
            let case = self.setup(LAYERS_BYTES).matmul("matmul", matmul, true)?;
            let (dtype, flops) = (case.compute_dtype, case.flops as f64);
            let ops_per_s = flops / self.seconds(case)?;
            let limit_share = ops_per_s / self.limits.ops_per_s(dtype);
            let weight_dtype = weight_type.name();
            Ok(MatmulFigures { rows: t, n, k, weight_dtype, dtype, ops_per_s, limit_share })
        };
        MATMUL_ROWS.into_iter().map(figures).collect()
    }

    /// Measures attention of one decoding row, and of a prompt's last chunk, over a long context.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub(super) fn attention(&self, info: &ModelInfo) -> Result<Vec<AttentionFigures>, DeviceError> {
        let positions = CONTEXT.min(info.max_seq_len);
        let figures = |(rows, memory)| {
            let step = Step { sequences: 1, rows, context: positions - rows };
            let layer = ("", info.attention, None);
            let case = self.setup(memory).attention(layer, info.kv_type, step)?;
            let kv_bytes = positions * step.kv_shape(info.attention, info.kv_type).token_bytes();
            let flops = case.flops as f64;
            let seconds = self.seconds(case)?;
            let (kv_bytes_per_s, flops_per_s) = (kv_bytes as f64 / seconds, flops / seconds);
            let read = kv_bytes_per_s / self.limits.read_bytes_per_s;
            // A cache in f16 is widened to f32.
            let (dtype, limit) = match info.kv_type {
                KvType::Bf16 => ("bf16", "bf16_flops_per_s"),
                _ => ("f32", "f32_flops_per_s"),
            };
            let computed = flops_per_s / self.limits.ops_per_s(dtype);
            let (limit_share, limit) =
                if read > computed { (read, "read_bytes_per_s") } else { (computed, limit) };
            let context = positions;
            Ok(AttentionFigures { rows, context, kv_bytes_per_s, flops_per_s, limit_share, limit })
        };
        // A chunk reads the keys and values of a layer many times, so one layer takes long enough.
        [(1, LAYERS_BYTES), (CHUNK_ROWS.min(positions), 0)].into_iter().map(figures).collect()
    }
}

impl fmt::Display for MatmulFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, n, k, weight_dtype, dtype, ops_per_s, limit_share } = self;
        let (rate, share) = (ops_per_s / 1e9, limit_share * 100.0);
        write!(
            f,
            "product {rows:>4} rows by {n} x {k} {weight_dtype} {rate:>6.0} Gop/s {share:>4.0} % of the {dtype} limit"
        )
    }
}

impl fmt::Display for AttentionFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, context, kv_bytes_per_s, flops_per_s, limit_share, limit } = self;
        // `read`, `bf16` or `f32`.
        let limit = limit.split('_').next().unwrap_or_default();
        let (read, computed) = (kv_bytes_per_s / 1e9, flops_per_s / 1e9);
        write!(
            f,
            "attention {rows:>4} rows over {context} tokens {read:>6.1} GB/s {computed:>5.0} Gflop/s {:>4.0} % of the {limit} limit",
            limit_share * 100.0
        )
    }
}
