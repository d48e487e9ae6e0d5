//! Products of activations and weights, tile by tile, the work split over columns.

#![expect(unsafe_code, reason = "tiles over packed memory; threads write disjoint columns")]

use std::sync::{Mutex, PoisonError};

use super::activations::HEAD_ROWS;
use super::weights::{Weights, Width};
use super::{Activations, BLOCK, BLOCK_BYTES, Dots, SEGMENT, STEP, STEP_BYTES, TILE, TILE_GROUPS};
use crate::device::cpu::division::{Division, PART_ROWS, UNIT_ROWS};
use crate::device::cpu::isa::{DotKernel, Isa};
use crate::device::cpu::lanes::{LANES, Lanes};
use crate::device::cpu::matmul::Target;
use crate::device::cpu::memory::{CACHE_LINE, fetch, fetch_all};
use crate::device::cpu::pack::Aligned;
use crate::device::cpu::pool::Pool;

/// Steps of k that rows take at once: widened codes stay in the first cache.
const PIECE: usize = 3 * SEGMENT;
/// How far ahead of those in use weights are asked for, in bytes.
const AHEAD: usize = 8 << 10;

const _: () = assert!(UNIT_ROWS.is_multiple_of(HEAD_ROWS), "parts of a product begin with a head");

/// Working memory of products, one part a thread.
#[derive(Debug)]
pub(in super::super) struct Scratch(Vec<Mutex<Work>>);

#[derive(Debug)]
struct Work {
    /// Steps of a tile's weights, in bytes.
    weights: Aligned,
    /// `[PART_ROWS][TILE]` sums of a tile, as many rows as there were at once.
    sums: Vec<[f32; TILE]>,
}

impl Scratch {
    pub(in super::super) fn new(threads: usize) -> Self {
        let work = || Work { weights: Aligned::zeroed(PIECE * TILE), sums: Vec::new() };
        Self((0..threads).map(|_| Mutex::new(work())).collect())
    }
}

