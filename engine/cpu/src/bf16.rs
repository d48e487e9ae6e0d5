//! GEMM micro-kernel in bf16 with f32 accumulators, used for float weights where the processor has
//! bf16 instructions, or for all weights with `--dtype bf16`; activations and weights are rounded
//! to bf16 and packed for it. FP8 weights are exact in bf16, and stay at one byte (`e4m3.rs`).
//!
//! Two steps of k are multiplied at once. A tile of packed weights is [`TILE`] output columns.
//! Within it k rises a pair at a time; for each pair the groups of 16 columns lie side by side,
//! `[16][2]` each. Columns past the last, and the second half of an odd K's last pair, are zeros.

#![expect(unsafe_code, reason = "tiles over packed memory; threads write disjoint rows")]

mod e4m3;
#[cfg(test)]
mod tests;

use half::bf16;

use super::gemm::{Block, Gather, Input, Item, MicroKernel, Multiply, Sums};
use super::isa::{Isa, PairKernel};
use super::lanes::{LANES, PAIR, PAIR_BYTES, Pairs};
use super::memory::{Aligned, CACHE_LINE, fetch, grow};
use super::pool::Pool;
use super::shared::Shared;
use engine_core::WeightType;
use engine_weights::format::dequantize;

/// Number of 16-column vectors in a tile of the bf16 GEMM.
const TILE_GROUPS: usize = 3;
/// Number of output columns in a tile of the bf16 GEMM.
const TILE: usize = TILE_GROUPS * LANES;
/// Number of bytes of the bf16 weights of one pair of k in a tile.
const TILE_PAIR_BYTES: usize = TILE_GROUPS * PAIR_BYTES;
/// Number of steps of k in a block of the bf16 GEMM for more rows than one micro-kernel tile has:
/// 12 KiB of weights, which stay in the L1 cache. For fewer rows one block has all of K.
const BLOCK_K: usize = 64 * PAIR;
/// Prefetch distance of the bf16 GEMM's weights in bytes: the size of one tile's weights of a block
/// of [`BLOCK_K`] steps.
const AHEAD: usize = BLOCK_K / PAIR * TILE_PAIR_BYTES;

/// Marker type of the bf16 GEMM, which implements the micro-kernel.
#[derive(Debug)]
pub(super) struct Bf16;

/// Rows of activations rounded to bf16 for the bf16 GEMM, each padded with zeros to whole pairs.
#[derive(Debug, Default)]
pub(super) struct Activations {
    /// Number of bf16 elements of a row of activations, padding included.
    stride: usize,
    /// Bits of the bf16 activations, `[rows][stride]` or longer: the memory of a larger earlier
    /// step is kept.
    values: Vec<u16>,
}

/// Form of the packed weights of the bf16 GEMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Bf16,
    E4m3,
}

impl Format {
    /// Returns the form in which the bf16 GEMM packs weights of type `stored`.
    pub(super) fn of(stored: WeightType) -> Self {
        if stored == WeightType::F8E4M3 { Self::E4m3 } else { Self::Bf16 }
    }
}

impl MicroKernel for Bf16 {
    type Activations = Activations;
    type Element = u16;
    type Format = Format;
    /// Memory for widened weights of a block of k; none until some have to be widened.
    type Scratch = Option<Aligned>;

    const COLUMNS: usize = TILE;
    const UNIT_ROWS: usize = 8;
    const UNIT_K: usize = PAIR;

    fn convert(x: &mut Activations, isa: Isa, pool: &mut Pool, values: &[f32], k: usize) {
        let (rows, stride) = (values.len() / k, k.next_multiple_of(PAIR));
        x.stride = stride;
        grow(&mut x.values, rows * stride);
        let rounded = Shared::new(&mut x.values);
        pool.rows(rows, k, &|first, rows| {
            // SAFETY: items are disjoint rows.
            let out = unsafe { rounded.part(first * stride, rows * stride) };
            isa.run_pairs(Round { x: &values[first * k..(first + rows) * k], k, out, stride });
        });
    }

    /// Gathers rows of activations and rounds them to bf16. Rounding a row for each of its experts
    /// takes no longer than copying it would.
    fn gather(
        x: &mut Activations,
        isa: Isa,
        pool: &mut Pool,
        input: Input<'_, Self>,
        gather: &Gather<'_>,
    ) {
        let Input { values, k, .. } = input;
        let stride = k.next_multiple_of(PAIR);
        x.stride = stride;
        grow(&mut x.values, gather.units.len() * Self::UNIT_ROWS * stride);
        let rounded = Shared::new(&mut x.values);
        gather.each(pool, k, &|index, unit| {
            for (row, source) in (index * Self::UNIT_ROWS..).zip(gather.sources(unit)) {
                // SAFETY: units are disjoint rows.
                let out = unsafe { rounded.part(row * stride, stride) };
                isa.run_pairs(Round { x: &values[source * k..][..k], k, out, stride });
            }
        });
    }

