//! What a model computes on: a small vocabulary of fused operations over device memory.
//!
//! A device knows no architecture, no file and no request. Shape letters: T tokens of a step,
//! H heads, D head size, N output columns, K contraction.

mod batch;
pub mod collective;
pub mod cpu;
pub mod cuda;

use std::fmt;
use std::ops::Range;

use crate::model::{Landed, StepBatch, StepError};
use crate::weights::WeightType;

pub use collective::{Collective, Rank};

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

/// Rows of a stored matrix in bf16 whose numbers nobody stored: they come from a stream, as
/// [`random_tensor`](crate::weights::random_tensor) makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomRows {
    /// Where the stream of the tensor begins.
    pub start: u64,
    /// Numbers of a stored row.
    pub stride: usize,
    /// The stored row that `order` counts from.
    pub row: usize,
    /// The column that comes first.
    pub column: usize,
    pub n: usize,
    pub order: RowOrder,
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
    /// Of twice as many stored rows, every other `head_dim` of them: queries and gates that are
    /// stored head by head.
    HeadPairs {
        head_dim: usize,
        /// Whether the second of each two.
        second: bool,
    },
    /// Two matrices of `half` rows each take turns; the device wants one after the other.
    Interleaved {
        half: usize,
    },
}

impl RowOrder {
    /// Stored rows of a matrix of `n` output columns.
    pub fn stored_rows(self, n: usize) -> usize {
        if matches!(self, Self::HeadPairs { .. }) { 2 * n } else { n }
    }

