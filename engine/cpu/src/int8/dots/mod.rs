//! Products of unsigned by signed bytes, four at a time into sixteen i32, by instruction set.
//!
//! All give the same sums: nothing saturates, as activations are from -127 to 127 and weights from
//! 1 to 255.

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

/// Byte products on sixteen lanes. Values of an implementing type exist only where the processor has
/// its instructions.
pub(in super::super) trait Dots: Copy {
    type Lanes: Lanes;
    /// Four steps of k of sixteen columns.
    type Weights: Copy;
    /// Four steps of k of a row, for every column.
    type Row: Copy;
    /// Sixteen sums.
    type Sums: Copy;

    /// Rows of a tile whose sums stay in registers.
    const ROWS: usize;

    fn lanes(self) -> Self::Lanes;
    /// What to add products to, so that the sums are those of signed weights in the end: `start`
    /// where weights are multiplied unsigned.
    fn start(self, start: i32) -> Self::Sums;
    /// `sums` + the products of four steps.
    fn dot(self, sums: Self::Sums, weights: Self::Weights, row: Self::Row) -> Self::Sums;
    fn floats(self, sums: Self::Sums) -> <Self::Lanes as Lanes>::V;

    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn weights(self, from: *const u8) -> Self::Weights;
    /// # Safety
    /// Four bytes can be read at `from`.
    unsafe fn row(self, from: *const i8) -> Self::Row;
    /// Widens a block of sixteen columns from four bits: code q becomes the high byte of
    /// `factor * q + addend`. Each following step goes `stride` bytes further on.
    ///
    /// # Safety
    /// `BLOCK_BYTES` can be read at `from`, eight steps of 64 bytes be written at `to`.
    unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize);
}
