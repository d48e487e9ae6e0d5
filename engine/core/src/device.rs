//! The `Device` trait: the operations of a transformer (GEMM, paged attention, norms, MoE routing,
//! sampling, all-reduce) that the CPU, the GPU and the reference implement. Knows layers only as
//! shapes, and no architecture.

use std::fmt;
use std::ops::Range;

use super::{
    AttentionLayer, DeltaNetLayer, Feature, Gate, HostMatrix, KvShape, RandomRows, Rank, Rotation,
    Stack, StateShape, StepRows,
};
use crate::{DeviceError, StepBatch, StepOutput};

/// A compute device: memory for weights, activations and KV cache, and operations over them.
/// Activation buffers are `[rows, cols]`. Operations on one device take effect in the order of
/// their calls.
///
/// An operation returns an error only if the device itself fails. Shapes that do not match are bugs
/// of the caller and panic.
pub trait Device: Send + fmt::Debug {
    /// Activations `[rows, cols]`, row major, with an optional 8-bit quantized copy.
    type Buffer: Send + fmt::Debug;
    /// Weight matrix `[N, K]`, packed as [`Device::matmul`] reads it.
    type Matrix: Send + fmt::Debug;
    /// Weight vector `[N]`, such as a norm's weights or a bias.
    type Vector: Send + fmt::Debug;
    /// Paged KV cache: keys and values of all layers.
    type Kv: Send + fmt::Debug;
    /// State slots: recurrent state of all layers that have any.
    type State: Send + fmt::Debug;
    /// A prepared step: its tokens, positions, page tables, the rows that pass the LM head, and how
    /// tokens are sampled from them.
    type StepMetadata: Send + fmt::Debug;
    /// MoE routing of a step: the top-k experts of each row and their weights.
    type Routes: Send + fmt::Debug;

    /// Features that the device lacks. A model that needs one of them is refused when it is loaded.
    const LACKS: &'static [Feature] = &[];

    /// Returns how many steps may be submitted and not completed when the next one is planned. Zero
    /// means that each step completes before the next is planned.
    fn run_ahead(&self) -> usize {
        0
    }

