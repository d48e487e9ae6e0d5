//! Thread split of a matmul (GEMM): its division into work items, which run on the thread pool in
//! one parallel region. The matmuls of all experts of a MoE layer share one region.
//!
//! A row's result depends neither on the thread split nor on the rows beside it: see `gemm.rs`.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::gemm::{BLOCK_ROWS, Gather, Input, Item, MicroKernel, RowUnit, Target, Weights, Work};
use super::isa::Isa;
use super::moe::DispatchedRows;
use super::pool::Pool;

/// Largest number of bytes of activations that one GEMM work item reads repeatedly, few enough to
/// stay in the L2 cache. An item has at least [`MicroKernel::UNIT_ROWS`] rows, even if these are
/// more bytes.
const CHUNK_BYTES: usize = 384 << 10;
/// Number of work items per thread into which a GEMM divides the output columns; where there are
/// too few tiles of columns, each tile is an item. More items balance the threads better, fewer
/// cost less.
const ITEMS_PER_THREAD: usize = 4;

/// Working memory for GEMMs of one arithmetic: converted activations, and the memory of each
/// thread.
pub(super) struct Scratch<M: MicroKernel> {
    activations: M::Activations,
    threads: Vec<Mutex<Work<M>>>,
}

impl<M: MicroKernel> Scratch<M> {
    pub(super) fn new(threads: usize) -> Self {
        let work = || Mutex::new(Work { sums: Vec::new(), scratch: M::Scratch::default() });
        Self {
            activations: M::Activations::default(),
            threads: (0..threads).map(|_| work()).collect(),
        }
    }

    /// Computes the matrix product `x * w^T`, where x is `input`, and writes it to `target`; each
    /// of `runs` has the weights of some consecutive output columns. The input is converted once
    /// for all runs, or not at all if it has been converted already.
    pub(super) fn matmul(
        &mut self,
        isa: Isa,
        pool: &mut Pool,
        input: Input<'_, M>,
        runs: &[Weights<M>],
        target: Target<'_, '_>,
    ) {
        if runs.is_empty() {
            return;
        }
        let Input { values, k, converted } = input;
        if converted.is_none() {
            M::convert(&mut self.activations, isa, pool, values, k);
        }
        let rows = values.len() / k;
        let mut parts = Parts::new(rows, self.threads.len());
        runs.iter().for_each(|w| parts.push(w, 0..rows, 0));
        let x = converted.unwrap_or(&self.activations);
        parts.run(isa, pool, x, &self.threads, target);
    }

    /// Computes the matmuls of the experts of a MoE layer: multiplies the dispatched rows of each
    /// by the weights that `runs(expert)` returns, and writes the results to `target`. Rows of
    /// `input` that are not converted yet are converted while they are gathered.
    pub(super) fn grouped_matmul<'a>(
        &mut self,
        isa: Isa,
        pool: &mut Pool,
        input: Input<'_, M>,
        dispatched: DispatchedRows<'_>,
        runs: impl Fn(usize) -> &'a [Weights<M>],
        target: Target<'_, '_>,
    ) where
        M: 'a,
    {
        let mut parts = Parts::new(dispatched.len(), self.threads.len());
        let mut units = Vec::new();
        for (expert, rows) in dispatched.groups {
            let runs = runs(*expert);
            if runs.is_empty() {
                continue;
            }
            // Each expert's rows begin a unit, since no tile has rows of two experts.
            let first = units.len() * M::UNIT_ROWS;
            units.extend(rows.clone().step_by(M::UNIT_ROWS).map(|start| RowUnit {
                rows: start..rows.end.min(start + M::UNIT_ROWS),
                matmul_rows: rows.len(),
            }));
            runs.iter().for_each(|w| parts.push(w, first..first + rows.len(), rows.start));
        }
        if units.is_empty() {
            return;
        }
        let gather = Gather { sources: dispatched.sources, units };
        M::gather(&mut self.activations, isa, pool, input, &gather);
        parts.run(isa, pool, &self.activations, &self.threads, target);
    }
}

/// Part of a parallel region: GEMM of some rows by one run of packed weights.
struct Part<'a, M: MicroKernel> {
    w: &'a Weights<M>,
    /// Range of the rows of the activations that are multiplied.
    rows: Range<usize>,
    /// Row of the output that has the results of the first of these rows.
    out_row: usize,
    /// Number of adjacent packed tiles that are multiplied together.
    width: usize,
    split: ThreadSplit,
    /// Index of the part's first work item among those of the parallel region.
    first_item: usize,
}

/// Parts whose work items run in one parallel region.
struct Parts<'a, M: MicroKernel> {
    parts: Vec<Part<'a, M>>,
    items: usize,
    /// Number of rows of the whole matmul, those of all experts.
    all_rows: usize,
    threads: usize,
}

impl<'a, M: MicroKernel> Parts<'a, M> {
    fn new(all_rows: usize, threads: usize) -> Self {
        Self { parts: Vec::new(), items: 0, all_rows, threads }
    }

