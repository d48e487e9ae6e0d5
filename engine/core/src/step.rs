//! Batch of a step and its output: scheduled sequences, input tokens, the rows that pass the LM
//! head, and checks that devices make before they compute.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::KvShape;
use crate::sample::SampleParams;

/// Input token of one row of a step: known to the host, or sampled by the previous step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepToken {
    /// Input token whose id the host knows.
    Known(u32),
    /// Input token that the previous step samples, so that the host may not know it yet. The number
    /// is its index in [`StepOutput::tokens`] of that step.
    Sampled(u32),
}

/// Scheduled sequence: the rows of one sequence in a step, at consecutive positions. The scheduler
/// creates it, the engine loop adds which rows need logits, and devices compute it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScheduledSequence {
    /// Index in the step of the sequence's first row, which [`StepBatch::push`] sets. The rows of
    /// sequences follow one another without a gap.
    pub row: usize,
    /// Number of rows, which are input tokens, of the sequence in the step; at least 1.
    pub rows: usize,
    /// Token position, within its sequence, of the first of the sequence's rows in the step; the
    /// keys and values of all earlier positions are in the KV pages.
    pub position: usize,
    /// Page table (block table in vLLM's words) of the sequence: entry `i` is the KV page of
    /// positions `i * page_tokens ..`. Covers all positions below [`ScheduledSequence::end`], and
    /// may cover more. Shared, so that a step in flight needs no copy.
    pub pages: Arc<[u32]>,
    /// Which of the sequence's rows in the step need logits.
    pub logits: LogitRows,
    /// State slots that the sequence uses in the step; `None` if the model has no recurrent state.
    pub state: Option<StateSlots>,
}

/// State slots that a sequence uses in a step; each index is below the number of slots given to
/// `Model::allocate_states`. A sequence that starts at position 0 begins with a zero state, others
/// with the content of `slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSlots {
    /// State slot of the running sequence: its recurrent state is read before the sequence's first
    /// row of the step and written after the last.
    pub slot: u32,
    /// State slot of a prefix-cache snapshot that is copied to `slot` before the first row of the
    /// step; `None` copies nothing.
    pub load: Option<u32>,
    /// State slot for a new prefix-cache snapshot, to which `slot` is copied after the last row of
    /// the step; `None` copies nothing.
    pub save: Option<u32>,
}

/// Which rows of a sequence in a step need logits, and whether the device samples from them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum LogitRows {
    /// No row of the sequence needs logits, as in a prefill chunk that does not reach the
    /// sequence's last token.
    #[default]
    None,
    /// The sequence's last row in the step needs logits, which the host reads, for instance to
    /// sample the next token.
    Last,
    /// All rows of the sequence in the step need logits, which the host reads, such as for prompt
    /// log-probabilities.
    All,
    /// The device samples the next token from the logits of the sequence's last row, with these
    /// parameters. The logits stay on the device.
    Sample(SampleParams),
    /// The device samples a token from each of the sequence's last `rows` rows in the step: from
    /// the first of them with the parameters `first`, from the others with the same parameters and
    /// the random numbers that follow. For speculative decoding, whose drafts these rows are.
    SampleEach {
        /// Sampling parameters of the first of the rows.
        first: SampleParams,
        /// Number of rows that a token is sampled from, at least 1.
        rows: usize,
    },
}

/// Batch of one step: its input tokens and the sequences that they belong to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepBatch {
    /// Input tokens of the step, `[T]`: those of all sequences, one sequence after another.
    pub tokens: Vec<StepToken>,
    /// Sequences of the step, whose `rows` add up to T, the number of input tokens.
    pub sequences: Vec<ScheduledSequence>,
}

/// Largest sizes of the steps of a model while it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Largest number of input tokens of a step.
    pub tokens: usize,
    /// Largest number of sequences of a step.
    pub sequences: usize,
    /// Largest number of KV pages that a sequence uses.
    pub sequence_pages: usize,
}

