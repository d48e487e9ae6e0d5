//! Blocked matrix multiplication (GEMM): one driver for every [`MicroKernel`], and the thread split
//! of a matmul.
//!
//! The driver divides a matmul into work items of some rows by some tiles of output columns. Within
//! an item it takes a block of rows whose sums stay in the L1 cache, and then one block of k after
//! another. Each output element has one sum, to which products are added in rising k whatever the
//! blocks. A row's result therefore depends neither on the rows beside it nor on the thread split.

#![expect(unsafe_code, reason = "tiles packed in parallel; threads write disjoint outputs")]

use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::memory::Aligned;
use super::pool::Pool;
use super::shared::Shared;
use engine_core::{HostMatrix, WeightType};

/// Largest number of bytes of activations that one GEMM work item reads repeatedly, few enough to
/// stay in the L2 cache. An item has at least [`MicroKernel::UNIT_ROWS`] rows, even if these are
/// more bytes.
const CHUNK_BYTES: usize = 384 << 10;
/// Largest number of rows of a GEMM block, unless a micro-kernel sets another: their sums stay in
/// the L1 cache together with their operands.
const BLOCK_ROWS: usize = 128;
/// Number of work items per thread into which a GEMM divides the output columns; where there are
/// too few tiles of columns, each tile is an item. More items balance the threads better, fewer
/// cost less.
const ITEMS_PER_THREAD: usize = 4;

/// Arithmetic of a GEMM (f32, bf16 or int8): how activations and weights are converted and packed
/// for it. The tiles are multiplied by [`Multiply`].
pub(super) trait MicroKernel: Debug + Sized {
    /// Activations in the form that the GEMM micro-kernel reads.
    type Activations: Default + Sync;
    /// Element type of the converted activations of a GEMM.
    type Element;
    /// Form of the GEMM's packed weights.
    type Format: Copy + Debug + Sync;
    /// Working memory in which one thread unpacks a block of weights; the unit type where none is
    /// needed.
    type Scratch: Default + Send;

    /// Number of output columns of a tile of the GEMM's packed weights.
    const COLUMNS: usize;
    /// Number of rows that the GEMM never splits among blocks or threads. It is at least the number
    /// of rows of the largest micro-kernel tile.
    const UNIT_ROWS: usize;
    /// Number of steps of k to a multiple of which the GEMM pads K.
    const UNIT_K: usize;
    /// Largest number of rows in a block of the GEMM, which share a block of weights.
    const BLOCK_ROWS: usize = BLOCK_ROWS;
    /// Largest number of tile groups that a thread takes from the pool at once, where a tile group
    /// is the packed tiles that are multiplied together ([`MicroKernel::width`]).
    const ITEM_TILES: usize = usize::MAX;

    /// Converts `values`, f32 rows of `k` elements, to the activations `x` that the GEMM
    /// micro-kernel reads.
    fn convert(x: &mut Self::Activations, isa: Isa, pool: &mut Pool, values: &[f32], k: usize);

    /// Returns the number of bytes of a packed tile of weights with `k` steps.
    fn tile_bytes(format: Self::Format, k: usize) -> usize;

    /// Packs a tile of weights. `column(i)` returns the element type and the bytes of the stored
    /// row of the tile's output column `i`; `None` past the matrix's last column.
    fn pack<'a>(
        format: Self::Format,
        k: usize,
        column: &dyn Fn(usize) -> Option<(WeightType, &'a [u8])>,
        tile: &mut [u8],
    );

    /// Returns the number of rows that a GEMM work item may have even if their activations do not
    /// stay in the L2 cache: more than [`MicroKernel::UNIT_ROWS`] if weights are unpacked, which
    /// then is done for many rows at once.
    fn chunk_rows(_format: Self::Format) -> usize {
        Self::UNIT_ROWS
    }

