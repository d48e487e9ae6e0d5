//! GEMM micro-kernel in f32 over packed weights of every layout, and the packing of its
//! activations.
//!
//! For a few rows, weights are dequantized in registers and multiplied at once. For more rows,
//! weights are dequantized once into the L1 cache and shared by all rows. Both add in rising k with
//! one rounding per product, so a row's result does not depend on the number of rows.

#![expect(unsafe_code, reason = "tiles over strided memory; threads write disjoint columns")]

use super::gemm::{Block, Gather, Input, Item, MicroKernel, Multiply};
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Lanes};
use super::layout::{Consumer, Layout, decode};
use super::memory::grow;
use super::pool::Pool;
use super::shared::Shared;
use super::tile::{self, InF32, Left, Out, Right, TILE_GROUPS, TILE_ROWS};
use engine_core::WeightType;

/// Largest number of activation rows for which the f32 GEMM dequantizes weights in registers; for
/// more rows it dequantizes them into memory that all rows share.
const FEW_ROWS: usize = 4;
/// Number of steps of k that the f32 GEMM dequantizes at once for many rows: with four column
/// groups 16 KiB, half of an L1 cache of 32 KiB.
const BLOCK_K: usize = 64;

/// Marker type of the f32 GEMM, which implements the micro-kernel.
#[derive(Debug)]
pub(super) struct F32;

/// Dequantized weights of a block of k, `[groups][BLOCK_K][16]`, which the rows of a work item
/// share.
pub(super) struct Dequantized(Vec<f32>);

impl Default for Dequantized {
    fn default() -> Self {
        Self(vec![0.0; TILE_GROUPS * BLOCK_K * LANES])
    }
}

impl MicroKernel for F32 {
    /// Activations in the order in which the f32 GEMM reads them: row major for a matmul of at
    /// most [`FEW_ROWS`] rows, else panels of six rows, `[T / 6, rounded up][K][6]`, so that a tile
    /// reads its rows side by side.
    type Activations = Vec<f32>;
    type Element = f32;
    type Format = Layout;
    type Scratch = Dequantized;

    const COLUMNS: usize = LANES;
    const UNIT_ROWS: usize = TILE_ROWS;
    const UNIT_K: usize = 1;
    // Dequantizing costs more than sums that leave the L1 cache.
    const BLOCK_ROWS: usize = usize::MAX;
    // Dequantizing a tile is work enough for an item.
    const ITEM_TILES: usize = 1;

    fn convert(x: &mut Vec<f32>, _: Isa, pool: &mut Pool, values: &[f32], k: usize) {
        let rows = values.len() / k;
        if rows <= FEW_ROWS {
            grow(x, values.len());
            x[..values.len()].copy_from_slice(values);
            return;
        }
        let panels = rows.div_ceil(TILE_ROWS);
        grow(x, panels * TILE_ROWS * k);
        let shared = Shared::new(x);
        pool.items(panels, &|_, panel| {
            // SAFETY: each panel has its own part, and each item is one panel.
            let out = unsafe { shared.part(panel * TILE_ROWS * k, TILE_ROWS * k) };
            fill_panel(values.chunks_exact(k).skip(panel * TILE_ROWS).take(TILE_ROWS), out);
        });
    }

    fn gather(
        x: &mut Vec<f32>,
        _: Isa,
        pool: &mut Pool,
        input: Input<'_, Self>,
        gather: &Gather<'_>,
    ) {
        let Input { values, k, .. } = input;
        grow(x, gather.units.len() * TILE_ROWS * k);
        let shared = Shared::new(x);
        gather.each(pool, k, &|index, unit| {
            // SAFETY: each unit has its own part, which is one panel.
            let out = unsafe { shared.part(index * TILE_ROWS * k, TILE_ROWS * k) };
            let rows = gather.sources(unit).map(|source| &values[source * k..][..k]);
            if unit.matmul_rows <= FEW_ROWS {
                rows.zip(out.chunks_exact_mut(k)).for_each(|(row, out)| out.copy_from_slice(row));
            } else {
                fill_panel(rows, out);
            }
        });
    }

    fn tile_bytes(layout: Layout, k: usize) -> usize {
        k / layout.unit() * layout.unit_bytes()
    }

