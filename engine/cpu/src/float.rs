//! Blocked f32 GEMM: activations `[T, K]` by packed weights `[N, K]`, split over columns among
//! threads.
//!
//! For a few rows, weights are dequantized in registers and multiplied at once. For more rows,
//! weights are dequantized once into the L1 cache and shared by all rows. Both add in rising k with
//! one rounding per product, so a row's result does not depend on the number of rows.

#![expect(unsafe_code, reason = "tiles over strided memory; threads write disjoint columns")]

use std::sync::{Mutex, PoisonError};

use super::decode::Sink;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Lanes};
use super::matmul::Target;
use super::pack::Packed;
use super::pool::Pool;
use super::shared::Shared;
use super::tile::{self, Left, Out, Right, TILE_GROUPS, TILE_ROWS};

/// Number of rows up to which weights are dequantized again for each block of four rows.
const FEW_ROWS: usize = 4;
/// Number of steps of k that are dequantized at once: with four groups 16 KiB, half of the L1
/// cache.
const PIECE: usize = 64;
/// Activations that one work item reads repeatedly, in elements: 384 KiB, which stay in the L2
/// cache from one item to the next.
const CHUNK: usize = 98_304;

/// Working memory of the f32 GEMM.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Activations as `[T / 6][K][6]`, so that a tile reads its rows side by side.
    panels: Vec<f32>,
    threads: Vec<Mutex<Work>>,
}

/// Working memory of one thread for the f32 GEMM.
#[derive(Debug)]
struct Work {
    /// Dequantized weights of a piece of k, `[groups][PIECE][16]`.
    weights: Vec<f32>,
    /// Sums of the work item's outputs, `[rows][groups][16]`.
    sums: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        let work = || Work { weights: vec![0.0; TILE_GROUPS * PIECE * LANES], sums: Vec::new() };
        Self { panels: Vec::new(), threads: (0..threads).map(|_| Mutex::new(work())).collect() }
    }

    /// Packs rows of `k` activations for the GEMMs that follow. A few rows are read as they are.
    pub(super) fn take(&mut self, pool: &mut Pool, x: &[f32], k: usize) {
        if x.len() / k > FEW_ROWS {
            pack_panels(pool, x, k, &mut self.panels);
        }
    }
}

/// Writes the matrix product `x * w^T` to the columns of `target` that `w` covers; `scratch` must
/// have packed `x`.
pub(super) fn product(
    isa: Isa,
    pool: &mut Pool,
    scratch: &Scratch,
    x: &[f32],
    w: &Packed,
    target: Target<'_, '_>,
) {
    let rows = x.len() / w.k;
    let is_few = rows <= FEW_ROWS;
    let x = if is_few { x } else { &scratch.panels };
    let chunk = if is_few { rows.max(1) } else { (CHUNK / w.k / TILE_ROWS).max(1) * TILE_ROWS };
    let per_item = item_groups(w.groups(), pool.threads());
    let tiles = w.groups().div_ceil(per_item);
    // Consecutive items share a chunk of rows, so its activations are still in the cache.
    pool.items(rows.div_ceil(chunk) * tiles, &|thread, item| {
        let first_row = item / tiles * chunk;
        let first_group = item % tiles * per_item;
        let mut work = scratch.threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
        isa.run(Columns {
            x: &x[first_row * w.k..],
            is_few,
            first_row,
            rows: chunk.min(rows - first_row),
            run: w,
            first: first_group,
            groups: per_item.min(w.groups() - first_group),
            work: &mut work,
            target,
        });
    });
}

/// Returns the column groups of a work item: four use the caches best; two where four would give
/// one thread noticeably more work than another.
fn item_groups(groups: usize, threads: usize) -> usize {
    if groups.div_ceil(TILE_GROUPS) >= 16 * threads || threads == 1 { TILE_GROUPS } else { 2 }
}

/// Packs rows of activations into panels of six rows, `[T / 6][K][6]`.
fn pack_panels(pool: &mut Pool, x: &[f32], k: usize, panels: &mut Vec<f32>) {
    let rows = x.len() / k;
    let blocks = rows.div_ceil(TILE_ROWS);
    panels.resize(blocks * TILE_ROWS * k, 0.0);
    let shared = Shared::new(panels);
    pool.items(blocks, &|_, block| {
        // SAFETY: each block has its own part, and each item is one block.
        let out = unsafe { shared.part(block * TILE_ROWS * k, TILE_ROWS * k) };
        let first = block * TILE_ROWS;
        for r in 0..TILE_ROWS.min(rows - first) {
            let row = &x[(first + r) * k..(first + r + 1) * k];
            for (panel, value) in out.chunks_exact_mut(TILE_ROWS).zip(row) {
                panel[r] = *value;
            }
        }
    });
}

/// Kernel arguments: some rows by a few groups of columns.
struct Columns<'a, 'b> {
    /// Activations: row major where the GEMM has few rows, otherwise panels of six rows.
    x: &'a [f32],
    is_few: bool,
    first_row: usize,
    rows: usize,
    run: &'a Packed,
    first: usize,
    groups: usize,
    work: &'a mut Work,
    target: Target<'a, 'b>,
}