/// Writes `x * w^T` to the columns of `w`.
pub(in super::super) fn product(
    isa: Isa,
    pool: &mut Pool,
    scratch: &Scratch,
    x: &Activations,
    w: &Weights,
    target: Target<'_, '_>,
) {
    let division = Division::new(x.rows, x.stride(), w.tiles(), pool.threads());
    division.run(pool, &|thread, rows, tiles| {
        let mut work = scratch.0[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let (first_row, rows) = (rows.start, rows.len());
        for tile in tiles {
            isa.run_dots(Columns { x, w, first_row, rows, tile, work: &mut work, target });
        }
    });
}

/// Some rows by one tile of columns.
struct Columns<'a, 'b> {
    x: &'a Activations,
    w: &'a Weights,
    first_row: usize,
    rows: usize,
    tile: usize,
    work: &'a mut Work,
    target: Target<'a, 'b>,
}

impl DotKernel for Columns<'_, '_> {
    #[inline(always)]
    fn run<D: Dots>(mut self, dots: D) {
        let k = self.w.padded_k();
        let parts = self.rows.div_ceil(PART_ROWS);
        let part = self.rows.div_ceil(parts).next_multiple_of(D::ROWS);
        for first in (0..self.rows).step_by(part) {
            let rows = part.min(self.rows - first);
            if self.work.sums.len() < rows {
                self.work.sums.resize(rows, [0.0; TILE]);
            }
            for k0 in (0..k).step_by(PIECE) {
                let steps = PIECE.min(k - k0);
                let weights = self.ready(dots, k0, steps);
                // SAFETY: `weights` has `steps` steps of a tile.
                unsafe { self.multiply(dots, weights, first, rows, k0, steps) };
            }
            self.finish(dots, first, rows);
        }
    }
}

impl Columns<'_, '_> {
    /// What to ask for when the weights at byte `at` of the tile are taken: behind the tile lies the
    /// one that this thread mostly takes next.
    #[inline(always)]
    fn ahead(&self, at: usize) -> *const u8 {
        self.w.tile(self.tile).as_ptr().wrapping_add(at + AHEAD)
    }

    /// Where `steps` k from `k0` lie as bytes: in the working memory, unless they can be read where
    /// they are. Asks for weights ahead where few rows would not take as long.
    #[inline(always)]
    fn ready<D: Dots>(&mut self, dots: D, k0: usize, steps: usize) -> *const u8 {
        let at = self.w.bytes_of(k0);
        let from = &self.w.tile(self.tile)[at..][..self.w.bytes_of(steps)];
        let ahead = (self.rows <= D::ROWS).then(|| self.ahead(at));
        let to = &mut self.work.weights.bytes_mut()[..steps * TILE];
        match self.w.width {
            Width::Eight if self.rows > D::ROWS => return from.as_ptr(),
            Width::Eight => {
                let steps = from.chunks_exact(STEP_BYTES).zip(to.chunks_exact_mut(STEP_BYTES));
                for (i, (from, to)) in steps.enumerate() {
                    if let Some(ahead) = ahead {
                        fetch(ahead.wrapping_add(i * STEP_BYTES));
                    }
                    to.copy_from_slice(from);
                }
            }
            Width::Four => widen(dots, from, to, ahead),
        }
        to.as_ptr()
    }

    /// Adds the products of `steps` k from `k0`, whole segments, to the sums of `rows` rows from
    /// `row`.
    ///
    /// # Safety
    /// `weights` points to as many steps of a tile.
    #[inline(always)]
    unsafe fn multiply<D: Dots>(
        &mut self,
        dots: D,
        weights: *const u8,
        row: usize,
        rows: usize,
        k0: usize,
        steps: usize,
    ) {
        // Many rows ask for weights while they multiply: of the three lines of a step a tile asks for
        // the first two, the next for the third.
        let ahead = (self.rows > D::ROWS && row == 0).then(|| self.ahead(self.w.bytes_of(k0)));
        let mut done = 0;
        while done < rows {
            let mut left = Left::new(self.x, self.first_row + row + done, k0);
            left.ahead = ahead.map(|ahead| ahead.wrapping_add(done / D::ROWS % 2 * 2 * CACHE_LINE));
            let sums = &mut self.work.sums[done..];
            // SAFETY: the rows are below `x.rows`, and the caller vouches for the weights.
            done += unsafe {
                match rows - done {
                    8.. if D::ROWS >= 8 => tile::<D, 8>(dots, left, weights, steps, sums),
                    4.. if D::ROWS >= 4 => tile::<D, 4>(dots, left, weights, steps, sums),
                    2.. => tile::<D, 2>(dots, left, weights, steps, sums),
                    _ => tile::<D, 1>(dots, left, weights, steps, sums),
                }
            };
        }
    }

    /// Scales the sums and writes them to their place.
    #[inline(always)]
    fn finish<D: Dots>(&self, dots: D, row: usize, rows: usize) {
        let lanes = dots.lanes();
        let first = self.tile * TILE;
        let columns = TILE.min(self.w.n - first);
        let scales = self.w.scales[first..first + TILE].as_chunks::<LANES>().0;
        for (r, sums) in self.work.sums[..rows].iter().enumerate() {
            let at = (self.first_row + row + r) * self.target.cols + self.w.first + first;
            // SAFETY: items differ in rows or columns.
            let out = unsafe { self.target.out.part(at, columns) };
            let groups = sums.as_chunks::<LANES>().0.iter().zip(scales);
            let (whole, tail) = out.as_chunks_mut::<LANES>();
            let mut scaled = groups
                .map(|(sum, scale)| lanes.lower(lanes.mul(lanes.lift(sum), lanes.lift(scale))));
            whole.iter_mut().zip(&mut scaled).for_each(|(out, y)| *out = y);
            if let (false, Some(y)) = (tail.is_empty(), scaled.next()) {
                tail.copy_from_slice(&y[..tail.len()]);
            }
        }
    }
}

/// Makes bytes of the blocks in `from`, and asks for as many bytes at `ahead`.
#[inline(always)]
fn widen<D: Dots>(dots: D, from: &[u8], to: &mut [u8], ahead: Option<*const u8>) {
    let blocks = from.chunks_exact(BLOCK_BYTES).enumerate();
    for (i, from) in blocks {
        if let Some(ahead) = ahead {
            fetch_all(ahead.wrapping_add(i * BLOCK_BYTES), BLOCK_BYTES);
        }
        let (block, group) = (i / TILE_GROUPS, i % TILE_GROUPS);
        let to = &mut to[block * BLOCK * TILE..][..BLOCK * TILE];
        // SAFETY: `from` is one block, and `to` has its steps, side by side with those of the other
        // groups.
        unsafe {
            let to = to[group * STEP_BYTES..].as_mut_ptr();
            dots.widen(from.as_ptr(), to, TILE_GROUPS * STEP_BYTES);
        }
    }
}

/// Rows of activations from some k on.
#[derive(Clone, Copy)]
struct Left<'a> {
    codes: *const i8,
    stride: usize,
    /// Of each segment, with other rows before and after.
    scales: &'a [[f32; HEAD_ROWS]],
    starts: &'a [[i32; HEAD_ROWS]],
    /// The first row among those of a head.
    first: usize,
    is_first: bool,
    /// What to ask for meanwhile.
    ahead: Option<*const u8>,
}

