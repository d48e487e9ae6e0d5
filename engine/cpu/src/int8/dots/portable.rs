//! int8 dot products as plain loops, for any processor.

#![expect(unsafe_code, reason = "loads and stores through pointers that callers vouch for")]

use super::Dots;
use crate::int8::weights::nibble;
use crate::int8::{BLOCK, STEP, STEP_BYTES};
use crate::lanes::{LANES, Lanes, Portable};

/// Portable int8 dot products, available on every processor.
#[derive(Debug, Clone, Copy)]
pub(in super::super::super) struct PortableDots;

impl Dots for PortableDots {
    type Lanes = Portable;
    type Weights = [u8; STEP_BYTES];
    type Row = [i8; STEP];
    type Sums = [i32; LANES];

    const ROWS: usize = 4;

    #[inline(always)]
    fn lanes(self) -> Portable {
        Portable
    }

    #[inline(always)]
    fn start(self, start: i32) -> Self::Sums {
        [start; LANES]
    }

    #[inline(always)]
    fn dot(self, mut sums: Self::Sums, weights: Self::Weights, row: Self::Row) -> Self::Sums {
        for (sum, column) in sums.iter_mut().zip(weights.as_chunks::<STEP>().0) {
            for (w, x) in column.iter().zip(row) {
                *sum += i32::from(*w) * i32::from(x);
            }
        }
        sums
    }

    #[inline(always)]
    fn floats(self, sums: Self::Sums) -> <Portable as Lanes>::V {
        Portable.lift(&sums.map(|sum| sum as f32))
    }

    #[inline(always)]
    unsafe fn weights(self, from: *const u8) -> Self::Weights {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { from.cast::<Self::Weights>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn row(self, from: *const i8) -> Self::Row {
        // SAFETY: the caller vouches for four bytes.
        unsafe { from.cast::<Self::Row>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: the caller vouches for a whole block.
        let (heads, words) = unsafe {
            let heads = from.cast::<[[u16; LANES]; 2]>().read_unaligned();
            (heads, from.add(4 * LANES).cast::<[[u32; LANES]; 4]>().read_unaligned())
        };
        for k in 0..BLOCK {
            for lane in 0..LANES {
                let code = (words[k / 8][lane] >> (4 * nibble(k % 8))) & 15;
                let value = heads[0][lane].wrapping_mul(code as u16).wrapping_add(heads[1][lane]);
                // SAFETY: the caller vouches for eight steps, `stride` apart.
                unsafe { *to.add(k / STEP * stride + lane * STEP + k % STEP) = (value >> 8) as u8 };
            }
        }
    }
}
