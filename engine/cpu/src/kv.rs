//! Pages of keys and values, and the tokens and positions of a step.
//!
//! Memory comes zeroed from the operating system and is touched only as pages fill. Per page,
//! layer and KV head lie the keys as `[tokens / 16][D][16]`, so that sixteen positions are one
//! vector, and then the values as `[tokens][D]`, D rounded up to whole vectors.

use memmap2::MmapMut;

use super::lanes::LANES;
use super::memory::reserve;
use engine_core::batch::check;
use engine_core::{
    DeviceError, HeadRows, KvShape, KvType, Rotation, Segment, SegmentState, StepBatch, StepToken,
};

/// Keys and values of all layers.
#[derive(Debug)]
pub struct Kv {
    pub(super) shape: KvShape,
    pub(super) storage: MmapMut,
}

impl Kv {
    pub(super) fn new(shape: KvShape) -> Result<Self, DeviceError> {
        if shape.page_tokens == 0 || !shape.page_tokens.is_multiple_of(LANES) {
            let message = format!("a page of {} tokens is no multiple of 16", shape.page_tokens);
            return Err(DeviceError { operation: "kv", message });
        }
        let sizes = [
            shape.pages,
            shape.layers,
            shape.kv_heads,
            2,
            shape.page_tokens,
            width(&shape),
            shape.kv_type.bytes(),
        ];
        let storage = reserve("kv", &format!("{} pages", shape.pages), &sizes)?;
        Ok(Self { shape, storage })
    }

    pub(super) fn is_f16(&self) -> bool {
        self.shape.kv_type == KvType::F16
    }
}

/// Elements that a head takes for one position: whole vectors.
fn width(shape: &KvShape) -> usize {
    shape.head_dim.next_multiple_of(LANES)
}

/// Where the pages of one layer lie, in elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    shape: KvShape,
    layer: usize,
}

impl Layout {
    pub(super) fn new(shape: KvShape, layer: usize) -> Self {
        assert!(layer < shape.layers, "the layer has pages");
        Self { shape, layer }
    }

    /// As [`width`].
    pub(super) fn width(&self) -> usize {
        width(&self.shape)
    }

    /// Elements of the keys, or of the values, of one head in one page.
    fn half(&self) -> usize {
        self.shape.page_tokens * self.width()
    }

    fn head(&self, page: u32, head: usize) -> usize {
        let page = page as usize * self.shape.layers + self.layer;
        (page * self.shape.kv_heads + head) * 2 * self.half()
    }

    /// The keys of the sixteen positions around `position`, `[D][16]`.
    pub(super) fn keys(&self, pages: &[u32], head: usize, position: usize) -> usize {
        let slot = position % self.shape.page_tokens;
        let page = pages[position / self.shape.page_tokens];
        self.head(page, head) + slot / LANES * LANES * self.width()
    }

    /// The value of `position`, `[D]`; those of the positions after it in its page follow.
    pub(super) fn value(&self, pages: &[u32], head: usize, position: usize) -> usize {
        let slot = position % self.shape.page_tokens;
        let page = pages[position / self.shape.page_tokens];
        self.head(page, head) + self.half() + slot * self.width()
    }
}

/// One sequence's rows in a step.
#[derive(Debug)]
pub(super) struct Span {
    /// First row in the step.
    pub(super) row: usize,
    pub(super) rows: usize,
    /// Absolute position of the first row.
    pub(super) position: usize,
    pub(super) pages: Vec<u32>,
    pub(super) state: Option<SegmentState>,
}

/// Tokens, positions, page tables and rotations of one step, and its rows that pass the head.
#[derive(Debug)]
pub struct Plan {
    /// `[T]` ids of the tokens, beyond every vocabulary where none could be drawn.
    pub(super) ids: Vec<u32>,
    pub(super) head: HeadRows,
    pub(super) spans: Vec<Span>,
    /// `[T][rotated / 2]` pairs of cosine and sine.
    pub(super) rotations: Vec<(f32, f32)>,
    /// Pairs per token.
    pub(super) pairs: usize,
}

impl Plan {
    /// Checks `batch` against the cache: a page table that points outside of it would read or
    /// write the memory of others. `drawn` are the tokens that the step before drew.
    pub(super) fn new(
        batch: &StepBatch,
        drawn: &[Option<u32>],
        shape: &KvShape,
        rotation: &Rotation,
    ) -> Result<Self, DeviceError> {
        let Rotation { inverse_frequencies, factor } = rotation;
        let wrong = |message| DeviceError { operation: "plan", message };
        let mut spans = Vec::with_capacity(batch.segments.len());
        let mut rotations = Vec::with_capacity(batch.tokens.len() * inverse_frequencies.len());
        check(batch, shape, drawn.len()).map_err(wrong)?;
        let mut row = 0;
        for segment in &batch.segments {
            let end = segment.position + segment.rows;
            for position in segment.position..end {
                rotations.extend(inverse_frequencies.iter().map(|frequency| {
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    (cos * factor, sin * factor)
                }));
            }
            let pages = segment.pages[..end.div_ceil(shape.page_tokens)].to_vec();
            let Segment { rows, position, state, .. } = *segment;
            spans.push(Span { row, rows, position, pages, state });
            row += segment.rows;
        }
        let ids = ids(&batch.tokens, drawn);
        let head = batch.head_rows();
        Ok(Self { ids, head, spans, rotations, pairs: inverse_frequencies.len() })
    }
}

/// Ids of `tokens`, some of which the step before drew.
fn ids(tokens: &[StepToken], drawn: &[Option<u32>]) -> Vec<u32> {
    let id = |token: &StepToken| match *token {
        StepToken::Known(id) => id,
        StepToken::Drawn(index) => drawn[index as usize].unwrap_or(u32::MAX),
    };
    tokens.iter().map(id).collect()
}