    /// Writes the dequantized weights of one output column of a packed tile to `out`, which has K
    /// elements.
    fn unpack(format: Self::Format, tile: &[u8], column: usize, out: &mut [f32]);

    /// Returns the number of adjacent packed tiles that are multiplied together, of the `tiles`
    /// tiles of the packed weights.
    fn width(_tiles: usize, _threads: usize) -> usize {
        1
    }

    /// Returns the scales of a packed tile's output columns, by which the accumulators are
    /// multiplied at the end; none if the arithmetic has no such scales.
    fn scales(_tile: &[u8]) -> Option<&[f32]> {
        None
    }

    /// Computes a GEMM work item with the best micro-kernel of this arithmetic on `isa`.
    fn run(isa: Isa, item: Item<'_, '_, Self>);
}

/// GEMM micro-kernel over an instruction set `S`: f32 vectors, bf16 or int8 dot products. Both
/// functions must be `#[inline(always)]`, so that they are compiled for the instruction set.
pub(super) trait Multiply<S>: MicroKernel {
    /// Returns the number of steps of k in a block, for a block of `rows` rows and `k` steps in
    /// all.
    fn block_k(x: &Self::Activations, rows: usize, k: usize) -> usize;

    /// Multiplies a block of a work item: adds its products to the work item's accumulators or, in
    /// the last block of k, writes the results to the output.
    fn multiply(set: S, item: &mut Item<'_, '_, Self>, block: Block<'_>);
}

/// Work item of a GEMM: some rows by the columns of a few packed tiles.
pub(super) struct Item<'a, 'b, M: MicroKernel> {
    pub x: &'a M::Activations,
    pub w: &'a Weights<M>,
    /// Range of the activation rows of the GEMM work item, all of which read the same weights.
    pub rows: Range<usize>,
    /// Index of the GEMM work item's first packed tile.
    pub tile: usize,
    /// Number of packed tiles that the GEMM work item multiplies together.
    pub width: usize,
    pub work: &'a mut Work<M>,
    target: Target<'a, 'b>,
}

/// Block of a GEMM work item: some of its rows over some steps of k.
pub(super) struct Block<'a> {
    pub rows: Range<usize>,
    pub k: Range<usize>,
    /// Output location of the results, for the last block of k; none for earlier blocks of k, whose
    /// accumulators are continued.
    pub target: Option<Place<'a>>,
}

/// Working memory of one thread for GEMMs of one arithmetic.
pub(super) struct Work<M: MicroKernel> {
    /// Accumulators of a block of rows over the blocks of k done so far, `[rows][width * COLUMNS]`.
    pub sums: Vec<f32>,
    pub scratch: M::Scratch,
}

/// Output of a GEMM: a matrix of `cols` columns. The GEMM writes only its own output columns in
/// each row, which may be some of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a, 'b> {
    pub out: &'a Shared<'b, f32>,
    /// Number of columns of the whole output matrix, the distance in elements from row to row.
    pub cols: usize,
}

/// Output location of the results of a block of a GEMM work item: where its rows and columns lie in
/// the output, and the scales by which the columns' results are multiplied, if there are any.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    start: *mut f32,
    /// Distance in elements from row to row of the output.
    stride: usize,
    /// Number of the work item's columns that exist in the output; the last tile of a matrix may be
    /// padded.
    columns: usize,
    scales: Option<&'a [f32]>,
}

impl Place<'_> {
    /// Returns the output location `row` rows further down.
    #[inline(always)]
    pub(super) fn below(self, row: usize) -> Self {
        Self { start: self.start.wrapping_add(row * self.stride), ..self }
    }

    /// Writes the results of 16 columns of a row to the output, multiplied by the columns' scales
    /// if there are any.
    ///
    /// # Safety
    /// The output has the row, and no other thread uses its columns during the call.
    #[inline(always)]
    pub(super) unsafe fn write<L: Lanes>(self, lanes: L, row: usize, group: usize, sums: L::V) {
        let results = match self.scales {
            Some(scales) => lanes.mul(sums, lanes.lift(&scales.as_chunks::<LANES>().0[group])),
            None => sums,
        };
        let out = self.start.wrapping_add(row * self.stride + group * LANES);
        let columns = self.columns.saturating_sub(group * LANES);
        if columns >= LANES {
            // SAFETY: the caller vouches for the row, which has sixteen columns from here.
            unsafe { lanes.store(out, results) };
        } else {
            let results = lanes.lower(results);
            // SAFETY: as above, and so many columns.
            unsafe { results.as_ptr().copy_to_nonoverlapping(out, columns) };
        }
    }
}

