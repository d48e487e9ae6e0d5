//! GEMM micro-kernel in int8 with i32 accumulators, used for weights stored as integer blocks or as
//! MXFP4, or for all weights with `--dtype int8`.
//!
//! Weights become unsigned bytes with one scale per output column, activations signed bytes with
//! one scale per [`QUANT_GROUP`] of a row. Products of a quantization group are added in i32,
//! exactly and in any order; the sums of quantization groups are added in f32, in rising k.
//!
//! Weights of 4, 5 or 6 bits stay so and are widened a block of k at a time. Source: the scheme of
//! LLM.int8() (Dettmers et al. 2022) without its outliers, for which short quantization groups
//! compensate.
//!
//! MXFP4 weights are exact: their values, doubled, are whole numbers, and each block of [`BLOCK`]
//! steps of a column keeps its own scale, by which the sum of its products is multiplied.

#![expect(unsafe_code, reason = "tiles over packed memory; threads write disjoint columns")]

mod activations;
mod bit_fields;
#[cfg(test)]
mod tests;
mod weights;

pub(super) use activations::{Activations, Quantizer};
pub(super) use weights::Width;

use super::gemm::{Block, Item, Multiply, Sums};
use super::isa::DotKernel;
use super::lanes::{BLOCK, Dots, E2M1_DOUBLED, LANES, Lanes, STEP, STEP_BYTES, block_bytes};
use super::memory::{Aligned, CACHE_LINE, fetch, fetch_all};
use activations::{HEAD_ROWS, Starts, WHOLE};

/// Number of steps of k in a quantization group: the activations of a row in a group share one
/// scale.
pub(super) const QUANT_GROUP: usize = 64;
/// Number of blocks of weights in a quantization group.
const BLOCKS: usize = QUANT_GROUP / BLOCK;
/// Number of 16-column vectors in a tile of the int8 GEMM.
const TILE_GROUPS: usize = 3;
/// Number of output columns in a tile of the int8 GEMM.
const TILE: usize = TILE_GROUPS * LANES;
/// Offset that makes a signed quantized weight of the int8 GEMM an unsigned byte.
const ZERO: i32 = 128;
/// Bytes to which the 16 floats of type E2M1 are widened, by bit pattern: twice their value, plus
/// [`ZERO`].
const E2M1_BYTES: [u8; LANES] = {
    let mut bytes = [0; LANES];
    let mut i = 0;
    while i < LANES {
        bytes[i] = (E2M1_DOUBLED[i] as i32 + ZERO) as u8;
        i += 1;
    }
    bytes
};
/// Number of steps of k in a block of the int8 GEMM, whose widened weights stay in the L1 cache.
const BLOCK_K: usize = 3 * QUANT_GROUP;
/// Largest number of rows for which the int8 GEMM prefetches later weights while it copies or
/// widens the current ones: multiplying so few rows takes too little time for a prefetch. With more
/// rows, weights are prefetched during the multiplication.
const FEW_ROWS: usize = 8;
/// Prefetch distance of the int8 GEMM's weights in bytes.
const AHEAD: usize = 8 << 10;

/// Marker type of the int8 GEMM, which implements the micro-kernel.
#[derive(Debug)]
pub(super) struct Int8;

/// Weights of a tile as bytes, widened from fewer bits or copied: those of one block of k, or of all
/// of K where several blocks of rows are multiplied by them.
#[derive(Default)]
pub(super) struct Widened(Option<Aligned>);

impl Widened {
    /// Returns memory of `bytes` bytes or more. What was written to it before is still there, unless
    /// it had to grow.
    #[inline(always)]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.0.as_ref().is_none_or(|memory| memory.bytes().len() < bytes) {
            self.0 = None;
        }
        self.0.get_or_insert_with(|| Aligned::zeroed(bytes)).bytes_mut()
    }
}

impl DotKernel for Item<'_, '_, Int8> {
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        self.compute(dots);
    }
}

