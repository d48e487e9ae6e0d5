//! Rotary position embedding (RoPE) of queries and keys, and the write of keys and values to KV
//! pages.
//!
//! The pairs of dimensions that are rotated are `(i, i + rotated / 2)`, as in Hugging Face
//! checkpoints. GGUF files of the Llama family store other pairs and are reordered at load. Source:
//! Su et al. 2021.

#![expect(unsafe_code, reason = "threads write disjoint heads of one buffer and of one page")]

use super::elementwise::{Norm, norm_rows};
use super::isa::{Isa, Kernel, PairKernel};
use super::kv::{CosSin, Kv, Layout, StepMetadata};
use super::lanes::{LANES, Lanes, PAIR, Pairs};
use super::pool::{PARALLEL_ELEMENTS, Pool};
use super::shared::Shared;
use super::tile::{self, Bf16Pair, Element, InBf16, InF32, TileArithmetic};
use engine_core::{AttentionLayer, AttentionShape, HeadNorms, KvType, ScheduledSequence};

/// Largest head size, in elements, that RoPE, the write to the KV cache and attention support.
pub(super) const HEAD_DIM_MAX: usize = 512;

/// Arguments of RoPE and the write to the KV cache, without the buffers that are written.
#[derive(Clone, Copy)]
pub(super) struct Rope<'a> {
    pub isa: Isa,
    pub layer: &'a AttentionLayer<Vec<f32>>,
    pub step: &'a StepMetadata,
}

impl Rope<'_> {
    /// Applies RMS norms, if the layer has them, and the rotation to the query and key heads of
    /// `qkv`, and writes keys and values to the layer's KV pages.
    pub(super) fn run(&self, pool: &mut Pool, qkv: &mut [f32], kv: &mut Kv) {
        let AttentionShape { head_dim: d, kv_heads, .. } = self.layer.shape;
        let pairs = self.step.rotations[self.layer.rotation].pairs;
        assert!(2 * pairs <= d && d <= HEAD_DIM_MAX, "the rotated part fits in a head");
        assert_eq!((kv_heads, d), (kv.shape.kv_heads, kv.shape.head_dim));
        let layout = Layout::new(kv.shape, self.layer.kv_layer);
        let storage: &mut [u8] = &mut kv.storage;
        match kv.shape.kv_type {
            KvType::F32 => {
                let pages = &Shared::new(bytemuck::cast_slice_mut::<_, f32>(storage));
                self.over(pool, qkv, &|qkv, head| {
                    self.isa.run(Head { call: *self, head, qkv, pages, layout });
                });
            }
            KvType::F16 => {
                let pages = &Shared::new(bytemuck::cast_slice_mut::<_, u16>(storage));
                self.over(pool, qkv, &|qkv, head| {
                    self.isa.run(Head { call: *self, head, qkv, pages, layout });
                });
            }
            KvType::Bf16 => {
                let pages = &Shared::new(bytemuck::cast_slice_mut::<_, Bf16Pair>(storage));
                self.over(pool, qkv, &|qkv, head| {
                    self.isa.run_pairs(Head { call: *self, head, qkv, pages, layout });
                });
            }
            KvType::Fp8 => unreachable!("a cache of the CPU is not in FP8"),
        }
    }

    /// Computes `item` for each KV head, on the threads of the pool if the step is not small.
    fn over(
        &self,
        pool: &mut Pool,
        qkv: &mut [f32],
        item: &(dyn Fn(&Shared<'_, f32>, usize) + Sync),
    ) {
        let heads = self.layer.shape.kv_heads;
        let is_small = qkv.len() < PARALLEL_ELEMENTS;
        let qkv = Shared::new(qkv);
        if is_small {
            (0..heads).for_each(|head| item(&qkv, head));
        } else {
            pool.items(heads, &|_, head| item(&qkv, head));
        }
    }
}

/// Work item of RoPE: one KV head and the query heads that share it, over all rows of the step.
struct Head<'a, 'b, E> {
    call: Rope<'a>,
    head: usize,
    qkv: &'a Shared<'b, f32>,
    pages: &'a Shared<'b, E>,
    layout: Layout,
}

impl<E: Element> Kernel for Head<'_, '_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        self.compute(InF32(lanes));
    }
}

impl PairKernel for Head<'_, '_, Bf16Pair> {
    #[inline(always)]
    fn run<P: Pairs>(self, pairs: P) {
        self.compute(InBf16(pairs));
    }
}

