//! The `Device` trait: the operations of a transformer, such as GEMM, paged attention, norms, MoE
//! routing, sampling and all-reduce, which each kind of device (CPU, GPU) implements. It knows
//! layers only as shapes, and no architecture.

use std::fmt;
use std::ops::Range;

use super::{
    AttentionLayer, DeltaNetLayer, Feature, Gate, HostMatrix, KvShape, RandomRows, Rank, Rotation,
    Stack, StateShape, StepRows,
};
use crate::{DeviceError, StepBatch, StepLimits, StepOutput, WeightType};

/// A compute device: memory for weights, activations, KV cache and recurrent state, and the
/// operations over them. Activation buffers are `[rows, cols]`. Operations on one device take
/// effect in the order of their calls.
///
/// An operation returns an error if the device fails, lacks memory or does not support the
/// operation or its shapes and types, if another rank of the group has ended, or if a step's batch
/// is not valid ([`StepBatch::check`], [`check_state_slots`](crate::check_state_slots)). Shapes
/// that do not match are bugs of the caller, and panic.
pub trait Device: Send + fmt::Debug {
    /// Activation buffer `[rows, cols]` of the device, row major; a device may keep a quantized
    /// copy beside it.
    type Buffer: Send + fmt::Debug;
    /// Weight matrix `[N, K]` on the device, in the layout that [`Device::matmul`] reads.
    type Matrix: Send + fmt::Debug;
    /// Weight vector `[N]` on the device, such as the weights of a norm or a bias.
    type Vector: Send + fmt::Debug;
    /// Paged KV cache of the device: keys and values of all attention layers.
    type Kv: Send + fmt::Debug;
    /// State slots of the device: recurrent state of all gated DeltaNet layers.
    type State: Send + fmt::Debug;
    /// A step prepared for the device: its tokens, positions, page tables, the rows that pass the
    /// LM head, and the sampling parameters of those rows that tokens are sampled from.
    type StepMetadata: Send + fmt::Debug;
    /// MoE routing of a step on the device: the top-k experts of each row and the experts' weights.
    type Routes: Send + fmt::Debug;

    /// Model features that the device does not implement. A model that needs one of them is refused
    /// when it is loaded.
    const LACKS: &'static [Feature] = &[];

    /// Returns the largest number of steps that may be submitted and not completed when the next
    /// one is planned. Zero means that each step completes before the next one is planned.
    fn run_ahead(&self) -> usize {
        0
    }

    /// Returns the number of free bytes of device memory, or none where that is the memory of the
    /// machine, as on a CPU.
    fn free_bytes(&self) -> Result<Option<u64>, DeviceError> {
        Ok(None)
    }

    /// Allocates the memory that the metadata of the largest step within `limits` needs, so that it
    /// never moves; a device that has nothing to move does nothing. Called once, after the layers
    /// were prepared and before the first step.
    fn reserve_step(&mut self, limits: &StepLimits) -> Result<(), DeviceError> {
        let _ = limits;
        Ok(())
    }

