//! Tests of the kernels on the host processor, through the shim, against the CPU's reference
//! operations.
//!
//! Properties that only a GPU shows, such as speed and races, are not tested here.

mod all_reduce;
mod attention;
mod delta_net;
mod elementwise;
mod experts;
mod graphs;
mod inline_asm;
mod layouts;
mod limits;
mod matmul;
mod on_gpu;
mod pages;
mod random;
mod rope;
mod sample;
mod shim;
mod tiles;
mod weights;

use half::bf16;

use super::launch::Launch;
use crate::reference::{self, check_close, numbers};
use shim::{Call, Program};

/// Largest relative error of rounding a result to bf16: half the distance between two bf16.
const BF16_ROUNDING: f32 = 1.0 / 256.0;

/// Numbers of rows around the sizes of tiles and warps, with which kernels are tested.
const ROWS: [usize; 20] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33];

#[test]
fn looking_for_gpus_never_panics() {
    let gpus = super::gpus();
    assert!(gpus.iter().all(|gpu| gpu.memory_bytes > 0), "{gpus:?}");
}

#[test]
fn machine_code_is_made_for_the_gpus_own_generation() {
    let names = [(8, 0), (8, 9), (9, 0), (10, 0), (12, 1)].map(super::generation);
    assert_eq!(names, ["sm_80", "sm_80", "sm_90a", "sm_100", "sm_120"]);
}

/// Returns pseudo-random numbers that are representable in bf16.
fn rounded(count: usize, seed: u32) -> Vec<f32> {
    numbers(count, seed).iter().map(|x| bf16::from_f32(*x).to_f32()).collect()
}

/// Rounds numbers to bf16 and returns their bits.
fn narrow(values: &[f32]) -> Vec<u16> {
    values.iter().map(|x| bf16::from_f32(*x).to_bits()).collect()
}

/// Converts the bytes of a buffer of bf16 to f32.
fn widen(bytes: &[u8]) -> Vec<f32> {
    let bits = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    bits.map(|bits| bf16::from_bits(bits).to_f32()).collect()
}

/// Returns the elements of type `T` in a buffer of bytes.
fn elements<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}
