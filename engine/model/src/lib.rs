//! What the worker asks of a model: steps over batches of rows, for some of them logits or tokens
//! drawn from those.
//!
//! A model knows no scheduler, no request and no clock. It sees token ids, positions and page
//! tables, and writes keys and values into the pages it is told to use.

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

use engine_core::{AttentionShape, DeviceError, KvType, Landed, StepBatch, WeightType};

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
    /// Ids are below this.
    pub vocab_size: usize,
    /// Longest sequence the checkpoint was made for, in tokens.
    pub max_seq_len: usize,
    /// Number of weights, embeddings counted once when tied.
    pub parameters: u64,
    /// Those of them that one token passes in the layers: neither embedding nor head, and of the
    /// experts only as many as are chosen.
    pub active_layer_parameters: u64,
    /// Whether some of the weights are experts', of which a step reads those that it is routed to.
    pub has_experts: bool,
    /// Type in which matrix products are computed: `f32` is the reference path.
    pub compute_dtype: &'static str,
    /// Type of the KV cache.
    pub kv_type: KvType,
    /// Bytes of keys and values of one token over all layers.
    pub kv_bytes_per_token: usize,
    /// Bytes of recurrent state of one sequence, 0 for models that have none.
    pub state_bytes: usize,
    /// The largest weight matrix that the layers multiply by; where there are several ranks, the
    /// first one's share.
    pub largest_matrix: MatrixShape,
    /// Heads of the layers that have attention.
    pub attention: AttentionShape,
}

/// A weight matrix `[N, K]`, and what it is stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixShape {
    /// Output columns: stored rows.
    pub n: usize,
    /// Contraction: elements of a row.
    pub k: usize,
    /// Type of the elements as they were stored.
    pub weight_type: WeightType,
}

/// A loaded model with its KV cache on one device.
pub trait Model: Send + fmt::Debug {
    /// Facts that hold for its life.
    fn info(&self) -> &ModelInfo;

    /// Sets the KV cache to `pages` pages of `page_tokens` tokens. Called once before any step;
    /// memory is reserved, and touched only as pages fill.
    ///
    /// # Errors
    /// The device has not that much memory.
    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), DeviceError>;

    /// Makes places for the recurrent states of as many sequences and snapshots. Called once before
    /// any step of a model whose `state_bytes` is not 0; memory is touched only as places fill.
    ///
    /// # Errors
    /// The device has not that much memory.
    fn allocate_states(&mut self, places: usize) -> Result<(), DeviceError> {
        let _ = places;
        Ok(())
    }

    /// Runs a step of `tokens` tokens that draws for `sequences` sequences, so that all memory but that
    /// of the KV cache and of recurrent states is taken. Called once, before those are allocated.
    /// Gives the bytes that are free afterwards, or none where the memory has other users.
    ///
    /// # Errors
    /// The device has not that much memory.
    fn rehearse(&mut self, tokens: usize, sequences: usize) -> Result<Option<u64>, DeviceError> {
        let _ = (tokens, sequences);
        Ok(None)
    }

    /// Steps that may be in flight, begun and not landed, when the next is begun.
    fn run_ahead(&self) -> usize {
        0
    }

    /// Begins a step.
    ///
    /// # Errors
    /// The device failed; the caller cannot go on with this model.
    fn launch(&mut self, batch: &StepBatch) -> Result<(), DeviceError>;

    /// Waits for the oldest step in flight.
    ///
    /// # Errors
    /// The device failed, in this step or one after it; the caller cannot go on with this model.
    fn land(&mut self) -> Result<Landed<'_>, DeviceError>;

    /// Begins a step while none is in flight, waits for it, and returns the logits that are read.
    ///
    /// # Errors
    /// The device failed; the caller cannot go on with this model.
    fn step(&mut self, batch: &StepBatch) -> Result<&[f32], DeviceError> {
        self.launch(batch)?;
        Ok(self.land()?.logits)
    }
}