    fn pack<'a>(
        layout: Layout,
        _: usize,
        column: &dyn Fn(usize) -> Option<(WeightType, &'a [u8])>,
        tile: &mut [u8],
    ) {
        for lane in 0..LANES {
            if let Some((stored, row)) = column(lane) {
                layout.pack(stored, row, lane, tile);
            }
        }
    }

    fn unpack(layout: Layout, tile: &[u8], column: usize, out: &mut [f32]) {
        let units = tile.chunks_exact(layout.unit_bytes());
        for (unit, out) in units.zip(out.chunks_exact_mut(layout.unit())) {
            for (i, x) in out.iter_mut().enumerate() {
                *x = layout.value(unit, i, column);
            }
        }
    }

    /// Returns the number of 16-column groups that the f32 GEMM multiplies together: four, which
    /// use the caches best, or two where four would give one thread noticeably more work than
    /// another.
    fn width(groups: usize, threads: usize) -> usize {
        let is_many = groups.div_ceil(TILE_GROUPS) >= 16 * threads;
        if is_many || threads == 1 { TILE_GROUPS } else { 2 }
    }

    fn run(isa: Isa, item: Item<'_, '_, Self>) {
        isa.run(item);
    }
}

/// Stores the activations `rows`, at most six rows, as a panel `[K][6]`.
fn fill_panel<'a>(rows: impl Iterator<Item = &'a [f32]>, panel: &mut [f32]) {
    for (r, row) in rows.enumerate() {
        for (out, value) in panel.chunks_exact_mut(TILE_ROWS).zip(row) {
            out[r] = *value;
        }
    }
}

impl Kernel for Item<'_, '_, F32> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        self.compute(lanes);
    }
}

impl<L: Lanes> Multiply<L> for F32 {
    #[inline(always)]
    fn block_k(item: &Item<'_, '_, Self>, _: usize, k: usize) -> usize {
        if item.matmul_rows <= FEW_ROWS { k } else { BLOCK_K }
    }

    #[inline(always)]
    fn multiply(lanes: L, item: &mut Item<'_, '_, Self>, block: Block<'_>) {
        if item.matmul_rows > FEW_ROWS {
            return many_rows(lanes, item, block);
        }
        let mut group = 0;
        while group < item.width {
            group += match (item.width - group).min(L::FEW_ROWS_GROUPS) {
                4.. => few_rows::<L, 4>(lanes, item, &block, group),
                2..4 => few_rows::<L, 2>(lanes, item, &block, group),
                _ => few_rows::<L, 1>(lanes, item, &block, group),
            };
        }
    }
}

/// Multiplies the rows of a block by `NR` groups of 16 columns and returns `NR`. It is used for few
/// rows: four, two or one of them are multiplied together, and for each such set of rows the
/// weights are dequantized anew in registers.
#[inline(always)]
fn few_rows<L: Lanes, const NR: usize>(
    lanes: L,
    item: &Item<'_, '_, F32>,
    block: &Block<'_>,
    group: usize,
) -> usize {
    let mut row = 0;
    while row < block.rows.len() {
        row += match block.rows.len() - row {
            4.. => multiply_rows::<L, 4, NR>(lanes, item, block, group, row),
            2..4 => multiply_rows::<L, 2, NR>(lanes, item, block, group, row),
            _ => multiply_rows::<L, 1, NR>(lanes, item, block, group, row),
        };
    }
    NR
}

/// Multiplies `MR` rows by `NR` groups of 16 columns over all k, writes the results, and returns
/// `MR`.
#[inline(always)]
fn multiply_rows<L: Lanes, const MR: usize, const NR: usize>(
    lanes: L,
    item: &Item<'_, '_, F32>,
    block: &Block<'_>,
    group: usize,
    row: usize,
) -> usize {
    let k = block.k.end;
    let x = &item.x[(block.rows.start + row) * k..][..MR * k];
    let matmul = MatmulSums { x, k, sums: [[lanes.splat(0.0); NR]; MR] };
    let groups = std::array::from_fn(|g| item.w.tile(item.tile + group + g));
    let matmul = decode(lanes, item.w.format, groups, k, matmul);
    let target = block.target.expect("few rows are multiplied over all k at once");
    for (r, sums) in matmul.sums.iter().enumerate() {
        for (g, sum) in sums.iter().enumerate() {
            // SAFETY: items differ in rows or columns.
            unsafe { target.write(lanes, row + r, group + g, *sum) };
        }
    }
    MR
}

