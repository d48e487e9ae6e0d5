//! What the worker asks of a model: steps over batches of rows, for some of them logits or tokens
//! drawn from those.
//!
//! A model knows no scheduler, no request and no clock. It sees token ids, positions and page
//! tables, and writes keys and values into the pages it is told to use.

mod architectures;
mod block;
mod config;
mod decoder;
mod load;
mod parallel;
mod rope;
mod shard;
mod spec;
mod tensors;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use crate::device::{AttentionShape, KvType};
use crate::sample::DrawParams;
use crate::weights::WeightType;

pub use crate::weights::LoadError;
pub use architectures::{ARCHITECTURES, Architecture};
pub use load::{
    DeviceChoice, DeviceInfo, KvChoice, LoadOptions, Loaded, RopeChoice, load, load_checkpoint,
    load_on,
};

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

/// What a row of a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepToken {
    /// The token with this id.
    Known(u32),
    /// A token that the step before drew: its place among those of [`Landed::tokens`].
    Drawn(u32),
}

/// One sequence's share of a step: consecutive positions of one sequence.
#[derive(Debug, Default, PartialEq)]
pub struct Segment {
    /// Number of rows; its tokens follow those of the segments before it.
    pub rows: usize,
    /// Absolute position of the first row in its sequence; everything before it is in the pages.
    pub position: usize,
    /// Page table: entry `i` holds positions `i * page_tokens ..`. Covers `position + rows`.
    pub pages: Vec<u32>,
    /// Rows whose logits are wanted.
    pub logits: LogitRows,
    /// Where its recurrent state is; models that have none do not look.
    pub state: Option<SegmentState>,
}

/// Where a segment's recurrent state is kept: a place below those of [`Model::allocate_states`].
/// A segment at position 0 begins from zero, another from what `place` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentState {
    /// Read before the first row and written after the last.
    pub place: u32,
    /// The place to copy to `place` before the first row.
    pub load: Option<u32>,
    /// Where to copy `place` to after the last row.
    pub save: Option<u32>,
}

/// Which rows of a segment need logits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum LogitRows {
    /// A prefill chunk that does not end its prompt.
    #[default]
    None,
    /// The row that the caller samples the next token from.
    Last,
    /// Every row: prompt log-probabilities and conformance tests.
    All,
    /// The last row, from which the device draws the next token; the logits stay there.
    Draw(DrawParams),
}

/// Everything a model needs for one step; plain data made by the worker from a schedule.
#[derive(Debug, Default, PartialEq)]
pub struct StepBatch {
    /// `[T]` tokens of all segments, one after another.
    pub tokens: Vec<StepToken>,
    /// Whose tokens they are; their `rows` add up to T.
    pub segments: Vec<Segment>,
}

/// The rows of a step that pass the head: R of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadRows {
    /// `[R]` rows of the step: first those whose logits are read, in the order of the batch, then
    /// those that a token is drawn from.
    pub rows: Vec<usize>,
    /// How the tokens are drawn, one for each of the last rows.
    pub draws: Vec<DrawParams>,
}

impl Segment {
    /// Which of its rows pass the head.
    pub fn head_rows(&self) -> Range<usize> {
        match self.logits {
            LogitRows::None => self.rows..self.rows,
            LogitRows::Last | LogitRows::Draw(_) => self.rows.saturating_sub(1)..self.rows,
            LogitRows::All => 0..self.rows,
        }
    }
}

/// By hand, as copies of one step after another are to use their memory again.
impl Clone for Segment {
    fn clone(&self) -> Self {
        Self { pages: self.pages.clone(), ..*self }
    }

    fn clone_from(&mut self, source: &Self) {
        let mut pages = std::mem::take(&mut self.pages);
        pages.clone_from(&source.pages);
        *self = Self { pages, ..*source };
    }
}

/// As for [`Segment`].
impl Clone for StepBatch {
    fn clone(&self) -> Self {
        Self { tokens: self.tokens.clone(), segments: self.segments.clone() }
    }

    fn clone_from(&mut self, source: &Self) {
        self.tokens.clone_from(&source.tokens);
        self.segments.clone_from(&source.segments);
    }
}

impl StepBatch {
    /// A batch of tokens that are all known.
    pub fn known(tokens: &[u32], segments: Vec<Segment>) -> Self {
        Self { tokens: tokens.iter().copied().map(StepToken::Known).collect(), segments }
    }

    /// The rows that pass the head.
    pub fn head_rows(&self) -> HeadRows {
        let (mut rows, mut drawn, mut draws) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = 0;
        for segment in &self.segments {
            let own = segment.head_rows().map(|row| first + row);
            match segment.logits {
                LogitRows::Draw(params) => {
                    drawn.extend(own);
                    draws.push(params);
                }
                _ => rows.extend(own),
            }
            first += segment.rows;
        }
        rows.extend(drawn);
        HeadRows { rows, draws }
    }
}

impl HeadRows {
    /// How many of the rows have logits that are read: the first.
    pub fn read(&self) -> usize {
        self.rows.len() - self.draws.len()
    }
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Landed<'a> {
    /// `[rows, vocab_size]` of the rows whose logits are read, row major, in the order of the batch.
    pub logits: &'a [f32],
    /// The tokens drawn, in the order of the batch; none where no logit was finite.
    pub tokens: &'a [Option<u32>],
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
    fn allocate_kv(&mut self, pages: usize, page_tokens: usize) -> Result<(), StepError>;

    /// Makes places for the recurrent states of as many sequences and snapshots. Called once before
    /// any step of a model whose `state_bytes` is not 0; memory is touched only as places fill.
    ///
    /// # Errors
    /// The device has not that much memory.
    fn allocate_states(&mut self, places: usize) -> Result<(), StepError> {
        let _ = places;
        Ok(())
    }

    /// Runs a step of `tokens` tokens that draws for `sequences` sequences, so that all memory but that
    /// of the KV cache and of recurrent states is taken. Called once, before those are allocated.
    /// Gives the bytes that are free afterwards, or none where the memory has other users.
    ///
    /// # Errors
    /// The device has not that much memory.
    fn rehearse(&mut self, tokens: usize, sequences: usize) -> Result<Option<u64>, StepError> {
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
    fn launch(&mut self, batch: &StepBatch) -> Result<(), StepError>;

    /// Waits for the oldest step in flight.
    ///
    /// # Errors
    /// The device failed, in this step or one after it; the caller cannot go on with this model.
    fn land(&mut self) -> Result<Landed<'_>, StepError>;

    /// Begins a step while none is in flight, waits for it, and returns the logits that are read.
    ///
    /// # Errors
    /// The device failed; the caller cannot go on with this model.
    fn step(&mut self, batch: &StepBatch) -> Result<&[f32], StepError> {
        self.launch(batch)?;
        Ok(self.land()?.logits)
    }
}

/// A device that can no longer be trusted.
#[derive(Debug, thiserror::Error)]
#[error("the device failed in {operation}: {message}")]
pub struct StepError {
    /// What was asked of the device.
    pub operation: &'static str,
    /// What it answered; may end with a hint.
    pub message: String,
}
