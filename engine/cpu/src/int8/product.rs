//! Blocked int8 GEMM: the driver and its micro-kernel, tile by tile, split over columns among
//! threads.

#![expect(unsafe_code, reason = "tiles over packed memory; threads write disjoint columns")]

use std::sync::{Mutex, PoisonError};

use super::activations::HEAD_ROWS;
use super::weights::{Weights, Width};
use super::{Activations, BLOCK, BLOCK_BYTES, Dots, SEGMENT, STEP, STEP_BYTES, TILE, TILE_GROUPS};
use crate::division::{Division, UNIT_ROWS, part_rows};
use crate::isa::{DotKernel, Isa};
use crate::lanes::{LANES, Lanes};
use crate::matmul::Target;
use crate::memory::{CACHE_LINE, fetch, fetch_all};
use crate::pack::Aligned;
use crate::pool::Pool;

/// Number of steps of k that rows take at once: their widened weights stay in the L1 cache.
const PIECE: usize = 3 * SEGMENT;
/// Number of rows up to which weights are prefetched while they are copied or widened: so few rows
/// leave no time for it while they multiply.
const FEW_ROWS: usize = 8;
/// Prefetch distance of weights in bytes.
const AHEAD: usize = 8 << 10;

const _: () = assert!(UNIT_ROWS.is_multiple_of(HEAD_ROWS), "parts of a product begin with a head");

/// Working memory of the int8 GEMM, one entry per thread.
#[derive(Debug)]
pub(in super::super) struct Scratch(Vec<Mutex<Work>>);

/// Working memory of one thread for the int8 GEMM.
#[derive(Debug)]
struct Work {
    /// Weights of one piece of a tile as bytes.
    weights: Aligned,
    /// Sums of one tile of columns, as many rows as the thread ever needed.
    sums: Vec<[f32; TILE]>,
}

