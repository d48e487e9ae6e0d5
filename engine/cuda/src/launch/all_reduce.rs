//! Launch shape of the one-kernel tensor parallel all-reduce, and size of the memory that the ranks
//! share.

use bytemuck::NoUninit;

use super::Launch;

/// Largest number of ranks that the all-reduce kernel supports.
pub const RANKS_MAX: usize = 8;
/// Largest number of thread blocks of an all-reduce launch.
const BLOCKS_MAX: usize = 64;
/// Number of threads of a block of the all-reduce kernel.
const THREADS: usize = 512;
/// Largest number of bytes that a rank reads of the others' memory in one all-reduce. The kernel
/// uses one path between two GPUs and reads all of every rank; NCCL uses several paths and reads
/// only a share of each rank, twice, so NCCL is faster for long vectors. Where one overtakes the
/// other has not been measured.
const READ_BYTES_MAX: usize = 1 << 20;

/// Returns the length, in bf16 elements, of the longest vector that `ranks` ranks sum by one
/// kernel; 0 where the number of ranks is not supported.
pub fn capacity(ranks: usize) -> usize {
    match ranks {
        2..=RANKS_MAX => READ_BYTES_MAX / (ranks - 1) / 2 / super::VECTOR * super::VECTOR,
        _ => 0,
    }
}

/// Argument of the all-reduce kernel: address of each rank's exchange memory, 0 behind the last
/// rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit)]
#[repr(C)]
pub struct PeersArgument {
    /// Address of each rank's exchange memory of [`exchange_bytes`] bytes.
    pub exchanges: [u64; RANKS_MAX],
}

/// Returns the size in bytes of a rank's exchange memory for vectors of up to `capacity` elements:
/// round counters of every block (of each rank, and the rank's own) and the elements of two rounds.
/// It must be zeroed before the first launch.
pub fn exchange_bytes(capacity: usize) -> usize {
    let rounds = BLOCKS_MAX * (RANKS_MAX + 1) * size_of::<u32>();
    rounds + 2 * super::vectors(capacity) * super::VECTOR * 2
}

impl Launch {
    /// Returns the launch shape of `all_reduce` over `elements` elements, the same on every rank.
    pub fn all_reduce(elements: usize) -> Self {
        let blocks = super::vectors(elements).div_ceil(THREADS).clamp(1, BLOCKS_MAX);
        Self::new([blocks, 1, 1], THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_vector_a_thread_until_there_are_enough() {
        assert_eq!(Launch::all_reduce(8).grid, [1, 1, 1]);
        assert_eq!(Launch::all_reduce(4097 * 8).grid, [9, 1, 1]);
        assert_eq!(Launch::all_reduce(1 << 22).grid, [64, 1, 1]);
        assert_eq!(exchange_bytes(4096), 64 * 9 * 4 + 2 * 8192);
    }

    #[test]
    fn more_ranks_leave_shorter_sums_to_one_launch() {
        assert_eq!([1, 2, 4, 8, 9].map(capacity), [0, 524_288, 174_760, 74_896, 0]);
    }
}