impl Kernel for Columns<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let width = self.groups * LANES;
        if self.work.sums.len() < self.rows * width {
            self.work.sums.resize(self.rows * width, 0.0);
        }
        if self.is_few {
            self.few_rows(lanes);
        } else {
            self.many_rows(lanes);
        }
        // The last group may extend past the output columns of this run.
        let columns = width.min(self.run.n - self.first * LANES);
        let start = self.run.first + self.first * LANES;
        for (row, sums) in self.work.sums.chunks_exact(width).take(self.rows).enumerate() {
            let at = (self.first_row + row) * self.target.cols + start;
            // SAFETY: items differ in rows or columns.
            let out = unsafe { self.target.out.part(at, columns) };
            out.copy_from_slice(&sums[..columns]);
        }
    }
}

impl Columns<'_, '_> {
    /// Multiplies a few rows: weights are dequantized in registers for every block of four rows.
    #[inline(always)]
    fn few_rows<L: Lanes>(&mut self, lanes: L) {
        let mut done = 0;
        while done < self.groups {
            done += match (self.groups - done).min(L::FEW_ROWS_GROUPS) {
                4.. => self.few_rows_of::<L, 4>(lanes, done),
                2..4 => self.few_rows_of::<L, 2>(lanes, done),
                _ => self.few_rows_of::<L, 1>(lanes, done),
            };
        }
    }

    /// Multiplies all rows by `NR` groups of columns and returns `NR`.
    #[inline(always)]
    fn few_rows_of<L: Lanes, const NR: usize>(&mut self, lanes: L, group: usize) -> usize {
        let mut row = 0;
        while row < self.rows {
            row += match self.rows - row {
                4.. => self.products::<L, 4, NR>(lanes, group, row),
                2..4 => self.products::<L, 2, NR>(lanes, group, row),
                _ => self.products::<L, 1, NR>(lanes, group, row),
            };
        }
        NR
    }

    /// Multiplies `MR` rows by `NR` groups of columns and returns `MR`.
    #[inline(always)]
    fn products<L: Lanes, const MR: usize, const NR: usize>(
        &mut self,
        lanes: L,
        group: usize,
        row: usize,
    ) -> usize {
        let k = self.run.k;
        let x = &self.x[row * k..(row + MR) * k];
        let mut sink = Products { x, k, sums: [[lanes.splat(0.0); NR]; MR] };
        self.run.decode(lanes, self.first + group, 0, k, &mut sink);
        for (r, sums) in sink.sums.iter().enumerate() {
            for (g, sum) in sums.iter().enumerate() {
                let at = ((row + r) * self.groups + group + g) * LANES;
                self.work.sums[at..at + LANES].copy_from_slice(&lanes.lower(*sum));
            }
        }
        MR
    }

    /// Multiplies many rows: weights are dequantized once per piece of k and shared by all rows.
    #[inline(always)]
    fn many_rows<L: Lanes>(&mut self, lanes: L) {
        let mut k0 = 0;
        while k0 < self.run.k {
            let steps = PIECE.min(self.run.k - k0);
            let mut groups = [std::ptr::null(); TILE_GROUPS];
            for (g, group) in groups[..self.groups].iter_mut().enumerate() {
                let piece = &mut self.work.weights[g * PIECE * LANES..(g + 1) * PIECE * LANES];
                *group = piece.as_ptr();
                self.run.decode(lanes, self.first + g, k0, steps, &mut Store { piece });
            }
            let right =
                Right { groups: &groups[..self.groups], ahead: None, k_stride: LANES, k: steps };
            let width = self.groups * LANES;
            for row in (0..self.rows).step_by(TILE_ROWS) {
                let x = &self.x[row * self.run.k + k0 * TILE_ROWS..][..steps * TILE_ROWS];
                let left = Left { start: x.as_ptr(), row_stride: 1, k_stride: TILE_ROWS };
                let rows = TILE_ROWS.min(self.rows - row);
                let sums = &mut self.work.sums[row * width..(row + rows) * width];
                let out = Out { start: sums.as_mut_ptr(), row_stride: width, fresh: k0 == 0 };
                // SAFETY: a panel is six rows for each k, the pieces hold `steps` vectors, and the
                // sums have room for these rows of all groups.
                unsafe { tile::multiply(lanes, rows, left, &[right], out) };
            }
            k0 += steps;
        }
    }
}

/// Sink that multiplies weights by `MR` rows of activations as they are decoded.
struct Products<'a, L: Lanes, const MR: usize, const NR: usize> {
    /// Activations to multiply, `MR` rows of `k` elements.
    x: &'a [f32],
    k: usize,
    sums: [[L::V; NR]; MR],
}

impl<L: Lanes, const MR: usize, const NR: usize> Sink<L, NR> for Products<'_, L, MR, NR> {
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

/// Sink that stores the decoded weights of one group as `[steps][16]`.
struct Store<'a> {
    piece: &'a mut [f32],
}

impl<L: Lanes> Sink<L, 1> for Store<'_> {
    #[inline(always)]
    fn step(&mut self, lanes: L, k: usize, weights: &[L::V; 1]) {
        debug_assert!((k + 1) * LANES <= self.piece.len(), "decoding stays within the piece");
        // SAFETY: a piece has room for all its steps.
        unsafe { lanes.store(self.piece.as_mut_ptr().add(k * LANES), weights[0]) };
    }
}
