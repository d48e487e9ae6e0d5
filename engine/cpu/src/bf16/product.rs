//! Blocked bf16 GEMM: the driver and its micro-kernel, tile by tile.

#![expect(unsafe_code, reason = "tiles over packed memory; threads write disjoint columns")]

use std::sync::{Mutex, PoisonError};

use super::weights::Weights;
use super::{Activations, PAIR, PAIR_BYTES, Pairs, TILE, TILE_GROUPS};
use crate::division::{Division, part_rows};
use crate::isa::{Isa, PairKernel};
use crate::lanes::{LANES, Lanes};
use crate::matmul::Target;
use crate::memory::{CACHE_LINE, fetch};
use crate::pool::Pool;

/// Pairs of k that many rows take at once: 12 KiB of weights, which stay in the L1 cache.
const PIECE: usize = 64;
/// Prefetch distance of weights in bytes: one piece.
const AHEAD: usize = PIECE * TILE_GROUPS * PAIR_BYTES;

/// Sums of one row and one tile of columns.
type Sums = [f32; TILE];

/// Working memory of the GEMM: for each thread, as many rows of sums as it ever needed.
#[derive(Debug)]
pub(in super::super) struct Scratch(Vec<Mutex<Vec<Sums>>>);

impl Scratch {
    pub(in super::super) fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Mutex::default()).collect())
    }
}

/// Writes the matrix product `x * w^T` to the columns of `target` that `w` covers.
pub(in super::super) fn product(
    isa: Isa,
    pool: &mut Pool,
    scratch: &Scratch,
    x: &Activations,
    w: &Weights,
    target: Target<'_, '_>,
) {
    let division = Division::new(x.rows, x.stride * size_of::<u16>(), w.tiles(), pool.threads());
    division.run(pool, &|thread, rows, tiles| {
        let mut sums = scratch.0[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let (first_row, rows) = (rows.start, rows.len());
        for tile in tiles {
            isa.run_pairs(Columns { x, w, first_row, rows, tile, sums: &mut sums, target });
        }
    });
}

/// Kernel arguments: some rows by one tile of columns.
struct Columns<'a, 'b> {
    x: &'a Activations,
    w: &'a Weights,
    first_row: usize,
    rows: usize,
    tile: usize,
    sums: &'a mut Vec<Sums>,
    target: Target<'a, 'b>,
}

impl PairKernel for Columns<'_, '_> {
    #[inline(always)]
    fn run<P: Pairs>(mut self, pairs: P) {
        let all = self.w.pairs();
        let part = part_rows(self.rows);
        for first in (0..self.rows).step_by(part) {
            let rows = part.min(self.rows - first);
            if self.sums.len() < rows {
                self.sums.resize(rows, [0.0; TILE]);
            }
            // Weights of a single tile of rows are used once, so keeping a piece of them in L1
            // gains nothing.
            let piece = if rows <= P::ROWS { all } else { PIECE };
            for start in (0..all).step_by(piece) {
                self.multiply(pairs, first, rows, start, piece.min(all - start));
            }
            self.finish(first, rows);
        }
    }
}

impl Columns<'_, '_> {
    /// Adds the products of `count` pairs from pair `start` on to the sums of `rows` rows from
    /// `row` on.
    #[inline(always)]
    fn multiply<P: Pairs>(
        &mut self,
        pairs: P,
        row: usize,
        rows: usize,
        start: usize,
        count: usize,
    ) {
        let weights = &self.w.tile(self.tile)[start * TILE_GROUPS * PAIR_BYTES..];
        assert!(weights.len() >= count * TILE_GROUPS * PAIR_BYTES, "the pairs are the tile's");
        let mut done = 0;
        while done < rows {
            let x = self.x.row_from(self.first_row + row + done, start * PAIR);
            // With many rows each tile prefetches one cache line of a pair, not all: more loads in
            // flight would delay the loads that the computation waits for.
            let is_many = rows > 2 * P::ROWS;
            let line = if is_many { done / P::ROWS % TILE_GROUPS } else { 0 };
            let left = Left {
                start: x.as_ptr(),
                stride: self.x.stride,
                is_first: start == 0,
                ahead: AHEAD + line * CACHE_LINE,
            };
            let (w, sums) = (weights.as_ptr(), &mut self.sums[done..]);
            // SAFETY: there are so many rows with as many pairs from `start`, and so has the tile.
            done += unsafe {
                match rows - done {
                    8.. if P::ROWS >= 8 && is_many => tile::<P, 8, 1>(pairs, left, w, count, sums),
                    8.. if P::ROWS >= 8 => tile::<P, 8, 3>(pairs, left, w, count, sums),
                    4.. => tile::<P, 4, 3>(pairs, left, w, count, sums),
                    2.. => tile::<P, 2, 3>(pairs, left, w, count, sums),
                    _ => tile::<P, 1, 3>(pairs, left, w, count, sums),
                }
            };
        }
    }

    /// Writes the sums of `rows` rows to the output.
    #[inline(always)]
    fn finish(&self, row: usize, rows: usize) {
        let first = self.tile * TILE;
        let columns = TILE.min(self.w.n - first);
        for (r, sums) in self.sums[..rows].iter().enumerate() {
            let at = (self.first_row + row + r) * self.target.cols + self.w.first + first;
            // SAFETY: items differ in rows or columns.
            let out = unsafe { self.target.out.part(at, columns) };
            match out.as_mut_array::<TILE>() {
                Some(out) => *out = *sums,
                None => out.copy_from_slice(&sums[..columns]),
            }
        }
    }
}

/// Activations of a micro-kernel tile: rows from some index of k on.
#[derive(Clone, Copy)]
struct Left {
    start: *const u16,
    stride: usize,
    /// True when there are no sums of earlier pieces to continue from.
    is_first: bool,
    /// Prefetch distance of weights in bytes.
    ahead: usize,
}

/// GEMM micro-kernel: multiplies `MR` rows by one tile of columns over `count` pairs, adds to
/// `out`, and returns `MR`. Prefetches `LINES` cache lines per pair; behind a tile lies the one
/// that this thread usually takes next.
///
/// # Safety
/// `left` has `MR` rows of `count` pairs, `weights` points to `count` pairs of a tile.
#[inline(always)]
unsafe fn tile<P: Pairs, const MR: usize, const LINES: usize>(
    pairs: P,
    left: Left,
    weights: *const u8,
    count: usize,
    out: &mut [Sums],
) -> usize {
    let lanes = pairs.lanes();
    let out = &mut out[..MR];
    let mut sums = [[lanes.splat(0.0); TILE_GROUPS]; MR];
    if !left.is_first {
        for (sums, out) in sums.iter_mut().zip(&*out) {
            for (sum, out) in sums.iter_mut().zip(out.as_chunks::<LANES>().0) {
                *sum = lanes.lift(out);
            }
        }
    }
    for pair in 0..count {
        let at = weights.wrapping_add(pair * TILE_GROUPS * PAIR_BYTES);
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
    for (sums, out) in sums.iter().zip(out) {
        for (sum, out) in sums.iter().zip(out.as_chunks_mut::<LANES>().0) {
            *out = lanes.lower(*sum);
        }
    }
    MR
}
