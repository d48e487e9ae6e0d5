//! FP8 (E4M3) weights for the bf16 GEMM: one byte each in memory, with a scale for each block of 32
//! steps of a column.
//!
//! An E4M3 float is exact in bf16, but its product with a scale is not. Weights are therefore
//! widened without their scales, a block of k at a time, and the sum of the products of each block
//! is multiplied by the block's scale in f32.
//!
//! A tile of packed weights is [`TILE`] columns. Within it k rises a block at a time: `[TILE]` f32
//! scales, then `[16][TILE][2]` E4M3 floats.

#![expect(unsafe_code, reason = "tiles over packed memory; threads write disjoint rows")]

use super::{BLOCK_K, Bf16, TILE, TILE_GROUPS, TILE_PAIR_BYTES};
use crate::gemm::{Block, Item, Multiply, Sums};
use crate::isa::PairKernel;
use crate::lanes::{LANES, Lanes, PAIR, PAIR_BYTES, Pairs};
use crate::memory::{Aligned, fetch_all};
use engine_core::WeightType;
use engine_weights::blocks;

/// Number of steps of k of a column that share a scale.
const SCALED: usize = 32;
/// Number of bytes of the scales at the beginning of a block of a tile.
const HEAD_BYTES: usize = TILE * size_of::<f32>();
/// Number of bytes of a block of a tile.
const BLOCK_BYTES: usize = HEAD_BYTES + SCALED * TILE;
/// Prefetch distance of the packed weights in bytes.
const AHEAD: usize = 8 << 10;

/// Returns the number of bytes of a packed tile of `k` steps.
pub(super) fn tile_bytes(k: usize) -> usize {
    k / SCALED * BLOCK_BYTES
}

/// Copies a stored row of E4M3 weights to `column` of the packed tile.
pub(super) fn pack(row: &[u8], column: usize, tile: &mut [u8]) {
    let stored = row.chunks_exact(WeightType::F8E4M3.block_bytes());
    for (stored, block) in stored.zip(tile.chunks_exact_mut(BLOCK_BYTES)) {
        let (scale, values) = stored.split_at(size_of::<f32>());
        block[column * size_of::<f32>()..][..size_of::<f32>()].copy_from_slice(scale);
        let pairs = block[HEAD_BYTES..].chunks_exact_mut(PAIR * TILE);
        for (pair, values) in pairs.zip(values.chunks_exact(PAIR)) {
            pair[PAIR * column..][..PAIR].copy_from_slice(values);
        }
    }
}

/// Writes the dequantized weights of `column` of a packed tile to `out`.
pub(super) fn unpack(tile: &[u8], column: usize, out: &mut [f32]) {
    for (block, out) in tile.chunks_exact(BLOCK_BYTES).zip(out.chunks_exact_mut(SCALED)) {
        let scale = column * size_of::<f32>();
        let scale: f32 = bytemuck::pod_read_unaligned(&block[scale..][..size_of::<f32>()]);
        let pairs = block[HEAD_BYTES..].chunks_exact(PAIR * TILE);
        for (pair, out) in pairs.zip(out.chunks_exact_mut(PAIR)) {
            for (x, value) in out.iter_mut().zip(&pair[PAIR * column..]) {
                *x = blocks::e4m3(*value) * scale;
            }
        }
    }
}

/// Work item of the bf16 GEMM with E4M3 weights. It is a kernel of its own, so that neither tile
/// affects which values of the other stay in registers.
pub(super) struct BlockScaled<'a, 'b>(pub Item<'a, 'b, Bf16>);

impl PairKernel for BlockScaled<'_, '_> {
    #[inline(always)]
    fn run<P: Pairs>(self, pairs: P) {
        self.0.compute(ByBlock(pairs));
    }
}

/// bf16 dot products whose sums over a block of weights are multiplied by the block's scales.
#[derive(Clone, Copy)]
struct ByBlock<P>(P);

impl<P: Pairs> Multiply<ByBlock<P>> for Bf16 {
    #[inline(always)]
    fn block_k(_: &Item<'_, '_, Self>, _: usize, _: usize) -> usize {
        BLOCK_K
    }