/// Accumulators of a micro-kernel tile, which are carried from one block of k to the next and then
/// written to the output.
pub(super) struct Sums<'a, const N: usize> {
    /// Accumulators over the earlier blocks of k, one row of them for each row of the tile.
    pub kept: &'a mut [[f32; N]],
    /// True in the first block of k, when there are no earlier accumulators to continue.
    pub is_first: bool,
    pub target: Option<Place<'a>>,
}

impl<const N: usize> Sums<'_, N> {
    /// Returns the accumulators with which the block of k begins: zeros in the first block, else
    /// the sums over the earlier blocks.
    #[inline(always)]
    pub(super) fn load<L: Lanes, const MR: usize, const NR: usize>(
        &self,
        lanes: L,
    ) -> [[L::V; NR]; MR] {
        let mut sums = [[lanes.splat(0.0); NR]; MR];
        if !self.is_first {
            for (sums, kept) in sums.iter_mut().zip(&self.kept[..MR]) {
                for (sum, kept) in sums.iter_mut().zip(kept.as_chunks::<LANES>().0) {
                    *sum = lanes.lift(kept);
                }
            }
        }
        sums
    }

    /// Stores the tile's accumulators for the next block of k or, after the last block of k, in the
    /// output.
    ///
    /// # Safety
    /// The output target has `MR` rows, which no other thread uses during the call.
    #[inline(always)]
    pub(super) unsafe fn store<L: Lanes, const MR: usize, const NR: usize>(
        self,
        lanes: L,
        sums: &[[L::V; NR]; MR],
    ) {
        let Some(target) = self.target else {
            for (sums, kept) in sums.iter().zip(&mut self.kept[..MR]) {
                for (sum, kept) in sums.iter().zip(kept.as_chunks_mut::<LANES>().0) {
                    *kept = lanes.lower(*sum);
                }
            }
            return;
        };
        for (row, sums) in sums.iter().enumerate() {
            for (group, sum) in sums.iter().enumerate() {
                // SAFETY: the caller vouches for the rows.
                unsafe { target.write(lanes, row, group, *sum) };
            }
        }
    }
}

impl<M: MicroKernel> Item<'_, '_, M> {
    /// Computes the GEMM work item block by block: blocks of rows, and within them blocks of k.
    #[inline(always)]
    pub(super) fn compute<S: Copy>(mut self, set: S)
    where
        M: Multiply<S>,
    {
        let (Range { start, end }, columns) = (self.rows.clone(), self.width * M::COLUMNS);
        let parts = self.rows.len().div_ceil(M::BLOCK_ROWS);
        let block_rows = self.rows.len().div_ceil(parts).next_multiple_of(M::UNIT_ROWS);
        let all = self.w.padded_k();
        for row in (start..end).step_by(block_rows) {
            let rows = row..end.min(row + block_rows);
            if self.work.sums.len() < rows.len() * columns {
                self.work.sums.resize(rows.len() * columns, 0.0);
            }
            let block_k = M::block_k(self.x, rows.len(), all);
            for k0 in (0..all).step_by(block_k) {
                let k = k0..all.min(k0 + block_k);
                let target = (k.end == all).then(|| self.place(rows.clone()));
                M::multiply(set, &mut self, Block { rows: rows.clone(), k, target });
            }
        }
    }
}

