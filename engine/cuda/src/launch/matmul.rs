//! Launch shapes of matrix multiplications. With few rows (decoding): which blocks compute which
//! output columns, and the split of K among blocks (split-K). With many rows (prefill) there are as
//! many blocks as run at once, and each computes every n-th tile of the result, where n is the
//! number of blocks.
//!
//! A file `NAME_sm90.cu` has entries of `NAME.cu` for GPUs of compute capability 9.0, with the same
//! launch shape unless [`Processors::has_warpgroups`] decides.

use super::{LANES, Launch, Processors, Residency};

/// Largest number of activation rows that the GEMM kernel for few rows takes.
pub const ROWS_MAX: usize = 16;
/// Number of output columns that a block of the GEMM kernel for few rows computes.
const COLUMNS: usize = 64;
/// Number of bytes of a weight row that a warp loads in one step along K.
const STEP_BYTES: usize = 128;
/// Number of warps of a block of the GEMM kernel for few rows; each takes every fourth step along
/// K.
const WARPS: usize = 4;
/// Number of steps along K of each warp that shared memory buffers ahead of the computation.
const STAGES: usize = 3;
/// Number of blocks that a multiprocessor runs at once if its shared memory allows; the GEMM
/// kernels for few rows are compiled for it.
const BLOCKS_PER_PROCESSOR: usize = 2;

/// Number of rows, and of columns, of a tile that a block of the tiled GEMM kernels computes.
const TILE: usize = 128;
/// Number of elements along K that a block of the tiled GEMM kernels multiplies in one step.
const TILE_STEP: usize = 64;
/// Number of steps along K that shared memory buffers in the tiled GEMM kernels.
const TILE_STAGES: usize = 3;
/// Size in bytes of the part of a tile's operand that one step along K reads, in bf16.
const TILE_BYTES: usize = TILE * TILE_STEP * 2;
/// Number of buffers for weights converted to bf16: one is filled while the other is multiplied.
const WIDENED: usize = 2;
/// Number of warps of a block of the tiled GEMM kernels.
const TILE_WARPS: usize = 8;

/// Number of warps, and of output columns, of a block of the grouped GEMM kernel for MXFP4 weights on
/// sm_90, and bytes of shared memory of each of its stages: activations of 128 rows, stored weights
/// and their scales, for a step of 128 columns of K.
const MXFP4_WARPS: usize = 16;
const MXFP4_COLUMNS: usize = 256;
const MXFP4_STAGES: usize = 4;
const MXFP4_STAGE_BYTES: usize = TILE * 128 * 2 + MXFP4_COLUMNS * 128 / 2 + MXFP4_COLUMNS * 4;
/// Bytes of shared memory in which the warps of that kernel transpose results, 16 rows at a time.
const MXFP4_RESULT_BYTES: usize = MXFP4_WARPS * 16 * 24 * 2;

/// Storage format of weights in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixType {
    /// bf16, two bytes per weight.
    Bf16,
    /// FP8 (e4m3), one byte per weight, with an f32 scale for each block of 128 x 128.
    E4m3,
    /// MXFP4, four bits per weight, with a power-of-two scale for each 32 weights of a row.
    Mxfp4,
}

impl MatrixType {
    /// Returns the number of weights in 16 bytes; the length of a weight row must be a multiple of
    /// it.
    pub fn piece(self) -> usize {
        match self {
            Self::Bf16 => 8,
            Self::E4m3 => 16,
            Self::Mxfp4 => 32,
        }
    }

    /// Returns the name of the GEMM kernel for few rows times one matrix, or `None` if this format
    /// is supported for experts only.
    pub fn matmul(self) -> Option<&'static str> {
        match self {
            Self::Bf16 => Some("matmul_bf16"),
            Self::E4m3 => Some("matmul_e4m3"),
            Self::Mxfp4 => None,
        }
    }

    /// Returns the name of the GEMM kernel for few rows times the matrices of their experts.
    pub fn expert_matmul(self) -> &'static str {
        match self {
            Self::Bf16 => "expert_matmul_bf16",
            Self::E4m3 => "expert_matmul_e4m3",
            Self::Mxfp4 => "expert_matmul_mxfp4",
        }
    }

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

    /// Returns the number of bytes of shared memory of a block of a tiled GEMM kernel: for each
    /// buffered step the activations and the stored weights, and buffers for weights that are
    /// converted to bf16.
    fn tile_shared_bytes(self) -> usize {
        let codes = TILE_STAGES * TILE * (TILE_STEP / self.piece() * 16);
        let widened = if self == Self::Bf16 { 0 } else { WIDENED * TILE_BYTES };
        TILE_STAGES * TILE_BYTES + widened + codes
    }

    /// Returns the number of steps along K of a row of `k` weights.
    fn steps(self, k: usize) -> usize {
        let piece = self.piece();
        assert_eq!(k % piece, 0, "rows of {k} weights are not whole pieces of {piece}");
        (k / piece * 16).div_ceil(STEP_BYTES)
    }
}