impl<E> Head<'_, '_, E> {
    /// Applies RMS norms, if the layer has them, and the rotation to the queries and the key of the
    /// head in each row, and writes keys and values to its KV pages.
    #[inline(always)]
    fn compute<W: Write<E>>(self, writer: W) {
        let lanes = writer.lanes();
        let shape = &self.call.layer.shape;
        let AttentionShape { heads, kv_heads, head_dim: d, .. } = *shape;
        let (group, norms) = (shape.group(), self.call.layer.head_norms.as_ref());
        let CosSin { table, pairs } = &self.call.step.rotations[self.call.layer.rotation];
        for sequence in &self.call.step.sequences {
            for i in 0..sequence.rows {
                let row = (sequence.row + i) * shape.qkv_cols();
                let cos_sin = &table[(sequence.row + i) * pairs..][..*pairs];
                // SAFETY: items are KV heads, whose query, key and value columns are disjoint.
                unsafe {
                    let queries = self.qkv.part(row + self.head * group * d, group * d);
                    let key = self.qkv.part(row + (heads + self.head) * d, d);
                    if let Some(HeadNorms { query, key: weight, epsilon }) = norms {
                        norm_rows(lanes, queries, Norm { weight: query, epsilon: *epsilon });
                        norm_rows(lanes, key, Norm { weight, epsilon: *epsilon });
                    }
                    queries.chunks_exact_mut(d).for_each(|query| rotate(query, cos_sin));
                    rotate(key, cos_sin);
                    let value = self.qkv.part(row + (heads + kv_heads + self.head) * d, d);
                    writer.write(&self, sequence, sequence.position + i, key, value);
                }
            }
        }
    }
}

/// Way to write keys and values to KV pages with elements of type `E`.
trait Write<E>: TileArithmetic<E> {
    /// Writes the key and the value of one position to the KV pages of the head.
    fn write(
        self,
        head: &Head<'_, '_, E>,
        sequence: &ScheduledSequence,
        position: usize,
        key: &[f32],
        value: &[f32],
    );
}

impl<L: Lanes, E: Element> Write<E> for InF32<L> {
    #[inline(always)]
    fn write(
        self,
        head: &Head<'_, '_, E>,
        sequence: &ScheduledSequence,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (d, width) = (key.len(), head.layout.width());
        let mut narrow = [E::zeroed(); HEAD_DIM_MAX];
        convert(self.0, key, &mut narrow[..width]);
        let at = head.layout.keys(&sequence.pages, head.head, position);
        // SAFETY: this item alone uses the pages of its head.
        let keys = unsafe { head.pages.part(at, d * LANES) };
        let lane = position % LANES;
        for (column, key) in keys.chunks_exact_mut(LANES).zip(&narrow[..d]) {
            column[lane] = *key;
        }
        let at = head.layout.value(&sequence.pages, head.head, position);
        // SAFETY: as above.
        convert(self.0, value, unsafe { head.pages.part(at, width) });
    }
}

impl<P: Pairs> Write<Bf16Pair> for InBf16<P> {
    #[inline(always)]
    fn write(
        self,
        head: &Head<'_, '_, Bf16Pair>,
        sequence: &ScheduledSequence,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (d, width) = (key.len(), head.layout.width());
        let mut narrow = [[0; PAIR]; HEAD_DIM_MAX / PAIR];
        tile::round(self.0, key, &mut narrow);
        let at = head.layout.keys(&sequence.pages, head.head, position) / PAIR;
        // SAFETY: this item alone uses the pages of its head.
        let keys = unsafe { head.pages.part(at, d / PAIR * LANES) };
        let lane = position % LANES;
        for (column, key) in keys.chunks_exact_mut(LANES).zip(&narrow) {
            column[lane] = *key;
        }
        tile::round(self.0, value, &mut narrow);
        let narrow = narrow.as_flattened();
        let slot = position % PAIR;
        let at = head.layout.value(&sequence.pages, head.head, position - slot) / PAIR;
        // SAFETY: as above.
        let values = unsafe { head.pages.part(at, width) };
        for (pair, value) in values.iter_mut().zip(&narrow[..d]) {
            // The later position of a pair is multiplied before it is written, by a probability of
            // zero, so it must not be a NaN that the page held before.
            if slot == 0 {
                *pair = [*value, 0];
            } else {
                pair[1] = *value;
            }
        }
    }
}

/// Converts a key or value head to the element type of the KV cache and writes it to `to`. The
/// length of `to` is whole vectors; the last one is filled up with zeros.
#[inline(always)]
fn convert<L: Lanes, E: Element>(lanes: L, from: &[f32], to: &mut [E]) {
    let (whole, tail) = from.as_chunks::<LANES>();
    let mut to = to.chunks_exact_mut(LANES);
    for (from, to) in whole.iter().zip(&mut to) {
        // SAFETY: `to` holds sixteen elements.
        unsafe { E::store(lanes, to.as_mut_ptr(), lanes.lift(from)) };
    }
    if let Some(to) = to.next() {
        let mut last = [0.0; LANES];
        last[..tail.len()].copy_from_slice(tail);
        // SAFETY: `to` holds sixteen elements.
        unsafe { E::store(lanes, to.as_mut_ptr(), lanes.lift(&last)) };
    }
}

/// Rotates a query or key head by the cosine and sine pairs of its position (RoPE); dimensions
/// beyond the pairs stay as they are.
#[inline(always)]
fn rotate(head: &mut [f32], cos_sin: &[(f32, f32)]) {
    let (first, second) = head[..2 * cos_sin.len()].split_at_mut(cos_sin.len());
    for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(cos_sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
