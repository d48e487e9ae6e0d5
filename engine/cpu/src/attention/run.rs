//! Attention kernel of the CPU: scores, softmax and multiplication by values over a range of
//! positions, block by block.

#![expect(unsafe_code, reason = "strided reads of pages")]

use std::f32::consts::LOG2_E;
use std::mem;
use std::sync::{Mutex, PoisonError};

use super::state::State;
use super::{Attention, BLOCK, Item, Task, Work};
use crate::isa::{Kernel, PairKernel};
use crate::kv::Layout;
use crate::lanes::{LANES, Lanes, Pairs};
use crate::shared::Shared;
use crate::tile::{
    self, Bf16Pair, Element, InBf16, InF32, Left, Out, Right, SideBySide, TILE_ROWS, TileArithmetic,
};

/// Arguments of the attention kernel for one task over KV pages of element type `E`.
pub(super) struct Run<'a, 'b, E> {
    pub call: &'a Attention<'a>,
    pub pages: &'a [E],
    pub task: Task<'a>,
    /// Attention task that this thread will probably run next, whose memory is prefetched; `None`
    /// if no task follows.
    pub then: Option<Task<'a>>,
    pub work: &'a mut Work,
    pub target: OutputTarget<'a, 'b>,
}

/// Memory to which an attention task writes its result: the output, or memory for a partial result.
#[derive(Clone, Copy)]
pub(super) enum OutputTarget<'a, 'b> {
    /// Output buffer of attention; the task covers its whole work item.
    Out(&'a Shared<'b, f32>),
    /// Memory for a partial result of attention; the task covers one part of the context of its
    /// work item.
    Part(&'a Mutex<State>),
}

impl<E: Element> Kernel for Run<'_, '_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        self.compute(InF32(lanes));
    }
}

impl PairKernel for Run<'_, '_, Bf16Pair> {
    #[inline(always)]
    fn run<P: Pairs>(self, pairs: P) {
        self.compute(InBf16(pairs));
    }
}

