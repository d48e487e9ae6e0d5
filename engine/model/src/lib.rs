//! Models: the `Model` trait, loading of checkpoints by architecture, and decoders over any device,
//! on one rank or several.
//!
//! A model knows no scheduler, no request and no clock. It receives token ids, positions and page
//! tables, and writes keys and values into the KV pages that it is given.

#![warn(missing_docs)]

mod architectures;
mod block;
mod config;
mod decoder;
#[cfg(test)]
#[expect(dead_code, reason = "faults of a GPU are for the tests of benchmarks")]
#[path = "../../cuda/emulated/mod.rs"]
mod emulated;
mod parallel;
mod pooling;
mod rope;
mod shard;
mod spec;
mod tensors;

#[cfg(test)]
mod tests;

use std::fmt;

use engine_core::{AttentionShape, DeviceError, KvType, StepBatch, StepOutput, WeightType};
use engine_weights::CheckpointError;

pub use architectures::{ARCHITECTURES, Architecture};
pub use decoder::Decoder;
pub use parallel::{Parallel, on_ranks};
pub use rope::RopeChoice;

/// Properties of a loaded model, fixed until it is dropped.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Name of the model's architecture as the checkpoint states it, such as `LlamaForCausalLM`.
    pub architecture: String,
    /// Number of token ids in the model's vocabulary; every id is below it.
    pub vocab_size: usize,
    /// Number of tokens of the longest sequence that the model supports, as the checkpoint's
    /// configuration states it; 2,048 where it does not.
    pub max_seq_len: usize,
    /// Number of weights of the whole model; an embedding that is also the LM head counts once.
    pub parameters: u64,
    /// Number of weights in the model's layers that one token uses: without embedding and LM head,
    /// and of the experts' matrices only those of the top k. The biases of all experts are
    /// included.
    pub active_layer_parameters: u64,
    /// True for MoE models with more experts than the top k: a step reads only the experts that its
    /// rows are routed to.
    pub has_experts: bool,
    /// Name of the number type in which the model's weight matrices are multiplied; where there are
    /// several, of the least precise. `f32` is the reference.
    pub compute_dtype: &'static str,
    /// Data type of keys and values in the KV cache, as `--kv-dtype` sets it or, with `auto`, the
    /// device's default.
    pub kv_type: KvType,
    /// Number of bytes of one token's keys and values over all layers: on all ranks for a
    /// [`Parallel`] model, on one rank for a [`Decoder`].
    pub kv_bytes_per_token: usize,
    /// Number of bytes of one sequence's recurrent state over all layers: on all ranks for a
    /// [`Parallel`] model, on one rank for a [`Decoder`]; 0 for models without recurrent state.
    pub state_bytes: usize,
    /// Shape of the largest weight matrix in the model's layers, or of the embedding matrix if the
    /// model has no layers; with tensor parallelism, of the first rank's part.
    pub largest_matrix: MatrixShape,
    /// Numbers of heads, head size and score scale of the model's attention layers, over all ranks.
    pub attention: AttentionShape,
    /// Number of elements of an embedding, for a model that embeds texts (pooling); `None` for a
    /// model that generates. The steps of a model that embeds return a row's output of the final
    /// norm where others return logits, and cannot sample.
    pub embedding_size: Option<usize>,
}

impl ModelInfo {
    /// Returns the number of elements of a row that a step returns to the host: of logits, or of an
    /// embedding.
    pub fn row_size(&self) -> usize {
        self.embedding_size.unwrap_or(self.vocab_size)
    }
}

/// Shape `[N, K]` and element type of a weight matrix as the device loads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// N: number of output columns of the weight matrix, which are its rows.
    pub n: usize,
    /// K: number of elements of a row of the weight matrix, the contraction of the matmul.
    pub k: usize,
    /// Element type or quantization format of the weight matrix as the checkpoint stores it, or f32
    /// where it had to be dequantized to be loaded; of several stacked matrices, that of the first.
    pub weight_type: WeightType,
}

/// Reason why a model cannot be loaded. Messages name the file where one is concerned, and the
/// remedy where one is known.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum LoadError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// This release does not support the model's architecture, or the device lacks a feature that
    /// the model needs. The text is the whole message.
    #[error("{0}")]
    Unsupported(String),
    #[error("failed to put the weights on the device")]
    Device(#[from] DeviceError),
}

/// A loaded model with its KV cache, on one device or on a tensor-parallel group of ranks.
pub trait Model: Send + fmt::Debug {
    /// Returns the properties of the loaded model.
    fn info(&self) -> &ModelInfo;

    /// Allocates the model's KV cache: `pages` pages of `page_tokens` tokens. Called before any
    /// step. On a CPU, memory is touched only as pages fill.
    ///
    /// # Errors
    /// Fails if a device fails, has too little memory, or does not support the cache's data type or
    /// the model's head size, or if a rank has ended.
    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), DeviceError>;

    /// Allocates `slots` state slots for the recurrent state of running sequences and prefix-cache
    /// snapshots. Called before any step of a model whose `state_bytes` is not 0. On a CPU, memory
    /// is touched only as slots fill.
    ///
    /// # Errors
    /// Fails if a device fails or has too little memory for the state slots, or if a rank has
    /// ended.
    fn allocate_states(&mut self, slots: usize) -> Result<(), DeviceError> {
        let _ = slots;
        Ok(())
    }

    /// Warm-up (profile run): runs a step of `tokens` tokens that samples for `sequences`
    /// sequences, so that all memory is allocated except that of the KV cache and recurrent state,
    /// and tunes the device. Called once, before those are allocated. Returns the number of bytes
    /// left for them, or none on a CPU, which does not run the step.
    ///
    /// # Errors
    /// Fails if a device fails, has too little memory for the step or does not support one of its
    /// operations, or if a rank has ended.
    fn profile_run(&mut self, tokens: usize, sequences: usize) -> Result<Option<u64>, DeviceError> {
        let _ = (tokens, sequences);
        Ok(None)
    }

    /// Returns the largest number of steps that may be in flight (submitted and not completed) when
    /// the next one is planned; 0 means that each step is completed before the next.
    fn run_ahead(&self) -> usize {
        0
    }

    /// Submits the step of `batch` to the device, which may still be computing when this returns.
    ///
    /// # Errors
    /// Fails if the batch is invalid, if the KV cache or state slots that the model needs were not
    /// allocated, or if the device fails or has too little memory; the model must not be used any
    /// more. A [`Parallel`] model reports these errors when the step completes.
    fn submit(&mut self, batch: &StepBatch) -> Result<(), DeviceError>;

    /// Waits until the oldest step in flight has completed, and returns its logits and sampled
    /// tokens.
    ///
    /// # Errors
    /// Fails if a device failed in the step or in a later one, or if a rank has ended; a
    /// [`Parallel`] model also reports here why a batch could not be submitted. The model must not
    /// be used any more.
    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError>;

    /// Submits the step of `batch`, waits until it has completed, and returns the logits that the
    /// host reads, `[rows, vocab_size]`, in the order of the batch. No other step may be in flight.
    ///
    /// # Errors
    /// Fails if the batch is invalid, if the KV cache or state slots that the model needs were not
    /// allocated, if a device fails or has too little memory, or if a rank has ended; the model
    /// must not be used any more.
    fn step(&mut self, batch: &StepBatch) -> Result<&[f32], DeviceError> {
        self.submit(batch)?;
        Ok(self.complete()?.logits)
    }
}
