//! Matrix multiplication (GEMM) in bf16 with f32 sums, used for unquantized weights where the
//! processor has bf16 instructions.
//!
//! Weights are stored as bf16, activations are rounded to it, and two steps of k are multiplied at
//! once. Each output has one sum, to which products are added in the same order of k whatever the
//! tile. A row's result therefore depends neither on the rows beside it nor on the split among
//! threads.

mod activations;
mod pairs;
mod product;
#[cfg(test)]
mod tests;
mod weights;

pub(super) use activations::Activations;
#[cfg(target_arch = "x86_64")]
pub(super) use pairs::Avx512Pairs;
pub(super) use pairs::{Pairs, PortablePairs};
pub(super) use product::{Scratch, product};
pub(super) use weights::Weights;

use super::lanes::LANES;

/// Number of steps of k that one instruction multiplies and adds.
const PAIR: usize = 2;
/// Vectors of 16 output columns that a tile has side by side.
const TILE_GROUPS: usize = 3;
/// Number of output columns in a tile of the bf16 GEMM.
const TILE: usize = TILE_GROUPS * LANES;
/// Number of bytes of the weights of one pair of k and 16 columns.
const PAIR_BYTES: usize = PAIR * LANES * size_of::<u16>();
