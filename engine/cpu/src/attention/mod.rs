//! CPU kernels of paged attention: causal, online softmax in blocks of positions, grouped by KV
//! head (grouped-query attention, GQA).
//!
//! A work item is one KV head and a few consecutive rows of one sequence; all query heads that
//! share the KV head read its pages together. Blocks of positions begin at absolute multiples of
//! [`BLOCK`], and a row's sums run over positions in rising order, so its result depends on its own
//! sequence only. Blocks before a sliding window are skipped, which changes no bit because their
//! probabilities are zeros. Algorithm: Milakov and Gimelshein 2018; Dao et al. 2022.
//!
//! Long contexts are split at multiples of [`PART`] positions, and the partial results are merged
//! in rising order, whether one thread computes all parts or several threads share them. Where
//! there are few work items, each part is a task. Source: Dao et al. 2023 (Flash-Decoding).

#![expect(unsafe_code, reason = "threads write disjoint heads")]

mod run;
mod state;

use std::f32::consts::LOG2_E;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::isa::{Isa, Kernel};
use super::kv::{Kv, StepMetadata};
use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::rope::HEAD_DIM_MAX;
use super::shared::Shared;
use super::tile::Bf16Pair;
use engine_core::{AttentionLayer, AttentionShape, KvType, ScheduledSequence};
use run::{OutputTarget, Run};
use state::State;

/// Number of key positions in a block of attention: the scores of a block are computed together,
/// and the softmax accumulators are rescaled at most once per block.
const BLOCK: usize = 64;
/// Largest number of query rows of an attention work item, that is, rows of the step times query
/// heads that share a KV head. Where more query heads than this share a KV head, an item is one row
/// of the step, and so has more query rows.
const ITEM_ROWS: usize = 24;

/// Number of positions in a part of a long context: attention over a part is a partial softmax that
/// is computed on its own and merged later.
const PART: usize = 512;
/// Number of attention work items per thread from which on a step's contexts are not split; with
/// fewer items, and several threads, each part of a long context becomes a task of its own.
const FEW_ITEMS: usize = 8;

/// Working memory of the attention kernels: that of each thread, and the partial results of split
/// work items.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    threads: Vec<Mutex<Work>>,
    /// Partial results of attention, one for each task of a step whose work items are split;
    /// entries of an earlier step with more tasks are kept.
    parts: Vec<Mutex<State>>,
}

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        Self { threads: (0..threads).map(|_| Mutex::default()).collect(), parts: Vec::new() }
    }
}

/// Working memory of one thread of the attention kernel, for the R query rows of a work item.
#[derive(Debug, Default)]
struct Work {
    /// Queries of the R query rows of a work item, multiplied by the scale of attention scores and
    /// by log2(e), `[R][D]`, so that the softmax can use powers of two.
    queries: Vec<f32>,
    /// The queries rounded to bf16, for bf16 pages.
    rounded_queries: Vec<Bf16Pair>,
    /// Attention scores of R query rows for a block of positions, `[R][BLOCK]`, which the softmax
    /// replaces by probabilities.
    scores: Vec<f32>,
    /// The probabilities rounded to bf16, for bf16 pages.
    rounded_scores: Vec<Bf16Pair>,
    /// Partial result of attention over those positions of the current part that are done.
    part: State,
    /// Merged result of attention over those parts of the context that are done.
    whole: State,
}

/// Arguments of a paged attention operation: the query heads of `qkv` attend to the KV pages of
/// `layer`.
pub(super) struct Attention<'a> {
    pub isa: Isa,
    pub qkv: &'a [f32],
    pub layer: &'a AttentionLayer<Vec<f32>>,
    pub step: &'a StepMetadata,
    pub kv: &'a Kv,
}

/// Work item of attention: rows `first .. first + rows` of a sequence, counted from the sequence's
/// first row in the step, for the query heads that share one KV head.
#[derive(Clone, Copy)]
struct Item<'a> {
    sequence: &'a ScheduledSequence,
    first: usize,
    rows: usize,
    head: usize,
}

