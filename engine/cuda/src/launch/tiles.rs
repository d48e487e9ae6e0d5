//! Launch shapes of matrix multiplications with many rows (prefill). There are as many blocks as
//! run at once, and each computes every n-th tile of the result, where n is the number of blocks.
//!
//! A file `NAME_sm90.cu` has the same entries as `NAME.cu`, for GPUs of compute capability 9.0,
//! with the same launch shape.

use super::matmul::MatrixType;
use super::{LANES, Launch, Processors};

/// Number of rows, and of columns, of a tile of the result.
const TILE: usize = 128;
/// Number of elements along K that a block multiplies in one step.
const STEP: usize = 64;
/// Number of steps along K that shared memory buffers.
const STAGES: usize = 3;
/// Size in bytes of the part of a tile's operand that one step along K reads, in bf16.
const TILE_BYTES: usize = TILE * STEP * 2;
/// Number of buffers for weights converted to bf16: one is filled while the other is multiplied.
const WIDENED: usize = 2;
/// Number of warps of a block of the tiled GEMM kernels.
const WARPS: usize = 8;

impl MatrixType {
    /// Returns the name of the GEMM kernel for many rows times one matrix, or `None` if this format
    /// is supported for experts only.
    pub fn tile_matmul(self) -> Option<&'static str> {
        match self {
            Self::Bf16 => Some("tile_matmul_bf16"),
            Self::E4m3 => Some("tile_matmul_e4m3"),
            Self::Mxfp4 => None,
        }
    }

    /// Returns the name of the GEMM kernel for many rows times the matrices of their experts
    /// (grouped GEMM).
    pub fn grouped_matmul(self) -> &'static str {
        match self {
            Self::Bf16 => "grouped_matmul_bf16",
            Self::E4m3 => "grouped_matmul_e4m3",
            Self::Mxfp4 => "grouped_matmul_mxfp4",
        }
    }

    /// Returns the number of blocks of a tiled GEMM kernel that a multiprocessor runs at once if
    /// its shared memory allows. FP8 weights need a second set of accumulators, one per scale, and
    /// so the registers of two blocks.
    fn blocks_per_processor(self) -> usize {
        if self == Self::E4m3 { 1 } else { 2 }
    }

    /// Returns the bytes of shared memory of a block of a tiled GEMM kernel: for each buffered step
    /// the activations and the stored weights, and buffers for weights that are converted to bf16.
    fn tile_shared_bytes(self) -> usize {
        let codes = STAGES * TILE * (STEP / self.piece() * 16);
        let widened = if self == Self::Bf16 { 0 } else { WIDENED * TILE_BYTES };
        STAGES * TILE_BYTES + widened + codes
    }
}

impl Launch {
    /// Returns the launch shape of `tile_matmul`: as many blocks as run at once, but no more than
    /// there are tiles.
    ///
    /// # Panics
    /// N is not a multiple of eight, or a multiprocessor has too little shared memory.
    pub fn tile_matmul(
        processors: Processors,
        matrix_type: MatrixType,
        rows: usize,
        n: usize,
    ) -> Self {
        // Only for its check that N is a multiple of eight.
        super::vectors(n);
        let tiles = rows.div_ceil(TILE) * n.div_ceil(TILE);
        let launch = Self::grouped_matmul(processors, matrix_type);
        Self { grid: [launch.grid[0].min(tiles.max(1) as u32), 1, 1], ..launch }
    }

    /// Returns the launch shape of `grouped_matmul`. It does not depend on the number of rows nor
    /// on their distribution over experts, which only the device knows.
    ///
    /// # Panics
    /// A multiprocessor has too little shared memory.
    pub fn grouped_matmul(processors: Processors, matrix_type: MatrixType) -> Self {
        let shared_bytes = matrix_type.tile_shared_bytes();
        let most = matrix_type.blocks_per_processor();
        let blocks = processors.resident_blocks(shared_bytes, most);
        Self { shared_bytes: shared_bytes as u32, ..Self::new([blocks, 1, 1], WARPS * LANES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Processors = Processors::H200;
    const A100: Processors = Processors::A100;

    #[test]
    fn blocks_are_those_that_run_at_once() {
        let shape = |processors, matrix_type| {
            let launch = Launch::grouped_matmul(processors, matrix_type);
            assert_eq!(launch.block, 256);
            (launch.grid[0], launch.shared_bytes >> 10)
        };
        assert_eq!(shape(H200, MatrixType::Bf16), (264, 96));
        assert_eq!(shape(H200, MatrixType::E4m3), (132, 104));
        assert_eq!(shape(H200, MatrixType::Mxfp4), (264, 92));
        assert_eq!(shape(A100, MatrixType::Bf16), (108, 96));
    }

    #[test]
    fn few_tiles_are_as_many_blocks() {
        let blocks = |rows, n| Launch::tile_matmul(H200, MatrixType::Bf16, rows, n).grid;
        assert_eq!(blocks(17, 4096), [32, 1, 1]);
        assert_eq!(blocks(129, 136), [4, 1, 1]);
        assert_eq!(blocks(8192, 4096), [264, 1, 1]);
    }

    #[test]
    #[should_panic(expected = "more than a processor has")]
    fn too_little_shared_memory_is_refused() {
        let small = Processors { count: 1, shared_bytes: 96 << 10, has_warpgroups: false };
        Launch::grouped_matmul(small, MatrixType::Bf16);
    }
}
