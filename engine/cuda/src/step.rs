//! Metadata of a step, which its kernels read beside activations: token ids, positions, page tables
//! (block tables), sampling parameters. It is one contiguous piece, copied at once, with the same
//! layout for all steps of a CUDA graph bucket, so that captured addresses stay valid.

use super::driver::Address;
use super::launch::SamplingArguments;
use super::launch::attention::{AttentionPlan, Span};
use super::launch::delta_net::StateSpan;
use super::stream::bucket;
use engine_core::sample::DrawParams;
use engine_core::{AttentionShape, HeadRows, Segment, StepBatch, StepRows, StepToken};

/// Bit in a token id that marks a token sampled by the step before and still on the device; the
/// other bits are its index there.
const DRAWN: u32 = 1 << 31;
/// Words of one row's sampling parameters, and of one sequence's recurrent-state entry.
const DRAW_WORDS: usize = size_of::<SamplingArguments>() / 4;
const SPAN_WORDS: usize = size_of::<StateSpan>() / 4;

/// Attention variant: heads and window that several layers share, so that one attention plan serves
/// them all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attending {
    pub shape: AttentionShape,
    pub window: Option<usize>,
    /// Number of blocks of the attention launch.
    pub blocks: usize,
}

impl Attending {
    /// True when a layer of this shape and window can use the same attention plan.
    pub fn is_like(&self, shape: &AttentionShape, window: Option<usize>) -> bool {
        let heads = |shape: &AttentionShape| (shape.heads, shape.kv_heads, shape.head_dim);
        heads(&self.shape) == heads(shape) && self.window == window
    }
}

/// Locations that padding rows of a CUDA graph write to, which belong to no sequence.
#[derive(Debug, Clone, Copy)]
pub struct Scratch {
    /// Number of the extra KV page.
    pub page: u32,
    /// Number of the extra state slot; none in models without recurrent state.
    pub place: Option<u32>,
    /// Number of tokens of a KV page.
    pub page_tokens: usize,
}

/// Layout of a step's metadata: the first word of each part, in the order of the parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Rows of the step, padding included.
    pub rows: StepRows,
    /// Number of sequences with recurrent state.
    pub spans: usize,
    /// First word of the sampling parameters.
    pub draws: usize,
    /// First word of the token ids.
    pub ids: usize,
    /// First word of the positions.
    pub positions: usize,
    /// First word of the KV slots: page number times page size plus offset in the page.
    pub slots: usize,
    /// First word of the indices of the rows that need logits.
    pub head_rows: usize,
    /// First word of the recurrent-state entries.
    pub states: usize,
    /// First word of the attention plan of each [`Attending`].
    pub plans: Vec<usize>,
    /// First word of the page tables, which are the last part.
    pub tables: usize,
    /// Total number of words of the metadata.
    pub words: usize,
}

/// Step whose metadata is planned but not yet written.
#[derive(Debug)]
pub struct Draft<'a> {
    batch: &'a StepBatch,
    scratch: Scratch,
    /// Rows of the step that need logits.
    head: HeadRows,
    /// Rows of each sequence, followed by the padding rows of the CUDA graph bucket.
    spans: Vec<Span<'a>>,
    /// Attention plan of each attention variant.
    plans: Vec<AttentionPlan>,
    /// Number of rows of the CUDA graph bucket, if all sequences decode; none for a step with a
    /// prefill chunk.
    pub bucket: Option<usize>,
    pub layout: Layout,
}

impl<'a> Draft<'a> {
    /// Plans the metadata of `batch`: padding, attention plans and layout.
    pub fn new(batch: &'a StepBatch, attending: &[Attending], scratch: Scratch) -> Self {
        let head = batch.head_rows();
        // Only decoding steps are captured as CUDA graphs: prefill chunks have too many shapes.
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
            // A fixed size keeps everything behind the plan at the captured addresses.
            Some(rows) => AttentionPlan::words_max(rows, &of.shape, of.blocks),
            None => plan.words(),
        });
        let states = if scratch.place.is_some() { spans.len() } else { 0 };
        let tables = spans.iter().map(|span| span.pages.len()).sum();
        let layout = Layout::new(rows, states, plan_words, tables);
        Self { batch, scratch, head, spans, plans, bucket, layout }
    }

    /// Number of rows whose logits are copied to the host, and number of rows that sample on the
    /// device.
    pub fn head(&self) -> (usize, usize) {
        (self.head.read(), self.head.draws.len())
    }

    /// Writes the metadata to `out`. Tokens sampled by the previous step are those of its rows from
    /// `drawn` on.
    pub fn write(&self, drawn: u32, out: &mut [u32]) {
        let at = &self.layout;
        self.write_draws(&mut out[at.draws..at.ids]);
        let ids = &mut out[at.ids..at.positions];
        // Padding rows read token 0; their results are ignored.
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

    /// Writes the sampling parameters. Rows without any keep zeros, which means greedy sampling;
    /// their result is ignored.
    fn write_draws(&self, out: &mut [u32]) {
        out.fill(0);
        let rows = out.chunks_exact_mut(DRAW_WORDS).skip(self.head.read());
        for (draw, out) in self.head.draws.iter().zip(rows) {
            let DrawParams { temperature, top_p, min_p, top_k, seed, index } = *draw;
            let draw = SamplingArguments { temperature, top_p, min_p, top_k, seed, index };
            out.copy_from_slice(bytemuck::cast_slice(&[draw]));
        }
    }

    /// Writes the recurrent-state entries. Padding rows use the state slot `scratch`.
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

/// Rows of each sequence, then padding rows up to the bucket, at position 0 of the extra page.
fn spans<'a>(batch: &'a StepBatch, scratch: &Scratch, bucket: Option<usize>) -> Vec<Span<'a>> {
    let mut spans = Vec::with_capacity(bucket.unwrap_or(batch.segments.len()));
    let mut row = 0;
    for Segment { rows, position, pages, .. } in &batch.segments {
        let needed = (position + rows).div_ceil(scratch.page_tokens);
        let pages = (&pages[..needed]).into();
        spans.push(Span { row, rows: *rows, position: *position, pages });
        row += rows;
    }
    // Padding rows attend to one position of the extra page, so that they cost little.
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
        // Sampling parameters come first, since they contain eight-byte words that must be aligned.
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

/// Step whose metadata is on the device.
#[derive(Debug)]
pub struct Plan {
    pub layout: Layout,
    /// Number of rows of the CUDA graph bucket, if the step belongs to one.
    pub bucket: Option<usize>,
    /// Address of the metadata on the device.
    pub metadata: Address,
    /// Address of the cos/sin table `[T, P]` of the rotary embedding, and the number P of rotated
    /// pairs.
    pub turns: Address,
    pub pairs: usize,
    /// Number of rows whose logits are copied to the host: the first of those that need logits.
    pub reads: usize,
    /// Number of rows behind them that sample on the device.
    pub draws: usize,
}

impl Plan {
    /// Address of a word of the metadata.
    pub fn at(&self, word: usize) -> Address {
        self.metadata.plus(4 * word)
    }
}