/// Launch of a matrix multiplication of few rows with weights of one shape. It does not depend on
/// the number of rows, so that results do not depend on it either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulPlan {
    /// Launch shape with a block for each range of output columns and each split of K.
    pub launch: Launch,
    /// Number of parts into which the sum over K is split (split-K). Several parts write partial
    /// sums `[splits, T, N]` in f32, which `matmul_merge` adds up.
    pub splits: usize,
    /// Number of steps along K that one split of the sum has.
    pub steps: usize,
}

impl MatmulPlan {
    /// Chooses the split of K for weights `[n, k]`: K is split where N alone does not give enough
    /// blocks to fill the GPU, as long as every warp of a split has at least as many steps as it
    /// buffers ahead.
    ///
    /// # Panics
    /// N is not a multiple of eight, a row of K weights not a multiple of 16 bytes, or a
    /// multiprocessor has too little shared memory.
    pub fn new(processors: Processors, matrix_type: MatrixType, n: usize, k: usize) -> Self {
        let columns = column_blocks(n);
        let steps = matrix_type.steps(k);
        // With fewer steps than it buffers, a warp could not overlap copies with computation.
        let splits_max = (steps / (WARPS * STAGES)).max(1);
        let resident = processors.resident_blocks(few_rows_residency());
        let splits = (resident / columns).clamp(1, splits_max);
        let steps_of_one = steps.div_ceil(splits);
        // Rounding up the steps of a split may leave no steps for the last splits.
        let splits = steps.div_ceil(steps_of_one);
        Self { launch: few_rows([columns, splits, 1]), splits, steps: steps_of_one }
    }
}

impl Launch {
    /// Returns the launch shape of `expert_matmul`: blocks for all columns of every expert; those
    /// of experts without rows end at once.
    pub fn expert_matmul(experts: usize, n: usize) -> Self {
        few_rows([column_blocks(n), experts, 1])
    }

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
        let residency = grouped_residency(processors, matrix_type);
        let blocks = processors.resident_blocks(residency);
        let Residency { threads, shared_bytes, .. } = residency;
        Self { shared_bytes: shared_bytes as u32, ..Self::new([blocks, 1, 1], threads) }
    }

    /// Returns true if `grouped_matmul` is faster than `expert_matmul` for `rows` rows of `experts`
    /// experts. The number of rows of each expert is known on the device only, so this is decided by
    /// the average.
    pub fn is_grouped(
        processors: Processors,
        matrix_type: MatrixType,
        rows: usize,
        experts: usize,
    ) -> bool {
        let is_own = processors.has_warpgroups && matrix_type == MatrixType::Mxfp4;
        rows > if is_own { experts } else { ROWS_MAX * experts }
    }
}

/// Returns the block of the tiled GEMM kernels for experts, and how many blocks they are compiled
/// for.
fn grouped_residency(processors: Processors, matrix_type: MatrixType) -> Residency {
    if processors.has_warpgroups && matrix_type == MatrixType::Mxfp4 {
        let shared_bytes = MXFP4_STAGES * MXFP4_STAGE_BYTES + MXFP4_RESULT_BYTES;
        let threads = MXFP4_WARPS * LANES;
        return Residency { threads, shared_bytes, declared_bytes: 0, blocks_max: 1 };
    }
    Residency {
        threads: TILE_WARPS * LANES,
        shared_bytes: matrix_type.tile_shared_bytes(),
        declared_bytes: 0,
        blocks_max: matrix_type.blocks_per_processor(),
    }
}

/// Returns the block of the GEMM kernels for few rows, and how many blocks they are compiled for.
fn few_rows_residency() -> Residency {
    Residency {
        threads: WARPS * LANES,
        shared_bytes: shared_bytes(),
        declared_bytes: 0,
        blocks_max: BLOCKS_PER_PROCESSOR,
    }
}

