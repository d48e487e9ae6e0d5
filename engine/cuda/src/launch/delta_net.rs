//! Launch shapes of the gated-delta-net kernels: blocks and shared memory from the sizes of the
//! heads.

use bytemuck::NoUninit;

use super::{BLOCK, LANES, Launch};
use engine_core::{DeltaNetLayer, DeltaNetShape};

/// Number of key elements of one value column that a thread of the kernel `delta_net` holds in
/// registers.
const KEYS: usize = 32;
/// Number of key elements of one value column that a thread of the kernel `delta_net_8`, for heads
/// whose sizes are not multiples of a warp, holds in registers.
const KEYS_OF_SMALL: usize = 8;
/// Largest number of threads of a block of the gated-delta-net kernel that computes row by row.
const THREADS_MAX: usize = 512;
/// Number of rows that the chunked gated-delta-net kernel computes together.
const CHUNK: usize = 32;
/// Number of threads of a block of the chunked gated-delta-net kernel.
const CHUNK_THREADS: usize = 256;
/// Largest number of elements of a head's key, and of its value, that the chunked gated-delta-net
/// kernel supports.
const CHUNK_DIM_MAX: usize = 128;
/// Largest width of the causal convolution in tokens, the current one included.
const TAPS_MAX: usize = 8;

/// Last argument of the gated-delta-net kernels: a [`DeltaNetShape`] and the layout of the state
/// slots.
#[derive(Debug, Clone, Copy, PartialEq, NoUninit)]
#[repr(C)]
pub struct DeltaNetArguments {
    /// Number of query heads of the layer, which is also the number of key heads.
    pub key_heads: u32,
    /// Number of value heads of the layer, a multiple of the number of key heads.
    pub value_heads: u32,
    /// Number of elements of a key (and of a query) of one head.
    pub key_dim: u32,
    /// Number of elements of a value of one head.
    pub value_dim: u32,
    /// Width of the causal convolution in tokens, the current one included.
    pub taps: u32,
    /// Distance from one sequence's state slot to the next, in f32 elements.
    pub slot_stride: u32,
    /// Constant (epsilon) that the norm of the output adds to the mean square.
    pub epsilon: f32,
}

impl DeltaNetArguments {
    /// Returns the kernel arguments for `layer`, whose state slots are `slot_stride` f32 elements
    /// apart.
    pub fn new<V>(layer: &DeltaNetLayer<V>, slot_stride: u32) -> Self {
        let DeltaNetShape { key_heads, value_heads, key_dim, value_dim, taps } = layer.shape;
        Self {
            key_heads: key_heads as u32,
            value_heads: value_heads as u32,
            key_dim: key_dim as u32,
            value_dim: value_dim as u32,
            taps: taps as u32,
            slot_stride,
            epsilon: layer.epsilon,
        }
    }
}

/// A [`ScheduledSequence`](engine_core::ScheduledSequence) as the gated-delta-net kernels read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit)]
#[repr(C)]
pub struct SequenceArguments {
    /// Index in the step of the sequence's first row.
    pub row: u32,
    /// Number of the sequence's rows in the step, at least one.
    pub rows: u32,
    /// Position of the sequence's first row in the step, counted from the start of the sequence.
    pub position: u32,
    /// Index of the sequence's own state slot. The slot is written after the sequence's last row in
    /// the step. It is read before its first row, unless that row is at position 0, where the state
    /// is zeros, or `load` names another slot.
    pub slot: u32,
    /// Index of another state slot to read instead of the sequence's own, or
    /// [`SequenceArguments::NOWHERE`] to read the own one.
    pub load: u32,
    /// Index of another state slot to write besides the sequence's own, or
    /// [`SequenceArguments::NOWHERE`] to write only the own one.
    pub save: u32,
}

impl SequenceArguments {
    /// Value in place of a state slot's index that means no slot.
    pub const NOWHERE: u32 = u32::MAX;
}

/// Returns true if a head's key size is a multiple of 32 and its value size of a warp, for which
/// the faster row-by-row kernel is compiled.
fn is_whole(shape: &DeltaNetShape) -> bool {
    shape.key_dim.is_multiple_of(KEYS) && shape.value_dim.is_multiple_of(LANES)
}

/// Returns the name of the gated-delta-net kernel that computes heads of these sizes row by row.
pub fn entry(shape: &DeltaNetShape) -> &'static str {
    if is_whole(shape) { "delta_net" } else { "delta_net_8" }
}

/// Returns true if `delta_net_chunks`, the kernel for prefill, supports heads of these sizes:
/// multiples of a warp for keys and for values, at most 128 of each.
pub fn has_chunks(shape: &DeltaNetShape) -> bool {
    let is_whole = |size: usize| size.is_multiple_of(LANES) && size <= CHUNK_DIM_MAX;
    is_whole(shape.key_dim) && is_whole(shape.value_dim)
}