/// Multiplies the rows of a block by the work item's columns. It is used for many rows: the weights
/// of a block of k are dequantized once, into memory from which all rows are multiplied.
#[inline(always)]
fn many_rows<L: Lanes>(lanes: L, item: &mut Item<'_, '_, F32>, block: Block<'_>) {
    let Block { rows, k, target } = block;
    let (w, width, steps) = (item.w, item.width, k.len());
    let mut groups = [std::ptr::null(); TILE_GROUPS];
    let blocks = item.work.scratch.0.chunks_exact_mut(BLOCK_K * LANES);
    for ((g, group), out) in groups[..width].iter_mut().enumerate().zip(blocks) {
        *group = out.as_ptr();
        let weights = &w.tile(item.tile + g)[k.start / w.format.unit() * w.format.unit_bytes()..];
        decode(lanes, w.format, [weights], steps, Store { out });
    }
    let right = Right { groups: &groups[..width], ahead: None, k_stride: LANES, k: steps };
    let columns = width * LANES;
    for row in (0..rows.len()).step_by(TILE_ROWS) {
        let x = &item.x[(rows.start + row) * w.padded_k() + k.start * TILE_ROWS..];
        let start = x[..steps * TILE_ROWS].as_ptr();
        let left = Left { start, row_stride: 1, k_stride: TILE_ROWS };
        let tile_rows = TILE_ROWS.min(rows.len() - row);
        let sums = &mut item.work.sums[row * columns..][..tile_rows * columns];
        let out = Out { start: sums.as_mut_ptr(), row_stride: columns, fresh: k.start == 0 };
        // SAFETY: a panel is six rows for each k, the blocks hold `steps` vectors, and the sums
        // have room for these rows of all groups.
        unsafe { tile::multiply(InF32(lanes), tile_rows, left, &[right], out) };
        if let Some(target) = target {
            for (i, sum) in sums.as_chunks::<LANES>().0.iter().enumerate() {
                // SAFETY: items differ in rows or columns.
                unsafe { target.write(lanes, row + i / width, i % width, lanes.lift(sum)) };
            }
        }
    }
}

/// Accumulators of the products of `MR` rows of activations and `NR` groups of weights, to which
/// products are added while the weights are decoded.
struct MatmulSums<'a, L: Lanes, const MR: usize, const NR: usize> {
    /// Activations that the decoded weights are multiplied by: `MR` rows of `k` elements.
    x: &'a [f32],
    k: usize,
    sums: [[L::V; NR]; MR],
}

impl<L: Lanes, const MR: usize, const NR: usize> Consumer<L, NR> for MatmulSums<'_, L, MR, NR> {
    #[inline(always)]
    fn step(&mut self, lanes: L, k: usize, weights: &[L::V; NR]) {
        for (r, sums) in self.sums.iter_mut().enumerate() {
            debug_assert!(k < self.k, "decoding stays within K");
            // SAFETY: `x` is `MR` rows of `self.k`, and `k` is below that.
            let x = lanes.splat(unsafe { *self.x.get_unchecked(r * self.k + k) });
            for (sum, w) in sums.iter_mut().zip(weights) {
                *sum = lanes.fma(x, *w, *sum);
            }
        }
    }
}

/// Memory for the dequantized weights of one group of 16 columns, `[steps][16]`.
struct Store<'a> {
    out: &'a mut [f32],
}

impl<L: Lanes> Consumer<L, 1> for Store<'_> {
    #[inline(always)]
    fn step(&mut self, lanes: L, k: usize, weights: &[L::V; 1]) {
        debug_assert!((k + 1) * LANES <= self.out.len(), "decoding stays within the block");
        // SAFETY: there is room for all steps.
        unsafe { lanes.store(self.out.as_mut_ptr().add(k * LANES), weights[0]) };
    }
}
