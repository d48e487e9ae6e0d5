//! How products of few rows are launched: which blocks take which columns and which part of K.

use bytemuck::NoUninit;

use super::{Launch, Processors};

/// Rows of activations that one product takes.
pub const ROWS_MAX: usize = 16;
/// Output columns of a block.
const COLUMNS: usize = 64;
/// Bytes of a row of weights in one step.
const STEP_BYTES: usize = 128;
/// Warps of a block, each with a step of its own.
const WARPS: usize = 4;
/// Steps of each warp that shared memory holds.
const STAGES: usize = 3;
/// Blocks that a multiprocessor runs at once if its memory allows, for which the kernels are compiled.
const BLOCKS_PER_PROCESSOR: usize = 2;

/// Type of weights in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixType {
    /// Two bytes.
    Bf16,
    /// Eight bits, with an f32 scale for each 128 x 128.
    E4m3,
    /// Four bits, with a power of two for each 32 of a row.
    Mxfp4,
}

impl MatrixType {
    /// Weights of 16 bytes, of which rows are whole numbers.
    pub fn piece(self) -> usize {
        match self {
            Self::Bf16 => 8,
            Self::E4m3 => 16,
            Self::Mxfp4 => 32,
        }
    }

    /// The kernel that multiplies rows by one matrix, if there is one.
    pub fn matmul(self) -> Option<&'static str> {
        match self {
            Self::Bf16 => Some("matmul_bf16"),
            Self::E4m3 => Some("matmul_e4m3"),
            Self::Mxfp4 => None,
        }
    }

    /// The kernel that multiplies rows by the matrices of their experts.
    pub fn expert_matmul(self) -> &'static str {
        match self {
            Self::Bf16 => "expert_matmul_bf16",
            Self::E4m3 => "expert_matmul_e4m3",
            Self::Mxfp4 => "expert_matmul_mxfp4",
        }
    }

    /// Steps over a row of `k` weights.
    fn steps(self, k: usize) -> usize {
        let piece = self.piece();
        assert_eq!(k % piece, 0, "rows of {k} weights are not whole pieces of {piece}");
        (k / piece * 16).div_ceil(STEP_BYTES)
    }
}

/// How the last argument of `matmul` lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit)]
#[repr(C)]
pub struct MatmulArguments {
    /// Rows of the left factor.
    pub tokens: u32,
    /// Output columns.
    pub n: u32,
    /// Contraction.
    pub k: u32,
    /// Steps of one split.
    pub steps: u32,
}

/// How one shape of weights is multiplied, the same for every number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulPlan {
    /// A block for each stretch of columns and each split.
    pub launch: Launch,
    /// Parts that K is divided into. More than one leave sums in f32, `[splits, T, N]`, that
    /// `matmul_merge` adds up.
    pub splits: usize,
    /// Steps of one split.
    pub steps: usize,
}

impl MatmulPlan {
    /// Divides K where N alone has not enough columns for the blocks that run at once, as long as
    /// every warp of a split has as many steps as it copies ahead.
    ///
    /// # Panics
    /// N is not whole vectors, or K not whole pieces.
    pub fn new(processors: Processors, matrix_type: MatrixType, n: usize, k: usize) -> Self {
        let columns = column_blocks(n);
        let steps = matrix_type.steps(k);
        let splits_max = (steps / (WARPS * STAGES)).max(1);
        let resident = processors.resident_blocks(shared_bytes(), BLOCKS_PER_PROCESSOR);
        let splits = (resident / columns).clamp(1, splits_max);
        let steps_of_one = steps.div_ceil(splits);
        let splits = steps.div_ceil(steps_of_one);
        Self { launch: product([columns, splits, 1]), splits, steps: steps_of_one }
    }
}

impl Launch {
    /// `matmul_merge`: a thread for each vector of the result.
    pub fn matmul_merge(rows: usize, n: usize) -> Self {
        Self::elements(rows, n)
    }

    /// `expert_matmul`: all columns of every expert; those without rows end at once.
    pub fn expert_matmul(experts: usize, n: usize) -> Self {
        product([column_blocks(n), experts, 1])
    }
}

fn product(grid: [usize; 3]) -> Launch {
    Launch { shared_bytes: shared_bytes() as u32, ..Launch::new(grid, WARPS * super::LANES) }
}

fn column_blocks(n: usize) -> usize {
    super::vectors(n);
    n.div_ceil(COLUMNS)
}

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
}
