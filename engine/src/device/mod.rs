//! What a model computes on: a small vocabulary of fused operations over device memory.
//!
//! A device knows no architecture, no file and no request. Shape letters: T tokens of a step,
//! H heads, D head size, N output columns, K contraction.

pub mod cpu;
pub mod cuda;

use std::fmt;

use crate::model::{StepBatch, StepError};
use crate::weights::WeightType;

/// A stored matrix `[N, K]` on its way to the device.
#[derive(Debug)]
pub struct HostMatrix<'a> {
    pub weight_type: WeightType,
    pub n: usize,
    pub k: usize,
    /// `n` rows of whole blocks.
    pub bytes: &'a [u8],
    pub order: RowOrder,
}

impl HostMatrix<'_> {
    /// The stored row of output column `n`.
    pub fn row(&self, n: usize) -> &[u8] {
        let row_bytes = self.weight_type.row_bytes(self.k);
        &self.bytes[self.order.stored_row(n) * row_bytes..][..row_bytes]
    }
}

/// Which stored row becomes which output column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    AsStored,
    /// Rows of each head alternate between the halves that rotary embeddings pair up, as GGUF files
    /// of the Llama family store queries and keys. The device wants half after half.
    RopePairs {
        head_dim: usize,
    },
}

impl RowOrder {
    /// The stored row of output column `n`.
    pub fn stored_row(self, n: usize) -> usize {
        match self {
            Self::AsStored => n,
            Self::RopePairs { head_dim } => {
                let (head, i) = (n / head_dim, n % head_dim);
                let (half, pair) = (i / (head_dim / 2), i % (head_dim / 2));
                head * head_dim + 2 * pair + half
            }
        }
    }
}

/// Heads of an attention layer. `qkv` buffers hold H query heads, then the key heads, then the
/// value heads, D elements each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor of the scores, `1 / sqrt(D)` for most.
    pub scale: f32,
}

impl AttentionShape {
    /// Columns of a `qkv` buffer.
    pub fn qkv_cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Type in which keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
}

impl KvType {
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// Shape of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub pages: usize,
    pub page_tokens: usize,
    pub kv_type: KvType,
}

/// A place to compute. Buffers are `[rows, cols]` of activations; operations on one device happen
/// in the order of their calls.
///
/// Every operation fails only if the device itself fails; shapes that do not fit are bugs of the
/// model and panic.
pub trait Device: Send + fmt::Debug {
    /// Activations.
    type Buffer: Send + fmt::Debug;
    /// Weights `[N, K]`, packed for [`Device::matmul`].
    type Matrix: Send + fmt::Debug;
    /// Weights `[N]`.
    type Vector: Send + fmt::Debug;
    /// Pages of keys and values of all layers.
    type Kv: Send + fmt::Debug;
    /// Positions and page tables of one step.
    type Plan: Send + fmt::Debug;

    /// A buffer of `cols` columns and, until it is resized, no rows.
    fn buffer(&mut self, cols: usize) -> Result<Self::Buffer, StepError>;

    /// Gives `x` exactly `rows` rows, of unspecified content.
    fn resize(&mut self, x: &mut Self::Buffer, rows: usize) -> Result<(), StepError>;

    /// Sets the content of `x`, whole rows in row major order.
    fn write(&mut self, x: &mut Self::Buffer, values: &[f32]) -> Result<(), StepError>;

    /// The matrices in `parts` under one another: their outputs stand side by side.
    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Self::Matrix, StepError>;

    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, StepError>;

    /// A cache whose memory is reserved, and touched only as pages fill.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, StepError>;

    /// Prepares a step: checks its page tables against `kv` and computes the rotations of its
    /// positions, `inverse_frequencies` being `[rotated dimensions / 2]`.
    fn plan(
        &mut self,
        batch: &StepBatch,
        kv: &Self::Kv,
        inverse_frequencies: &[f32],
    ) -> Result<Self::Plan, StepError>;

    /// `out[t] = table[ids[t]]`.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        ids: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// `out[i] = x[rows[i]]`.
    fn gather(
        &mut self,
        x: &Self::Buffer,
        rows: &[usize],
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`, a row at a time.
    fn rms_norm(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// `x += delta`, then [`Device::rms_norm`] of `x`.
    fn add_rms_norm(
        &mut self,
        x: &mut Self::Buffer,
        delta: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// `out = x * w^T`: `[T, K]` by `[N, K]` gives `[T, N]`.
    fn matmul(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// Rotates the query and key heads of `qkv` to their positions, and writes keys and values to
    /// the pages of `layer`.
    fn rope_and_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        shape: &AttentionShape,
        layer: usize,
        plan: &Self::Plan,
        kv: &mut Self::Kv,
    ) -> Result<(), StepError>;

    /// Causal attention of the query heads of `qkv` over the pages of `layer`, into `[T, H * D]`.
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        shape: &AttentionShape,
        layer: usize,
        plan: &Self::Plan,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// `out = silu(gate) * up` where `gate_up` is `[T, 2 * cols]`, gate first.
    fn silu_mul(&mut self, gate_up: &Self::Buffer, out: &mut Self::Buffer)
    -> Result<(), StepError>;

    /// Waits for all operations so far and shows the content of `x`, row major, in f32.
    fn read<'a>(&mut self, x: &'a mut Self::Buffer) -> Result<&'a [f32], StepError>;
}
