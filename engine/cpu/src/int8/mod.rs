//! Matrix multiplication (GEMM) in int8 with i32 sums, used for weights stored as integer blocks.
//!
//! Weights become unsigned bytes with one scale per output column, activations signed bytes with
//! one scale per [`SEGMENT`] of a row. Products of a segment are added in i32, exactly and in any
//! order; segments are added in f32, in rising k. A row's result therefore depends neither on the
//! rows beside it nor on the split among threads.
//!
//! 4-bit weights stay in 4 bits and are widened a piece at a time. Source: the scheme of LLM.int8()
//! (Dettmers et al. 2022) without its outliers, for which short segments compensate.

mod activations;
mod dots;
mod product;
#[cfg(test)]
mod tests;
mod weights;

pub(super) use activations::{Activations, Coder};
#[cfg(target_arch = "x86_64")]
pub(super) use dots::{Avx2Dots, Avx2VnniDots, Avx512Dots};
pub(super) use dots::{Dots, PortableDots};
pub(super) use product::{Scratch, product};
pub(super) use weights::Weights;

use super::lanes::LANES;

/// Number of steps of k that share one scale of the activations.
pub(super) const SEGMENT: usize = 64;
/// Number of steps of k that one instruction multiplies and adds.
const STEP: usize = 4;
/// Number of steps of k that share a factor and an addend of 4-bit weights.
const BLOCK: usize = 32;
/// Vectors of 16 output columns that a tile has side by side.
const TILE_GROUPS: usize = 3;
/// Number of output columns in a tile of the int8 GEMM.
const TILE: usize = TILE_GROUPS * LANES;
/// Number of bytes of the weights of one step (4 k) and 16 columns.
const STEP_BYTES: usize = STEP * LANES;
/// Number of bytes of a block of 4-bit weights of 16 columns: `[16]` u16 factors, `[16]` u16
/// addends, then four times `[16]` words of 8 quantized values.
const BLOCK_BYTES: usize = 4 * LANES + BLOCK * LANES / 2;
/// Offset that makes a signed quantized weight unsigned.
const ZERO: i32 = 128;