impl<D: Dots> Multiply<D> for Int8 {
    #[inline(always)]
    fn block_k(_: &Item<'_, '_, Self>, _: usize, _: usize) -> usize {
        BLOCK_K
    }

    #[inline(always)]
    fn multiply(dots: D, item: &mut Item<'_, '_, Self>, block: Block<'_>) {
        multiply::<D, 1>(dots, item, block);
    }
}

/// Work item of the int8 GEMM whose weights have a scale for each block of a column. It is a kernel
/// of its own, so that neither tile affects which values of the other stay in registers.
struct BlockScaled<'a, 'b>(Item<'a, 'b, Int8>);

impl DotKernel for BlockScaled<'_, '_> {
    #[inline(always)]
    fn run<D: Dots>(self, dots: D) {
        self.0.compute(ByBlock(dots));
    }
}

/// int8 dot products whose sums over a block of weights are multiplied by the block's scales.
#[derive(Clone, Copy)]
struct ByBlock<D>(D);

impl<D: Dots> Multiply<ByBlock<D>> for Int8 {
    #[inline(always)]
    fn block_k(_: &Item<'_, '_, Self>, _: usize, _: usize) -> usize {
        BLOCK_K
    }

    #[inline(always)]
    fn multiply(ByBlock(dots): ByBlock<D>, item: &mut Item<'_, '_, Self>, block: Block<'_>) {
        multiply::<D, BLOCKS>(dots, item, block);
    }
}

/// Multiplies a block of a work item. `PARTS` is the number of parts of a quantization group whose
/// weights have scales of their own, 1 if all weights of a column share one.
#[inline(always)]
fn multiply<D: Dots, const PARTS: usize>(dots: D, item: &mut Item<'_, '_, Int8>, block: Block<'_>) {
    let Block { rows, k, target } = block;
    let (x, from, width) = (item.x, item.w.tile(item.tile), item.w.format);
    let at = width.bytes_of(k.start);
    // Behind the tile lies the one that this thread usually takes next.
    let ahead = from.as_ptr().wrapping_add(at + AHEAD);
    let is_few = item.rows.len() <= FEW_ROWS;
    let is_first = rows.start == item.rows.start;
    // Later blocks of rows find the weights of all of K widened.
    let is_kept = width != Width::Eight && rows.len() < item.rows.len();
    let (start, steps) = if is_kept { (k.start, item.w.padded_k()) } else { (0, BLOCK_K) };
    let to = &mut item.work.scratch.room(steps * TILE)[start * TILE..];
    let packed = &from[at..][..width.bytes_of(k.len())];
    let bytes = if is_first || !is_kept {
        prepare(dots, width, packed, to, is_few.then_some(ahead))
    } else {
        to.as_ptr()
    };
    let weights = Right { bytes, packed: packed.as_ptr() };
    // With many rows, weights are prefetched during multiplication, one cache line per step: each
    // of the first three tiles fetches one of a step's three lines, later tiles only touch what
    // they read.
    let asks = !is_few && is_first;
    let kept = item.work.sums.as_chunks_mut::<TILE>().0;
    let mut done = 0;
    while done < rows.len() {
        let mut left = Left::new(x, rows.start + done, k.start, bytes);
        let line = done / D::ROWS;
        if asks && line < TILE_GROUPS {
            left.ahead = ahead.wrapping_add(line * CACHE_LINE);
        }
        let target = target.map(|target| target.below(done));
        let sums = Sums { kept: &mut kept[done..], is_first: k.start == 0, target };
        // SAFETY: the activations have these rows, the weights so many steps, and items differ in
        // rows or columns.
        done += unsafe {
            match rows.len() - done {
                4.. if D::ROWS >= 4 => tile::<D, 4, PARTS>(dots, left, weights, k.len(), sums),
                2.. => tile::<D, 2, PARTS>(dots, left, weights, k.len(), sums),
                _ => tile::<D, 1, PARTS>(dots, left, weights, k.len(), sums),
            }
        };
    }
}