impl<'a> Item<'a> {
    /// Returns the task that covers all positions that the work item's rows attend to. Blocks
    /// before the first row's sliding window are skipped.
    fn task(self, layer: &AttentionLayer<Vec<f32>>) -> Task<'a> {
        let start = layer.masked(self.sequence.position + self.first) / BLOCK * BLOCK;
        Task { item: self, start, end: self.last() }
    }

    /// Returns the end of the positions that the work item's rows attend to: the position of its
    /// last row plus one.
    fn last(&self) -> usize {
        self.sequence.position + self.first + self.rows
    }
}

/// Task of attention: positions `start .. end` of the context of a work item; `start` is a multiple
/// of the block size.
#[derive(Clone, Copy)]
struct Task<'a> {
    item: Item<'a>,
    start: usize,
    end: usize,
}

impl<'a> Task<'a> {
    /// Splits the attention task at multiples of [`PART`] positions (split-K over the context).
    fn parts(self) -> impl Iterator<Item = Self> {
        (self.start / PART..self.end.div_ceil(PART)).map(move |part| Self {
            start: self.start.max(part * PART),
            end: self.end.min((part + 1) * PART),
            ..self
        })
    }
}

impl Attention<'_> {
    /// Computes attention for all sequences of the step on the threads of `pool` and writes `[T, H
    /// * D]` to `out`.
    pub(super) fn run(&self, pool: &mut Pool, scratch: &mut Scratch, out: &mut [f32]) {
        let AttentionShape { kv_heads, head_dim, .. } = self.layer.shape;
        assert!(head_dim <= HEAD_DIM_MAX, "heads are not larger than 512");
        assert_eq!((kv_heads, head_dim), (self.kv.shape.kv_heads, self.kv.shape.head_dim));
        let items = self.items();
        let out = Shared::new(out);
        // A single long sequence has one item per KV head, too few for many threads.
        let are_few = pool.threads() > 1 && items.len() < FEW_ITEMS * pool.threads();
        if are_few && items.iter().any(|item| item.last() > PART) {
            self.run_parts(pool, scratch, &items, &out);
        } else {
            let tasks: Vec<_> = items.iter().map(|item| item.task(self.layer)).collect();
            self.run_tasks(pool, &scratch.threads, &tasks, &|_| OutputTarget::Out(&out));
        }
    }

    /// Returns the attention work items of the step: the rows of each sequence are divided into
    /// chunks of a few rows, and each chunk gives one work item for each KV head.
    fn items(&self) -> Vec<Item<'_>> {
        let shape = &self.layer.shape;
        let rows_max = (ITEM_ROWS / shape.group()).max(1);
        let mut items = Vec::new();
        for sequence in &self.step.sequences {
            for first in (0..sequence.rows).step_by(rows_max) {
                let rows = rows_max.min(sequence.rows - first);
                items.extend((0..shape.kv_heads).map(|head| Item { sequence, first, rows, head }));
            }
        }
        items
    }

    /// Computes attention with each part of each work item as a task of its own, then merges the
    /// partial results per work item.
    fn run_parts(
        &self,
        pool: &mut Pool,
        scratch: &mut Scratch,
        items: &[Item<'_>],
        out: &Shared<'_, f32>,
    ) {
        let mut tasks = Vec::new();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for item in items {
            let first = tasks.len();
            tasks.extend(item.task(self.layer).parts());
            ranges.push(first..tasks.len());
        }
        if scratch.parts.len() < tasks.len() {
            scratch.parts.resize_with(tasks.len(), Mutex::default);
        }
        let parts = &scratch.parts;
        self.run_tasks(pool, &scratch.threads, &tasks, &|task| OutputTarget::Part(&parts[task]));
        pool.items(items.len(), &|thread, index| {
            let mut work = scratch.threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let (item, parts) = (items[index], &parts[ranges[index].clone()]);
            self.isa.run(Merge { call: self, item, parts, whole: &mut work.whole, out });
        });
    }

    /// Computes attention tasks on the threads of the pool. `target(i)` returns the memory to which
    /// task `i` writes its result: the output, or memory for a partial result.
    fn run_tasks<'b>(
        &self,
        pool: &mut Pool,
        threads: &[Mutex<Work>],
        tasks: &[Task<'_>],
        target: &(dyn Fn(usize) -> OutputTarget<'b, 'b> + Sync),
    ) {
        pool.items(tasks.len(), &|thread, index| {
            let mut work = threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let (call, work, target) = (self, &mut *work, target(index));
            // A thread mostly takes consecutive tasks, so the next one's memory is worth
            // prefetching.
            let (task, then) = (tasks[index], tasks.get(index + 1).copied());
            let storage: &[u8] = &self.kv.storage;
            match self.kv.shape.kv_type {
                KvType::F32 => {
                    let pages = bytemuck::cast_slice::<_, f32>(storage);
                    self.isa.run(Run { call, pages, task, then, work, target });
                }
                KvType::F16 => {
                    let pages = bytemuck::cast_slice::<_, u16>(storage);
                    self.isa.run(Run { call, pages, task, then, work, target });
                }
                KvType::Bf16 => {
                    let pages = bytemuck::cast_slice::<_, Bf16Pair>(storage);
                    self.isa.run_pairs(Run { call, pages, task, then, work, target });
                }
                KvType::Fp8 => unreachable!("a cache of the CPU is not in FP8"),
            }
        });
    }

    /// Returns the number of query rows of an attention work item. Query rows are ordered by row of
    /// the step, and within a row of the step by query head.
    fn query_rows(&self, item: Item<'_>) -> usize {
        item.rows * self.layer.shape.group()
    }

    /// Returns, for query row `query` of a work item, the index of its row in the step and the
    /// column at which its query head begins in that row.
    fn row_and_column(&self, item: Item<'_>, query: usize) -> (usize, usize) {
        let group = self.layer.shape.group();
        let row = item.sequence.row + item.first + query / group;
        (row, (item.head * group + query % group) * self.layer.shape.head_dim)
    }

    /// Returns D, the head size, rounded up to whole 16-element vectors.
    fn width(&self) -> usize {
        self.layer.shape.head_dim.next_multiple_of(LANES)
    }

    /// Divides the weighted values that an attention work item has accumulated by the softmax
    /// denominator and writes the results to `out`. An attention sink adds to the denominator only.
    #[inline(always)]
    fn finish<L: Lanes>(&self, lanes: L, item: Item<'_>, state: &State, out: &Shared<'_, f32>) {
        let (d, width) = (self.layer.shape.head_dim, self.width());
        let cols = self.layer.shape.heads * d;
        for query in 0..self.query_rows(item) {
            let (row, column) = self.row_and_column(item, query);
            let (totals, _) = state.totals.as_chunks::<LANES>();
            let mut total = lanes.sum(lanes.lift(&totals[query]));
            let mut shrink = 1.0;
            if let Some(sinks) = &self.layer.sinks {
                let (sink, largest) = (sinks[column / d] * LOG2_E, state.largest[query]);
                // Both scores are taken relative to the larger one, so that neither exponential
                // overflows.
                shrink = (largest - sink).min(0.0).exp2();
                total = total * shrink + (sink - largest).min(0.0).exp2();
            }
            let scale = shrink / total;
            // SAFETY: items differ in row or head, so each writes its own columns.
            let out = unsafe { out.part(row * cols + column, d) };
            for (out, sum) in out.iter_mut().zip(&state.sums[query * width..][..d]) {
                *out = sum * scale;
            }
        }
    }
}

/// Kernel that merges the partial attention results of one work item and writes its output.
struct Merge<'a, 'b> {
    call: &'a Attention<'a>,
    item: Item<'a>,
    parts: &'a [Mutex<State>],
    whole: &'a mut State,
    out: &'a Shared<'b, f32>,
}

impl Kernel for Merge<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        self.whole.clear(self.call.query_rows(self.item), self.call.width());
        for part in self.parts {
            self.whole.merge(lanes, &part.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.call.finish(lanes, self.item, self.whole, self.out);
    }
}
