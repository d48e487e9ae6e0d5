//! Matrix products in eight-bit integers: what stored blocks of codes are multiplied in.
//!
//! Weights become unsigned codes under one scale for each output column, activations signed codes
//! under one scale for each [`SEGMENT`] of a row. A segment's products are added in i32, exactly and
//! in any order; segments are added in f32, in rising k. A row's result therefore depends neither on
//! the rows beside it nor on how the work is divided.
//!
//! Weights of four bits stay in four bits and are widened a piece at a time. Source: the scheme is
//! that of LLM.int8() (Dettmers et al. 2022) without its outliers, which short segments make up for.

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

/// Steps of k that share a scale of the activations.
pub(super) const SEGMENT: usize = 64;
/// Steps of k that one instruction multiplies and adds.
const STEP: usize = 4;
/// Steps of k that share a factor and an addend of four-bit codes.
const BLOCK: usize = 32;
/// Vectors of output columns that are multiplied side by side.
const TILE_GROUPS: usize = 3;
/// Output columns of a tile.
const TILE: usize = TILE_GROUPS * LANES;
/// Bytes of one step of sixteen columns.
const STEP_BYTES: usize = STEP * LANES;
/// Bytes of sixteen columns of a block in four bits: `[16]` u16 factors, `[16]` u16 addends, then
/// four times `[16]` words of eight codes.
const BLOCK_BYTES: usize = 4 * LANES + BLOCK * LANES / 2;
/// What is added to a weight's code to make it unsigned.
const ZERO: i32 = 128;
