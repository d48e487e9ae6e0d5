//! Models: the `Model` trait, a step's batch, and its results (logits, sampled tokens).
//!
//! A model knows no scheduler, no request and no clock. It sees token ids, positions and page
//! tables, and writes keys and values into the pages that it is given.

#![warn(missing_docs)]

mod architectures;
mod block;
mod config;
mod decoder;
#[cfg(test)]
#[path = "../../cuda/emulated/mod.rs"]
mod emulated;
mod error;
mod parallel;
mod rope;
mod shard;
mod spec;
mod tensors;

#[cfg(test)]
mod tests;

use std::fmt;

use engine_core::{AttentionShape, DeviceError, KvType, StepBatch, StepOutput, WeightType};

pub use architectures::{ARCHITECTURES, Architecture};
pub use decoder::Decoder;
pub use error::LoadError;
pub use parallel::{Parallel, on_ranks};
pub use rope::RopeChoice;

/// Facts about a loaded model, fixed for its life.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Architecture as the checkpoint names it, such as `LlamaForCausalLM`.
    pub architecture: String,
    /// Number of token ids; every id is below it.
    pub vocab_size: usize,
    /// Longest sequence that the checkpoint was trained for, in tokens.
    pub max_seq_len: usize,
    /// Number of weights; an embedding that is also the LM head counts once.
    pub parameters: u64,
    /// Number of weights that one token uses in the layers: without embedding and LM head, and of
    /// the experts only the top k.
    pub active_layer_parameters: u64,
    /// True for MoE models, where a step reads only the experts that its rows are routed to.
    pub has_experts: bool,
    /// Type in which matrices are multiplied; `f32` is the reference.
    pub compute_dtype: &'static str,
    /// Type of keys and values in the KV cache: `--kv-dtype`.
    pub kv_type: KvType,
    /// Returns the number of bytes of one token's keys and values over all layers.
    pub kv_bytes_per_token: usize,
    /// Number of bytes of one sequence's recurrent state over all layers, 0 for models without.
    pub state_bytes: usize,
    /// Shape of the largest weight matrix in the layers; with tensor parallelism, of the first
    /// rank's part.
    pub largest_matrix: MatrixShape,
    /// Head counts of the layers with attention.
    pub attention: AttentionShape,
}

/// Shape `[N, K]` of a weight matrix and its stored type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// N: output columns, which are the stored rows.
    pub n: usize,
    /// K: elements of a matrix row, the contraction of the matmul.
    pub k: usize,
    /// Type of the matrix elements as stored in the checkpoint.
    pub weight_type: WeightType,
}

/// A loaded model with its KV cache, on one device or one group of ranks.
pub trait Model: Send + fmt::Debug {
    /// Returns the facts about the loaded model.
    fn info(&self) -> &ModelInfo;

    /// Allocates the KV cache: `pages` pages of `page_tokens` tokens. Called once before any step.
    /// On a CPU, memory is touched only as pages fill.
    ///
    /// # Errors
    /// Fails if the device has too little memory.
    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), DeviceError>;

    /// Allocates state slots for the recurrent state of sequences and snapshots. Called once before
    /// any step of a model whose `state_bytes` is not 0. On a CPU, memory is touched only as slots
    /// fill.
    ///
    /// # Errors
    /// Fails if the device has too little memory.
    fn allocate_states(&mut self, slots: usize) -> Result<(), DeviceError> {
        let _ = slots;
        Ok(())
    }

    /// Warm-up (profile run): runs a step of `tokens` tokens that samples for `sequences`
    /// sequences, so that all memory is allocated except that of the KV cache and recurrent state.
    /// Called once, before those are allocated. Returns the bytes that are free afterwards, or none
    /// where other processes share the memory.
    ///
    /// # Errors
    /// Fails if the device has too little memory.
    fn profile_run(&mut self, tokens: usize, sequences: usize) -> Result<Option<u64>, DeviceError> {
        let _ = (tokens, sequences);
        Ok(None)
    }

    /// Returns how many steps may be in flight, submitted and not completed, when the next is
    /// submitted.
    fn run_ahead(&self) -> usize {
        0
    }

    /// Submits a step to the device.
    ///
    /// # Errors
    /// Fails if the device failed; the model cannot be used any more.
    fn submit(&mut self, batch: &StepBatch) -> Result<(), DeviceError>;

    /// Waits until the oldest step in flight has completed, and returns its results.
    ///
    /// # Errors
    /// Fails if the device failed in this or a later step; the model cannot be used any more.
    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError>;

    /// Submits a step, waits for it, and returns the logits that are read. No other step may be in
    /// flight.
    ///
    /// # Errors
    /// Fails if the device failed; the model cannot be used any more.
    fn step(&mut self, batch: &StepBatch) -> Result<&[f32], DeviceError> {
        self.submit(batch)?;
        Ok(self.complete()?.logits)
    }
}
