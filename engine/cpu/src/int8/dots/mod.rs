//! int8 dot products: unsigned by signed bytes, four at a time, added to 16 i32 sums, by
//! instruction set.
//!
//! All instruction sets give the same sums: nothing saturates, because activations are from -127 to
//! 127 and weights from 1 to 255.

#![expect(unsafe_code, reason = "loads and stores through pointers that callers vouch for")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(in super::super) use avx2::{Avx2Dots, Avx2VnniDots};
#[cfg(target_arch = "x86_64")]
pub(in super::super) use avx512::Avx512Dots;
pub(in super::super) use portable::PortableDots;

use crate::lanes::Lanes;

/// Instruction set with int8 dot products on 16 lanes. Values of an implementing type exist only
/// where the processor has its instructions.
pub(in super::super) trait Dots: Copy {
    type Lanes: Lanes;
    /// Weights of four steps of k for 16 columns.
    type Weights: Copy;
    /// Activations of four steps of k of one row, broadcast to all columns.
    type Row: Copy;
    /// Sixteen i32 sums, one per column.
    type Sums: Copy;

    /// Number of rows of a tile whose sums fit in registers.
    const ROWS: usize;

    fn lanes(self) -> Self::Lanes;
    /// Returns initial sums that correct for the unsigned offset of the weights: `start` in every
    /// lane, or zeros on instruction sets that convert weights to signed bytes.
    fn start(self, start: i32) -> Self::Sums;
    /// Returns `sums` plus the products of four steps of k.
    fn dot(self, sums: Self::Sums, weights: Self::Weights, row: Self::Row) -> Self::Sums;
    fn floats(self, sums: Self::Sums) -> <Self::Lanes as Lanes>::V;

    /// Loads the weights of four steps of k for 16 columns.
    ///
    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn weights(self, from: *const u8) -> Self::Weights;
    /// Loads four steps of k of a row and broadcasts them to all columns.
    ///
    /// # Safety
    /// Four bytes can be read at `from`.
    unsafe fn row(self, from: *const i8) -> Self::Row;
    /// Widens a block of 16 columns from 4-bit values to bytes: value q becomes the high byte of
    /// `factor * q + addend`. Each step is written `stride` bytes after the one before it.
    ///
    /// # Safety
    /// `BLOCK_BYTES` can be read at `from`, and eight steps of 64 bytes, `stride` apart, written at
    /// `to`.
    unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize);
}
