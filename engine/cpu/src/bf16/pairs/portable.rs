//! bf16 dot products of pairs as plain loops, for any processor.

#![expect(unsafe_code, reason = "loads through pointers that callers vouch for")]

use half::bf16;

use super::Pairs;
use crate::bf16::PAIR;
use crate::lanes::{LANES, Lanes, Portable};

/// Portable bf16 dot products, available on every processor.
#[derive(Debug, Clone, Copy)]
pub(in super::super::super) struct PortablePairs;

impl Pairs for PortablePairs {
    type Lanes = Portable;
    type Weights = [[u16; PAIR]; LANES];
    type Row = [u16; PAIR];

    const ROWS: usize = 4;

    #[inline(always)]
    fn lanes(self) -> Portable {
        Portable
    }

    #[inline(always)]
    fn dot(
        self,
        sums: <Portable as Lanes>::V,
        weights: Self::Weights,
        row: Self::Row,
    ) -> <Portable as Lanes>::V {
        let value = |bits: u16| bf16::from_bits(bits).to_f32();
        let mut sums = Portable.lower(sums);
        for (sum, w) in sums.iter_mut().zip(weights) {
            // Products of two bf16 are exact in f32.
            *sum += value(w[1]) * value(row[1]);
            *sum += value(w[0]) * value(row[0]);
        }
        Portable.lift(&sums)
    }

    #[inline(always)]
    fn round(self, x: &[f32; LANES]) -> [u16; LANES] {
        x.map(|x| bf16::from_f32(x).to_bits())
    }

    #[inline(always)]
    unsafe fn weights(self, from: *const u8) -> Self::Weights {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { from.cast::<Self::Weights>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn row(self, from: *const u16) -> Self::Row {
        // SAFETY: the caller vouches for two bf16.
        unsafe { from.cast::<Self::Row>().read_unaligned() }
    }
}