    /// Returns the free bytes of device memory, or none where other processes share the memory, as
    /// on a CPU.
    fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    /// Measures alternative implementations of the operations called so far and keeps the fastest.
    /// Called once after warm-up, while most memory is still free.
    fn tune(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns an activation buffer of `cols` columns and no rows; [`Device::resize`] gives it
    /// rows.
    fn buffer(&mut self, cols: usize) -> Result<Self::Buffer, DeviceError>;

    /// Sets the number of rows of `x`. Their content is unspecified afterwards.
    fn resize(&mut self, x: &mut Self::Buffer, rows: usize) -> Result<(), DeviceError>;

    /// Sets the numbers of rows and columns of `x`. The content is unspecified afterwards.
    fn reshape(
        &mut self,
        x: &mut Self::Buffer,
        rows: usize,
        cols: usize,
    ) -> Result<(), DeviceError>;

    /// Copies `values`, whole rows in row-major order, into `x`.
    fn write(&mut self, x: &mut Self::Buffer, values: &[f32]) -> Result<(), DeviceError>;

    /// Returns the name of the type in which the matrices loaded so far are multiplied; where there
    /// are several, the least precise of them.
    fn compute_dtype(&self) -> &'static str;

    /// Loads the matrices in `parts` as one matrix, stacked along N: an operation writes their
    /// outputs side by side.
    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Self::Matrix, DeviceError>;

    /// Generates a matrix with random weights on the device: the rows of `parts`, stacked along N,
    /// with `k` elements each. Returns none where the device cannot generate them, so that the host
    /// must.
    fn random_matrix(
        &mut self,
        parts: &[RandomRows],
        k: usize,
    ) -> Result<Option<Self::Matrix>, DeviceError> {
        let _ = (parts, k);
        Ok(None)
    }

    /// Copies `values` to a new vector on the device.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, DeviceError>;

    /// Arranges the matrices of a layer's experts, and their biases if there are any, as
    /// [`Device::expert_matmul`] reads them. A device may move them to contiguous memory.
    fn stack(
        &mut self,
        experts: Vec<Self::Matrix>,
        biases: Vec<Self::Vector>,
    ) -> Result<Stack<Self::Matrix, Self::Vector>, DeviceError> {
        Ok((experts, biases))
    }

    /// Prepares device resources for an attention layer of this shape, such as kernels and
    /// workspace. Called once per layer while the model loads.
    fn prepare_attention(
        &mut self,
        layer: &AttentionLayer<Self::Vector>,
    ) -> Result<(), DeviceError> {
        let _ = layer;
        Ok(())
    }

    /// Prepares device resources for a gated DeltaNet layer of this shape. Called once per layer
    /// while the model loads.
    fn prepare_delta_net(
        &mut self,
        layer: &DeltaNetLayer<Self::Vector>,
    ) -> Result<(), DeviceError> {
        let _ = layer;
        Ok(())
    }

    /// Allocates a KV cache of `shape`. The address range is reserved at once; a CPU's memory is
    /// touched only as pages fill.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, DeviceError>;

    /// Allocates state slots of `shape`. The address range is reserved at once; a CPU's memory is
    /// touched only as slots fill.
    fn state(&mut self, shape: StateShape) -> Result<Self::State, DeviceError>;

    /// Prepares a step: checks the page tables of `batch` against `kv` and its references to tokens
    /// sampled in the previous step, and computes the cos/sin tables of its positions, one
    /// for each of the model's `rotations`.
    fn prepare_step(
        &mut self,
        batch: &StepBatch,
        kv: &Self::Kv,
        rotations: &[Rotation],
    ) -> Result<Self::StepMetadata, DeviceError>;

    /// Returns the row counts that the buffers of a step need. They are at least the batch's own: a
    /// device may pad, and the content of padding rows is unspecified.
    fn rows(&self, step: &Self::StepMetadata) -> StepRows;

    /// Replays the captured operations (CUDA graph) of a step with the shape of `step`. Returns
    /// false if no such step was captured, in which case the caller must call the operations one by
    /// one.
    fn replay(&mut self, step: &Self::StepMetadata) -> Result<bool, DeviceError> {
        let _ = step;
        Ok(false)
    }

    /// Returns the device's rank in its tensor-parallel group.
    fn rank(&self) -> Rank;

    /// Tensor-parallel all-reduce: replaces `x` by the sum of `x` over all ranks. Does nothing with
    /// one rank.
    fn all_reduce_sum(&mut self, x: &mut Self::Buffer) -> Result<(), DeviceError>;

    /// Tensor-parallel all-gather: each row of `out` is that row of every rank's `x`, side by side
    /// in the order of ranks.
    fn all_gather(&mut self, x: &Self::Buffer, out: &mut Self::Buffer) -> Result<(), DeviceError>;

    /// Looks up token embeddings: `out[t] = table[id - first]` for the tokens of the step. Ids
    /// outside `table` yield zeros, since a rank of a tensor-parallel group holds only its part of
    /// the vocabulary.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        first: usize,
        step: &Self::StepMetadata,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Multiplies every element of `x` by `factor` ([`Feature::EmbeddingScale`]).
    fn scale(&mut self, x: &mut Self::Buffer, factor: f32) -> Result<(), DeviceError> {
        let _ = (x, factor);
        Err(DeviceError { operation: "scale", message: lacking(Feature::EmbeddingScale) })
    }

    /// Copies the rows of `x` that pass the LM head into `out`, in the order of
    /// [`HeadRows`](crate::HeadRows).
    fn gather(
        &mut self,
        x: &Self::Buffer,
        step: &Self::StepMetadata,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Samples a token from each row of `logits` `[R, vocab]` that asks for one, as
    /// [`Sampler::sample_logits`](crate::sample::Sampler::sample_logits) does. The next step may refer to the sampled
    /// tokens before the host knows them. All ranks sample the same tokens.
    fn sample(
        &mut self,
        logits: &mut Self::Buffer,
        step: &Self::StepMetadata,
    ) -> Result<(), DeviceError>;

    /// Ends the submission of a step whose logits are in `logits`. The step may still be running on
    /// the device.
    fn submit(
        &mut self,
        logits: &mut Self::Buffer,
        step: Self::StepMetadata,
    ) -> Result<(), DeviceError>;

    /// Waits until the oldest submitted step has completed and returns its sampled tokens and
    /// logits. `logits` must be the buffer that was passed to the last [`Device::submit`]: a device
    /// without asynchronous steps reads the results from there.
    fn complete<'a>(
        &'a mut self,
        logits: &'a mut Self::Buffer,
    ) -> Result<StepOutput<'a>, DeviceError>;

    /// RMS norm of each row: `out = x / sqrt(mean(x^2) + epsilon) * weight`.
    fn rms_norm(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Adds the residual, `x += delta`, then writes [`Device::rms_norm`] of `x` to `out`.
    fn add_rms_norm(
        &mut self,
        x: &mut Self::Buffer,
        delta: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Matrix multiplication (GEMM) by transposed weights, `out = x * w^T`: `[T, K]` by `[N, K]`
    /// gives `[T, N]`.
    fn matmul(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// [`Device::matmul`] with f32 results, for the router and the LM head: rounded logits could
    /// tie or change order.
    fn scores(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError> {
        self.matmul(x, w, out)
    }

    /// Adds `bias` to every row of `x`.
    fn add_bias(&mut self, x: &mut Self::Buffer, bias: &Self::Vector) -> Result<(), DeviceError>;

    /// Prepares queries and keys for attention and fills the KV cache: applies the layer's head
    /// norms to `qkv`, rotates queries and keys by their positions (RoPE), and writes keys and
    /// values to the layer's pages.
    fn rope_and_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        layer: &AttentionLayer<Self::Vector>,
        step: &Self::StepMetadata,
        kv: &mut Self::Kv,
    ) -> Result<(), DeviceError>;

    /// Paged causal attention: the query heads of `qkv` attend to the keys and values in the
    /// layer's pages. Writes `[T, H * D]`.
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        layer: &AttentionLayer<Self::Vector>,
        step: &Self::StepMetadata,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Gated DeltaNet over the rows of `projected`, into `[T, value heads * value dim]`: causal
    /// convolution and SiLU, L2 norm of queries and keys, delta rule on the state slot of each
    /// sequence, RMS norm and gate. Slots named by `load` are copied in before, and to `save`
    /// after.
    fn delta_net(
        &mut self,
        projected: &Self::Buffer,
        layer: &DeltaNetLayer<Self::Vector>,
        step: &Self::StepMetadata,
        state: &mut Self::State,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Multiplies `x` by `sigmoid(gate)`, element by element.
    fn sigmoid_mul(&mut self, x: &mut Self::Buffer, gate: &Self::Buffer)
    -> Result<(), DeviceError>;

    /// SwiGLU activation: `out = silu(gate) * up`, where `gate_up` is `[T, 2 * cols]`, gate first.
    fn silu_mul(
        &mut self,
        gate_up: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// GeGLU activation, laid out as for [`Device::silu_mul`]: `out = gelu(gate) * up` with the tanh
    /// approximation of GELU ([`Feature::Gelu`]). Source: Shazeer 2020; Hendrycks and Gimpel 2016.
    fn gelu_mul(
        &mut self,
        gate_up: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError> {
        let _ = (gate_up, out);
        Err(DeviceError { operation: "gelu_mul", message: lacking(Feature::Gelu) })
    }

    /// Clamped SwiGLU activation: `out = (up' + 1) * gate' * sigmoid(alpha * gate')`, where
    /// `gate_up` is `[T, 2 * cols]`, gate first; gate' is gate limited to at most `limit`, up' is
    /// up limited to `-limit..=limit`. Source: OpenAI 2025 (gpt-oss).
    fn clamped_swiglu(
        &mut self,
        gate_up: &Self::Buffer,
        alpha: f32,
        limit: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// MoE routing: selects the `top_k` best of the E experts for each row of `logits` `[T, E]`; of
    /// equal logits the lower index wins. Only the experts in `own`, which this rank holds, receive
    /// rows, and they are numbered from the start of `own`.
    fn route(
        &mut self,
        logits: &Self::Buffer,
        top_k: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Self::Routes, DeviceError>;

    /// Returns the number of rows that [`Device::dispatch`] writes: one per pair of a row and an
    /// expert of this rank.
    fn routed_rows(&self, routes: &Self::Routes) -> usize;

    /// Copies the rows of `x` to the experts that `routes` selects, so that the rows of each expert
    /// are contiguous.
    fn dispatch(
        &mut self,
        x: &Self::Buffer,
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Multiplies the dispatched rows of each expert by its matrix (grouped GEMM) and adds its
    /// bias. `biases` has one entry per expert, or is empty.
    fn expert_matmul(
        &mut self,
        x: &Self::Buffer,
        experts: &[Self::Matrix],
        biases: &[Self::Vector],
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Sums the experts' outputs: `out[t]` is the weighted sum of the dispatched rows that came
    /// from row `t`.
    fn combine(
        &mut self,
        x: &Self::Buffer,
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Waits for all operations so far and returns the content of `x`, row major, as f32.
    fn read<'a>(&mut self, x: &'a mut Self::Buffer) -> Result<&'a [f32], DeviceError>;
}

/// Returns the message of an operation that a device does not implement.
fn lacking(feature: Feature) -> String {
    format!("the device has no {}", feature.name())
}
