//! Paged KV cache of the CPU, and the prepared step: its token ids, page tables, cos/sin tables and
//! LM head rows.
//!
//! The cache's memory comes zeroed from the operating system and is touched only as pages fill. For
//! each page, layer and KV head it holds the keys as `[tokens / 16][D][16]`, so that 16 positions
//! form one vector, and then the values as `[tokens][D]`, D rounded up to whole vectors. In bf16
//! they lie in pairs, as dot products need them: keys as `[tokens / 16][D / 2][16][2]` and values as
//! `[tokens / 2][D][2]`.

use memmap2::MmapMut;

use super::lanes::{LANES, PAIR};
use super::memory::reserve;
use engine_core::{
    DeviceError, HeadRows, KvShape, KvType, Rotation, ScheduledSequence, StepBatch, StepToken,
};

/// KV cache of the CPU: keys and values of all attention layers, in pages.
#[derive(Debug)]
pub struct Kv {
    pub(super) shape: KvShape,
    pub(super) storage: MmapMut,
}

impl Kv {
    pub(super) fn new(shape: KvShape) -> Result<Self, DeviceError> {
        if shape.page_tokens == 0 || !shape.page_tokens.is_multiple_of(LANES) {
            let message = format!("{} tokens per page is not a multiple of 16", shape.page_tokens);
            return Err(DeviceError { operation: "kv", message });
        }
        let is_supported = match shape.kv_type {
            KvType::F32 | KvType::F16 => true,
            KvType::Bf16 => shape.head_dim.is_multiple_of(PAIR),
            KvType::Fp8 => false,
        };
        if !is_supported {
            let (dtype, d) = (shape.kv_type.name(), shape.head_dim);
            let message = format!("heads of {d} elements in {dtype} are not supported on a CPU");
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
}

/// Returns the number of elements that a key or value head takes in the KV cache for one position:
/// D rounded up to whole vectors.
fn width(shape: &KvShape) -> usize {
    shape.head_dim.next_multiple_of(LANES)
}

/// KV cache shape and layer for which the indices of elements in the layer's KV pages are computed.
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

    /// Returns the number of elements that a key or value head takes in a KV page for one position.
    pub(super) fn width(&self) -> usize {
        width(&self.shape)
    }

    /// Returns the number of elements of the keys, or of the values, of one KV head in one page.
    fn half(&self) -> usize {
        self.shape.page_tokens * self.width()
    }

    /// Returns the element index of the first key of a KV head in page `page` of the layer.
    fn head(&self, page: u32, head: usize) -> usize {
        // All layers of a page are adjacent, so memory is touched page by page as they fill.
        let page = page as usize * self.shape.layers + self.layer;
        (page * self.shape.kv_heads + head) * 2 * self.half()
    }

    /// Returns the element index of the keys of the 16 positions that contain `position`, in the KV
    /// pages of a sequence.
    pub(super) fn keys(&self, pages: &[u32], head: usize, position: usize) -> usize {
        let slot = position % self.shape.page_tokens;
        let page = pages[position / self.shape.page_tokens];
        self.head(page, head) + slot / LANES * LANES * self.width()
    }

    /// Returns the element index of the value of `position` in the KV pages of a sequence; the values
    /// of the later positions in the same page follow it. In bf16 `position` is even.
    pub(super) fn value(&self, pages: &[u32], head: usize, position: usize) -> usize {
        let slot = position % self.shape.page_tokens;
        let page = pages[position / self.shape.page_tokens];
        self.head(page, head) + self.half() + slot * self.width()
    }
}

/// Step prepared for the CPU: its token ids, sequences with their page tables, cos/sin tables, and
/// the rows that pass the LM head.
#[derive(Debug)]
pub struct StepMetadata {
    /// Token ids of the step, `[T]`; `u32::MAX`, beyond every vocabulary, where the previous step
    /// could sample no token.
    pub(super) ids: Vec<u32>,
    pub(super) head: HeadRows,
    pub(super) sequences: Vec<ScheduledSequence>,
    /// cos/sin tables for the positions of the step, one for each of the model's rotary embeddings.
    pub(super) rotations: Vec<CosSin>,
}

/// cos/sin table of a rotary embedding for the positions of a step.
#[derive(Debug)]
pub(super) struct CosSin {
    /// Pairs of cosine and sine for the positions of a step, `[T][pairs]`.
    pub table: Vec<(f32, f32)>,
    /// Number of rotated pairs of dimensions (RoPE), which is the number of entries of the cos/sin
    /// table per token.
    pub pairs: usize,
}

impl CosSin {
    /// Computes the cos/sin table of the rotary embedding `rotation` for the positions of `batch`.
    fn new(batch: &StepBatch, rotation: &Rotation) -> Self {
        let Rotation { inverse_frequencies, factor } = rotation;
        let mut table = Vec::with_capacity(batch.tokens.len() * inverse_frequencies.len());
        for position in batch.sequences.iter().flat_map(|one| one.position..one.end()) {
            table.extend(inverse_frequencies.iter().map(|frequency| {
                let (sin, cos) = (position as f32 * frequency).sin_cos();
                (cos * factor, sin * factor)
            }));
        }
        Self { table, pairs: inverse_frequencies.len() }
    }
}

impl StepMetadata {
    /// Checks `batch` as [`StepBatch::check`] does and prepares it. `sampled` are the tokens that
    /// the previous step sampled, `None` where it could sample none.
    pub(super) fn new(
        batch: &StepBatch,
        sampled: &[Option<u32>],
        shape: &KvShape,
        rotations: &[Rotation],
    ) -> Result<Self, DeviceError> {
        batch
            .check(shape, sampled.len())
            .map_err(|message| DeviceError { operation: "prepare_step", message })?;
        let id = |token: &StepToken| match *token {
            StepToken::Known(id) => id,
            StepToken::Sampled(index) => sampled[index as usize].unwrap_or(u32::MAX),
        };
        Ok(Self {
            ids: batch.tokens.iter().map(id).collect(),
            head: batch.head_rows(),
            sequences: batch.sequences.clone(),
            // Computed once per step for all layers, since positions are the same in each.
            rotations: rotations.iter().map(|rotation| CosSin::new(batch, rotation)).collect(),
        })
    }
}
