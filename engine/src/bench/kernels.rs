//! Measures matrix multiplication and attention of the CPU by themselves, in the shapes of a model,
//! compared with the limits of the machine.
//!
//! They run on a device of their own, with random weights and made-up keys and values: of the
//! model, only shapes and stored formats are known.

use std::fmt;

use serde::Serialize;

use super::{Limits, median_seconds};
use crate::config::PAGE_TOKENS;
use engine_core::clock::Clock;
use engine_core::{
    AttentionLayer, Device, DeviceError, HostMatrix, KvShape, LogitRows, Rotation, RowOrder,
    ScheduledSequence, StepBatch,
};
use engine_cpu::{Cpu, Isa};
use engine_model::{MatrixShape, ModelInfo};
use engine_weights::random_tensor;

/// Rows of the multiplications: a large decoding batch, and a prefill chunk.
const PRODUCT_ROWS: [usize; 2] = [64, 512];
/// Context length of attention in positions, if the model allows it.
const CONTEXT: usize = 8000;
/// Rows of a prefill chunk.
const CHUNK_ROWS: usize = 512;
/// Bytes of weights, or of keys and values, over all layers: far larger than any cache, so that
/// they come from memory as in a step.
const LAYERS_BYTES: usize = 128 << 20;
/// Largest number of layers; many small layers would take long to fill.
const LAYERS_MAX: usize = 64;

/// Figures of multiplying rows with the largest matrix of a layer.
#[derive(Debug, Serialize)]
pub(super) struct Product {
    rows: usize,
    n: usize,
    k: usize,
    weight_dtype: &'static str,
    dtype: &'static str,
    ops_per_s: f64,
    /// Measured rate as a share of the machine's limit for arithmetic in `dtype`, 0 to 1.
    limit_share: f64,
}

/// Figures of attention: `rows` rows of one sequence, the last of `context` positions.
#[derive(Debug, Serialize)]
pub(super) struct Attention {
    rows: usize,
    context: usize,
    /// Bytes of keys and values per second, counted as if each was read once per layer.
    kv_bytes_per_s: f64,
    flops_per_s: f64,
    /// Measured rate as a share of the nearer limit, 0 to 1.
    limit_share: f64,
    /// Name of the nearer limit: `read_bytes_per_s` or `f32_flops_per_s`.
    limit: &'static str,
}

/// Measures kernels with one instruction set and number of threads.
pub(super) struct Kernels<'a> {
    pub isa: Isa,
    pub threads: usize,
    pub clock: Clock,
    pub limits: &'a Limits,
}

impl Kernels<'_> {
    /// Measures the largest matrix multiplication of a layer, for a decoding batch and for a
    /// prefill chunk.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn products(&self, info: &ModelInfo) -> Result<Vec<Product>, DeviceError> {
        let MatrixShape { n, k, weight_type } = info.largest_matrix;
        let mut cpu = Cpu::new(self.isa, self.threads);
        let stored = random_tensor(1, "bench", weight_type, &[n, k]).bytes;
        let matrix = |cpu: &mut Cpu| {
            let order = RowOrder::AsStored;
            cpu.matrix(&[HostMatrix { weight_type, n, k, bytes: &stored, order }])
        };
        let layers = (0..layers(stored.len())).map(|_| matrix(&mut cpu));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let dtype = cpu.compute_dtype();
        let (mut stream, mut x, mut out) = (cpu.buffer(k)?, cpu.buffer(k)?, cpu.buffer(n)?);
        let weight = cpu.vector(&vec![1.0; k])?;
        let product = |rows: usize| {
            // A norm comes first as in a step, since it leaves rows in the form that multiplication
            // reads.
            cpu.write(&mut stream, &values(rows * k))?;
            cpu.resize(&mut x, rows)?;
            cpu.rms_norm(&stream, &weight, 0.0, &mut x)?;
            cpu.resize(&mut out, rows)?;
            let seconds = median_seconds(self.clock, || {
                layers.iter().try_for_each(|matrix| cpu.matmul(&x, matrix, &mut out))
            })?;
            let ops_per_s = (2 * rows * n * k * layers.len()) as f64 / seconds;
            let limit_share = ops_per_s / self.limits.ops_per_s(dtype);
            let weight_dtype = weight_type.name();
            Ok(Product { rows, n, k, weight_dtype, dtype, ops_per_s, limit_share })
        };
        PRODUCT_ROWS.into_iter().map(product).collect()
    }

    /// Measures attention of one decoding row, and of a prompt's last chunk, over a long context.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(super) fn attention(&self, info: &ModelInfo) -> Result<Vec<Attention>, DeviceError> {
        let mut sequence = Sequence::fill(Cpu::new(self.isa, self.threads), info)?;
        let chunk = CHUNK_ROWS.min(sequence.context);
        // A chunk reads the keys and values of a layer many times, so one layer takes long enough.
        [(1, sequence.kv_shape.layers), (chunk, 1)]
            .into_iter()
            .map(|(rows, layers)| {
                let Work { kv_bytes, flops } = sequence.work(rows, layers);
                let seconds = sequence.seconds(self.clock, rows, layers)?;
                let (kv_bytes_per_s, flops_per_s) = (kv_bytes / seconds, flops / seconds);
                let read = kv_bytes_per_s / self.limits.read_bytes_per_s;
                let computed = flops_per_s / self.limits.f32_flops_per_s;
                let (limit_share, limit) = if read > computed {
                    (read, "read_bytes_per_s")
                } else {
                    (computed, "f32_flops_per_s")
                };
                let context = sequence.context;
                Ok(Attention { rows, context, kv_bytes_per_s, flops_per_s, limit_share, limit })
            })
            .collect()
    }
}