    #[inline(always)]
    fn multiply(ByBlock(pairs): ByBlock<P>, item: &mut Item<'_, '_, Self>, block: Block<'_>) {
        let (x, Block { rows, k, target }) = (item.x, block);
        let packed = &item.w.tile(item.tile)[tile_bytes(k.start)..][..tile_bytes(k.len())];
        let room = || Aligned::zeroed(BLOCK_K / PAIR * TILE_PAIR_BYTES);
        let widened = item.work.scratch.get_or_insert_with(room).bytes_mut();
        widen(pairs, packed, widened);
        let weights = Right { widened: widened.as_ptr(), packed };
        let kept = item.work.sums.as_chunks_mut::<TILE>().0;
        let mut done = 0;
        while done < rows.len() {
            let row = x.values[(rows.start + done) * x.stride + k.start..].as_ptr();
            let left = Left { row, stride: x.stride };
            let target = target.map(|target| target.below(done));
            let sums = Sums { kept: &mut kept[done..], is_first: k.start == 0, target };
            // SAFETY: there are so many rows of so many steps, all steps of the packed blocks are
            // widened, and items differ in rows or columns.
            done += unsafe {
                match rows.len() - done {
                    4.. => tile::<P, 4>(pairs, left, weights, sums),
                    2.. => tile::<P, 2>(pairs, left, weights, sums),
                    _ => tile::<P, 1>(pairs, left, weights, sums),
                }
            };
        }
    }
}

/// Widens the packed blocks in `from` to bf16 in `to`, without their scales, in the layout of
/// packed bf16 weights. Also prefetches as many bytes as `from` has, [`AHEAD`] bytes further on.
#[inline(always)]
fn widen<P: Pairs>(pairs: P, from: &[u8], to: &mut [u8]) {
    let to = to.chunks_exact_mut(SCALED / PAIR * TILE_PAIR_BYTES);
    for (block, to) in from.chunks_exact(BLOCK_BYTES).zip(to) {
        fetch_all(block.as_ptr().wrapping_add(AHEAD), BLOCK_BYTES);
        let values = block[HEAD_BYTES..].as_chunks::<{ PAIR * LANES }>().0;
        for (values, to) in values.iter().zip(to.as_chunks_mut::<PAIR_BYTES>().0) {
            pairs.widen(values, to);
        }
    }
}

/// Activations that a micro-kernel tile multiplies: its first row from the first step of the block
/// of k on, and the distance from row to row.
#[derive(Clone, Copy)]
struct Left {
    row: *const u16,
    stride: usize,
}

/// Weights that a micro-kernel tile multiplies by: the packed blocks of a block of k, which have
/// the scales, and their weights widened to bf16.
#[derive(Clone, Copy)]
struct Right<'a> {
    widened: *const u8,
    packed: &'a [u8],
}

/// Multiplies `MR` rows by the packed blocks of a tile and returns `MR`. Adds the products to the
/// accumulators in `kept` or, in the last block of k, writes the results to the output.
///
/// # Safety
/// `left` has `MR` rows of as many steps as the packed blocks have, all of which are widened, and
/// no other thread uses the output's rows during the call.
#[inline(always)]
unsafe fn tile<P: Pairs, const MR: usize>(
    pairs: P,
    left: Left,
    weights: Right<'_>,
    kept: Sums<'_, TILE>,
) -> usize {
    let lanes = pairs.lanes();
    let mut totals = kept.load::<_, MR, TILE_GROUPS>(lanes);
    for (block, packed) in weights.packed.chunks_exact(BLOCK_BYTES).enumerate() {
        let mut sums = [[lanes.splat(0.0); TILE_GROUPS]; MR];
        for pair in 0..SCALED / PAIR {
            let pair = block * (SCALED / PAIR) + pair;
            // SAFETY: the caller vouches for the weights and the rows of this pair.
            unsafe {
                let at = weights.widened.add(pair * TILE_PAIR_BYTES);
                let w: [P::Weights; TILE_GROUPS] =
                    std::array::from_fn(|group| pairs.weights(at.add(group * PAIR_BYTES)));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = pairs.row(left.row.add(r * left.stride + pair * PAIR));
                    for (sum, w) in sums.iter_mut().zip(&w) {
                        *sum = pairs.dot(*sum, *w, x);
                    }
                }
            }
        }
        let scales: &[f32] = bytemuck::cast_slice(&packed[..HEAD_BYTES]);
        for (group, scales) in scales.as_chunks::<LANES>().0.iter().enumerate() {
            let scales = lanes.lift(scales);
            for (sums, totals) in sums.iter().zip(&mut totals) {
                // Rounded twice, as on instruction sets without fused multiply-add.
                totals[group] = lanes.add(totals[group], lanes.mul(sums[group], scales));
            }
        }
    }
    // SAFETY: the caller vouches for the rows.
    unsafe { kept.store(lanes, &totals) };
    MR
}