    /// Appends the GEMM of the range `rows` of the activations by `w`, whose results are written to
    /// the output from row `out_row` on.
    fn push(&mut self, w: &'a Weights<M>, rows: Range<usize>, out_row: usize) {
        let width = M::width(w.tiles(), self.threads);
        let row_bytes = w.padded_k() * size_of::<M::Element>();
        let mut split = ThreadSplit::new(
            [rows.len(), self.all_rows],
            row_bytes,
            [M::UNIT_ROWS, M::chunk_rows(w.format)],
            w.tiles().div_ceil(width),
            self.threads,
        );
        split.per_item = split.per_item.min(M::ITEM_TILES);
        let first_item = self.items;
        self.items += split.items();
        self.parts.push(Part { w, rows, out_row, width, split, first_item });
    }

    /// Computes all parts on the threads of `pool`, which have the working memory `threads`.
    fn run(
        &self,
        isa: Isa,
        pool: &mut Pool,
        x: &M::Activations,
        threads: &[Mutex<Work<M>>],
        target: Target<'_, '_>,
    ) {
        pool.items(self.items, &|thread, item| {
            let after = self.parts.partition_point(|part| part.first_item <= item);
            let part = &self.parts[after - 1];
            let mut work = threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
            part.run(isa, x, item - part.first_item, &mut work, target);
        });
    }
}

impl<M: MicroKernel> Part<'_, M> {
    /// Computes the part's work item of index `item`.
    fn run(
        &self,
        isa: Isa,
        x: &M::Activations,
        item: usize,
        work: &mut Work<M>,
        target: Target<'_, '_>,
    ) {
        let (w, matmul_rows, first) = (self.w, self.rows.len(), self.rows.start);
        let (chunk, groups) = self.split.item(item);
        for tile in groups.map(|group| group * self.width) {
            let rows = first + chunk.start..first + chunk.end;
            let width = self.width.min(w.tiles() - tile);
            let (out_row, work) = (self.out_row + chunk.start, &mut *work);
            M::run(isa, Item { x, w, rows, out_row, matmul_rows, tile, width, work, target });
        }
    }
}

/// Division of one GEMM into work items, each a chunk of rows by a range of column tiles.
#[derive(Debug, Clone, Copy)]
struct ThreadSplit {
    rows: usize,
    tiles: usize,
    chunk: usize,
    per_item: usize,
}

impl ThreadSplit {
    /// Divides a GEMM of `rows` rows, each `row_bytes` long, by `tiles` tiles of columns. A chunk
    /// of rows has as many rows as stay in the L2 cache. Where a thread's share of `all_rows`, the
    /// rows of all experts, is at least [`BLOCK_ROWS`], a chunk has `least` rows or more, and at
    /// most that share.
    fn new(
        [rows, all_rows]: [usize; 2],
        row_bytes: usize,
        [unit, least]: [usize; 2],
        tiles: usize,
        threads: usize,
    ) -> Self {
        let cached = (CHUNK_BYTES / row_bytes / unit).max(1) * unit;
        let share = all_rows.div_ceil(threads).next_multiple_of(unit);
        let chunk = if share < BLOCK_ROWS { cached } else { cached.max(least).min(share) };
        Self { rows, tiles, chunk, per_item: (tiles / (ITEMS_PER_THREAD * threads)).max(1) }
    }

    /// Returns the number of work items.
    fn items(self) -> usize {
        self.rows.div_ceil(self.chunk) * self.tiles.div_ceil(self.per_item)
    }

    /// Returns the range of rows and the range of column tiles of work item `item`.
    fn item(self, item: usize) -> (Range<usize>, Range<usize>) {
        let Self { rows, tiles, chunk, per_item } = self;
        let items = tiles.div_ceil(per_item);
        // Consecutive items share a chunk of rows, so its activations are still in the cache.
        let (row, tile) = (item / items * chunk, item % items * per_item);
        (row..rows.min(row + chunk), tile..tiles.min(tile + per_item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_meets_every_tile_once() {
        for threads in [1, 3] {
            for (rows, row_bytes, tiles) in
                [(0, 64, 5), (1, 64, 1), (9, 1 << 20, 7), (129, 64, 40), (700, 6144, 22)]
            {
                let mut met = vec![0; rows * tiles];
                let split = ThreadSplit::new([rows, rows], row_bytes, [8, 16], tiles, threads);
                for (rows, item_tiles) in (0..split.items()).map(|item| split.item(item)) {
                    assert!(rows.start.is_multiple_of(8), "{split:?}: {rows:?}");
                    for row in rows {
                        item_tiles.clone().for_each(|tile| met[row * tiles + tile] += 1);
                    }
                }
                assert!(met.iter().all(|n| *n == 1), "{split:?}");
            }
        }
    }

    /// Widening the weights of a tile is shared by more rows than stay in the L2 cache where each
    /// thread has as many rows, be they of one expert or of several.
    #[test]
    fn rows_of_an_expert_share_widened_weights_where_the_layer_has_many_rows() {
        let chunk = |all_rows| ThreadSplit::new([128, all_rows], 14_336, [8, 128], 64, 2).chunk;
        assert_eq!((chunk(128), chunk(1024)), (24, 128));
    }

    #[test]
    fn columns_of_an_expert_are_divided_however_many_rows_it_has() {
        for rows in [1, 500] {
            let split = ThreadSplit::new([rows, 512], 2048, [8, 128], 32, 2);
            assert_eq!((split.per_item, split.items() % 8), (4, 0), "{rows} rows");
        }
    }
}