impl<'a, M: MicroKernel> Item<'a, '_, M> {
    /// Returns the output location of the range `rows` of the GEMM work item's rows.
    #[inline(always)]
    fn place(&self, rows: Range<usize>) -> Place<'a> {
        let (w, stride, first) = (self.w, self.target.cols, self.tile * M::COLUMNS);
        let columns = (self.width * M::COLUMNS).min(w.n - first);
        let at = rows.start * stride + w.first + first;
        let start = self.target.out.block(at, rows.len(), stride, columns);
        Place { start, stride, columns, scales: M::scales(w.tile(self.tile)) }
    }
}

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

    /// Computes the matrix product `x * w^T`, where x is `values`, and writes it to `target`; each
    /// of `runs` has the weights of some consecutive output columns. `values` are converted once
    /// for all runs, or not at all if `converted` has them in converted form already.
    pub(super) fn matmul(
        &mut self,
        isa: Isa,
        pool: &mut Pool,
        values: &[f32],
        converted: Option<&M::Activations>,
        runs: &[Weights<M>],
        target: Target<'_, '_>,
    ) {
        let Some(k) = runs.first().map(|w| w.k) else { return };
        if converted.is_none() {
            M::convert(&mut self.activations, isa, pool, values, k);
        }
        let (x, threads) = (converted.unwrap_or(&self.activations), &self.threads);
        for w in runs {
            let (tiles, rows) = (w.tiles(), values.len() / k);
            let width = M::width(tiles, threads.len());
            let row_bytes = w.padded_k() * size_of::<M::Element>();
            let mut split = ThreadSplit::new(
                rows,
                row_bytes,
                [M::UNIT_ROWS, M::chunk_rows(w.format)],
                tiles.div_ceil(width),
                threads.len(),
            );
            split.per_item = split.per_item.min(M::ITEM_TILES);
            split.run(pool, &|thread, rows, blocks| {
                let mut work = threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
                for tile in blocks.map(|block| block * width) {
                    let (rows, width) = (rows.clone(), width.min(tiles - tile));
                    M::run(isa, Item { x, w, rows, tile, width, work: &mut work, target });
                }
            });
        }
    }
}

/// Packed weights of some consecutive output columns of a matrix, tile by tile, all of one format.
#[derive(Debug)]
pub(super) struct Weights<M: MicroKernel> {
    pub format: M::Format,
    /// Index of the first output column of the matrix that these packed weights compute.
    first: usize,
    n: usize,
    k: usize,
    tile_bytes: usize,
    data: Aligned,
}

impl<M: MicroKernel> Weights<M> {
    /// Packs the rows of the matrices `parts`, stacked along N, into tiles, on the threads of
    /// `pool`. `first` is the index, in the whole matrix, of the output column that the first of
    /// these rows computes.
    pub(super) fn pack(
        parts: &[HostMatrix<'_>],
        format: M::Format,
        first: usize,
        pool: &mut Pool,
    ) -> Self {
        let (n, k) = (parts.iter().map(|part| part.n).sum::<usize>(), parts[0].k);
        let (tiles, tile_bytes) = (n.div_ceil(M::COLUMNS), M::tile_bytes(format, k));
        let mut data = Aligned::zeroed(tiles * tile_bytes);
        let shared = Shared::new(data.bytes_mut());
        pool.items(tiles, &|_, tile| {
            // SAFETY: each tile has its own bytes, and each item is one tile.
            let out = unsafe { shared.part(tile * tile_bytes, tile_bytes) };
            M::pack(format, k, &|column| stored_row(parts, tile * M::COLUMNS + column), out);
        });
        Self { format, first, n, k, tile_bytes, data }
    }

    /// Returns the range of the matrix's output columns that these packed weights compute.
    pub(super) fn columns(&self) -> Range<usize> {
        self.first..self.first + self.n
    }

    /// Returns the number of tiles of output columns in the packed weights.
    fn tiles(&self) -> usize {
        self.n.div_ceil(M::COLUMNS)
    }

    /// Returns K rounded up to the multiple to which the GEMM pads it.
    pub(super) fn padded_k(&self) -> usize {
        self.k.next_multiple_of(M::UNIT_K)
    }

    /// Returns the bytes of packed tile `tile`.
    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        &self.data.bytes()[tile * self.tile_bytes..][..self.tile_bytes]
    }

