//! Matrix products: activations `[T, K]` by packed weights `[N, K]`, work split over columns.

#![expect(unsafe_code, reason = "threads write disjoint columns of one output")]

use std::sync::{Mutex, PoisonError};

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Lanes};
use super::pack::{Matrix, Packed};
use super::pool::Pool;
use super::shared::Shared;
use super::tile::{self, Left, Out, Right, TILE_GROUPS, TILE_ROWS};

/// Steps of k that are dequantized at once: with four groups 16 KiB, which stays in the first
/// cache while all rows pass over it.
const PIECE: usize = 64;

/// Working memory of a matmul.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Activations as `[T / 6][K][6]`, so that a tile reads its rows side by side.
    panels: Vec<f32>,
    /// Per thread, the weights at work: `[groups][PIECE][16]`.
    weights: Vec<Mutex<Vec<f32>>>,
}

impl Scratch {
    pub(super) fn new(threads: usize) -> Self {
        let weights = (0..threads).map(|_| Mutex::new(vec![0.0; TILE_GROUPS * PIECE * LANES]));
        Self { panels: Vec::new(), weights: weights.collect() }
    }
}

/// The left operand as the tiles want it.
#[derive(Clone, Copy)]
struct Rows<'a> {
    count: usize,
    k: usize,
    x: &'a [f32],
    /// Whether `x` is in panels of six rows rather than row major.
    panels: bool,
}

/// `out = x * w^T` for `rows` rows.
pub(super) fn matmul(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    x: &[f32],
    w: &Matrix,
    out: &mut [f32],
) {
    let rows = x.len() / w.k;
    assert_eq!(x.len(), rows * w.k, "inputs are whole rows");
    assert_eq!(out.len(), rows * w.n, "outputs are as many rows");
    let panels = rows > TILE_ROWS;
    if panels {
        pack_panels(pool, x, w.k, &mut scratch.panels);
    }
    let left = Rows { count: rows, k: w.k, x: if panels { &scratch.panels } else { x }, panels };
    let shared = Shared::new(out);
    for run in &w.runs {
        let per_item = item_groups(run.groups(), pool.threads());
        pool.items(run.groups().div_ceil(per_item), &|thread, item| {
            let mut weights =
                scratch.weights[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let first = item * per_item;
            let groups = per_item.min(run.groups() - first);
            let weights = &mut weights;
            isa.run(Columns { left, run, first, groups, out: &shared, out_cols: w.n, weights });
        });
    }
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

/// All rows by a few groups of columns.
struct Columns<'a, 'b> {
    left: Rows<'a>,
    run: &'a Packed,
    first: usize,
    groups: usize,
    out: &'a Shared<'b, f32>,
    out_cols: usize,
    weights: &'a mut [f32],
}

impl Kernel for Columns<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let column = self.first * LANES;
        if column + self.groups * LANES <= self.run.n {
            let start = self.run.first + column;
            let span = (self.left.count - 1) * self.out_cols + self.groups * LANES;
            let out = self.out.pointer(start, span);
            // SAFETY: the columns are within the run, hence within the output; other items write
            // other columns.
            let row_stride = self.out_cols;
            return unsafe { self.all(lanes, out, row_stride) };
        }
        // The last group is not full: its unused lanes must not reach the neighboring columns.
        let width = self.groups * LANES;
        let mut padded = vec![0.0f32; self.left.count * width];
        let columns = self.run.n - column;
        let (out, out_cols, count) = (self.out, self.out_cols, self.left.count);
        let start = self.run.first + column;
        // SAFETY: `padded` has room for all rows of these groups.
        unsafe { self.all(lanes, padded.as_mut_ptr(), width) };
        for row in 0..count {
            // SAFETY: other items write other columns.
            let to = unsafe { out.part(row * out_cols + start, columns) };
            to.copy_from_slice(&padded[row * width..row * width + columns]);
        }
    }
}

impl Columns<'_, '_> {
    /// # Safety
    /// `out` has room for all rows, `row_stride` apart, of the groups' columns, and nobody else
    /// uses them.
    #[inline(always)]
    unsafe fn all<L: Lanes>(&mut self, lanes: L, out: *mut f32, row_stride: usize) {
        let mut k0 = 0;
        while k0 < self.left.k {
            let steps = PIECE.min(self.left.k - k0);
            let mut groups = [std::ptr::null(); TILE_GROUPS];
            for g in 0..self.groups {
                let piece = &mut self.weights[g * PIECE * LANES..(g + 1) * PIECE * LANES];
                self.run.dequantize(lanes, self.first + g, k0, steps, piece);
                groups[g] = piece.as_ptr();
            }
            let right = Right { groups: &groups[..self.groups], k_stride: LANES };
            let out = Out { start: out, row_stride, fresh: k0 == 0 };
            // SAFETY: the pieces hold `steps` steps, the rows are those of `left`, and the caller
            // vouches for the output.
            unsafe { self.rows(lanes, k0, steps, right, out) };
            k0 += steps;
        }
    }

    /// # Safety
    /// As [`tile::multiply`] for `steps` steps from `k0`.
    #[inline(always)]
    unsafe fn rows<L: Lanes>(
        &self,
        lanes: L,
        k0: usize,
        steps: usize,
        right: Right<'_, f32>,
        out: Out,
    ) {
        let Rows { count, k, x, panels } = self.left;
        if !panels {
            let start = x[k0..].as_ptr();
            let left = Left { start, row_stride: k, k_stride: 1 };
            // SAFETY: `x` is `count` rows of `k`; the caller vouches for the rest.
            return unsafe { tile::multiply(lanes, count, left, right, steps, out) };
        }
        for first in (0..count).step_by(TILE_ROWS) {
            let start = x[first * k + k0 * TILE_ROWS..].as_ptr();
            let left = Left { start, row_stride: 1, k_stride: TILE_ROWS };
            let rows = TILE_ROWS.min(count - first);
            // SAFETY: a panel is `k` steps of six rows; the caller vouches for the rest.
            unsafe {
                let out = Out { start: out.start.add(first * out.row_stride), ..out };
                tile::multiply(lanes, rows, left, right, steps, out);
            }
        }
    }
}