    fn tile_bytes(format: Format, k: usize) -> usize {
        match format {
            Format::Bf16 => k.div_ceil(PAIR) * TILE_PAIR_BYTES,
            Format::E4m3 => e4m3::tile_bytes(k),
        }
    }

    /// Packs stored rows of any weight type into a tile of the bf16 GEMM. Values of types other
    /// than bf16 and FP8 are rounded to the nearest bf16.
    fn pack<'a>(
        format: Format,
        k: usize,
        column: &dyn Fn(usize) -> Option<(WeightType, &'a [u8])>,
        tile: &mut [u8],
    ) {
        if format == Format::E4m3 {
            for index in 0..TILE {
                if let Some((_, row)) = column(index) {
                    e4m3::pack(row, index, tile);
                }
            }
            return;
        }
        let mut columns = Columns::new(k);
        for group in 0..TILE_GROUPS {
            for lane in 0..LANES {
                columns.take(lane, column(group * LANES + lane));
            }
            columns.put(&mut tile[group * PAIR_BYTES..]);
        }
    }

    fn chunk_rows(format: Format) -> usize {
        if format == Format::Bf16 { Self::UNIT_ROWS } else { Self::BLOCK_ROWS }
    }

    fn unpack(format: Format, tile: &[u8], column: usize, out: &mut [f32]) {
        if format == Format::E4m3 {
            return e4m3::unpack(tile, column, out);
        }
        let at = column / LANES * PAIR_BYTES + column % LANES * PAIR * 2;
        for (pair, out) in tile.chunks_exact(TILE_PAIR_BYTES).zip(out.chunks_mut(PAIR)) {
            for (x, bits) in out.iter_mut().zip(pair[at..].as_chunks::<2>().0) {
                *x = bf16::from_le_bytes(*bits).to_f32();
            }
        }
    }

    fn run(isa: Isa, item: Item<'_, '_, Self>) {
        match item.w.format {
            Format::Bf16 => isa.run_pairs(item),
            Format::E4m3 => isa.run_pairs(e4m3::BlockScaled(item)),
        }
    }
}

impl PairKernel for Item<'_, '_, Bf16> {
    #[inline(always)]
    fn run<P: Pairs>(self, pairs: P) {
        self.compute(pairs);
    }
}

impl<P: Pairs> Multiply<P> for Bf16 {
    #[inline(always)]
    fn block_k(_: &Item<'_, '_, Self>, rows: usize, k: usize) -> usize {
        // Weights of a single tile of rows are used once, so keeping a block of them in L1 gains
        // nothing.
        if rows <= P::ROWS { k } else { BLOCK_K }
    }

    #[inline(always)]
    fn multiply(pairs: P, item: &mut Item<'_, '_, Self>, block: Block<'_>) {
        let (x, Block { rows, k, target }) = (item.x, block);
        let (first, rows, count) = (rows.start, rows.len(), k.len() / PAIR);
        let weights = &item.w.tile(item.tile)[k.start / PAIR * TILE_PAIR_BYTES..];
        assert!(weights.len() >= count * TILE_PAIR_BYTES, "the pairs are the tile's");
        let (weights, kept) = (weights.as_ptr(), item.work.sums.as_chunks_mut::<TILE>().0);
        // With many rows each tile prefetches one cache line of a pair, not all: more loads in
        // flight would delay the loads that the computation waits for.
        let is_many = rows > 2 * P::ROWS;
        let mut done = 0;
        while done < rows {
            let line = if is_many { done / P::ROWS % TILE_GROUPS } else { 0 };
            let left = Left {
                start: x.values[(first + done) * x.stride + k.start..].as_ptr(),
                stride: x.stride,
                ahead: AHEAD + line * CACHE_LINE,
            };
            let target = target.map(|target| target.below(done));
            let sums = Sums { kept: &mut kept[done..], is_first: k.start == 0, target };
            // SAFETY: there are so many rows with as many pairs, so has the tile, and items differ
            // in rows or columns.
            done += unsafe {
                match rows - done {
                    8.. if P::ROWS >= 8 && is_many => {
                        tile::<P, 8, 1>(pairs, left, weights, count, sums)
                    }
                    8.. if P::ROWS >= 8 => tile::<P, 8, 3>(pairs, left, weights, count, sums),
                    4.. => tile::<P, 4, 3>(pairs, left, weights, count, sums),
                    2.. => tile::<P, 2, 3>(pairs, left, weights, count, sums),
                    _ => tile::<P, 1, 3>(pairs, left, weights, count, sums),
                }
            };
        }
    }
}

/// Activations that a micro-kernel tile of the bf16 GEMM multiplies: the tile's rows, from the
/// first step of the block of k on.
#[derive(Clone, Copy)]
struct Left {
    start: *const u16,
    stride: usize,
    /// Prefetch distance, in bytes, of the weights that a tile multiplies.
    ahead: usize,
}

