//! The operations of a device: the one list that the processor, the GPU and the reference have in
//! common. Knows no layer's weights but as shapes.

use std::fmt;
use std::ops::Range;

use super::{
    AttentionLayer, DeltaNetLayer, Gate, HostMatrix, KvShape, RandomRows, Rank, Rotation, Stack,
    StateShape, StepRows,
};
use crate::{DeviceError, Landed, StepBatch};

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
    fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    /// Chooses the fastest way of operations like those so far, where there is more than one. Called once,
    /// while most memory is free.
    fn tune(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// A buffer of `cols` columns and, until it is resized, no rows.
    fn buffer(&mut self, cols: usize) -> Result<Self::Buffer, DeviceError>;

    /// Gives `x` exactly `rows` rows, of unspecified content.
    fn resize(&mut self, x: &mut Self::Buffer, rows: usize) -> Result<(), DeviceError>;

    /// Gives `x` exactly `rows` rows of `cols` columns, of unspecified content.
    fn reshape(
        &mut self,
        x: &mut Self::Buffer,
        rows: usize,
        cols: usize,
    ) -> Result<(), DeviceError>;

    /// Sets the content of `x`, whole rows in row major order.
    fn write(&mut self, x: &mut Self::Buffer, values: &[f32]) -> Result<(), DeviceError>;

    /// Type in which the matrices made so far are multiplied, the coarsest of them.
    fn compute_dtype(&self) -> &'static str;

    /// The matrices in `parts` under one another: their outputs stand side by side.
    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Self::Matrix, DeviceError>;

    /// The rows of `parts` under one another, `k` numbers of each, or none where the device makes no
    /// such numbers by itself.
    fn random_matrix(
        &mut self,
        parts: &[RandomRows],
        k: usize,
    ) -> Result<Option<Self::Matrix>, DeviceError> {
        let _ = (parts, k);
        Ok(None)
    }

    /// `values` on the device, as many as there are.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, DeviceError>;

    /// The matrices of a layer's experts, and their biases if there are any, where
    /// [`Device::expert_matmul`] wants them.
    fn stack(
        &mut self,
        experts: Vec<Self::Matrix>,
        biases: Vec<Self::Vector>,
    ) -> Result<Stack<Self::Matrix, Self::Vector>, DeviceError> {
        Ok((experts, biases))
    }

    /// Gets ready for a layer that is to attend.
    fn prepare_attention(
        &mut self,
        layer: &AttentionLayer<Self::Vector>,
    ) -> Result<(), DeviceError> {
        let _ = layer;
        Ok(())
    }

    /// Gets ready for a gated DeltaNet layer.
    fn prepare_delta_net(
        &mut self,
        layer: &DeltaNetLayer<Self::Vector>,
    ) -> Result<(), DeviceError> {
        let _ = layer;
        Ok(())
    }

    /// A cache whose memory is reserved, and touched only as pages fill.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, DeviceError>;

    /// Places whose memory is reserved, and touched only as they fill.
    fn state(&mut self, shape: StateShape) -> Result<Self::State, DeviceError>;

    /// Prepares a step: checks its page tables against `kv`, and its drawn tokens against those of
    /// the step before, and computes the rotations of its positions.
    fn plan(
        &mut self,
        batch: &StepBatch,
        kv: &Self::Kv,
        rotation: &Rotation,
    ) -> Result<Self::Plan, DeviceError>;

    /// Rows that the operations of a step take: at least those of its batch. What is in those beyond
    /// is nobody's.
    fn rows(&self, plan: &Self::Plan) -> StepRows;

    /// Runs all operations of a step like `plan` as they were recorded; false where they were not,
    /// and have to be called.
    fn replay(&mut self, plan: &Self::Plan) -> Result<bool, DeviceError> {
        let _ = plan;
        Ok(false)
    }

    /// Where the device stands among those that share its model.
    fn rank(&self) -> Rank;

    /// `x` = the sum of the ranks' `x`; nothing where there is one rank.
    fn all_reduce_sum(&mut self, x: &mut Self::Buffer) -> Result<(), DeviceError>;

    /// Rows of `out` = those of the ranks' `x` side by side, rank after rank.
    fn all_gather(&mut self, x: &Self::Buffer, out: &mut Self::Buffer) -> Result<(), DeviceError>;

    /// `out[t] = table[id - first]` for the tokens of the step, or zeros where the table has no such
    /// row.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        first: usize,
        plan: &Self::Plan,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// `out` = the rows of `x` that pass the head, in the order of
    /// [`HeadRows`](crate::HeadRows).
    fn gather(
        &mut self,
        x: &Self::Buffer,
        plan: &Self::Plan,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Draws a token from each row of `logits`, `[R, vocab]`, that is to have one, as
    /// [`Sampler::draw`](crate::sample::Sampler::draw) does; the next step may name them. Every rank
    /// draws the same.
    fn draw(&mut self, logits: &mut Self::Buffer, plan: &Self::Plan) -> Result<(), DeviceError>;

    /// Ends the operations of a step, of which `logits` are the logits.
    fn finish(&mut self, logits: &mut Self::Buffer, plan: Self::Plan) -> Result<(), DeviceError>;

    /// Waits for the oldest step that is finished and has not landed. `logits` is the buffer that
    /// was given to the last [`Device::finish`]: a device that does not run ahead has left them there.
    fn land<'a>(&'a mut self, logits: &'a mut Self::Buffer) -> Result<Landed<'a>, DeviceError>;

    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`, a row at a time.
    fn rms_norm(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// `x += delta`, then [`Device::rms_norm`] of `x`.
    fn add_rms_norm(
        &mut self,
        x: &mut Self::Buffer,
        delta: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// `out = x * w^T`: `[T, K]` by `[N, K]` gives `[T, N]`.
    fn matmul(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// [`Device::matmul`] whose results are compared with one another, and so keep f32: logits of
    /// routers and of the head.
    fn scores(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError> {
        self.matmul(x, w, out)
    }

    /// `x[t] += bias`, a row at a time.
    fn add_bias(&mut self, x: &mut Self::Buffer, bias: &Self::Vector) -> Result<(), DeviceError>;

    /// Norms the query and key heads of `qkv` where the layer does, rotates them to their
    /// positions, and writes keys and values to the pages of the layer.
    fn rope_and_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        layer: &AttentionLayer<Self::Vector>,
        plan: &Self::Plan,
        kv: &mut Self::Kv,
    ) -> Result<(), DeviceError>;

    /// Causal attention of the query heads of `qkv` over the pages of the layer, into `[T, H * D]`.
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        layer: &AttentionLayer<Self::Vector>,
        plan: &Self::Plan,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

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
    ) -> Result<(), DeviceError>;

    /// `x *= sigmoid(gate)`, element by element.
    fn sigmoid_mul(&mut self, x: &mut Self::Buffer, gate: &Self::Buffer)
    -> Result<(), DeviceError>;

    /// `out = silu(gate) * up` where `gate_up` is `[T, 2 * cols]`, gate first.
    fn silu_mul(
        &mut self,
        gate_up: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// `out = (up' + 1) * gate' * sigmoid(alpha * gate')` where `gate_up` is `[T, 2 * cols]`, gate
    /// first; gate' is at most `limit`, up' from `-limit` to `limit`. Source: OpenAI 2025 (gpt-oss).
    fn clamped_swiglu(
        &mut self,
        gate_up: &Self::Buffer,
        alpha: f32,
        limit: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Chooses `chosen` of the E experts for each row of `logits`, `[T, E]`. Of equal logits the
    /// first win. Rows go to those of the chosen that are in `own`, numbered from its start.
    fn route(
        &mut self,
        logits: &Self::Buffer,
        chosen: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Self::Routes, DeviceError>;

    /// Rows of [`Device::dispatch`]'s output: one for each row and expert it goes to.
    fn routed_rows(&self, routes: &Self::Routes) -> usize;

    /// The rows of `x` as `routes` sends them: side by side those of one expert.
    fn dispatch(
        &mut self,
        x: &Self::Buffer,
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// [`Device::matmul`] of dispatched rows by the matrix of their expert, and its bias added:
    /// `biases` has one for each expert, or there are none.
    fn expert_matmul(
        &mut self,
        x: &Self::Buffer,
        experts: &[Self::Matrix],
        biases: &[Self::Vector],
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// `out[t]` = the sum of the dispatched rows that came from row `t`, each by its weight.
    fn combine(
        &mut self,
        x: &Self::Buffer,
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Waits for all operations so far and shows the content of `x`, row major, in f32.
    fn read<'a>(&mut self, x: &'a mut Self::Buffer) -> Result<&'a [f32], DeviceError>;
}