impl Scratch {
    pub(in super::super) fn new(threads: usize) -> Self {
        let work = || Work { weights: Aligned::zeroed(PIECE * TILE), sums: Vec::new() };
        Self((0..threads).map(|_| Mutex::new(work())).collect())
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
    let division = Division::new(x.rows, x.stride(), w.tiles(), pool.threads());
    division.run(pool, &|thread, rows, tiles| {
        let mut work = scratch.0[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let (first_row, rows) = (rows.start, rows.len());
        for tile in tiles {
            isa.run_dots(Columns { x, w, first_row, rows, tile, work: &mut work, target });
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
    work: &'a mut Work,
    target: Target<'a, 'b>,
}

impl DotKernel for Columns<'_, '_> {
    #[inline(always)]
    fn run<D: Dots>(mut self, dots: D) {
        let k = self.w.padded_k();
        let part = part_rows(self.rows);
        for first in (0..self.rows).step_by(part) {
            let rows = part.min(self.rows - first);
            if self.work.sums.len() < rows {
                self.work.sums.resize(rows, [0.0; TILE]);
            }
            for k0 in (0..k).step_by(PIECE) {
                let steps = PIECE.min(k - k0);
                let piece = Piece { k0, steps, weights: self.ready(dots, k0, steps) };
                // SAFETY: `ready` gives as many steps.
                unsafe { self.multiply(dots, piece, first, rows) };
            }
        }
    }
}

impl<'a> Columns<'a, '_> {
    /// Returns the prefetch address that belongs to the weights at byte `at` of the tile. Behind
    /// the tile lies the one that this thread usually takes next.
    #[inline(always)]
    fn ahead(&self, at: usize) -> *const u8 {
        self.w.tile(self.tile).as_ptr().wrapping_add(at + AHEAD)
    }

    /// Returns a pointer to `steps` steps of k from `k0` on as bytes: 4-bit weights are widened to
    /// working memory, and 8-bit weights are copied there for few rows. For few rows, weights ahead
    /// are prefetched.
    #[inline(always)]
    fn ready<D: Dots>(&mut self, dots: D, k0: usize, steps: usize) -> *const u8 {
        let at = self.w.bytes_of(k0);
        let from = &self.w.tile(self.tile)[at..][..self.w.bytes_of(steps)];
        let ahead = (self.rows <= FEW_ROWS).then(|| self.ahead(at));
        let to = &mut self.work.weights.bytes_mut()[..steps * TILE];
        match self.w.width {
            Width::Eight if self.rows > FEW_ROWS => return from.as_ptr(),
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

    /// Adds the products of a piece to the sums of `rows` rows from `row` on. After the last piece,
    /// the results are written to the output instead.
    ///
    /// # Safety
    /// The piece must hold its steps of a tile.
    #[inline(always)]
    unsafe fn multiply<D: Dots>(&mut self, dots: D, piece: Piece, row: usize, rows: usize) {
        let Piece { k0, steps, weights } = piece;
        // With many rows, weights are prefetched during multiplication, one cache line per step:
        // each of the first three tiles fetches one of a step's three lines, later tiles only touch
        // what they read.
        let asks = self.rows > FEW_ROWS && row == 0;
        let ahead = self.ahead(self.w.bytes_of(k0));
        let is_last = k0 + steps == self.w.padded_k();
        let place = is_last.then(|| self.place(row, rows));
        let mut done = 0;
        while done < rows {
            let mut left = Left::new(self.x, self.first_row + row + done, k0, weights);
            let line = done / D::ROWS;
            if asks && line < TILE_GROUPS {
                left.ahead = ahead.wrapping_add(line * CACHE_LINE);
            }
            let sums = &mut self.work.sums[done..];
            let place = place.map(|place| place.below(done));
            // SAFETY: the rows are below `x.rows`, and the caller vouches for the weights.
            done += unsafe {
                match rows - done {
                    4.. if D::ROWS >= 4 => tile::<D, 4>(dots, left, weights, steps, sums, place),
                    2.. => tile::<D, 2>(dots, left, weights, steps, sums, place),
                    _ => tile::<D, 1>(dots, left, weights, steps, sums, place),
                }
            };
        }
    }

    /// Returns the output location of `rows` rows from `row` on and this tile's columns.
    #[inline(always)]
    fn place(&self, row: usize, rows: usize) -> Place<'a> {
        let first = self.tile * TILE;
        let (stride, columns) = (self.target.cols, TILE.min(self.w.n - first));
        let at = (self.first_row + row) * stride + self.w.first + first;
        let start = self.target.out.block(at, rows, stride, columns);
        Place { start, stride, columns, scales: &self.w.scales[first..first + TILE] }
    }
}

/// Widens the 4-bit blocks in `from` to bytes in `to`, and prefetches as many bytes at `ahead`.
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

/// Piece of a tile's weights as bytes: some steps of k, whole segments.
#[derive(Clone, Copy)]
struct Piece {
    k0: usize,
    steps: usize,
    weights: *const u8,
}

/// Output location of a tile: rows of its columns, and the scales to multiply them by.
#[derive(Clone, Copy)]
struct Place<'a> {
    start: *mut f32,
    /// Number of columns of the whole output, the distance from row to row.
    stride: usize,
    /// Number of columns of the tile that exist in the output.
    columns: usize,
    scales: &'a [f32],
}

impl Place<'_> {
    /// Returns the output location that begins `row` rows further down.
    #[inline(always)]
    fn below(self, row: usize) -> Self {
        Self { start: self.start.wrapping_add(row * self.stride), ..self }
    }

    /// Writes `MR` rows of results, each multiplied by its column's scale.
    ///
    /// # Safety
    /// The output has these rows, and no other thread uses their columns during the call.
    #[inline(always)]
    unsafe fn write<L: Lanes, const MR: usize>(self, lanes: L, sums: &[[L::V; TILE_GROUPS]; MR]) {
        let scales = self.scales.as_chunks::<LANES>().0;
        let is_whole = self.columns == TILE;
        for (r, sums) in sums.iter().enumerate() {
            for (g, (sum, scale)) in sums.iter().zip(scales).enumerate() {
                let products = lanes.mul(*sum, lanes.lift(scale));
                let out = self.start.wrapping_add(r * self.stride + g * LANES);
                if is_whole {
                    // SAFETY: the caller vouches for the row, which has sixteen columns from here.
                    unsafe { lanes.store(out, products) };
                } else {
                    let columns = self.columns.saturating_sub(g * LANES).min(LANES);
                    let products = lanes.lower(products);
                    // SAFETY: as above, and so many columns.
                    unsafe { products.as_ptr().copy_to_nonoverlapping(out, columns) };
                }
            }
        }
    }
}

/// Activations of a micro-kernel tile: rows from some index of k on.
#[derive(Clone, Copy)]
struct Left<'a> {
    codes: *const i8,
    stride: usize,
    /// Scales of the segments, each for the 8 rows that are stored together.
    scales: &'a [[f32; HEAD_ROWS]],
    starts: &'a [[i32; HEAD_ROWS]],
    /// Index of the first row among the 8 rows that are stored together.
    first: usize,
    is_first: bool,
    /// Address to prefetch weights from while multiplying.
    ahead: *const u8,
}

impl<'a> Left<'a> {
    fn new(x: &'a Activations, row: usize, k0: usize, ahead: *const u8) -> Self {
        let segment = k0 / SEGMENT;
        let heads = row / HEAD_ROWS * x.segments + segment..(row / HEAD_ROWS + 1) * x.segments;
        Self {
            codes: x.codes[(row * x.segments + segment) * SEGMENT..].as_ptr(),
            stride: x.stride(),
            scales: &x.scales[heads.clone()],
            starts: &x.starts[heads],
            first: row % HEAD_ROWS,
            is_first: k0 == 0,
            ahead,
        }
    }
}

/// GEMM micro-kernel: multiplies `MR` rows by one tile over `k` steps and adds the sums in `kept`.
/// The result goes back to `kept`, or to `place` if it is given. Returns `MR`. All rows are among
/// the same 8 that share stored scales.
///
/// # Safety
/// `left` has `MR` rows of `k` quantized values, `weights` points to `k` steps of a tile, and
/// `place` has as many rows, which no other thread uses during the call.
#[inline(always)]
unsafe fn tile<D: Dots, const MR: usize>(
    dots: D,
    left: Left<'_>,
    weights: *const u8,
    k: usize,
    kept: &mut [[f32; TILE]],
    place: Option<Place<'_>>,
) -> usize {
    let lanes = dots.lanes();
    let kept = &mut kept[..MR];
    let mut totals = [[lanes.splat(0.0); TILE_GROUPS]; MR];
    if !left.is_first {
        for (totals, kept) in totals.iter_mut().zip(&*kept) {
            for (total, kept) in totals.iter_mut().zip(kept.as_chunks::<LANES>().0) {
                *total = lanes.lift(kept);
            }
        }
    }
    for segment in 0..k / SEGMENT {
        let starts = &left.starts[segment][left.first..][..MR];
        let mut sums: [[D::Sums; TILE_GROUPS]; MR] =
            std::array::from_fn(|r| [dots.start(starts[r]); TILE_GROUPS]);
        for step in 0..SEGMENT / STEP {
            let k = segment * SEGMENT + step * STEP;
            // The prefetch stride equals the weights' stride, so one index serves both.
            fetch(left.ahead.wrapping_add(k * TILE));
            // SAFETY: the caller vouches for the weights and activations of this step.
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
        let scales = &left.scales[segment][left.first..][..MR];
        for ((sums, scale), totals) in sums.iter().zip(scales).zip(&mut totals) {
            let scale = lanes.splat(*scale);
            for (sum, total) in sums.iter().zip(totals) {
                *total = lanes.fma(dots.floats(*sum), scale, *total);
            }
        }
    }
    match place {
        // SAFETY: the caller vouches for the rows.
        Some(place) => unsafe { place.write(lanes, &totals) },
        None => {
            for (totals, kept) in totals.iter().zip(kept) {
                for (total, kept) in totals.iter().zip(kept.as_chunks_mut::<LANES>().0) {
                    *kept = lanes.lower(*total);
                }
            }
        }
    }
    MR
}
