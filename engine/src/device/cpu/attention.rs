//! Causal attention over KV pages: online softmax in blocks of positions, grouped by KV head.
//!
//! A work item is one KV head and a few consecutive rows of one sequence; all query heads that
//! share the KV head go through its pages together. Blocks begin at absolute multiples of
//! [`BLOCK`], and a row's sums run over positions in rising order, so that its result depends on
//! its own sequence only. Where a layer has a window, blocks before it are skipped, which changes no
//! bit: their probabilities are zeros. Algorithm: Milakov and Gimelshein 2018; Dao et al. 2022.

#![expect(unsafe_code, reason = "strided reads of pages; threads write disjoint heads")]

use std::sync::{Mutex, PoisonError};

use super::isa::{Isa, Kernel};
use super::kv::{Kv, Layout, Plan, Span};
use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::shared::Shared;
use super::tile::{self, Element, Left, Out, Right, TILE_ROWS};
use crate::device::{AttentionLayer, AttentionShape};

/// Positions between two rescalings of the sums.
const BLOCK: usize = 64;
/// Query rows, over all heads of a group, that one item aims at.
const ITEM_ROWS: usize = 24;

/// Working memory of attention, one per thread.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<Mutex<Work>>);

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Mutex::default()).collect())
    }
}

/// State of the query rows of one item, R of them.
#[derive(Debug, Default)]
struct Work {
    /// `[R][D]` scaled queries.
    queries: Vec<f32>,
    /// `[R][BLOCK]` scores, then probabilities.
    scores: Vec<f32>,
    /// `[R][D]` weighted values so far, D rounded up to whole vectors.
    sums: Vec<f32>,
    /// `[R]` largest score so far.
    largest: Vec<f32>,
    /// `[R][16]` sum of probabilities so far, by lane.
    totals: Vec<f32>,
}

/// Attention of the query heads of `qkv` over the pages of `layer`.
pub(super) struct Attention<'a> {
    pub isa: Isa,
    pub qkv: &'a [f32],
    pub layer: &'a AttentionLayer<Vec<f32>>,
    pub plan: &'a Plan,
    pub kv: &'a Kv,
}

/// Rows `first .. first + rows` of a span, for one KV head.
#[derive(Clone, Copy)]
struct Item<'a> {
    span: &'a Span,
    first: usize,
    rows: usize,
    head: usize,
}

impl Item<'_> {
    /// The first position that is looked at: blocks before the first row's window are not.
    fn start(&self, layer: &AttentionLayer<Vec<f32>>) -> usize {
        layer.hidden(self.span.position + self.first) / BLOCK * BLOCK
    }

    /// The position after the last that is looked at.
    fn last(&self) -> usize {
        self.span.position + self.first + self.rows
    }
}

impl Attention<'_> {
    /// Writes `[T, H * D]` to `out`.
    pub(super) fn run(&self, pool: &mut Pool, scratch: &Scratch, out: &mut [f32]) {
        let AttentionShape { kv_heads, head_dim, .. } = self.layer.shape;
        assert!(head_dim <= MAX_VALUE_GROUPS * LANES, "heads are not larger than 512");
        assert_eq!((kv_heads, head_dim), (self.kv.shape.kv_heads, self.kv.shape.head_dim));
        let rows_max = (ITEM_ROWS / self.layer.shape.group()).max(1);
        let mut items = Vec::new();
        for span in &self.plan.spans {
            for first in (0..span.rows).step_by(rows_max) {
                let rows = rows_max.min(span.rows - first);
                items.extend((0..kv_heads).map(|head| Item { span, first, rows, head }));
            }
        }
        let out = Shared::new(out);
        pool.items(items.len(), &|thread, index| {
            let mut work = scratch.0[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let (call, work, out) = (self, &mut *work, &out);
            // Threads take items one after another, mostly.
            let (item, then) = (items[index], items.get(index + 1).copied());
            if self.kv.is_f16() {
                let pages: &[u16] = bytemuck::cast_slice(&self.kv.storage);
                self.isa.run(Run { call, pages, item, then, work, out });
            } else {
                let pages: &[f32] = bytemuck::cast_slice(&self.kv.storage);
                self.isa.run(Run { call, pages, item, then, work, out });
            }
        });
    }
}

/// One item over pages of one element type.
struct Run<'a, 'b, E> {
    call: &'a Attention<'a>,
    pages: &'a [E],
    item: Item<'a>,
    /// What this thread is likely to do next.
    then: Option<Item<'a>>,
    work: &'a mut Work,
    out: &'a Shared<'b, f32>,
}

impl<E: Element> Kernel for Run<'_, '_, E> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        self.start();
        let last = self.item.last();
        for block in (self.item.start(self.call.layer)..last).step_by(BLOCK) {
            let positions = BLOCK.min(last - block);
            self.score(lanes, block, positions);
            self.soften(lanes, block, positions);
            self.weigh(lanes, block);
        }
        self.finish(lanes);
    }
}

