//! GEMM micro-kernel tile in f32, also used by attention: a few rows times a few groups of 16
//! columns.
//!
//! Each output element is one chain of multiply-adds in rising k, whatever the size of the tile and
//! wherever k is cut in pieces. A row's result therefore has the same bits whichever rows share its
//! step, which makes a sequence's output independent of its batch.

#![expect(unsafe_code, reason = "strided reads that would cost a bounds check per product")]

use super::lanes::{LANES, Lanes};
use super::memory::fetch;

/// Largest number of rows of an f32 micro-kernel tile. Six rows by four groups of columns fill the
/// registers of AVX-512.
pub(super) const TILE_ROWS: usize = 6;
/// Largest number of 16-column groups in an f32 micro-kernel tile.
pub(super) const TILE_GROUPS: usize = 4;

/// Element type in memory that converts to and from f32 vectors: f32 or f16.
pub(super) trait Element: Copy + Send + Sync + bytemuck::Pod {
    /// Loads 16 elements (f32 or f16) and converts them to f32.
    ///
    /// # Safety
    /// Sixteen elements can be read at `from`.
    unsafe fn load<L: Lanes>(lanes: L, from: *const Self) -> L::V;
    /// Converts 16 f32 to the element type (f32 or f16) and stores them.
    ///
    /// # Safety
    /// Sixteen elements can be written at `to`.
    unsafe fn store<L: Lanes>(lanes: L, to: *mut Self, v: L::V);
}

/// Implements [`Element`] for a type by the vector functions that load and store it.
macro_rules! element {
    ($type:ty, $load:ident, $store:ident) => {
        impl Element for $type {
            #[inline(always)]
            unsafe fn load<L: Lanes>(lanes: L, from: *const Self) -> L::V {
                // SAFETY: the caller vouches for sixteen elements.
                unsafe { lanes.$load(from) }
            }

            #[inline(always)]
            unsafe fn store<L: Lanes>(lanes: L, to: *mut Self, v: L::V) {
                // SAFETY: the caller vouches for sixteen elements.
                unsafe { lanes.$store(to, v) }
            }
        }
    };
}

element!(f32, load, store);
// f16 elements are stored as their bits.
element!(u16, load_f16, store_f16);

/// Left operand of an f32 micro-kernel tile: element `(row, k)` is at `start + row * row_stride + k
/// * k_stride`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub start: *const f32,
    pub row_stride: usize,
    pub k_stride: usize,
}

/// Piece of the right operand of an f32 micro-kernel tile, `k` steps long: the 16 columns of group
/// `g` at step `i` are at `groups[g] + i * k_stride`.
#[derive(Clone, Copy)]
pub(super) struct Right<'a, E> {
    pub groups: &'a [*const E],
    /// Column groups to prefetch during the multiplication, laid out like `groups`, because they
    /// are multiplied later.
    pub ahead: Option<&'a [*const E]>,
    pub k_stride: usize,
    pub k: usize,
}

/// Output of an f32 micro-kernel tile: the 16 columns of group `g` of row `row` are at `start + row
/// * row_stride + g * 16`.
#[derive(Clone, Copy)]
pub(super) struct Out {
    pub start: *mut f32,
    pub row_stride: usize,
    /// True to replace the output's content by the products, false to add to it.
    pub fresh: bool,
}