/// The rows of a step that pass the LM head, R in number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadRows {
    /// Indices in the step of the R rows that pass the LM head, `[R]`: first the rows whose logits
    /// the host reads, in the order of the batch, then the rows that a token is sampled from.
    pub rows: Vec<usize>,
    /// Sampling parameters of the rows that a token is sampled from, which are the last ones in
    /// `rows`, in the same order.
    pub sampling: Vec<SampleParams>,
}

/// Output of a completed step: the logits that the host reads, and the tokens that the device
/// sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutput<'a> {
    /// Logits, `[rows, vocab_size]`, of those rows of a completed step whose logits the host reads,
    /// row major, in the order of the batch.
    pub logits: &'a [f32],
    /// Token ids that the device sampled in a completed step, in the order of the batch; `None`
    /// where a row's largest logit, NaNs left out, was not finite.
    pub tokens: &'a [Option<u32>],
}

impl ScheduledSequence {
    /// Returns the position, within its sequence, that follows the sequence's last row in the step.
    pub fn end(&self) -> usize {
        self.position + self.rows
    }

    /// Returns the page table of the sequence, cut after the page of its last row in the step.
    pub fn used_pages(&self, page_tokens: usize) -> &[u32] {
        &self.pages[..self.end().div_ceil(page_tokens)]
    }

    /// Returns the range of the sequence's rows that pass the LM head, counted from the sequence's
    /// first row in the step.
    pub fn head_rows(&self) -> Range<usize> {
        match self.logits {
            LogitRows::None => self.rows..self.rows,
            LogitRows::Last | LogitRows::Sample(_) => self.rows.saturating_sub(1)..self.rows,
            LogitRows::SampleEach { rows, .. } => self.rows.saturating_sub(rows)..self.rows,
            LogitRows::All => 0..self.rows,
        }
    }
}

impl StepBatch {
    /// Builds the batch of a step from sequences and their input tokens, all of which the host
    /// knows.
    pub fn known(tokens: &[u32], sequences: Vec<ScheduledSequence>) -> Self {
        let mut batch = Self::default();
        batch.tokens.extend(tokens.iter().copied().map(StepToken::Known));
        sequences.into_iter().for_each(|sequence| batch.push(sequence));
        batch
    }

    /// Adds a sequence to the batch of a step; its rows follow those of the sequences before it.
    /// The caller adds its input tokens.
    pub fn push(&mut self, sequence: ScheduledSequence) {
        let row = self.sequences.last().map_or(0, |last| last.row + last.rows);
        self.sequences.push(ScheduledSequence { row, ..sequence });
    }

    /// Returns the rows of the batch that pass the LM head, with the sampling parameters of those
    /// that a token is sampled from.
    pub fn head_rows(&self) -> HeadRows {
        let (mut rows, mut sampled, mut sampling) = (Vec::new(), Vec::new(), Vec::new());
        for sequence in &self.sequences {
            let own = sequence.head_rows().map(|row| sequence.row + row);
            let (first, count) = match sequence.logits {
                LogitRows::Sample(params) => (params, 1),
                LogitRows::SampleEach { first, rows } => (first, rows),
                _ => {
                    rows.extend(own);
                    continue;
                }
            };
            sampled.extend(own);
            let indices = (first.index..).take(count);
            sampling.extend(indices.map(|index| SampleParams { index, ..first }));
        }
        rows.extend(sampled);
        HeadRows { rows, sampling }
    }

    /// Checks the sequences and tokens of the batch against the KV cache's `shape` and against
    /// `sampled`, the number of tokens that the previous step sampled. A page table that points
    /// outside of the cache would make a kernel read or write foreign memory.
    ///
    /// # Errors
    /// Returns a message about the first fault: a sequence without rows, with a page table that is
    /// too short or names a page outside of the cache, or with rows that do not follow those before
    /// it; a state slot that the step writes twice, or both loads and writes; more or fewer tokens
    /// than rows; a reference to a sampled token that does not exist.
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
/// Returns a message about the first sequence that has no state slot or names one that does not
/// exist.
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
    /// Returns the number of rows whose logits the host reads; they come first in `rows`.
    pub fn read(&self) -> usize {
        self.rows.len() - self.sampling.len()
    }
}