impl Launch {
    /// Returns the launch shape of `delta_net` or `delta_net_8`, as [`entry`] chooses: a block for
    /// each value head of each sequence, a thread for 32 or 8 key elements of one value column.
    ///
    /// # Panics
    /// The heads cannot be divided among whole warps, or need more threads than a block has, or the
    /// convolution is wider than eight tokens.
    pub fn delta_net(shape: &DeltaNetShape, sequences: usize) -> Self {
        let DeltaNetShape { value_heads, key_dim, value_dim, taps, .. } = *shape;
        let keys = if is_whole(shape) { KEYS } else { KEYS_OF_SMALL };
        let threads = key_dim / keys * value_dim;
        assert!(
            key_dim.is_multiple_of(keys) && threads.is_multiple_of(LANES) && threads <= THREADS_MAX,
            "heads of {key_dim} keys and {value_dim} values cannot be computed by one block"
        );
        assert!(taps <= TAPS_MAX, "a convolution of {taps} tokens sees more than {TAPS_MAX}");
        // Convolved queries, keys and values, then two partial sums of every thread.
        let shared_bytes = (2 * key_dim + value_dim + 2 * threads) * size_of::<f32>();
        let launch = Self::new([value_heads, sequences, 1], threads);
        Self { shared_bytes: shared_bytes as u32, ..launch }
    }

    /// Returns the launch shape of `delta_net_chunks`: a block for each value head of each
    /// sequence.
    ///
    /// # Panics
    /// The heads are not whole warps of keys and values, or are larger than the kernel supports, or
    /// the convolution is wider than eight tokens.
    pub fn delta_net_chunks(shape: &DeltaNetShape, sequences: usize) -> Self {
        let DeltaNetShape { value_heads, key_dim, value_dim, taps, .. } = *shape;
        assert!(
            has_chunks(shape),
            "heads of {key_dim} keys and {value_dim} values cannot be computed in chunks"
        );
        assert!(taps <= TAPS_MAX, "a convolution of {taps} tokens sees more than {TAPS_MAX}");
        // Queries and keys, values and state, and two matrices of the chunk's rows against each
        // other. Rows are padded by 4 or 8 elements to avoid bank conflicts.
        let floats = 2 * CHUNK * (key_dim + 4)
            + (CHUNK + key_dim) * (value_dim + 8)
            + 2 * CHUNK * (CHUNK + 4);
        let launch = Self::new([value_heads, sequences, 1], CHUNK_THREADS);
        Self { shared_bytes: (floats * size_of::<f32>()) as u32, ..launch }
    }

    /// Returns the launch shape of `delta_net_history`, which updates the inputs that the
    /// convolution keeps: a thread for each channel.
    pub fn delta_net_history(shape: &DeltaNetShape, sequences: usize) -> Self {
        Self::new([shape.conv_cols().div_ceil(BLOCK), sequences, 1], BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(key_dim: usize, value_dim: usize) -> DeltaNetShape {
        DeltaNetShape { key_heads: 16, value_heads: 32, key_dim, value_dim, taps: 4 }
    }

    #[test]
    fn a_block_has_a_value_head_and_a_thread_32_keys() {
        let launch = Launch::delta_net(&shape(128, 128), 3);
        assert_eq!(launch, Launch { grid: [32, 3, 1], block: 512, shared_bytes: 5632 });
        assert_eq!(Launch::delta_net(&shape(32, 64), 1).block, 64);
        assert_eq!(Launch::delta_net(&shape(16, 16), 1).block, 32);
        assert_eq!([entry(&shape(32, 64)), entry(&shape(16, 16))], ["delta_net", "delta_net_8"]);
        assert_eq!(Launch::delta_net_history(&shape(128, 128), 3).grid, [32, 3, 1]);
    }

    #[test]
    fn a_chunk_fits_the_shared_memory_of_every_gpu() {
        let launch = Launch::delta_net_chunks(&shape(128, 128), 3);
        assert_eq!((launch.grid, launch.block), ([32, 3, 1], 256));
        assert_eq!(launch.shared_bytes, 130_048);
        assert!(Launch::delta_net_chunks(&shape(32, 64), 1).shared_bytes < 64 << 10);
        assert!(has_chunks(&shape(128, 32)) && !has_chunks(&shape(16, 16)));
    }

    #[test]
    #[should_panic(expected = "heads of 160 keys")]
    fn a_head_larger_than_a_chunk_has_is_refused() {
        Launch::delta_net_chunks(&shape(160, 64), 1);
    }

    #[test]
    #[should_panic(expected = "heads of 256 keys and 128 values")]
    fn a_head_larger_than_a_block_is_refused() {
        Launch::delta_net(&shape(256, 128), 1);
    }

    #[test]
    #[should_panic(expected = "heads of 12 keys")]
    fn a_head_of_parts_of_threads_is_refused() {
        Launch::delta_net(&shape(12, 64), 1);
    }
}