/// Multiplies `rows` rows of `left` by all column groups of `pieces`, and adds the products to
/// `out` or replaces its content. The pieces follow one another along k and have equally many
/// groups.
///
/// # Safety
/// Every element that the three operands describe can be read, and those of `out` written, and no
/// other thread uses the latter during the call.
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, E: Element>(
    lanes: L,
    rows: usize,
    left: Left,
    pieces: &[Right<'_, E>],
    out: Out,
) {
    let groups = pieces[0].groups.len();
    let mut done = 0;
    while done < groups {
        let per_row = L::ACCUMULATORS / rows.min(TILE_ROWS);
        let fit = (groups - done).min(per_row).min(TILE_GROUPS);
        // SAFETY: `done + fit` stays within the groups; the caller vouches for the rest.
        unsafe {
            let out = Out { start: out.start.add(done * LANES), ..out };
            let first = done;
            done += if fit >= 4 {
                all_rows::<L, E, 4>(lanes, rows, left, pieces, first, out)
            } else if fit >= 2 {
                all_rows::<L, E, 2>(lanes, rows, left, pieces, first, out)
            } else {
                all_rows::<L, E, 1>(lanes, rows, left, pieces, first, out)
            };
        }
    }
}

/// Multiplies `rows` rows by the `NR` column groups from group `first` on, and returns `NR`.
///
/// # Safety
/// As for [`multiply`]; every piece has these groups.
#[inline(always)]
unsafe fn all_rows<L: Lanes, E: Element, const NR: usize>(
    lanes: L,
    rows: usize,
    left: Left,
    pieces: &[Right<'_, E>],
    first: usize,
    out: Out,
) -> usize {
    // SAFETY: the caller vouches for all of it; rows are cut into blocks of at most `TILE_ROWS`.
    unsafe {
        let mut row = 0;
        while row < rows {
            let left = Left { start: left.start.add(row * left.row_stride), ..left };
            let out = Out { start: out.start.add(row * out.row_stride), ..out };
            match rows - row {
                1 => tile::<L, E, 1, NR>(lanes, left, pieces, first, out),
                2 => tile::<L, E, 2, NR>(lanes, left, pieces, first, out),
                3 => tile::<L, E, 3, NR>(lanes, left, pieces, first, out),
                4 => tile::<L, E, 4, NR>(lanes, left, pieces, first, out),
                5 => tile::<L, E, 5, NR>(lanes, left, pieces, first, out),
                _ => tile::<L, E, TILE_ROWS, NR>(lanes, left, pieces, first, out),
            }
            row += TILE_ROWS;
        }
    }
    NR
}

/// Multiplies `MR` rows by the `NR` column groups from group `first` on, with all accumulators in
/// registers.
///
/// # Safety
/// As for [`multiply`]; every piece has these groups.
#[inline(always)]
unsafe fn tile<L: Lanes, E: Element, const MR: usize, const NR: usize>(
    lanes: L,
    mut left: Left,
    pieces: &[Right<'_, E>],
    first: usize,
    out: Out,
) {
    let mut sums = [[lanes.splat(0.0); NR]; MR];
    // SAFETY: the caller vouches for every address within the three operands.
    unsafe {
        if !out.fresh {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (g, sum) in sums.iter_mut().enumerate() {
                    *sum = lanes.load(out.start.add(r * out.row_stride + g * LANES));
                }
            }
        }
        for piece in pieces {
            let groups = *piece.groups.as_ptr().add(first).cast::<[*const E; NR]>();
            let ahead =
                piece.ahead.map(|ahead| *ahead.as_ptr().add(first).cast::<[*const E; NR]>());
            for step in 0..piece.k {
                if let Some(ahead) = &ahead {
                    for group in ahead {
                        fetch(group.wrapping_add(step * piece.k_stride).cast());
                    }
                }
                let mut w = [lanes.splat(0.0); NR];
                for (w, group) in w.iter_mut().zip(&groups) {
                    *w = E::load(lanes, group.add(step * piece.k_stride));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let at = r * left.row_stride + step * left.k_stride;
                    let x = lanes.splat(*left.start.add(at));
                    for (sum, w) in sums.iter_mut().zip(&w) {
                        *sum = lanes.fma(x, *w, *sum);
                    }
                }
            }
            left.start = left.start.add(piece.k * left.k_stride);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (g, sum) in sums.iter().enumerate() {
                lanes.store(out.start.add(r * out.row_stride + g * LANES), *sum);
            }
        }
    }
}