    /// Writes the weights of output column `n` of the matrix, dequantized, to `out`, which has K
    /// elements.
    pub(super) fn row(&self, n: usize, out: &mut [f32]) {
        let (tile, column) = ((n - self.first) / M::COLUMNS, (n - self.first) % M::COLUMNS);
        M::unpack(self.format, self.tile(tile), column, &mut out[..self.k]);
    }
}

/// Returns the element type and the bytes of the stored row that computes output column `n` of the
/// matrices `parts`, stacked along N; none past the last column.
fn stored_row<'a>(parts: &'a [HostMatrix<'_>], mut n: usize) -> Option<(WeightType, &'a [u8])> {
    for part in parts {
        if n < part.n {
            return Some((part.weight_type, part.row(n)));
        }
        n -= part.n;
    }
    None
}

/// Thread split of a matmul: division into work items, each a chunk of rows by a range of column
/// tiles.
#[derive(Debug, Clone, Copy)]
struct ThreadSplit {
    rows: usize,
    tiles: usize,
    chunk: usize,
    per_item: usize,
}

impl ThreadSplit {
    /// Divides a GEMM of `rows` rows, each `row_bytes` long, by `tiles` tiles of columns. A chunk
    /// of rows has as many rows as stay in the L2 cache. Where a thread's share of the rows is at
    /// least [`BLOCK_ROWS`], a chunk has `least` rows or more, and at most that share.
    fn new(
        rows: usize,
        row_bytes: usize,
        [unit, least]: [usize; 2],
        tiles: usize,
        threads: usize,
    ) -> Self {
        let cached = (CHUNK_BYTES / row_bytes / unit).max(1) * unit;
        let share = rows.div_ceil(threads).next_multiple_of(unit);
        let chunk = if share < BLOCK_ROWS { cached } else { cached.max(least).min(share) };
        Self { rows, tiles, chunk, per_item: (tiles / (ITEMS_PER_THREAD * threads)).max(1) }
    }

    /// Calls `task(thread, rows, tiles)` for every GEMM work item on the threads of `pool`.
    fn run(self, pool: &mut Pool, task: &(dyn Fn(usize, Range<usize>, Range<usize>) + Sync)) {
        let Self { rows, tiles, chunk, per_item } = self;
        let items = tiles.div_ceil(per_item);
        // Consecutive items share a chunk of rows, so its activations are still in the cache.
        pool.items(rows.div_ceil(chunk) * items, &|thread, item| {
            let (row, tile) = (item / items * chunk, item % items * per_item);
            task(thread, row..rows.min(row + chunk), tile..tiles.min(tile + per_item));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_row_meets_every_tile_once() {
        for threads in [1, 3] {
            let mut pool = Pool::new(threads);
            for (rows, row_bytes, tiles) in
                [(0, 64, 5), (1, 64, 1), (9, 1 << 20, 7), (129, 64, 40), (700, 6144, 22)]
            {
                let met: Vec<_> = (0..rows * tiles).map(|_| AtomicUsize::new(0)).collect();
                let split = ThreadSplit::new(rows, row_bytes, [8, 16], tiles, threads);
                split.run(&mut pool, &|_, rows, item_tiles| {
                    assert!(rows.start.is_multiple_of(8), "{split:?}: {rows:?}");
                    for row in rows {
                        for tile in item_tiles.clone() {
                            met[row * tiles + tile].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
                assert!(met.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{split:?}");
            }
        }
    }
}
