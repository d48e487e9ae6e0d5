//! Products of pairs of bf16, added to sixteen f32, by instruction set.
//!
//! Of a pair the second product is added first, each sum rounded to the nearest, as AVX-512 BF16 does.
//! All give the same sums, but for numbers below the least normal f32, which that instruction takes
//! for zero.

#![expect(unsafe_code, reason = "loads through pointers that callers vouch for")]

#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(in super::super) use avx512::Avx512Pairs;
pub(in super::super) use portable::PortablePairs;

use crate::lanes::{LANES, Lanes};

/// Products of pairs on sixteen lanes. Values of an implementing type exist only where the processor
/// has its instructions.
pub(in super::super) trait Pairs: Copy {
    type Lanes: Lanes;
    /// Two steps of k of sixteen columns.
    type Weights: Copy;
    /// Two steps of k of a row, for every column.
    type Row: Copy;

    /// Rows of a tile whose sums stay in registers.
    const ROWS: usize;

    fn lanes(self) -> Self::Lanes;
    /// `sums` + the products of two steps.
    fn dot(
        self,
        sums: <Self::Lanes as Lanes>::V,
        weights: Self::Weights,
        row: Self::Row,
    ) -> <Self::Lanes as Lanes>::V;
    /// The nearest bf16, of two the even one, as bits.
    fn round(self, x: &[f32; LANES]) -> [u16; LANES];

    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn weights(self, from: *const u8) -> Self::Weights;
    /// # Safety
    /// Two bf16 can be read at `from`.
    unsafe fn row(self, from: *const u16) -> Self::Row;
}
