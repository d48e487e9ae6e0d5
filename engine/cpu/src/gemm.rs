//! Blocked matrix multiplication (GEMM): one driver for every [`MicroKernel`].
//!
//! `thread_split.rs` divides a matmul into work items of some rows by some tiles of output columns.
//! Within an item the driver takes a block of rows whose sums stay in the L1 cache, and then one
//! block of k after another. Each output element has one sum, to which products are added in rising
//! k whatever the blocks. A row's result therefore depends neither on the rows beside it nor on the
//! division.

#![expect(unsafe_code, reason = "tiles packed in parallel; threads write disjoint outputs")]

use std::fmt::Debug;
use std::ops::Range;

use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::memory::Aligned;
use super::pool::Pool;
use super::shared::Shared;
use engine_core::{HostMatrix, WeightType};

/// Largest number of rows of a GEMM block, unless a micro-kernel sets another: their sums stay in
/// the L1 cache together with their operands.
pub(super) const BLOCK_ROWS: usize = 128;

/// Rows of activations that a GEMM multiplies, row major: in f32, and also in converted form if an
/// earlier operation wrote them so.
pub(super) struct Input<'a, M: MicroKernel> {
    pub values: &'a [f32],
    pub k: usize,
    pub converted: Option<&'a M::Activations>,
}

/// Rows that the GEMM of experts gathers from its input, in units that are stored together: unit
/// `i` from row `i * UNIT_ROWS` of the activations on ([`MicroKernel::UNIT_ROWS`]).
pub(super) struct Gather<'a> {
    /// Index in the input of each row; none if the input has these rows in this order.
    pub sources: Option<&'a [usize]>,
    pub units: Vec<RowUnit>,
}

/// Unit of at most [`MicroKernel::UNIT_ROWS`] rows that are multiplied by the same weights.
pub(super) struct RowUnit {
    pub rows: Range<usize>,
    /// Number of rows that are multiplied by these weights in all, also those of other units.
    pub matmul_rows: usize,
}

impl Gather<'_> {
    /// Returns the indices in the input of the rows of `unit`.
    pub(super) fn sources(&self, unit: &RowUnit) -> impl Iterator<Item = usize> {
        unit.rows.clone().map(move |row| self.sources.map_or(row, |sources| sources[row]))
    }

    /// Calls `task(index, unit)` for each unit of rows on the threads of `pool`; a row takes as
    /// long as `cost` elements of other operations.
    pub(super) fn each(
        &self,
        pool: &mut Pool,
        cost: usize,
        task: &(dyn Fn(usize, &RowUnit) + Sync),
    ) {
        let rows: usize = self.units.iter().map(|unit| unit.rows.len()).sum();
        // Decoding leaves most units with a single row.
        let unit_cost = (rows * cost).div_ceil(self.units.len().max(1));
        pool.rows(self.units.len(), unit_cost, &|first, units| {
            (first..first + units).for_each(|index| task(index, &self.units[index]));
        });
    }
}

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

    /// Gathers rows of `input` as the activations `x` of experts, and converts those that are not
    /// converted yet.
    fn gather(
        x: &mut Self::Activations,
        isa: Isa,
        pool: &mut Pool,
        input: Input<'_, Self>,
        gather: &Gather<'_>,
    );

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
    /// Returns the number of steps of k in a block of the work item, for a block of `rows` rows and
    /// `k` steps in all.
    fn block_k(item: &Item<'_, '_, Self>, rows: usize, k: usize) -> usize;

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
    /// Row of the output that has the results of the first of these rows.
    pub out_row: usize,
    /// Number of rows that are multiplied by the same weights in all, also by other work items.
    pub matmul_rows: usize,
    /// Index of the GEMM work item's first packed tile.
    pub tile: usize,
    /// Number of packed tiles that the GEMM work item multiplies together.
    pub width: usize,
    pub work: &'a mut Work<M>,
    pub target: Target<'a, 'b>,
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
            let block_k = M::block_k(&self, rows.len(), all);
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
        let row = self.out_row + (rows.start - self.rows.start);
        let at = row * stride + w.first + first;
        let start = self.target.out.block(at, rows.len(), stride, columns);
        Place { start, stride, columns, scales: M::scales(w.tile(self.tile)) }
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
    pub(super) fn tiles(&self) -> usize {
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
