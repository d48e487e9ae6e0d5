//! How sums over ranks are launched, and what memory ranks share.

use bytemuck::NoUninit;

use super::Launch;

/// Ranks that exchange at most.
pub const RANKS_MAX: usize = 8;
/// Blocks of a launch at most.
const BLOCKS_MAX: usize = 64;
/// Threads of a block.
const THREADS: usize = 512;
/// Bytes that a rank reads of the others' memory at most: a launch of this kernel has one way to and
/// fro, and reads all of every rank; NCCL has several of either, and reads each rank's part of a sum
/// twice. Where the one overtakes the other was not measured yet.
const READ_BYTES_MAX: usize = 1 << 20;

/// The longest sum, in numbers, that `ranks` ranks compute in one launch; none where they are too many.
pub fn capacity(ranks: usize) -> usize {
    match ranks {
        2..=RANKS_MAX => READ_BYTES_MAX / (ranks - 1) / 2 / super::VECTOR * super::VECTOR,
        _ => 0,
    }
}

/// How the table of the ranks' memory lies in memory: its addresses, those behind the last rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit)]
#[repr(C)]
pub struct PeersArgument {
    /// Of each rank the [`exchange_bytes`] that it has for the others.
    pub exchanges: [u64; RANKS_MAX],
}

/// Bytes that a rank has for the others to read and write, for sums of up to `capacity` numbers:
/// rounds of every block, of each rank and its own, and the numbers of two rounds. Zeros before the
/// first launch.
pub fn exchange_bytes(capacity: usize) -> usize {
    let rounds = BLOCKS_MAX * (RANKS_MAX + 1) * size_of::<u32>();
    rounds + 2 * super::vectors(capacity) * super::VECTOR * 2
}

impl Launch {
    /// `all_reduce`: the same on each rank.
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