/// Returns the block of a GEMM kernel, and how many blocks it is compiled for; `None` if `name` is
/// none of them.
pub(super) fn residency(name: &str, processors: Processors) -> Option<Residency> {
    [MatrixType::Bf16, MatrixType::E4m3, MatrixType::Mxfp4].into_iter().find_map(|one| {
        if one.matmul() == Some(name) || one.expert_matmul() == name {
            Some(few_rows_residency())
        } else if one.tile_matmul() == Some(name) || one.grouped_matmul() == name {
            Some(grouped_residency(processors, one))
        } else {
            None
        }
    })
}

/// Returns the launch shape of a GEMM kernel for few rows with this grid.
fn few_rows(grid: [usize; 3]) -> Launch {
    Launch { shared_bytes: shared_bytes() as u32, ..Launch::new(grid, WARPS * LANES) }
}

/// Returns the number of blocks that cover N output columns.
fn column_blocks(n: usize) -> usize {
    // Only for its check that N is a multiple of eight.
    super::vectors(n);
    n.div_ceil(COLUMNS)
}

/// Returns the number of bytes of dynamic shared memory of a block of the GEMM kernels for few
/// rows, for the buffered steps of all warps.
fn shared_bytes() -> usize {
    WARPS * STAGES * COLUMNS * STEP_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Processors = Processors::H200;
    const A100: Processors = Processors::A100;

    #[test]
    fn narrow_weights_are_split_and_wide_ones_are_not() {
        let plan = |n, k| MatmulPlan::new(H200, MatrixType::Bf16, n, k);
        let MatmulPlan { launch, splits, steps } = plan(4096, 4096);
        assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([64, 4, 1], 128, 98_304));
        assert_eq!((splits, steps), (4, 16));
        assert_eq!((plan(24_576, 4096).splits, plan(24_576, 4096).steps), (1, 64));
        assert_eq!((plan(128, 2048).splits, plan(128, 2048).steps), (2, 16));
        assert_eq!((plan(8, 8).splits, plan(8, 8).steps), (1, 1));
        let on_a100 = MatmulPlan::new(A100, MatrixType::Bf16, 4096, 4096);
        assert_eq!((on_a100.splits, on_a100.launch.grid), (1, [64, 1, 1]));
    }

    #[test]
    fn splits_cover_every_step_once_and_none_is_empty() {
        for processors in [H200, A100] {
            for matrix_type in [MatrixType::Bf16, MatrixType::E4m3, MatrixType::Mxfp4] {
                for n in [8, 64, 72, 576, 2880, 4096, 151_936] {
                    for k in (1..=400).map(|pieces| pieces * matrix_type.piece()) {
                        let plan = MatmulPlan::new(processors, matrix_type, n, k);
                        let (steps, what) = (matrix_type.steps(k), format!("{plan:?}, {n} x {k}"));
                        assert!(plan.splits * plan.steps >= steps, "{what}");
                        assert!((plan.splits - 1) * plan.steps < steps, "{what}");
                        assert_eq!(plan.launch.grid[1] as usize, plan.splits, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn experts_have_all_columns() {
        assert_eq!(Launch::expert_matmul(32, 5760).grid, [90, 32, 1]);
        assert_eq!(Launch::expert_matmul(1, 72).grid, [2, 1, 1]);
    }

    #[test]
    #[should_panic(expected = "not whole pieces of 32")]
    fn a_row_of_parts_of_pieces_is_refused() {
        MatmulPlan::new(H200, MatrixType::Mxfp4, 64, 48);
    }

    #[test]
    fn blocks_are_those_that_run_at_once() {
        let shape = |processors, matrix_type| {
            let launch = Launch::grouped_matmul(processors, matrix_type);
            (launch.grid[0], launch.block, launch.shared_bytes >> 10)
        };
        assert_eq!(shape(H200, MatrixType::Bf16), (264, 256, 96));
        assert_eq!(shape(H200, MatrixType::E4m3), (132, 256, 104));
        assert_eq!(shape(H200, MatrixType::Mxfp4), (132, 512, 208));
        assert_eq!(shape(A100, MatrixType::Bf16), (108, 256, 96));
        assert_eq!(shape(A100, MatrixType::Mxfp4), (108, 256, 92));
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