/// Returns a pointer to the packed weights `from` as one byte per weight. Weights of fewer bits are
/// widened to `to`; 8-bit weights are copied there if `ahead` is given, and else used where they
/// are. If `ahead` is given, as many bytes as `from` has are meanwhile prefetched from `ahead` on.
#[inline(always)]
fn prepare<D: Dots>(
    dots: D,
    width: Width,
    from: &[u8],
    to: &mut [u8],
    ahead: Option<*const u8>,
) -> *const u8 {
    match (width, ahead) {
        (Width::Eight, None) => return from.as_ptr(),
        (Width::Eight, Some(ahead)) => {
            let steps = from.chunks_exact(STEP_BYTES).zip(to.chunks_exact_mut(STEP_BYTES));
            for (i, (from, to)) in steps.enumerate() {
                fetch(ahead.wrapping_add(i * STEP_BYTES));
                to.copy_from_slice(from);
            }
        }
        (Width::Four, ahead) => widen::<D, 4, false>(dots, from, to, ahead),
        (Width::Mxfp4, ahead) => widen::<D, 4, true>(dots, from, to, ahead),
        (Width::Five, ahead) => widen::<D, 5, false>(dots, from, to, ahead),
        (Width::Six, ahead) => widen::<D, 6, false>(dots, from, to, ahead),
    }
    to.as_ptr()
}

/// Widens the packed blocks of `BITS`-bit weights in `from`, floats of type E2M1 if `IS_E2M1` is
/// true, to one byte per weight in `to`. If `ahead` is given, also prefetches as many bytes as
/// `from` has from `ahead` on.
#[inline(always)]
fn widen<D: Dots, const BITS: usize, const IS_E2M1: bool>(
    dots: D,
    from: &[u8],
    to: &mut [u8],
    ahead: Option<*const u8>,
) {
    for (i, from) in from.chunks_exact(block_bytes(BITS)).enumerate() {
        if let Some(ahead) = ahead {
            fetch_all(ahead.wrapping_add(i * block_bytes(BITS)), block_bytes(BITS));
        }
        let (block, group) = (i / TILE_GROUPS, i % TILE_GROUPS);
        let to = &mut to[block * BLOCK * TILE..][..BLOCK * TILE];
        // SAFETY: `from` is one block, and `to` has its steps, side by side with those of the other
        // groups.
        unsafe {
            let (from, to) = (from.as_ptr(), to[group * STEP_BYTES..].as_mut_ptr());
            let stride = TILE_GROUPS * STEP_BYTES;
            match BITS {
                4 if IS_E2M1 => dots.look_up(&E2M1_BYTES, from, to, stride),
                4 => dots.widen(from, to, stride),
                5 => bit_fields::widen_five(dots, from, to, stride),
                _ => bit_fields::widen_six(dots, from, to, stride),
            }
        }
    }
}

/// Activations that a micro-kernel tile of the int8 GEMM multiplies: the tile's rows, from the
/// first step of the block of k on.
#[derive(Clone, Copy)]
struct Left<'a> {
    quantized: *const i8,
    stride: usize,
    /// Scales of the quantization groups of activations, each entry for the 8 rows that are stored
    /// together.
    scales: &'a [[f32; HEAD_ROWS]],
    starts: &'a [Starts],
    /// Index of the tile's first row among the 8 rows whose scales are stored together.
    first: usize,
    /// Address from which weights are prefetched while the tile is multiplied.
    ahead: *const u8,
}

