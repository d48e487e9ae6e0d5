//! What a step's kernels read beside activations: tokens, positions, page tables, draws. It is laid
//! out in one piece, so that one copy brings it to the device, and in a bucket always alike, so that
//! records of launches hold.

use super::driver::Address;
use super::launch::SamplingArguments;
use super::launch::attention::{AttentionPlan, Span};
use super::launch::delta_net::StateSpan;
use super::stream::bucket;
use engine_core::sample::DrawParams;
use engine_core::{AttentionShape, HeadRows, Segment, StepBatch, StepRows, StepToken};

/// Bit of a token that says that it was drawn: the others are its place among those drawn.
const DRAWN: u32 = 1 << 31;
/// Words of one row's draw, and of one span of recurrent state.
const DRAW_WORDS: usize = size_of::<SamplingArguments>() / 4;
const SPAN_WORDS: usize = size_of::<StateSpan>() / 4;

/// Layers that attend alike: one plan serves them all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attending {
    pub shape: AttentionShape,
    pub window: Option<usize>,
    /// Blocks of a launch.
    pub blocks: usize,
}

impl Attending {
    /// Whether the layers of `other` can have the same plan.
    pub fn is_like(&self, shape: &AttentionShape, window: Option<usize>) -> bool {
        let heads = |shape: &AttentionShape| (shape.heads, shape.kv_heads, shape.head_dim);
        heads(&self.shape) == heads(shape) && self.window == window
    }
}

/// Where a step writes what belongs to nobody.
#[derive(Debug, Clone, Copy)]
pub struct Scratch {
    pub page: u32,
    /// None in models without recurrent state.
    pub place: Option<u32>,
    pub page_tokens: usize,
}

/// Words of each part of a step's metadata, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub rows: StepRows,
    /// Sequences with recurrent state.
    pub spans: usize,
    /// Words where parts begin.
    pub draws: usize,
    pub ids: usize,
    pub positions: usize,
    pub slots: usize,
    pub head_rows: usize,
    pub states: usize,
    /// Of each [`Attending`].
    pub plans: Vec<usize>,
    /// Page tables, up to the end.
    pub tables: usize,
    pub words: usize,
}

/// A step before it is laid out.
#[derive(Debug)]
pub struct Draft<'a> {
    batch: &'a StepBatch,
    scratch: Scratch,
    head: HeadRows,
    /// Segments with the rows that fill up the bucket.
    spans: Vec<Span<'a>>,
    plans: Vec<AttentionPlan>,
    /// Rows of the bucket, if the step is of one.
    pub bucket: Option<usize>,
    pub layout: Layout,
}

impl<'a> Draft<'a> {
    pub fn new(batch: &'a StepBatch, attending: &[Attending], scratch: Scratch) -> Self {
        let head = batch.head_rows();
        let decodes = !batch.tokens.is_empty() && batch.segments.iter().all(|one| one.rows == 1);
        let bucket = decodes.then(|| bucket(batch.tokens.len()));
        let spans = spans(batch, &scratch, bucket);
        let rows = StepRows {
            all: bucket.unwrap_or(batch.tokens.len()),
            head: bucket.unwrap_or(head.rows.len()),
        };
        let plan = |of: &Attending| AttentionPlan::new(&spans, &of.shape, of.window, of.blocks);
        let plans: Vec<AttentionPlan> = attending.iter().map(plan).collect();
        let plan_words = attending.iter().zip(&plans).map(|(of, plan)| match bucket {
            Some(rows) => AttentionPlan::words_max(rows, &of.shape, of.blocks),
            None => plan.words(),
        });
        let states = if scratch.place.is_some() { spans.len() } else { 0 };
        let tables = spans.iter().map(|span| span.pages.len()).sum();
        let layout = Layout::new(rows, states, plan_words, tables);
        Self { batch, scratch, head, spans, plans, bucket, layout }
    }

    /// Rows whose logits are read, and rows that draw.
    pub fn head(&self) -> (usize, usize) {
        (self.head.read(), self.head.draws.len())
    }

