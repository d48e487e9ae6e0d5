//! Batch of a step and its output: scheduled sequences, input tokens, the rows that pass the LM head,
//! and the checks that every device makes before it computes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::KvShape;
use crate::sample::SampleParams;

/// Input token of one row of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepToken {
    /// Token whose id the host knows.
    Known(u32),
    /// Token that the previous step samples and the host may not know yet: its index in
    /// [`StepOutput::tokens`].
    Sampled(u32),
}

/// Scheduled sequence: one sequence's rows in a step, at consecutive positions. The scheduler makes
/// it, the engine loop adds which logits are needed, and devices compute it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScheduledSequence {
    /// Index of the first row in the step, which [`StepBatch::push`] sets. Sequences follow one
    /// another without a gap.
    pub row: usize,
    /// Number of rows, at least 1.
    pub rows: usize,
    /// Position of the first row in its sequence; all earlier positions are in the KV pages.
    pub position: usize,
    /// Page table (block table): entry `i` is the KV page of positions `i * page_tokens ..`. Covers
    /// all positions below [`ScheduledSequence::end`], and may cover more. Shared, so that a step in
    /// flight needs no copy.
    pub pages: Arc<[u32]>,
    /// Choice of the sequence's rows that need logits.
    pub logits: LogitRows,
    /// State slots of the sequence, if the model has recurrent state.
    pub state: Option<StateSlots>,
}

/// State slots that a sequence uses in a step, below the number given to
/// `Model::allocate_states`. Rows at position 0 begin from a zero state, others from the content
/// of `slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSlots {
    /// State slot that is read before the first row and written after the last.
    pub slot: u32,
    /// State slot that is copied to `slot` before the first row: a snapshot.
    pub load: Option<u32>,
    /// State slot that `slot` is copied to after the last row: a new snapshot.
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
    Sample(SampleParams),
}

/// Batch of one step: its tokens and the sequences that they belong to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepBatch {
    /// Tokens of all sequences, `[T]`, one sequence after another.
    pub tokens: Vec<StepToken>,
    /// Scheduled sequences; their `rows` add up to T.
    pub sequences: Vec<ScheduledSequence>,
}

/// The R rows of a step that pass the LM head.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadRows {
    /// Indices of rows in the step, `[R]`: first the rows whose logits are read, in the order of
    /// the batch, then those that a token is sampled from.
    pub rows: Vec<usize>,
    /// Sampling parameters, one for each of the last rows in `rows`.
    pub sampling: Vec<SampleParams>,
}

/// Output of a completed step: logits and sampled tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutput<'a> {
    /// Logits `[rows, vocab_size]` of the rows whose logits are read, row major, in the order of
    /// the batch.
    pub logits: &'a [f32],
    /// Sampled tokens in the order of the batch; none where no logit was finite.
    pub tokens: &'a [Option<u32>],
}

impl ScheduledSequence {
    /// Returns the position after the last row.
    pub fn end(&self) -> usize {
        self.position + self.rows
    }

    /// Returns the part of the page table up to the page of the last row.
    pub fn used_pages(&self, page_tokens: usize) -> &[u32] {
        &self.pages[..self.end().div_ceil(page_tokens)]
    }

    /// Returns the range of the sequence's rows that pass the LM head, counted from its first row.
    pub fn head_rows(&self) -> Range<usize> {
        match self.logits {
            LogitRows::None => self.rows..self.rows,
            LogitRows::Last | LogitRows::Sample(_) => self.rows.saturating_sub(1)..self.rows,
            LogitRows::All => 0..self.rows,
        }
    }
}

impl StepBatch {
    /// Builds a batch of tokens that the host knows.
    pub fn known(tokens: &[u32], sequences: Vec<ScheduledSequence>) -> Self {
        let mut batch = Self::default();
        batch.tokens.extend(tokens.iter().copied().map(StepToken::Known));
        sequences.into_iter().for_each(|sequence| batch.push(sequence));
        batch
    }

