//! Matrix products in bf16, summed in f32: what plain floats are multiplied in where the processor has
//! an instruction for it.
//!
//! Weights are kept as bf16, activations are rounded to it, and two steps of k are multiplied at once.
//! Each output has one sum, to which products are added in one order of k whatever the tile. A row's
//! result therefore depends neither on the rows beside it nor on how the work is divided.

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

/// Steps of k that one instruction multiplies and adds.
const PAIR: usize = 2;
/// Vectors of output columns that are multiplied side by side.
const TILE_GROUPS: usize = 3;
/// Output columns of a tile.
const TILE: usize = TILE_GROUPS * LANES;
/// Bytes of a pair of sixteen columns.
const PAIR_BYTES: usize = PAIR * LANES * size_of::<u16>();
