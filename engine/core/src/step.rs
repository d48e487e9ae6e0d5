//! Models: the `Model` trait, a step's batch, and its results (logits, sampled tokens).
//!
//! A model knows no scheduler, no request and no clock. It sees token ids, positions and page
//! tables, and writes keys and values into the pages that it is given.

use std::ops::Range;

use crate::sample::DrawParams;

/// Input token of one row of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepToken {
    /// Token whose id the host knows.
    Known(u32),
    /// Token that the previous step samples and the host may not know yet: its index in
    /// [`Landed::tokens`].
    Drawn(u32),
}

/// Scheduled sequence: one sequence's rows in a step, at consecutive positions.
#[derive(Debug, Default, PartialEq)]
pub struct Segment {
    /// Number of rows. Their tokens follow those of the sequences before it in the batch.
    pub rows: usize,
    /// Position of the first row in its sequence; all earlier positions are in the KV pages.
    pub position: usize,
    /// Page table (block table): entry `i` is the KV page of positions `i * page_tokens ..`. Covers
    /// all positions below `position + rows`.
    pub pages: Vec<u32>,
    /// Choice of the sequence's rows that need logits.
    pub logits: LogitRows,
    /// State slots of the sequence, which models without recurrent state ignore.
    pub state: Option<SegmentState>,
}

/// State slots that a sequence uses in a step, below the number given to
/// `Model::allocate_states`. Rows at position 0 begin from a zero state, others from the content
/// of `place`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentState {
    /// State slot that is read before the first row and written after the last.
    pub place: u32,
    /// State slot that is copied to `place` before the first row: a snapshot.
    pub load: Option<u32>,
    /// State slot that `place` is copied to after the last row: a new snapshot.
    pub save: Option<u32>,
}

/// Choice of the rows of a sequence that need logits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum LogitRows {
    /// No row, for a prefill chunk that does not end its prompt.
    #[default]
    None,
    /// The last row, whose logits the caller reads to sample the next token.
    Last,
    /// All rows, for prompt log-probabilities and conformance tests.
    All,
    /// The last row, from which the device samples the next token. Its logits stay on the device.
    Draw(DrawParams),
}

/// Batch of one step: its tokens and the sequences that they belong to.
#[derive(Debug, Default, PartialEq)]
pub struct StepBatch {
    /// Tokens of all sequences, `[T]`, one sequence after another.
    pub tokens: Vec<StepToken>,
    /// Scheduled sequences; their `rows` add up to T.
    pub segments: Vec<Segment>,
}

/// The R rows of a step that pass the LM head.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadRows {
    /// Indices of rows in the step, `[R]`: first the rows whose logits are read, in the order of
    /// the batch, then those that a token is sampled from.
    pub rows: Vec<usize>,
    /// Sampling parameters, one for each of the last rows in `rows`.
    pub draws: Vec<DrawParams>,
}

impl Segment {
    /// Returns the range of the sequence's rows that pass the LM head.
    pub fn head_rows(&self) -> Range<usize> {
        match self.logits {
            LogitRows::None => self.rows..self.rows,
            LogitRows::Last | LogitRows::Draw(_) => self.rows.saturating_sub(1)..self.rows,
            LogitRows::All => 0..self.rows,
        }
    }
}

/// Implemented by hand for `clone_from`, so that copies of successive steps reuse their memory.
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

/// Implemented by hand for `clone_from`, so that copies of successive steps reuse their memory.
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
    /// Builds a batch of tokens that the host knows.
    pub fn known(tokens: &[u32], segments: Vec<Segment>) -> Self {
        Self { tokens: tokens.iter().copied().map(StepToken::Known).collect(), segments }
    }

    /// Returns the rows that pass the LM head.
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
    /// Returns how many rows have logits that are read; they come first in `rows`.
    pub fn read(&self) -> usize {
        self.rows.len() - self.draws.len()
    }
}

/// Results of a completed step: logits and sampled tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Landed<'a> {
    /// Logits `[rows, vocab_size]` of the rows whose logits are read, row major, in the order of
    /// the batch.
    pub logits: &'a [f32],
    /// Sampled tokens in the order of the batch; none where no logit was finite.
    pub tokens: &'a [Option<u32>],
}