    /// The stored row of output column `n`.
    pub fn stored_row(self, n: usize) -> usize {
        match self {
            Self::AsStored => n,
            Self::RopePairs { head_dim } => {
                let (head, i) = (n / head_dim, n % head_dim);
                let (half, pair) = (i / (head_dim / 2), i % (head_dim / 2));
                head * head_dim + 2 * pair + half
            }
            Self::HeadPairs { head_dim, second } => {
                (2 * (n / head_dim) + usize::from(second)) * head_dim + n % head_dim
            }
            Self::Interleaved { half } => 2 * (n % half) + n / half,
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

/// An attention layer as its two operations see it; `V` holds vectors on the device.
#[derive(Debug)]
pub struct AttentionLayer<V> {
    pub shape: AttentionShape,
    /// Which of the layers that keep keys and values.
    pub kv_layer: usize,
    /// Positions that a query sees, its own included; all before it where there is no window.
    pub window: Option<usize>,
    pub head_norms: Option<HeadNorms<V>>,
    /// `[H]` scores that take part in the softmax and have no value: a head may look at nothing.
    /// Source: Xiao et al. 2023; OpenAI 2025 (gpt-oss).
    pub sinks: Option<V>,
    /// `[2, KV]` what keys, and then values, of each head are divided by before they are kept in e4m3;
    /// 1 where there are none. Pages of other types keep them as they are.
    pub scales: Option<V>,
}

impl<V> AttentionLayer<V> {
    /// Attention over everything before a query, without norms and sinks.
    pub fn new(shape: AttentionShape, kv_layer: usize) -> Self {
        Self { shape, kv_layer, window: None, head_norms: None, sinks: None, scales: None }
    }

    /// Positions that a query at `position` does not see, from the first.
    pub fn hidden(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// RMS norms over each query head and each key head, before they are turned.
#[derive(Debug)]
pub struct HeadNorms<V> {
    /// `[D]`
    pub query: V,
    /// `[D]`
    pub key: V,
    pub epsilon: f32,
}

/// How positions turn queries and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// `[rotated dimensions / 2]` angles per position.
    pub inverse_frequencies: Vec<f32>,
    /// Factor of every cosine and sine: 1 but for YaRN.
    pub factor: f32,
}

/// How router logits become expert weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Softmax over all experts, then the largest; divided by their sum where `normalized`.
    SoftmaxTop { normalized: bool },
    /// The largest logits, then softmax over those.
    TopSoftmax,
}

/// Type in which keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
    Bf16,
    /// e4m3: sign, four bits of exponent, three of mantissa.
    Fp8,
}

impl KvType {
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 => 1,
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

/// Heads of a gated DeltaNet layer. Rows of its projections hold the queries and keys of all key
/// heads and the values of all value heads, which are convolved; then a gate for each value, and
/// for each value head the inputs of its beta and of its decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetShape {
    pub key_heads: usize,
    /// Each key head serves as many of them in a row.
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Tokens that the convolution sees, its own included.
    pub taps: usize,
}

impl DeltaNetShape {
    /// Value heads that share a key head.
    pub fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Columns that are convolved: queries, keys and values.
    pub fn conv_cols(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Columns of all projections.
    pub fn cols(&self) -> usize {
        self.conv_cols() + self.value_heads * (self.value_dim + 2)
    }

    /// Elements of one sequence's recurrent state in one layer.
    pub fn state_elements(&self) -> usize {
        (self.taps - 1) * self.conv_cols() + self.value_heads * self.key_dim * self.value_dim
    }
}

/// One gated DeltaNet layer, without its projections.
#[derive(Debug)]
pub struct DeltaNetLayer<V> {
    pub shape: DeltaNetShape,
    /// Which of the layers with recurrent state it is.
    pub index: usize,
    /// `[taps, conv_cols]`, the oldest token first.
    pub conv: V,
    /// `[value heads]` factor of the decay's logarithm, below zero.
    pub rate: V,
    /// `[value heads]` added to the input of the decay.
    pub bias: V,
    /// `[value_dim]` of the gated norm.
    pub norm: V,
    pub epsilon: f32,
}

/// Shape of the places for recurrent state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    pub layers: usize,
    pub places: usize,
    pub net: DeltaNetShape,
}

impl StateShape {
    /// Bytes of one place over all layers.
    pub fn place_bytes(&self) -> usize {
        self.layers * self.net.state_elements() * size_of::<f32>()
    }
}

impl KvShape {
    /// Bytes of keys and values of one token over all layers.
    pub fn token_bytes(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_dim * self.kv_type.bytes()
    }
}

/// Matrices `[N, K]` of experts and their biases `[N]`, as many or none.
pub type Stack<M, V> = (Vec<M>, Vec<V>);

/// Rows of a step's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRows {
    pub all: usize,
    /// Those that pass the head.
    pub head: usize,
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
    /// Places for recurrent state of all layers that have any.
    type State: Send + fmt::Debug;
    /// Tokens, positions and page tables of one step, the rows that pass the head, and how tokens are
    /// drawn from them.
    type Plan: Send + fmt::Debug;
    /// Which experts the rows of a step go to, and with what weights.
    type Routes: Send + fmt::Debug;

    /// Steps that may be in flight, finished by the model and not landed, when the next is planned.
    fn run_ahead(&self) -> usize {
        0
    }

    /// Bytes that are free now, where nobody but this process uses the device's memory; none where
    /// others do, as on a CPU.
    fn free_bytes(&self) -> Result<Option<u64>, StepError> {
        Ok(None)
    }

    /// Chooses the fastest way of operations like those so far, where there is more than one. Called once,
    /// while most memory is free.
    fn tune(&mut self) -> Result<(), StepError> {
        Ok(())
    }

    /// A buffer of `cols` columns and, until it is resized, no rows.
    fn buffer(&mut self, cols: usize) -> Result<Self::Buffer, StepError>;

    /// Gives `x` exactly `rows` rows, of unspecified content.
    fn resize(&mut self, x: &mut Self::Buffer, rows: usize) -> Result<(), StepError>;

    /// Gives `x` exactly `rows` rows of `cols` columns, of unspecified content.
    fn reshape(&mut self, x: &mut Self::Buffer, rows: usize, cols: usize) -> Result<(), StepError>;

    /// Sets the content of `x`, whole rows in row major order.
    fn write(&mut self, x: &mut Self::Buffer, values: &[f32]) -> Result<(), StepError>;

    /// Type in which the matrices made so far are multiplied, the coarsest of them.
    fn compute_dtype(&self) -> &'static str;

    /// The matrices in `parts` under one another: their outputs stand side by side.
    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Self::Matrix, StepError>;

    /// The rows of `parts` under one another, `k` numbers of each, or none where the device makes no
    /// such numbers by itself.
    fn random_matrix(
        &mut self,
        parts: &[RandomRows],
        k: usize,
    ) -> Result<Option<Self::Matrix>, StepError> {
        let _ = (parts, k);
        Ok(None)
    }

    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, StepError>;

    /// The matrices of a layer's experts, and their biases if there are any, where
    /// [`Device::expert_matmul`] wants them.
    fn stack(
        &mut self,
        experts: Vec<Self::Matrix>,
        biases: Vec<Self::Vector>,
    ) -> Result<Stack<Self::Matrix, Self::Vector>, StepError> {
        Ok((experts, biases))
    }

    /// Gets ready for a layer that is to attend.
    fn prepare_attention(&mut self, layer: &AttentionLayer<Self::Vector>) -> Result<(), StepError> {
        let _ = layer;
        Ok(())
    }

    /// Gets ready for a gated DeltaNet layer.
    fn prepare_delta_net(&mut self, layer: &DeltaNetLayer<Self::Vector>) -> Result<(), StepError> {
        let _ = layer;
        Ok(())
    }

    /// A cache whose memory is reserved, and touched only as pages fill.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, StepError>;

    /// Places whose memory is reserved, and touched only as they fill.
    fn state(&mut self, shape: StateShape) -> Result<Self::State, StepError>;

    /// Prepares a step: checks its page tables against `kv`, and its drawn tokens against those of
    /// the step before, and computes the rotations of its positions.
    fn plan(
        &mut self,
        batch: &StepBatch,
        kv: &Self::Kv,
        rotation: &Rotation,
    ) -> Result<Self::Plan, StepError>;

    /// Rows that the operations of a step take: at least those of its batch. What is in those beyond
    /// is nobody's.
    fn rows(&self, plan: &Self::Plan) -> StepRows;

    /// Runs all operations of a step like `plan` as they were recorded; false where they were not,
    /// and have to be called.
    fn replay(&mut self, plan: &Self::Plan) -> Result<bool, StepError> {
        let _ = plan;
        Ok(false)
    }

    /// Where the device stands among those that share its model.
    fn rank(&self) -> Rank;

    /// `x` = the sum of the ranks' `x`; nothing where there is one rank.
    fn all_reduce_sum(&mut self, x: &mut Self::Buffer) -> Result<(), StepError>;

    /// Rows of `out` = those of the ranks' `x` side by side, rank after rank.
    fn all_gather(&mut self, x: &Self::Buffer, out: &mut Self::Buffer) -> Result<(), StepError>;

    /// `out[t] = table[id - first]` for the tokens of the step, or zeros where the table has no such
    /// row.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        first: usize,
        plan: &Self::Plan,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// `out` = the rows of `x` that pass the head, in the order of
    /// [`HeadRows`](crate::model::HeadRows).
    fn gather(
        &mut self,
        x: &Self::Buffer,
        plan: &Self::Plan,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// Draws a token from each row of `logits`, `[R, vocab]`, that is to have one, as
    /// [`Sampler::draw`](crate::sample::Sampler::draw) does; the next step may name them. Every rank
    /// draws the same.
    fn draw(&mut self, logits: &mut Self::Buffer, plan: &Self::Plan) -> Result<(), StepError>;

    /// Ends the operations of a step, of which `logits` are the logits.
    fn finish(&mut self, logits: &mut Self::Buffer, plan: Self::Plan) -> Result<(), StepError>;

    /// Waits for the oldest step that is finished and has not landed. `logits` is the buffer that
    /// was given to the last [`Device::finish`]: a device that does not run ahead has left them there.
    fn land<'a>(&'a mut self, logits: &'a mut Self::Buffer) -> Result<Landed<'a>, StepError>;

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

    /// [`Device::matmul`] whose results are compared with one another, and so keep f32: logits of
    /// routers and of the head.
    fn scores(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError> {
        self.matmul(x, w, out)
    }

    /// `x[t] += bias`, a row at a time.
    fn add_bias(&mut self, x: &mut Self::Buffer, bias: &Self::Vector) -> Result<(), StepError>;

    /// Norms the query and key heads of `qkv` where the layer does, rotates them to their
    /// positions, and writes keys and values to the pages of the layer.
    fn rope_and_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        layer: &AttentionLayer<Self::Vector>,
        plan: &Self::Plan,
        kv: &mut Self::Kv,
    ) -> Result<(), StepError>;

    /// Causal attention of the query heads of `qkv` over the pages of the layer, into `[T, H * D]`.
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        layer: &AttentionLayer<Self::Vector>,
        plan: &Self::Plan,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// Gated DeltaNet over the rows of `projected`, into `[T, value heads * value dim]`: causal
    /// convolution and SiLU, queries and keys scaled to length 1, the delta rule on each segment's
    /// place of `state`, RMS norm and gate. Places are loaded before and saved after.
    fn delta_net(
        &mut self,
        projected: &Self::Buffer,
        layer: &DeltaNetLayer<Self::Vector>,
        plan: &Self::Plan,
        state: &mut Self::State,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// `x *= sigmoid(gate)`, element by element.
    fn sigmoid_mul(&mut self, x: &mut Self::Buffer, gate: &Self::Buffer) -> Result<(), StepError>;

    /// `out = silu(gate) * up` where `gate_up` is `[T, 2 * cols]`, gate first.
    fn silu_mul(&mut self, gate_up: &Self::Buffer, out: &mut Self::Buffer)
    -> Result<(), StepError>;

    /// `out = (up' + 1) * gate' * sigmoid(alpha * gate')` where `gate_up` is `[T, 2 * cols]`, gate
    /// first; gate' is at most `limit`, up' from `-limit` to `limit`. Source: OpenAI 2025 (gpt-oss).
    fn clamped_swiglu(
        &mut self,
        gate_up: &Self::Buffer,
        alpha: f32,
        limit: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// Chooses `chosen` of the E experts for each row of `logits`, `[T, E]`. Of equal logits the
    /// first win. Rows go to those of the chosen that are in `own`, numbered from its start.
    fn route(
        &mut self,
        logits: &Self::Buffer,
        chosen: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Self::Routes, StepError>;

    /// Rows of [`Device::dispatch`]'s output: one for each row and expert it goes to.
    fn routed_rows(&self, routes: &Self::Routes) -> usize;

    /// The rows of `x` as `routes` sends them: side by side those of one expert.
    fn dispatch(
        &mut self,
        x: &Self::Buffer,
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// [`Device::matmul`] of dispatched rows by the matrix of their expert, and its bias added:
    /// `biases` has one for each expert, or there are none.
    fn expert_matmul(
        &mut self,
        x: &Self::Buffer,
        experts: &[Self::Matrix],
        biases: &[Self::Vector],
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// `out[t]` = the sum of the dispatched rows that came from row `t`, each by its weight.
    fn combine(
        &mut self,
        x: &Self::Buffer,
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), StepError>;

    /// Waits for all operations so far and shows the content of `x`, row major, in f32.
    fn read<'a>(&mut self, x: &'a mut Self::Buffer) -> Result<&'a [f32], StepError>;
}