    /// Writes everything to `out`. Tokens that were drawn are those of rows `drawn ..` before.
    pub fn write(&self, drawn: u32, out: &mut [u32]) {
        let at = &self.layout;
        self.write_draws(&mut out[at.draws..at.ids]);
        let ids = &mut out[at.ids..at.positions];
        ids.fill(0);
        for (token, out) in self.batch.tokens.iter().zip(ids) {
            *out = match token {
                StepToken::Known(id) => *id,
                StepToken::Drawn(index) => DRAWN | (drawn + index),
            };
        }
        let page_tokens = self.scratch.page_tokens;
        for span in &self.spans {
            for row in 0..span.rows {
                let position = span.position + row;
                let page = span.pages[position / page_tokens] as usize;
                out[at.positions + span.row + row] = position as u32;
                out[at.slots + span.row + row] =
                    (page * page_tokens + position % page_tokens) as u32;
            }
        }
        let head_rows = &mut out[at.head_rows..at.states];
        head_rows.fill(0);
        self.head.rows.iter().zip(head_rows).for_each(|(row, out)| *out = *row as u32);
        if let Some(place) = self.scratch.place {
            self.write_states(place, &mut out[at.states..]);
        }
        for (plan, start) in self.plans.iter().zip(&at.plans) {
            plan.write(at.tables - start, &mut out[*start..]);
        }
        let mut table = at.tables;
        for span in &self.spans {
            out[table..table + span.pages.len()].copy_from_slice(&span.pages);
            table += span.pages.len();
        }
    }

    /// Rows that draw nothing take their likeliest token, which nobody asks for.
    fn write_draws(&self, out: &mut [u32]) {
        out.fill(0);
        let rows = out.chunks_exact_mut(DRAW_WORDS).skip(self.head.read());
        for (draw, out) in self.head.draws.iter().zip(rows) {
            let DrawParams { temperature, top_p, min_p, top_k, seed, index } = *draw;
            let draw = SamplingArguments { temperature, top_p, min_p, top_k, seed, index };
            out.copy_from_slice(bytemuck::cast_slice(&[draw]));
        }
    }

    fn write_states(&self, scratch: u32, out: &mut [u32]) {
        let states = self.batch.segments.iter().map(|segment| segment.state);
        let states = states.chain(std::iter::repeat(None));
        for ((span, state), out) in
            self.spans.iter().zip(states).zip(out.chunks_exact_mut(SPAN_WORDS))
        {
            let none = || StateSpan::NOWHERE;
            let span = StateSpan {
                row: span.row as u32,
                rows: span.rows as u32,
                position: span.position as u32,
                place: state.map_or(scratch, |state| state.place),
                load: state.and_then(|state| state.load).unwrap_or_else(none),
                save: state.and_then(|state| state.save).unwrap_or_else(none),
            };
            out.copy_from_slice(bytemuck::cast_slice(&[span]));
        }
    }
}

/// The segments' rows, and up to the bucket rows at the first position of the scratch page.
fn spans<'a>(batch: &'a StepBatch, scratch: &Scratch, bucket: Option<usize>) -> Vec<Span<'a>> {
    let mut spans = Vec::with_capacity(bucket.unwrap_or(batch.segments.len()));
    let mut row = 0;
    for Segment { rows, position, pages, .. } in &batch.segments {
        let needed = (position + rows).div_ceil(scratch.page_tokens);
        let pages = (&pages[..needed]).into();
        spans.push(Span { row, rows: *rows, position: *position, pages });
        row += rows;
    }
    let filling = (row..bucket.unwrap_or(row)).map(|row| Span {
        row,
        rows: 1,
        position: 0,
        pages: vec![scratch.page].into(),
    });
    spans.extend(filling);
    spans
}

impl Layout {
    fn new(
        rows: StepRows,
        spans: usize,
        plan_words: impl Iterator<Item = usize>,
        table_words: usize,
    ) -> Self {
        let mut end = 0;
        let mut take = |words: usize| {
            end += words;
            end - words
        };
        // Draws first: they have words of eight bytes.
        let draws = take(rows.head * DRAW_WORDS);
        let [ids, positions, slots] = [rows.all; 3].map(&mut take);
        let head_rows = take(rows.head);
        let states = take(spans * SPAN_WORDS);
        let plans = plan_words.map(&mut take).collect();
        let tables = take(table_words);
        Self {
            rows,
            spans,
            draws,
            ids,
            positions,
            slots,
            head_rows,
            states,
            plans,
            tables,
            words: end,
        }
    }
}

/// A step that is laid out on the device.
#[derive(Debug)]
pub struct Plan {
    pub layout: Layout,
    pub bucket: Option<usize>,
    /// Where its metadata is.
    pub metadata: Address,
    /// `[T, P]` pairs of cosine and sine, and P.
    pub turns: Address,
    pub pairs: usize,
    /// Rows whose logits are read: the first that pass the head.
    pub reads: usize,
    /// Rows behind them that draw.
    pub draws: usize,
}

impl Plan {
    /// The address of a word of the metadata.
    pub fn at(&self, word: usize) -> Address {
        self.metadata.plus(4 * word)
    }
}