impl<'a, E> Run<'a, '_, E> {
    /// Computes the attention task and writes its result.
    #[inline(always)]
    fn compute<P: TileArithmetic<E>>(mut self, arithmetic: P) {
        let lanes = arithmetic.lanes();
        self.scale_queries();
        let queries = arithmetic.left(&self.work.queries, &mut self.work.rounded_queries);
        for part in self.task.parts() {
            self.attend(arithmetic, queries, part);
            match self.target {
                OutputTarget::Out(_) if part.start == self.task.start => {
                    mem::swap(&mut self.work.whole, &mut self.work.part);
                }
                OutputTarget::Out(_) => self.work.whole.merge(lanes, &self.work.part),
                OutputTarget::Part(left) => {
                    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                    mem::swap(&mut *left, &mut self.work.part);
                }
            }
        }
        if let OutputTarget::Out(out) = self.target {
            self.call.finish(lanes, self.task.item, &self.work.whole, out);
        }
    }

    /// Returns the number of query rows of the task's attention work item.
    fn rows(&self) -> usize {
        self.call.query_rows(self.task.item)
    }

    /// Copies the work item's queries, multiplied by the scale of attention scores and by log2(e),
    /// to the thread's working memory.
    #[inline(always)]
    fn scale_queries(&mut self) {
        let shape = self.call.layer.shape;
        let (rows, scale) = (self.rows(), shape.scale * LOG2_E);
        self.work.queries.clear();
        for query in 0..rows {
            let (row, column) = self.call.row_and_column(self.task.item, query);
            let from = &self.call.qkv[row * shape.qkv_cols() + column..][..shape.head_dim];
            self.work.queries.extend(from.iter().map(|x| x * scale));
        }
        self.work.scores.resize(rows * BLOCK, 0.0);
    }

    /// Computes attention over only the positions of the task `part`, and leaves it in the thread's
    /// partial result.
    #[inline(always)]
    fn attend<P: TileArithmetic<E>>(
        &mut self,
        arithmetic: P,
        queries: *const P::Left,
        part: Task<'_>,
    ) {
        self.work.part.clear(self.rows(), self.call.width());
        for block in (part.start..part.end).step_by(BLOCK) {
            let positions = BLOCK.min(part.end - block);
            self.score(arithmetic, queries, block, positions);
            self.softmax(arithmetic.lanes(), block, positions);
            self.multiply_values(arithmetic, block);
        }
    }

    /// Returns the work item and the first position of the block to prefetch: `block`, if this task
    /// has a block there, else the start of the next task. `None` if a next task is needed and
    /// there is none, or for more than [`TILE_ROWS`] query rows, where computation hides the
    /// memory's latency anyway.
    fn ahead(&self, block: usize) -> Option<(Item<'a>, usize)> {
        if self.rows() > TILE_ROWS {
            return None;
        }
        if block < self.task.end {
            return Some((self.task.item, block));
        }
        self.then.map(|task| (task.item, task.start))
    }

    /// Returns pointers to the keys of a block of positions, one pointer for each 16 positions.
    /// Pointers for positions past the end of the work item's context repeat the last one within
    /// it, so that all can be prefetched safely.
    #[inline(always)]
    fn keys<P: TileArithmetic<E>>(
        &self,
        item: Item<'_>,
        block: usize,
    ) -> [*const E; BLOCK / LANES] {
        let layout = Layout::new(self.call.kv.shape, self.call.layer.kv_layer);
        let d = self.call.layer.shape.head_dim;
        let last = (block + BLOCK).min(item.last()) - 1;
        let mut groups = [std::ptr::null(); BLOCK / LANES];
        for (g, group) in groups.iter_mut().enumerate() {
            let position = (block + g * LANES).min(last);
            let at = layout.keys(&item.sequence.pages, item.head, position) / P::STEPS;
            *group = self.pages[at..at + d / P::STEPS * LANES].as_ptr();
        }
        groups
    }

    /// Returns pointers to the values of a block of positions, one for each KV page that the block
    /// reaches. Entries for further pages repeat the pointer of the block's first page.
    #[inline(always)]
    fn values<P: TileArithmetic<E>>(&self, item: Item<'_>, block: usize) -> Values<E> {
        let layout = Layout::new(self.call.kv.shape, self.call.layer.kv_layer);
        let width = self.call.width();
        let page_tokens = self.call.kv.shape.page_tokens;
        let positions = BLOCK.min(item.last() - block);
        let mut values = Values { pages: 0, elements: [0; _], starts: [std::ptr::null(); _] };
        let mut done = 0;
        while done < positions {
            let position = block + done;
            let run = (page_tokens - position % page_tokens).min(positions - done);
            let at = layout.value(&item.sequence.pages, item.head, position) / P::STEPS;
            // The later position of the last pair is empty if the number of positions is odd.
            let elements = run.div_ceil(P::STEPS);
            values.starts[values.pages] = self.pages[at..at + elements * width].as_ptr();
            values.elements[values.pages] = elements;
            values.pages += 1;
            done += run;
        }
        for page in values.pages..values.starts.len() {
            values.starts[page] = values.starts[0];
        }
        values
    }

    /// Computes the attention scores, `queries * keys`, for the block of positions that begins at
    /// `block`.
    #[inline(always)]
    fn score<P: TileArithmetic<E>>(
        &mut self,
        arithmetic: P,
        queries: *const P::Left,
        block: usize,
        positions: usize,
    ) {
        let (rows, d) = (self.rows(), self.call.layer.shape.head_dim);
        let count = positions.div_ceil(LANES);
        let groups = self.keys::<P>(self.task.item, block);
        let ahead = self.ahead(block + BLOCK).map(|(item, block)| self.keys::<P>(item, block));
        let left = Left { start: queries, row_stride: d / P::STEPS, k_stride: 1 };
        let ahead = ahead.as_ref().map(|groups| &groups[..count]);
        let right = Right { groups: &groups[..count], ahead, k_stride: LANES, k: d / P::STEPS };
        let out = Out { start: self.work.scores.as_mut_ptr(), row_stride: BLOCK, fresh: true };
        // SAFETY: queries are `rows` by `d`, every group was just found to hold vectors for `d`, and
        // the scores have room for all groups of a block.
        unsafe { tile::multiply(arithmetic, rows, left, &[right], out) };
    }

    /// Computes the online softmax of a block: masks it, turns its scores into probabilities
    /// relative to the largest score so far, and rescales the accumulators of earlier blocks. Scores
    /// are multiplied by log2(e), so probabilities are powers of two.
    #[inline(always)]
    fn softmax<L: Lanes>(&mut self, lanes: L, block: usize, positions: usize) {
        let width = self.call.width();
        let group = self.call.layer.shape.group();
        let first = self.task.item.sequence.position + self.task.item.first;
        for query in 0..self.rows() {
            let seen = (first + query / group + 1).saturating_sub(block).min(positions);
            let scores = &mut self.work.scores[query * BLOCK..(query + 1) * BLOCK];
            let (scores, _) = scores.as_chunks_mut::<LANES>();
            let scores = &mut scores[..positions.div_ceil(LANES)];
            let masked = self.call.layer.masked(first + query / group).saturating_sub(block);
            let is_whole = masked == 0 && seen == BLOCK;
            let mask = |v, i: usize, fill| {
                if is_whole {
                    return v;
                }
                let v = lanes.keep_first(v, seen.saturating_sub(i * LANES).min(LANES), fill);
                if masked <= i * LANES {
                    return v;
                }
                // Lanes before the sliding window are masked.
                let before = (masked - i * LANES).min(LANES);
                let mut v = lanes.lower(v);
                v[..before].fill(fill);
                lanes.lift(&v)
            };
            let mut top = lanes.splat(f32::NEG_INFINITY);
            for (i, v) in scores.iter().enumerate() {
                let v = mask(lanes.lift(v), i, f32::NEG_INFINITY);
                top = lanes.max(top, v);
            }
            let before = self.work.part.largest[query];
            let largest = before.max(lanes.largest(top));
            if largest == f32::NEG_INFINITY {
                // The whole block lies before this row's window: exp(-inf - -inf) would be NaN.
                scores.as_flattened_mut().fill(0.0);
                continue;
            }
            self.work.part.largest[query] = largest;
            let shrink = lanes.exp2(lanes.splat(before - largest));
            let (totals, _) = self.work.part.totals.as_chunks_mut::<LANES>();
            let mut total = lanes.mul(lanes.lift(&totals[query]), shrink);
            for (i, v) in scores.iter_mut().enumerate() {
                let p = lanes.exp2(lanes.sub(lanes.lift(v), lanes.splat(largest)));
                let p = mask(p, i, 0.0);
                total = lanes.add(total, p);
                *v = lanes.lower(p);
            }
            totals[query] = lanes.lower(total);
            if before != largest {
                let sums = &mut self.work.part.sums[query * width..(query + 1) * width];
                let (sums, _) = sums.as_chunks_mut::<LANES>();
                for sum in sums {
                    *sum = lanes.lower(lanes.mul(lanes.lift(sum), shrink));
                }
            }
        }
    }

    /// Adds `probabilities * values` of the block to the accumulators of the partial result, KV
    /// page by KV page.
    #[inline(always)]
    fn multiply_values<P: TileArithmetic<E>>(&mut self, arithmetic: P, block: usize) {
        let (rows, width) = (self.rows(), self.call.width());
        let values = self.values::<P>(self.task.item, block);
        let ahead = self.ahead(block + BLOCK).map(|(item, block)| self.values::<P>(item, block));
        let count = width / LANES;
        let mut pieces = [Right {
            groups: SideBySide { start: std::ptr::null(), count },
            ahead: None,
            k_stride: width,
            k: 0,
        }; BLOCK / LANES];
        for (page, piece) in pieces.iter_mut().enumerate() {
            piece.groups.start = values.starts[page];
            piece.ahead =
                ahead.as_ref().map(|ahead| SideBySide { start: ahead.starts[page], count });
            piece.k = values.elements[page];
        }
        let start = arithmetic.left(&self.work.scores, &mut self.work.rounded_scores);
        let left = Left { start, row_stride: BLOCK / P::STEPS, k_stride: 1 };
        let out = Out { start: self.work.part.sums.as_mut_ptr(), row_stride: width, fresh: false };
        // SAFETY: probabilities are `rows` by at least as many as the block has positions, each
        // page's values its `k` by `width` as just sliced, and the sums have room for `rows` by
        // `width`.
        unsafe { tile::multiply(arithmetic, rows, left, &pieces[..values.pages], out) };
    }
}

/// Pointers to the values of a block of positions, for each KV page that the block reaches.
struct Values<E> {
    pages: usize,
    /// Number of elements, positions or pairs of them, that the block has in each KV page.
    elements: [usize; BLOCK / LANES],
    /// Pointers to the value of the block's first position in each KV page.
    starts: [*const E; BLOCK / LANES],
}