impl<'a, E: Element> Run<'a, '_, E> {
    /// Query rows of the item: its heads of the first token, then of the second, and so on.
    fn query_rows(&self) -> usize {
        self.item.rows * self.call.layer.shape.group()
    }

    /// Row of the step and first column of the head, for a query row.
    fn place(&self, query: usize) -> (usize, usize) {
        let group = self.call.layer.shape.group();
        let row = self.item.span.row + self.item.first + query / group;
        (row, (self.item.head * group + query % group) * self.call.layer.shape.head_dim)
    }

    /// D rounded up to whole vectors.
    fn width(&self) -> usize {
        self.call.layer.shape.head_dim.next_multiple_of(LANES)
    }

    /// The item and block that come before long, after the block before `block`: few rows wait for
    /// memory, and ask for what they will read while they compute.
    fn ahead(&self, block: usize) -> Option<(Item<'a>, usize)> {
        if self.query_rows() > TILE_ROWS {
            return None;
        }
        if block < self.item.last() {
            return Some((self.item, block));
        }
        self.then.map(|item| (item, item.start(self.call.layer)))
    }

    /// Where the keys of each sixteen positions of a block begin; behind the last they are its.
    #[inline(always)]
    fn keys(&self, item: Item<'_>, block: usize) -> [*const E; BLOCK / LANES] {
        let layout = Layout::new(self.call.kv.shape, self.call.layer.kv_layer);
        let d = self.call.layer.shape.head_dim;
        let last = (block + BLOCK).min(item.last()) - 1;
        std::array::from_fn(|g| {
            let position = (block + g * LANES).min(last);
            let at = layout.keys(&item.span.pages, item.head, position);
            self.pages[at..at + d * LANES].as_ptr()
        })
    }

    /// Where the values of a block lie; behind its last page they are the first one's.
    #[inline(always)]
    fn values(&self, item: Item<'_>, block: usize) -> Values<E> {
        let layout = Layout::new(self.call.kv.shape, self.call.layer.kv_layer);
        let width = self.width();
        let page_tokens = self.call.kv.shape.page_tokens;
        let positions = BLOCK.min(item.last() - block);
        let mut values = Values { pages: 0, runs: [0; _], groups: [[std::ptr::null(); _]; _] };
        let mut done = 0;
        while done < positions {
            let position = block + done;
            let run = (page_tokens - position % page_tokens).min(positions - done);
            let at = layout.value(&item.span.pages, item.head, position);
            let page = &self.pages[at..at + run * width];
            let groups = values.groups[values.pages].iter_mut();
            groups.zip(page[..width].chunks(LANES)).for_each(|(to, group)| *to = group.as_ptr());
            values.runs[values.pages] = run;
            values.pages += 1;
            done += run;
        }
        for page in values.pages..values.groups.len() {
            values.groups[page] = values.groups[0];
        }
        values
    }

    #[inline(always)]
    fn start(&mut self) {
        let (rows, d) = (self.query_rows(), self.call.layer.shape.head_dim);
        self.work.queries.clear();
        for query in 0..rows {
            let (row, column) = self.place(query);
            let from = &self.call.qkv[row * self.call.layer.shape.qkv_cols() + column..][..d];
            self.work.queries.extend(from.iter().map(|x| x * self.call.layer.shape.scale));
        }
        self.work.scores.resize(rows * BLOCK, 0.0);
        self.work.sums.clear();
        self.work.sums.resize(rows * self.width(), 0.0);
        self.work.largest.clear();
        self.work.largest.resize(rows, f32::NEG_INFINITY);
        self.work.totals.clear();
        self.work.totals.resize(rows * LANES, 0.0);
        // A sink is a score that came before all others and has no value.
        if let Some(sinks) = &self.call.layer.sinks {
            let group = self.call.layer.shape.group();
            for query in 0..rows {
                self.work.largest[query] = sinks[self.item.head * group + query % group];
                self.work.totals[query * LANES] = 1.0;
            }
        }
    }

    /// `scores = queries * keys` for the positions from `block`.
    #[inline(always)]
    fn score<L: Lanes>(&mut self, lanes: L, block: usize, positions: usize) {
        let (rows, d) = (self.query_rows(), self.call.layer.shape.head_dim);
        let count = positions.div_ceil(LANES);
        let groups = self.keys(self.item, block);
        let ahead = self.ahead(block + BLOCK).map(|(item, block)| self.keys(item, block));
        let start = self.work.queries.as_ptr();
        let left = Left { start, row_stride: d, k_stride: 1 };
        let ahead = ahead.as_ref().map(|groups| &groups[..count]);
        let right = Right { groups: &groups[..count], ahead, k_stride: LANES, k: d };
        let out = Out { start: self.work.scores.as_mut_ptr(), row_stride: BLOCK, fresh: true };
        // SAFETY: queries are `rows` by `d`, every group was just found to hold `d` vectors, and
        // the scores have room for all groups of a block.
        unsafe { tile::multiply(lanes, rows, left, &[right], out) };
    }

    /// Turns scores into probabilities under the largest score so far, and rescales the sums.
    #[inline(always)]
    fn soften<L: Lanes>(&mut self, lanes: L, block: usize, positions: usize) {
        let width = self.width();
        let group = self.call.layer.shape.group();
        let first = self.item.span.position + self.item.first;
        for query in 0..self.query_rows() {
            let seen = (first + query / group + 1).saturating_sub(block).min(positions);
            let scores = &mut self.work.scores[query * BLOCK..(query + 1) * BLOCK];
            let (scores, _) = scores.as_chunks_mut::<LANES>();
            let scores = &mut scores[..positions.div_ceil(LANES)];
            let hidden = self.call.layer.hidden(first + query / group).saturating_sub(block);
            let is_whole = hidden == 0 && seen == BLOCK;
            let hide = |v, i: usize, fill| {
                if is_whole {
                    return v;
                }
                let v = lanes.keep_first(v, seen.saturating_sub(i * LANES).min(LANES), fill);
                if hidden <= i * LANES {
                    return v;
                }
                // Lanes before the window: what remains after the first `hidden` are taken away.
                let before = (hidden - i * LANES).min(LANES);
                let mut v = lanes.lower(v);
                v[..before].fill(fill);
                lanes.lift(&v)
            };
            let mut top = lanes.splat(f32::NEG_INFINITY);
            for (i, v) in scores.iter().enumerate() {
                let v = hide(lanes.lift(v), i, f32::NEG_INFINITY);
                top = lanes.max(top, v);
            }
            let before = self.work.largest[query];
            let largest = before.max(lanes.largest(top));
            if largest == f32::NEG_INFINITY {
                // The whole block is before this row's window.
                scores.as_flattened_mut().fill(0.0);
                continue;
            }
            self.work.largest[query] = largest;
            let shrink = lanes.exp(lanes.splat(before - largest));
            let (totals, _) = self.work.totals.as_chunks_mut::<LANES>();
            let mut total = lanes.mul(lanes.lift(&totals[query]), shrink);
            for (i, v) in scores.iter_mut().enumerate() {
                let p = lanes.exp(lanes.sub(lanes.lift(v), lanes.splat(largest)));
                let p = hide(p, i, 0.0);
                total = lanes.add(total, p);
                *v = lanes.lower(p);
            }
            totals[query] = lanes.lower(total);
            if before != largest {
                let sums = &mut self.work.sums[query * width..(query + 1) * width];
                let (sums, _) = sums.as_chunks_mut::<LANES>();
                for sum in sums {
                    *sum = lanes.lower(lanes.mul(lanes.lift(sum), shrink));
                }
            }
        }
    }

    /// `sums += probabilities * values`, page after page.
    #[inline(always)]
    fn weigh<L: Lanes>(&mut self, lanes: L, block: usize) {
        let (rows, width) = (self.query_rows(), self.width());
        let values = self.values(self.item, block);
        let ahead = self.ahead(block + BLOCK).map(|(item, block)| self.values(item, block));
        let columns = ..width / LANES;
        let pieces: [_; BLOCK / LANES] = std::array::from_fn(|page| Right {
            groups: &values.groups[page][columns],
            ahead: ahead.as_ref().map(|values| &values.groups[page][columns]),
            k_stride: width,
            k: values.runs[page],
        });
        let left = Left { start: self.work.scores.as_ptr(), row_stride: BLOCK, k_stride: 1 };
        let out = Out { start: self.work.sums.as_mut_ptr(), row_stride: width, fresh: false };
        // SAFETY: probabilities are `rows` by at least as many as the block has positions, each
        // page's values its `k` by `width` as just sliced, and the sums have room for `rows` by `width`.
        unsafe { tile::multiply(lanes, rows, left, &pieces[..values.pages], out) };
    }

    #[inline(always)]
    fn finish<L: Lanes>(&mut self, lanes: L) {
        let (d, width) = (self.call.layer.shape.head_dim, self.width());
        let cols = self.call.layer.shape.heads * d;
        for query in 0..self.query_rows() {
            let (row, column) = self.place(query);
            let (totals, _) = self.work.totals.as_chunks::<LANES>();
            let scale = 1.0 / lanes.sum(lanes.lift(&totals[query]));
            // SAFETY: items differ in row or head, so each writes its own columns.
            let out = unsafe { self.out.part(row * cols + column, d) };
            for (out, sum) in out.iter_mut().zip(&self.work.sums[query * width..][..d]) {
                *out = sum * scale;
            }
        }
    }
}

/// Values of a block, page by page.
struct Values<E> {
    pages: usize,
    /// Positions in each page.
    runs: [usize; BLOCK / LANES],
    /// The first position's columns in each page, by sixteen.
    groups: [[*const E; MAX_VALUE_GROUPS]; BLOCK / LANES],
}

/// Vectors of the largest head size, 512.
const MAX_VALUE_GROUPS: usize = 512 / LANES;