    /// Adds a sequence, whose rows follow those of the sequences before it. The caller adds its
    /// tokens.
    pub fn push(&mut self, sequence: ScheduledSequence) {
        let row = self.sequences.last().map_or(0, |last| last.row + last.rows);
        self.sequences.push(ScheduledSequence { row, ..sequence });
    }

    /// Returns the rows that pass the LM head.
    pub fn head_rows(&self) -> HeadRows {
        let (mut rows, mut sampled, mut sampling) = (Vec::new(), Vec::new(), Vec::new());
        for sequence in &self.sequences {
            let own = sequence.head_rows().map(|row| sequence.row + row);
            if let LogitRows::Sample(params) = sequence.logits {
                sampled.extend(own);
                sampling.push(params);
            } else {
                rows.extend(own);
            }
        }
        rows.extend(sampled);
        HeadRows { rows, sampling }
    }

    /// Checks the sequences and tokens of the batch against the KV cache's `shape`. A page table
    /// that points outside of the cache would make a kernel read or write foreign memory. `sampled`
    /// is the number of tokens that the previous step sampled.
    ///
    /// # Errors
    /// Returns a description of the first violation.
    pub fn check(&self, shape: &KvShape, sampled: usize) -> Result<(), String> {
        let mut rows = 0;
        for (index, sequence) in self.sequences.iter().enumerate() {
            let (own, end, pages) = (sequence.rows, sequence.end(), sequence.pages.len());
            // The table must cover the last row too, since its key and value are written.
            if own == 0 || pages < end.div_ceil(shape.page_tokens) {
                return Err(format!(
                    "sequence {index} has {own} rows up to position {end} and {pages} pages"
                ));
            }
            if let Some(page) = sequence.pages.iter().find(|page| **page as usize >= shape.pages) {
                return Err(format!("sequence {index} uses page {page} of {}", shape.pages));
            }
            // Kernels write the rows of different sequences in parallel.
            if sequence.row != rows {
                return Err(format!("sequence {index} begins at row {}, not {rows}", sequence.row));
            }
            rows += own;
        }
        self.check_written_slots()?;
        if rows != self.tokens.len() {
            return Err(format!("{} tokens for {rows} rows", self.tokens.len()));
        }
        for token in &self.tokens {
            if let StepToken::Sampled(index) = token
                && *index as usize >= sampled
            {
                return Err(format!(
                    "sampled token {index} does not exist: the previous step sampled {sampled}"
                ));
            }
        }
        Ok(())
    }

    /// Returns an error if a state slot that one sequence writes is used by another one: sequences
    /// run in parallel, so the result would depend on timing.
    fn check_written_slots(&self) -> Result<(), String> {
        let states = || self.sequences.iter().filter_map(|sequence| sequence.state);
        let mut written = BTreeSet::new();
        for slot in states().flat_map(|state| [Some(state.slot), state.save]).flatten() {
            if !written.insert(slot) {
                return Err(format!("state slot {slot} is written twice"));
            }
        }
        match states().filter_map(|state| state.load).find(|load| written.contains(load)) {
            Some(slot) => Err(format!("state slot {slot} is loaded and written in one step")),
            None => Ok(()),
        }
    }
}

/// Checks that every sequence of a step has a state slot and names only slots below `slots`, the
/// number of slots.
///
/// # Errors
/// Returns a description of the first violation.
pub fn check_state_slots(sequences: &[ScheduledSequence], slots: usize) -> Result<(), String> {
    for (index, sequence) in sequences.iter().enumerate() {
        let Some(state) = sequence.state else {
            return Err(format!("sequence {index} has no state slot"));
        };
        let named = [Some(state.slot), state.load, state.save];
        if let Some(slot) = named.iter().flatten().max()
            && *slot as usize >= slots
        {
            return Err(format!("sequence {index} uses state slot {slot} of {slots}"));
        }
    }
    Ok(())
}

impl HeadRows {
    /// Returns how many rows have logits that are read; they come first in `rows`.
    pub fn read(&self) -> usize {
        self.rows.len() - self.sampling.len()
    }
}
