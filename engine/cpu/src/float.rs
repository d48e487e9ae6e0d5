//! Matrix products in f32: activations `[T, K]` by packed weights `[N, K]`, work split over columns.
//!
//! A few rows take weights from their codes straight into the products. More rows share weights
//! that were decoded once into the first cache. Both add in rising k with one rounding per product,
//! so a row's result does not depend on how many rows there are.

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

/// Rows up to which weights are decoded anew for each block of four rows.
const FEW_ROWS: usize = 4;
/// Steps of k that are decoded at once: with four groups 16 KiB, half of the first cache.
const PIECE: usize = 64;
/// Activations that a work item passes over, in elements: 384 KiB, which stays in the second cache
/// from one item to the next.
const CHUNK: usize = 98_304;

/// Working memory of products.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Activations as `[T / 6][K][6]`, so that a tile reads its rows side by side.
    panels: Vec<f32>,
    threads: Vec<Mutex<Work>>,
}

/// Working memory of one thread.
#[derive(Debug)]
struct Work {
    /// `[groups][PIECE][16]` decoded weights.
    weights: Vec<f32>,
    /// `[rows][groups][16]` sums.
    sums: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        let work = || Work { weights: vec![0.0; TILE_GROUPS * PIECE * LANES], sums: Vec::new() };
        Self { panels: Vec::new(), threads: (0..threads).map(|_| Mutex::new(work())).collect() }
    }

    /// Takes rows of `k` activations for the products that follow.
    pub(super) fn take(&mut self, pool: &mut Pool, x: &[f32], k: usize) {
        if x.len() / k > FEW_ROWS {
            pack_panels(pool, x, k, &mut self.panels);
        }
    }
}

/// Writes `x * w^T` for rows `x`, which `scratch` has taken, to the columns of `w`.
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
    // Items of one chunk of rows follow one another, and find its activations in the cache.
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

/// Groups of one work item: four are best for the caches, two where four would leave a thread
/// with noticeably more work than another.
fn item_groups(groups: usize, threads: usize) -> usize {
    if groups.div_ceil(TILE_GROUPS) >= 16 * threads || threads == 1 { TILE_GROUPS } else { 2 }
}

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

/// Some rows by a few groups of columns.
struct Columns<'a, 'b> {
    /// Row major where the whole product has few rows, else panels.
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
        // The last group may be wider than what is left of the run.
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

    /// All rows of `NR` groups; returns `NR`.
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

    /// `MR` rows of `NR` groups; returns `MR`.
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

/// Multiplies weights into `MR` rows as they are decoded.
struct Products<'a, L: Lanes, const MR: usize, const NR: usize> {
    /// `MR` rows of `k`.
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

/// Keeps the weights of one group as `[steps][16]`.
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