/// Work of attention: bytes to read, and floating-point operations.
struct Work {
    kv_bytes: f64,
    flops: f64,
}

/// One sequence with keys and values at every position of its context.
struct Sequence<'a> {
    cpu: Cpu,
    info: &'a ModelInfo,
    context: usize,
    kv_shape: KvShape,
    kv: <Cpu as Device>::Kv,
}

impl<'a> Sequence<'a> {
    /// Fills the KV cache with made-up keys and values.
    fn fill(mut cpu: Cpu, info: &'a ModelInfo) -> Result<Self, DeviceError> {
        let context = CONTEXT.min(info.max_seq_len);
        let (kv_heads, head_dim) = (info.attention.kv_heads, info.attention.head_dim);
        let mut kv_shape = KvShape {
            layers: 1,
            kv_heads,
            head_dim,
            pages: context.div_ceil(PAGE_TOKENS),
            page_tokens: PAGE_TOKENS,
            kv_type: info.kv_type,
        };
        kv_shape.layers = layers(kv_shape.token_bytes() * context);
        let kv = cpu.kv(kv_shape)?;
        let mut sequence = Self { cpu, info, context, kv_shape, kv };
        let mut qkv = sequence.cpu.buffer(info.attention.qkv_cols())?;
        for position in (0..context).step_by(CHUNK_ROWS) {
            let rows = CHUNK_ROWS.min(context - position);
            let plan = sequence.plan(position, rows)?;
            let Self { cpu, kv, .. } = &mut sequence;
            for layer in 0..kv_shape.layers {
                cpu.write(&mut qkv, &values(rows * info.attention.qkv_cols()))?;
                let layer = AttentionLayer::new(info.attention, layer);
                cpu.rope_and_cache(&mut qkv, &layer, &plan, kv)?;
            }
        }
        Ok(sequence)
    }

    /// Plans a step of `rows` rows from `position` on, without rotation of heads.
    fn plan(
        &mut self,
        position: usize,
        rows: usize,
    ) -> Result<<Cpu as Device>::StepMetadata, DeviceError> {
        let pages = (0..self.kv_shape.pages as u32).collect();
        let sequence = ScheduledSequence {
            row: 0,
            rows,
            position,
            pages,
            logits: LogitRows::None,
            state: None,
        };
        let batch = StepBatch::known(&vec![0; rows], vec![sequence]);
        let rotation = Rotation { inverse_frequencies: Vec::new(), factor: 1.0 };
        self.cpu.prepare_step(&batch, &self.kv, &rotation)
    }

    /// Work of the last `rows` rows in `layers` layers.
    fn work(&self, rows: usize, layers: usize) -> Work {
        let one_layer = KvShape { layers: 1, ..self.kv_shape };
        // Each row sees one position more than the row before, and the last row sees all.
        let seen = rows * (self.context - rows) + rows * (rows + 1) / 2;
        let shape = &self.info.attention;
        Work {
            kv_bytes: (layers * self.context * one_layer.token_bytes()) as f64,
            flops: (4 * layers * seen * shape.heads * shape.head_dim) as f64,
        }
    }

    /// Median time in seconds of the attention of the last `rows` rows in `layers` layers.
    fn seconds(&mut self, clock: Clock, rows: usize, layers: usize) -> Result<f64, DeviceError> {
        let shape = self.info.attention;
        let plan = self.plan(self.context - rows, rows)?;
        let Self { cpu, kv, .. } = self;
        let (mut qkv, mut out) =
            (cpu.buffer(shape.qkv_cols())?, cpu.buffer(shape.heads * shape.head_dim)?);
        cpu.write(&mut qkv, &values(rows * shape.qkv_cols()))?;
        cpu.resize(&mut out, rows)?;
        median_seconds(clock, || {
            (0..layers).try_for_each(|layer| {
                cpu.attention(&qkv, &AttentionLayer::new(shape, layer), &plan, kv, &mut out)
            })
        })
    }
}

/// Number of layers that together take about [`LAYERS_BYTES`].
fn layers(layer_bytes: usize) -> usize {
    (LAYERS_BYTES / layer_bytes.max(1)).clamp(1, LAYERS_MAX)
}

/// Made-up activations between -1 and 1.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect()
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, n, k, weight_dtype, dtype, ops_per_s, limit_share } = self;
        write!(
            f,
            "product {rows:>4} rows by {n} x {k} {weight_dtype} {:>6.0} Gop/s {:>4.0} % of the {dtype} limit",
            ops_per_s / 1e9,
            limit_share * 100.0
        )
    }
}

impl fmt::Display for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, context, kv_bytes_per_s, flops_per_s, limit_share, limit } = self;
        let limit = if *limit == "read_bytes_per_s" { "read" } else { "f32" };
        write!(
            f,
            "attention {rows:>4} rows over {context} tokens {:>6.1} GB/s {:>5.0} Gflop/s {:>4.0} % of the {limit} limit",
            kv_bytes_per_s / 1e9,
            flops_per_s / 1e9,
            limit_share * 100.0
        )
    }
}