impl<'a> Left<'a> {
    fn new(x: &'a Activations, row: usize, k0: usize, ahead: *const u8) -> Self {
        let quant_group = k0 / QUANT_GROUP;
        let heads =
            row / HEAD_ROWS * x.quant_groups + quant_group..(row / HEAD_ROWS + 1) * x.quant_groups;
        Self {
            quantized: x.quantized[(row * x.quant_groups + quant_group) * QUANT_GROUP..].as_ptr(),
            stride: x.stride(),
            scales: &x.scales[heads.clone()],
            starts: &x.starts[heads],
            first: row % HEAD_ROWS,
            ahead,
        }
    }
}

/// Weights that a micro-kernel tile of the int8 GEMM multiplies by, from the first step of the
/// block of k on: as bytes, and as they are packed, which has the scales of their blocks.
#[derive(Clone, Copy)]
struct Right {
    bytes: *const u8,
    packed: *const u8,
}

/// Multiplies `MR` rows by one tile of the int8 GEMM over `k` steps and returns `MR`. Adds the
/// products to the accumulators in `kept` or, in the last block of k, writes the results to the
/// output. All rows are among the same 8, whose scales are stored together. If a quantization group
/// has more than one of the `PARTS`, each of them is a block of 4-bit weights whose head is the
/// scales of its columns.
///
/// # Safety
/// `left` has `MR` rows of `k` quantized values, `weights` points to `k` steps of a tile, and no
/// other thread uses the output's rows during the call.
#[inline(always)]
unsafe fn tile<D: Dots, const MR: usize, const PARTS: usize>(
    dots: D,
    left: Left<'_>,
    weights: Right,
    k: usize,
    kept: Sums<'_, TILE>,
) -> usize {
    let lanes = dots.lanes();
    let mut totals = kept.load::<_, MR, TILE_GROUPS>(lanes);
    for part in 0..k / QUANT_GROUP * PARTS {
        let quant_group = part / PARTS;
        let starts = if PARTS > 1 { part % PARTS } else { WHOLE };
        let starts = &left.starts[quant_group][starts][left.first..][..MR];
        let mut sums: [[D::Sums; TILE_GROUPS]; MR] =
            std::array::from_fn(|r| [dots.start(starts[r]); TILE_GROUPS]);
        for step in 0..QUANT_GROUP / PARTS / STEP {
            let k = part * (QUANT_GROUP / PARTS) + step * STEP;
            // The prefetch stride equals the weights' stride, so one index serves both.
            fetch(left.ahead.wrapping_add(k * TILE));
            // SAFETY: the caller vouches for the weights and activations of this step.
            unsafe {
                // One group after another, so that AVX2 keeps the sums in its sixteen registers.
                let x: [D::Row; MR] =
                    std::array::from_fn(|r| dots.row(left.quantized.add(r * left.stride + k)));
                for group in 0..TILE_GROUPS {
                    let w = dots.weights(weights.bytes.add(k * TILE + group * STEP_BYTES));
                    for (sums, x) in sums.iter_mut().zip(&x) {
                        sums[group] = dots.dot(sums[group], w, *x);
                    }
                }
            }
        }
        let mut factors = [lanes.splat(1.0); TILE_GROUPS];
        if PARTS > 1 {
            for (group, factor) in factors.iter_mut().enumerate() {
                let block = (part * TILE_GROUPS + group) * block_bytes(4);
                // SAFETY: the caller vouches for the weights of this part, of which each group of
                // columns is a block that begins with sixteen f32.
                *factor = unsafe { lanes.load(weights.packed.add(block).cast()) };
            }
        }
        let scales = &left.scales[quant_group][left.first..][..MR];
        for ((sums, scale), totals) in sums.iter().zip(scales).zip(&mut totals) {
            let scale = lanes.splat(*scale);
            for ((sum, factor), total) in sums.iter().zip(&factors).zip(totals) {
                let scale = if PARTS > 1 { lanes.mul(scale, *factor) } else { scale };
                *total = lanes.fma(dots.floats(*sum), scale, *total);
            }
        }
    }
    // SAFETY: the caller vouches for the rows.
    unsafe { kept.store(lanes, &totals) };
    MR
}