    /// Lets the device measure alternative implementations of the operations called so far and keep
    /// the fastest; a device without alternatives does nothing. Called once, after a model's
    /// warm-up step and before its KV cache takes the remaining memory.
    fn tune(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns an activation buffer of `cols` columns and no rows; [`Device::resize`] gives it
    /// rows.
    fn buffer(&mut self, cols: usize) -> Result<Self::Buffer, DeviceError>;

    /// Sets the number of rows of the activation buffer `x`, whose content is unspecified
    /// afterwards.
    fn resize(&mut self, x: &mut Self::Buffer, rows: usize) -> Result<(), DeviceError>;

    /// Sets the numbers of rows and columns of the activation buffer `x`, whose content is
    /// unspecified afterwards.
    fn reshape(
        &mut self,
        x: &mut Self::Buffer,
        rows: usize,
        cols: usize,
    ) -> Result<(), DeviceError>;

    /// Copies `values`, whole rows in row-major order, from the host into the activation buffer
    /// `x`, and sets its number of rows accordingly.
    fn write(&mut self, x: &mut Self::Buffer, values: &[f32]) -> Result<(), DeviceError>;

    /// Returns the name of the number type in which the weight matrices loaded so far are
    /// multiplied: `int8`, `bf16` or `f32`. If they are multiplied in several types, it is the
    /// least precise, which comes first in that list.
    fn compute_dtype(&self) -> &'static str;

    /// Loads the host matrices `parts` as one weight matrix, stacked along N: a matmul by it writes
    /// their output columns side by side.
    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Self::Matrix, DeviceError>;

    /// Loads the host matrices `parts` as the weight matrix of a MoE router, as [`Device::matrix`]
    /// does. A device may multiply by it more precisely than by other matrices: rounding that
    /// changes the order of logits sends a row to other experts.
    fn router_matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Self::Matrix, DeviceError> {
        self.matrix(parts)
    }

    /// Generates a weight matrix with random weights of type `weight_type` on the device: the rows
    /// of `parts`, stacked along N, with `k` elements each. Returns none if the device cannot
    /// generate them: the caller must then generate them on the host and load them by
    /// [`Device::matrix`].
    fn random_matrix(
        &mut self,
        weight_type: WeightType,
        parts: &[RandomRows],
        k: usize,
    ) -> Result<Option<Self::Matrix>, DeviceError> {
        let _ = (weight_type, parts, k);
        Ok(None)
    }

    /// Copies `values` from the host to a new weight vector on the device.
    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector, DeviceError>;

    /// Arranges the weight matrices of a MoE layer's experts, and their biases if there are any, as
    /// [`Device::expert_matmul`] reads them. A device may move them to contiguous memory.
    fn stack(
        &mut self,
        experts: Vec<Self::Matrix>,
        biases: Vec<Self::Vector>,
    ) -> Result<Stack<Self::Matrix, Self::Vector>, DeviceError> {
        Ok((experts, biases))
    }

    /// Lets the device prepare resources, such as kernels and workspace, for attention layers of
    /// the shape of `layer`; a device that needs none does nothing. Called for each attention layer
    /// while a model loads.
    fn prepare_attention(
        &mut self,
        layer: &AttentionLayer<Self::Vector>,
    ) -> Result<(), DeviceError> {
        let _ = layer;
        Ok(())
    }

    /// Lets the device prepare resources for gated DeltaNet layers of the shape of `layer`; a
    /// device that needs none does nothing. Called for each of them while a model loads.
    fn prepare_delta_net(
        &mut self,
        layer: &DeltaNetLayer<Self::Vector>,
    ) -> Result<(), DeviceError> {
        let _ = layer;
        Ok(())
    }

    /// Allocates a paged KV cache of `shape`. The address range is reserved at once; the memory of
    /// a CPU is first touched when pages fill.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, DeviceError>;

    /// Allocates state slots of `shape` for recurrent state. The address range is reserved at once;
    /// the memory of a CPU is first touched when slots fill.
    fn state(&mut self, shape: StateShape) -> Result<Self::State, DeviceError>;

    /// Prepares a step: checks `batch` as [`StepBatch::check`] does and computes the cos/sin tables
    /// of its positions, one for each rotary embedding in `rotations`, or for the first only on a
    /// device that lacks [`Feature::LayerRotations`].
    fn prepare_step(
        &mut self,
        batch: &StepBatch,
        kv: &Self::Kv,
        rotations: &[Rotation],
    ) -> Result<Self::StepMetadata, DeviceError>;

    /// Returns two numbers of rows that activation buffers need in a step: that of the operations
    /// before the LM head, and that of the LM head. They are at least the batch's own: a device may
    /// pad, and the content of padding rows is unspecified.
    fn rows(&self, step: &Self::StepMetadata) -> StepRows;

    /// Launches the CUDA graph that the device captured from an earlier step with as many rows,
    /// padding included, which computes all operations of `step`. Returns false if this rank or
    /// another has none, as on a CPU: the caller must then call the operations one by one.
    fn replay(&mut self, step: &Self::StepMetadata) -> Result<bool, DeviceError> {
        let _ = step;
        Ok(false)
    }

    /// Returns the rank of the device in its tensor-parallel group.
    fn rank(&self) -> Rank;

    /// Tensor-parallel all-reduce: replaces `x` by the elementwise sum of the `x` of all ranks.
    /// Does nothing in a group of one rank.
    fn all_reduce_sum(&mut self, x: &mut Self::Buffer) -> Result<(), DeviceError>;

    /// Tensor-parallel all-gather: writes to each row of `out` the same row of every rank's `x`,
    /// side by side in the order of ranks.
    fn all_gather(&mut self, x: &Self::Buffer, out: &mut Self::Buffer) -> Result<(), DeviceError>;

    /// Looks up token embeddings: row `t` of `out` becomes row `id - first` of `table`, where `id`
    /// is token `t` of the step. Ids outside `table` yield zeros, since a rank of a tensor-parallel
    /// group holds only its part of the vocabulary.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        first: usize,
        step: &Self::StepMetadata,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Multiplies every element of the activation buffer `x` by `factor`. A device that lacks
    /// [`Feature::EmbeddingScale`] returns an error.
    fn scale(&mut self, x: &mut Self::Buffer, factor: f32) -> Result<(), DeviceError> {
        let _ = (x, factor);
        Err(DeviceError { operation: "scale", message: lacking(Feature::EmbeddingScale) })
    }

    /// Copies those rows of `x` that pass the LM head to `out`, in the order of
    /// [`HeadRows`](crate::HeadRows).
    fn gather(
        &mut self,
        x: &Self::Buffer,
        step: &Self::StepMetadata,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Samples a token from each row of `logits`, `[rows, vocab]`, for which the step has sampling
    /// parameters, as [`Sampler::sample_logits`](crate::sample::Sampler::sample_logits) does. The
    /// next step may refer to the sampled tokens before the host knows them. All ranks sample the
    /// same tokens.
    fn sample(
        &mut self,
        logits: &mut Self::Buffer,
        step: &Self::StepMetadata,
    ) -> Result<(), DeviceError>;

    /// Ends the submission of the step whose logits are in `logits`, after the last of its
    /// operations was called. The device may still be computing the step when this returns.
    fn submit(
        &mut self,
        logits: &mut Self::Buffer,
        step: Self::StepMetadata,
    ) -> Result<(), DeviceError>;

    /// Waits until the oldest submitted step has completed, and returns its sampled tokens and
    /// logits. `logits` must be the buffer that was passed to the latest [`Device::submit`]: a
    /// device without asynchronous steps reads the results from it.
    fn complete<'a>(
        &'a mut self,
        logits: &'a mut Self::Buffer,
    ) -> Result<StepOutput<'a>, DeviceError>;

    /// Computes the RMS norm of each row: `out = x / sqrt(mean(x^2) + epsilon) * weight`.
    fn rms_norm(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Adds `delta` to the residual, `x += delta`, then writes the [`Device::rms_norm`] of `x` to
    /// `out`.
    fn add_rms_norm(
        &mut self,
        x: &mut Self::Buffer,
        delta: &Self::Buffer,
        weight: &Self::Vector,
        epsilon: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Multiplies activations by transposed weights (GEMM), `out = x * w^T`: `[T, K]` by `[N, K]`
    /// gives `[T, N]`.
    fn matmul(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Computes the [`Device::matmul`] of the router and of the LM head, with f32 results: rounded
    /// logits could tie or change their order.
    fn scores(
        &mut self,
        x: &Self::Buffer,
        w: &Self::Matrix,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError> {
        self.matmul(x, w, out)
    }

    /// Adds the vector `bias`, `[cols]`, to every row of `x`, `[rows, cols]`.
    fn add_bias(&mut self, x: &mut Self::Buffer, bias: &Self::Vector) -> Result<(), DeviceError>;

    /// Prepares queries and keys for attention and fills the KV cache: applies the layer's RMS
    /// norms of query and key heads, if there are any, to `qkv`, rotates queries and keys by their
    /// positions (RoPE), and writes keys and values to the layer's KV pages.
    fn rope_and_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        layer: &AttentionLayer<Self::Vector>,
        step: &Self::StepMetadata,
        kv: &mut Self::Kv,
    ) -> Result<(), DeviceError>;

    /// Computes paged causal attention: the query heads of `qkv` attend to the keys and values in
    /// the layer's KV pages. Writes `[T, H * D]` to `out`.
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        layer: &AttentionLayer<Self::Vector>,
        step: &Self::StepMetadata,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Computes a gated DeltaNet layer over the rows of `projected`, into `[T, value heads * value
    /// dim]`: causal convolution and SiLU, L2 norm of queries and keys, delta rule on the state
    /// slot of each sequence, RMS norm and gate. A sequence's `load` slot is copied to its own slot
    /// before, and its own slot to its `save` slot after ([`StateSlots`](crate::StateSlots)).
    fn delta_net(
        &mut self,
        projected: &Self::Buffer,
        layer: &DeltaNetLayer<Self::Vector>,
        step: &Self::StepMetadata,
        state: &mut Self::State,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Multiplies `x` by `sigmoid(gate)`, element by element; both have the same shape.
    fn sigmoid_mul(&mut self, x: &mut Self::Buffer, gate: &Self::Buffer)
    -> Result<(), DeviceError>;

    /// Computes the SwiGLU activation, `out = silu(gate) * up`, where each row of `gate_up`, `[T, 2
    /// * cols]`, holds `cols` gates and then `cols` ups.
    fn silu_mul(
        &mut self,
        gate_up: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Computes the GeGLU activation, `out = gelu(gate) * up`, with the tanh approximation of GELU
    /// and the layout of [`Device::silu_mul`]. A device that lacks [`Feature::Gelu`] returns an
    /// error. Source: Shazeer 2020; Hendrycks and Gimpel 2016.
    fn gelu_mul(
        &mut self,
        gate_up: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError> {
        let _ = (gate_up, out);
        Err(DeviceError { operation: "gelu_mul", message: lacking(Feature::Gelu) })
    }

    /// Computes the clamped SwiGLU activation, `out = (up' + 1) * gate' * sigmoid(alpha * gate')`,
    /// where each row of `gate_up`, `[T, 2 * cols]`, holds `cols` gates and then `cols` ups; gate'
    /// is gate limited to at most `limit`, up' is up limited to `-limit..=limit`. Source: OpenAI
    /// 2025 (gpt-oss).
    fn clamped_swiglu(
        &mut self,
        gate_up: &Self::Buffer,
        alpha: f32,
        limit: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Computes MoE routing: selects the `top_k` of E experts for each row of router logits, `[T,
    /// E]`; of equal logits the lower index wins. Only the experts in the range `own`, those of
    /// this rank, receive rows; [`Device::expert_matmul`] numbers them from the start of `own`.
    fn route(
        &mut self,
        logits: &Self::Buffer,
        top_k: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Self::Routes, DeviceError>;

    /// Returns the number of rows that the output of [`Device::dispatch`] needs: at least one for
    /// each pair of a row and one of its top-k experts that this rank holds. A device may also
    /// count the pairs of other ranks; the content of their rows is unspecified.
    fn routed_rows(&self, routes: &Self::Routes) -> usize;

    /// Copies each row of `x` once for each of its experts in `routes` that this rank holds, so
    /// that the rows of each expert are contiguous in `out`.
    fn dispatch(
        &mut self,
        x: &Self::Buffer,
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Multiplies each row of `x` by the weight matrices of its experts and adds their biases: the
    /// [`Device::dispatch`] of `x` to `sent`, then the [`Device::expert_matmul`] of that. A device
    /// that gathers rows by their indices leaves `sent` without rows.
    fn dispatch_matmul(
        &mut self,
        x: &Self::Buffer,
        experts: &[Self::Matrix],
        biases: &[Self::Vector],
        routes: &Self::Routes,
        sent: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError> {
        let routed = self.routed_rows(routes);
        self.resize(sent, routed)?;
        self.dispatch(x, routes, sent)?;
        self.expert_matmul(sent, experts, biases, routes, out)
    }

    /// Multiplies the dispatched rows `x` of each expert by its weight matrix (grouped GEMM) and
    /// adds its bias. `biases` has one vector per expert, or is empty.
    fn expert_matmul(
        &mut self,
        x: &Self::Buffer,
        experts: &[Self::Matrix],
        biases: &[Self::Vector],
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Sums the experts' outputs: row `t` of `out` is the sum, weighted by `routes`, of those rows
    /// of `x` that were dispatched from row `t`.
    fn combine(
        &mut self,
        x: &Self::Buffer,
        routes: &Self::Routes,
        out: &mut Self::Buffer,
    ) -> Result<(), DeviceError>;

    /// Waits for all operations called so far and returns the content of the activation buffer `x`
    /// as f32, row major.
    fn read<'a>(&mut self, x: &'a mut Self::Buffer) -> Result<&'a [f32], DeviceError>;
}

/// Returns the error message of an operation that needs a `feature` which the device does not
/// implement.
fn lacking(feature: Feature) -> String {
    format!("the device has no {}", feature.name())
}
