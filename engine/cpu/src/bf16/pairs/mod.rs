//! Dot products of pairs of bf16, added to 16 f32 sums, by instruction set.
//!
//! The second product of a pair is added first, and each sum is rounded to the nearest, as AVX-512
//! BF16 does. All instruction sets give the same sums, except for numbers below the smallest normal
//! f32, which that instruction flushes to zero.

#![expect(unsafe_code, reason = "loads through pointers that callers vouch for")]

#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(in super::super) use avx512::Avx512Pairs;
pub(in super::super) use portable::PortablePairs;

use crate::lanes::{LANES, Lanes};

/// Instruction set with dot products of bf16 pairs on 16 lanes. Values of an implementing type
/// exist only where the processor has its instructions.
pub(in super::super) trait Pairs: Copy {
    type Lanes: Lanes;
    /// Weights of two steps of k for 16 columns.
    type Weights: Copy;
    /// Activations of two steps of k of one row, broadcast to all columns.
    type Row: Copy;

    /// Number of rows of a tile whose sums fit in registers.
    const ROWS: usize;

    fn lanes(self) -> Self::Lanes;
    /// Returns `sums` plus the products of two steps of k.
    fn dot(
        self,
        sums: <Self::Lanes as Lanes>::V,
        weights: Self::Weights,
        row: Self::Row,
    ) -> <Self::Lanes as Lanes>::V;
    /// Rounds to the nearest bf16, ties to even, and returns the bits.
    fn round(self, x: &[f32; LANES]) -> [u16; LANES];

    /// Loads the weights of two steps of k for 16 columns.
    ///
    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn weights(self, from: *const u8) -> Self::Weights;
    /// Loads two steps of k of a row and broadcasts them to all columns.
    ///
    /// # Safety
    /// Two bf16 can be read at `from`.
    unsafe fn row(self, from: *const u16) -> Self::Row;
}
