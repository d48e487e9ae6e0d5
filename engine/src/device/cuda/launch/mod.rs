//! How kernels are launched: grids, blocks and shared memory from shapes. It knows no driver, so
//! that it is tested where there is no GPU.

/// Elements that a thread moves at a time: 16 bytes of bf16.
const VECTOR: usize = 8;
/// Threads of a warp.
const LANES: usize = 32;
/// Threads of a block where nothing asks for another number.
const BLOCK: usize = 256;
/// Threads of the largest block.
const BLOCK_MAX: usize = 1024;

/// The shape of one kernel launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    pub grid: [u32; 3],
    /// Threads, whole warps.
    pub block: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
}

impl Launch {
    fn new(grid: [usize; 3], block: usize) -> Self {
        let grid = grid.map(|blocks| u32::try_from(blocks).expect("fewer blocks than 2^32"));
        Self { grid, block: block as u32, shared_bytes: 0 }
    }

    /// `embed` and `gather`: a block a row.
    pub fn row_copies(rows: usize, cols: usize) -> Self {
        let threads = vectors(cols).next_multiple_of(LANES);
        Self::new([rows, 1, 1], threads.min(BLOCK))
    }

    /// `rms_norm` and `add_rms_norm`: a block a row, a thread for each vector of it.
    pub fn norms(rows: usize, cols: usize) -> Self {
        let threads = vectors(cols).next_multiple_of(LANES);
        assert!(threads <= BLOCK_MAX, "a row of {cols} columns is longer than a block norms");
        Self::new([rows, 1, 1], threads)
    }

    /// What does the same to all elements: a thread for each vector.
    pub fn elements(rows: usize, cols: usize) -> Self {
        Self::new([(rows * vectors(cols)).div_ceil(BLOCK), 1, 1], BLOCK)
    }
}

/// Vectors of a row.
fn vectors(cols: usize) -> usize {
    assert_eq!(cols % VECTOR, 0, "{cols} columns are not whole vectors of {VECTOR}");
    cols / VECTOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_warps_that_cover_a_row() {
        assert_eq!(Launch::norms(3, 8), Launch { grid: [3, 1, 1], block: 32, shared_bytes: 0 });
        assert_eq!(Launch::norms(3, 2880).block, 384);
        assert_eq!(Launch::norms(3, 8192).block, 1024);
        assert_eq!(Launch::row_copies(7, 64).block, 32);
        assert_eq!(Launch::row_copies(7, 4096).block, 256);
        assert_eq!(Launch::elements(17, 4096).grid, [34, 1, 1]);
        assert_eq!(Launch::elements(1, 8).grid, [1, 1, 1]);
    }

    #[test]
    #[should_panic(expected = "longer than a block norms")]
    fn a_row_that_no_block_norms_is_refused() {
        Launch::norms(1, 8200);
    }

    #[test]
    #[should_panic(expected = "not whole vectors")]
    fn a_row_of_parts_of_vectors_is_refused() {
        Launch::elements(1, 12);
    }
}