/// Multiplies `MR` rows by one tile of columns over `count` pairs of k and returns `MR`. Adds the
/// products to the accumulators in `kept` or, in the last block of k, writes the results to the
/// output. Prefetches `LINES` cache lines per pair: behind a tile of weights lies the tile that
/// this thread usually takes next.
///
/// # Safety
/// `left` has `MR` rows of `count` pairs, `weights` points to `count` pairs of a tile, and no other
/// thread uses the output's rows during the call.
#[inline(always)]
unsafe fn tile<P: Pairs, const MR: usize, const LINES: usize>(
    pairs: P,
    left: Left,
    weights: *const u8,
    count: usize,
    kept: Sums<'_, TILE>,
) -> usize {
    let lanes = pairs.lanes();
    let mut sums = kept.load::<_, MR, TILE_GROUPS>(lanes);
    for pair in 0..count {
        let at = weights.wrapping_add(pair * TILE_PAIR_BYTES);
        for line in 0..LINES {
            fetch(at.wrapping_add(left.ahead + line * CACHE_LINE));
        }
        // SAFETY: the caller vouches for the weights and the rows of this pair.
        unsafe {
            let w: [P::Weights; TILE_GROUPS] =
                std::array::from_fn(|group| pairs.weights(at.add(group * PAIR_BYTES)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = pairs.row(left.start.add(r * left.stride + pair * PAIR));
                for (sum, w) in sums.iter_mut().zip(&w) {
                    *sum = pairs.dot(*sum, *w, x);
                }
            }
        }
    }
    // SAFETY: the caller vouches for the rows.
    unsafe { kept.store(lanes, &sums) };
    MR
}

/// Kernel that rounds some rows of activations to bf16 for the bf16 GEMM.
struct Round<'a> {
    x: &'a [f32],
    k: usize,
    out: &'a mut [u16],
    stride: usize,
}

impl PairKernel for Round<'_> {
    #[inline(always)]
    fn run<P: Pairs>(self, pairs: P) {
        for (x, out) in self.x.chunks_exact(self.k).zip(self.out.chunks_exact_mut(self.stride)) {
            let (x, x_tail) = x.as_chunks::<LANES>();
            let (whole, out_tail) = out.split_at_mut(x.len() * LANES);
            for (x, out) in x.iter().zip(whole.as_chunks_mut::<LANES>().0) {
                *out = pairs.round(x);
            }
            let mut padded = [0.0; LANES];
            padded[..x_tail.len()].copy_from_slice(x_tail);
            out_tail.copy_from_slice(&pairs.round(&padded)[..out_tail.len()]);
        }
    }
}

/// Sixteen output columns that are being packed into a tile of the bf16 GEMM.
struct Columns {
    /// Dequantized values of a stored row, `[K]`; not used for rows stored as bf16, whose bits are
    /// copied.
    values: Vec<f32>,
    /// Sixteen rows as bf16 bits, `[16][K]`, with K padded by zeros to whole pairs.
    rounded: Vec<u16>,
}

impl Columns {
    fn new(k: usize) -> Self {
        Self { values: vec![0.0; k], rounded: vec![0; LANES * k.next_multiple_of(PAIR)] }
    }

    /// Converts a stored row to bf16 as column `lane` of the sixteen, or fills the column with
    /// zeros if there is no row.
    fn take(&mut self, lane: usize, stored: Option<(WeightType, &[u8])>) {
        let stride = self.rounded.len() / LANES;
        let rounded = &mut self.rounded[lane * stride..][..self.values.len()];
        match stored {
            None => rounded.fill(0),
            // The bits are copied, so bf16 weights are exact.
            Some((WeightType::Bf16, row)) => {
                let bits = row.as_chunks::<2>().0;
                rounded.iter_mut().zip(bits).for_each(|(x, bits)| *x = u16::from_le_bytes(*bits));
            }
            Some((stored, row)) => {
                dequantize(stored, row, &mut self.values);
                let values = self.values.iter();
                rounded.iter_mut().zip(values).for_each(|(x, w)| *x = bf16::from_f32(*w).to_bits());
            }
        }
    }

    /// Writes the sixteen packed columns into a tile of the bf16 GEMM. `to` begins at the first
    /// byte of their group of 16 columns in the tile.
    fn put(&self, to: &mut [u8]) {
        let stride = self.rounded.len() / LANES;
        for (i, to) in to.chunks_mut(TILE_GROUPS * PAIR_BYTES).enumerate() {
            for (lane, to) in to[..PAIR_BYTES].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let at = lane * stride + i * PAIR;
                let pair = [self.rounded[at], self.rounded[at + 1]].map(u16::to_le_bytes);
                to.copy_from_slice(pair.as_flattened());
            }
        }
    }
}