impl<'a> Left<'a> {
    fn new(x: &'a Activations, row: usize, k0: usize) -> Self {
        let segment = k0 / SEGMENT;
        let heads = row / HEAD_ROWS * x.segments + segment..(row / HEAD_ROWS + 1) * x.segments;
        Self {
            codes: x.codes[(row * x.segments + segment) * SEGMENT..].as_ptr(),
            stride: x.stride(),
            scales: &x.scales[heads.clone()],
            starts: &x.starts[heads],
            first: row % HEAD_ROWS,
            is_first: k0 == 0,
            ahead: None,
        }
    }
}

/// `MR` rows by one tile over `k` steps, added to `out`; returns `MR`. Rows of a tile share their
/// heads.
///
/// # Safety
/// `left` has `MR` rows of `k` codes, `weights` points to `k` steps of a tile.
#[inline(always)]
unsafe fn tile<D: Dots, const MR: usize>(
    dots: D,
    left: Left<'_>,
    weights: *const u8,
    k: usize,
    out: &mut [[f32; TILE]],
) -> usize {
    let lanes = dots.lanes();
    let out = &mut out[..MR];
    for segment in 0..k / SEGMENT {
        let starts = &left.starts[segment][left.first..][..MR];
        let mut sums: [[D::Sums; TILE_GROUPS]; MR] =
            std::array::from_fn(|r| [dots.start(starts[r]); TILE_GROUPS]);
        for step in 0..SEGMENT / STEP {
            let k = segment * SEGMENT + step * STEP;
            if MR == D::ROWS
                && let Some(ahead) = left.ahead
            {
                // As far apart as the weights, so that one index will do for both.
                let ahead = ahead.wrapping_add(k * TILE);
                fetch(ahead);
                fetch(ahead.wrapping_add(CACHE_LINE));
            }
            // SAFETY: the caller vouches for the weights and codes of this step.
            unsafe {
                let at = weights.add(k * TILE);
                let w: [D::Weights; TILE_GROUPS] =
                    std::array::from_fn(|g| dots.weights(at.add(g * STEP_BYTES)));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = dots.row(left.codes.add(r * left.stride + k));
                    for (sum, w) in sums.iter_mut().zip(&w) {
                        *sum = dots.dot(*sum, *w, x);
                    }
                }
            }
        }
        let is_first = left.is_first && segment == 0;
        let scales = &left.scales[segment][left.first..][..MR];
        for ((sums, scale), out) in sums.iter().zip(scales).zip(&mut *out) {
            let scale = lanes.splat(*scale);
            for (sum, out) in sums.iter().zip(out.as_chunks_mut::<LANES>().0) {
                let before = if is_first { lanes.splat(0.0) } else { lanes.lift(out) };
                *out = lanes.lower(lanes.fma(dots.floats(*sum), scale, before));
            }
        }
    }
    MR
}
