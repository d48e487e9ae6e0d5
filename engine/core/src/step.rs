//! One step of a model as plain data: the rows that it computes, whose they are, and what comes of them.

use std::ops::Range;

use crate::sample::DrawParams;

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

/// Where a segment's recurrent state is kept: a place below those of `Model::allocate_states`.
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
