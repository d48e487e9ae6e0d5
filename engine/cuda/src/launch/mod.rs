//! Launch shapes of all kernels: grid, block and shared memory from the shapes of the operands.
//! Knows no driver, so that it can be tested without a GPU.

pub mod attention;
mod carveout;
pub mod delta_net;
pub mod matmul;

use bytemuck::NoUninit;
pub use carveout::carveout;

/// Number of bf16 elements that a thread loads or stores at a time, 16 bytes.
const VECTOR: usize = 8;
/// Number of threads (lanes) of a warp.
const LANES: usize = 32;
/// Number of threads of a block, where a kernel needs no other number.
const BLOCK: usize = 256;
/// Number of warps of a block in kernels whose warps work independently.
const WARPS_OF_ONE: usize = 4;
/// Number of threads of a block of the sampling kernel.
const SAMPLE_BLOCK: usize = 1024;
/// Number of threads of a block of the kernels `count_pairs` and `sort_pairs`, and so the largest
/// number of experts whose pairs they sort.
pub const SORT_BLOCK: usize = 512;
/// Number of (row, expert) pairs up to which one block sorts all, so that decoding needs one launch.
const SORT_PAIRS_MIN: usize = 4096;
/// Largest number of blocks of `sort_pairs`: each reads the counts of all.
const SORT_BLOCKS_MAX: usize = 64;
/// Number of threads of a block of the kernel `stream_read`, and number of its blocks that a
/// multiprocessor runs at once.
const READ_BLOCK: usize = 512;
const READ_BLOCKS: usize = 2;
/// Number of threads of a block of the reference kernels.
const REFERENCE_BLOCK: usize = 128;
/// Largest number of threads of a reference kernel that goes over all elements of a result.
const REFERENCE_THREADS_MAX: usize = 1 << 18;
/// Largest number of threads of a block that CUDA allows.
pub const BLOCK_MAX: usize = 1024;
/// Largest number of blocks of a grid in its second and third dimension; the first one takes rows,
/// since it has 2^31 - 1.
pub const GRID_MAX: usize = 65_535;
/// Number of bytes of shared memory that CUDA reserves for each block.
pub const SYSTEM_BYTES: usize = 1024;

/// Largest number of ranks that the all-reduce kernel supports.
pub const RANKS_MAX: usize = 8;
/// Largest number of thread blocks of an all-reduce launch.
const SUM_BLOCKS_MAX: usize = 64;
/// Number of threads of a block of the all-reduce kernel.
const SUM_BLOCK: usize = 512;
/// Largest number of bytes that a rank reads of the others' memory in one all-reduce. The kernel
/// uses one path between two GPUs and reads all of every rank; NCCL uses several paths and reads
/// only a share of each rank, twice, so NCCL is faster for long vectors. Where one overtakes the
/// other has not been measured.
const READ_BYTES_MAX: usize = 1 << 20;

/// Block of a kernel of which a multiprocessor runs several at once, and how many the kernel's grid
/// counts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Residency {
    /// Number of threads of a block.
    pub threads: usize,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: usize,
    /// Bytes of static shared memory of a block that grids count with.
    declared_bytes: usize,
    /// Number of blocks for which the kernel is compiled: a multiprocessor runs them at once if it
    /// has enough shared memory.
    blocks_max: usize,
}

impl Residency {
    /// Returns the number of blocks that one of `processors` runs at once, as the kernel's grid
    /// assumes; 0 if a block uses more shared memory than it has.
    pub fn blocks(self, processors: Processors) -> usize {
        let block_bytes = self.shared_bytes + self.declared_bytes + SYSTEM_BYTES;
        (processors.shared_bytes / block_bytes).min(self.blocks_max)
    }
}

/// Returns the block of the kernel `entry`, and how many of its blocks a multiprocessor runs at once;
/// `None` for a kernel whose grid does not depend on that.
pub fn residency(entry: &str, processors: Processors) -> Option<Residency> {
    let plain = |threads, blocks_max| {
        Some(Residency { threads, shared_bytes: 0, declared_bytes: 0, blocks_max })
    };
    match entry {
        "stream_read" => plain(READ_BLOCK, READ_BLOCKS),
        "attention_merge" => plain(attention::THREADS, attention::BLOCKS_PER_PROCESSOR),
        _ => {
            attention::residency(entry, processors).or_else(|| matmul::residency(entry, processors))
        }
    }
}

/// Number and properties of a GPU's multiprocessors, from which grid sizes are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    /// Number of multiprocessors of the GPU.
    pub count: usize,
    /// Bytes of shared memory of one multiprocessor: 164 KiB on sm_80, 228 KiB on sm_90.
    pub shared_bytes: usize,
    /// True if warpgroups can multiply from shared memory (WGMMA), as on sm_90 only.
    pub has_warpgroups: bool,
}

impl Processors {
    /// Returns the number of blocks of a kernel that the GPU runs at once.
    ///
    /// # Panics
    /// A block uses more shared memory than a multiprocessor has.
    fn resident_blocks(self, residency: Residency) -> usize {
        let blocks = residency.blocks(self);
        let bytes = residency.shared_bytes;
        assert!(blocks > 0, "{bytes} bytes of shared memory are more than a processor has");
        self.count * blocks
    }
}

#[cfg(test)]
impl Processors {
    /// Number and properties of the multiprocessors of an A100 (sm_80), for tests.
    pub const A100: Self = Self { count: 108, shared_bytes: 164 << 10, has_warpgroups: false };
    /// Number and properties of the multiprocessors of an H200 (sm_90), for tests.
    pub const H200: Self = Self { count: 132, shared_bytes: 228 << 10, has_warpgroups: true };
}

/// Grid, block and dynamic shared memory of one kernel launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Number of blocks of the grid in each dimension.
    pub grid: [u32; 3],
    /// Number of threads of a block, a multiple of the warp size.
    pub block: u32,
    /// Number of bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Launch {
    /// # Panics
    /// The grid has more blocks in a dimension than CUDA allows.
    fn new(grid: [usize; 3], block: usize) -> Self {
        assert!(
            grid[0] < 1 << 31 && grid[1..].iter().all(|blocks| *blocks <= GRID_MAX),
            "{grid:?}"
        );
        let grid = grid.map(|blocks| u32::try_from(blocks).expect("fewer blocks than 2^32"));
        Self { grid, block: block as u32, shared_bytes: 0 }
    }

    /// Returns the launch shape of `embed`, `gather`, `dispatch` and `combine`: a block for each
    /// row.
    pub fn row_copies(rows: usize, cols: usize) -> Self {
        let threads = vectors(cols).next_multiple_of(LANES);
        Self::new([rows, 1, 1], threads.min(BLOCK))
    }

    /// Returns the launch shape of `rms_norm` and `add_rms_norm`: a block for each row, a thread
    /// for each eight elements.
    pub fn norms(rows: usize, cols: usize) -> Self {
        let threads = vectors(cols).next_multiple_of(LANES);
        assert!(threads <= BLOCK_MAX, "a row of {cols} columns is longer than a block norms");
        Self::new([rows, 1, 1], threads)
    }

    /// Returns the launch shape of `cos_sin_table` for the rotary embedding: a thread for each
    /// angle.
    pub fn cos_sin_table(rows: usize, pairs: usize) -> Self {
        Self::new([(rows * pairs).div_ceil(BLOCK), 1, 1], BLOCK)
    }

    /// Returns the launch shape of `rope_and_cache`: a warp for each query, key and value head of
    /// each row.
    pub fn rope_and_cache(rows: usize, heads: usize) -> Self {
        Self::new([rows, heads.div_ceil(WARPS_OF_ONE), 1], WARPS_OF_ONE * LANES)
    }

    /// Returns the launch shape of `route` (top-k experts): a warp for each row.
    pub fn route(rows: usize) -> Self {
        Self::new([rows.div_ceil(WARPS_OF_ONE), 1, 1], WARPS_OF_ONE * LANES)
    }

    /// Returns the launch shape of `sort_pairs`, which sorts (row, expert) pairs by expert: a block
    /// for each chunk of pairs. With several blocks, `count_pairs` is launched first, in the same
    /// shape.
    pub fn sort_pairs(pairs: usize) -> Self {
        let blocks = pairs.div_ceil(SORT_PAIRS_MIN).clamp(1, SORT_BLOCKS_MAX);
        Self::new([blocks, 1, 1], SORT_BLOCK)
    }

    /// Returns the launch shape of `argmax_part`: each thread reads up to sixteen logits. The
    /// second dimension of the grid is the number of parts of a row.
    pub fn argmax_part(rows: usize, vocab: usize) -> Self {
        Self::new([rows, vocab.div_ceil(16 * BLOCK), 1], BLOCK)
    }

    /// Returns the launch shape of `argmax_merge`: a warp for each row.
    pub fn argmax_merge(rows: usize) -> Self {
        Self::new([rows, 1, 1], LANES)
    }

    /// Returns the launch shape of `sample`: a block for each row.
    pub fn sample(rows: usize) -> Self {
        Self::new([rows, 1, 1], SAMPLE_BLOCK)
    }

    /// Returns the launch shape of `stream_read`, which measures memory bandwidth: as many blocks
    /// as run at once.
    pub fn stream_read(processors: Processors) -> Self {
        Self::new([READ_BLOCKS * processors.count, 1, 1], READ_BLOCK)
    }

    /// Returns the number of warps in all blocks of the launch.
    pub fn warps(&self) -> usize {
        self.grid.iter().product::<u32>() as usize * self.block as usize / LANES
    }

    /// Returns the launch shape of `side_by_side` and `leave_padding`: a thread for each element.
    /// It is also that of `random_mxfp4`: a thread for each scale.
    pub fn scalars(rows: usize, cols: usize) -> Self {
        Self::new([rows, cols.div_ceil(BLOCK), 1], BLOCK)
    }

    /// Returns the launch shape of `all_reduce` over `elements` elements, the same on every rank.
    pub fn all_reduce(elements: usize) -> Self {
        let blocks = vectors(elements).div_ceil(SUM_BLOCK).clamp(1, SUM_BLOCKS_MAX);
        Self::new([blocks, 1, 1], SUM_BLOCK)
    }

    /// Returns the launch shape of reference kernels: a thread for each of `threads` results.
    pub fn reference(threads: usize) -> Self {
        Self::new([threads.div_ceil(REFERENCE_BLOCK).max(1), 1, 1], REFERENCE_BLOCK)
    }

    /// Returns the launch shape of reference kernels in which a warp computes each of `results`
    /// results.
    pub fn reference_warps(results: usize) -> Self {
        Self::reference(results * LANES)
    }

    /// Returns the launch shape of reference kernels whose threads each take several of `elements`
    /// elements.
    pub fn reference_loop(elements: usize) -> Self {
        Self::reference(elements.min(REFERENCE_THREADS_MAX))
    }

    /// Returns the launch shape of `random_bf16`, `matmul_merge` and element-wise kernels: a thread
    /// for each eight elements.
    pub fn elements(rows: usize, cols: usize) -> Self {
        Self::new([(rows * vectors(cols)).div_ceil(BLOCK), 1, 1], BLOCK)
    }
}

/// Last argument of the `rope_and_cache` kernel: sizes of the layer and its KV cache.
#[derive(Debug, Clone, Copy, PartialEq, NoUninit)]
#[repr(C)]
pub struct RopeArguments {
    /// Number of query heads of the layer.
    pub heads: u32,
    /// Number of KV heads of the layer.
    pub kv_heads: u32,
    /// Number of elements of an attention head.
    pub head_dim: u32,
    /// Number of pairs of elements of a head that are rotated.
    pub pairs: u32,
    /// Number of tokens that a KV page has space for.
    pub page_tokens: u32,
    /// Distance from one KV page of the layer to the next, in units of `[page tokens, D]`.
    pub page_stride: u32,
    /// Constant (epsilon) that the norm of a head adds to the mean square; 0 in a layer without
    /// head norms.
    pub epsilon: f32,
}

/// Sampling parameters of one row as the `sample` kernel reads them, from
/// [`SampleParams`](engine_core::sample::SampleParams).
#[derive(Debug, Clone, Copy, PartialEq, NoUninit)]
#[repr(C)]
pub struct SamplingArguments {
    /// Softmax temperature; 0 selects the likeliest token (greedy sampling).
    pub temperature: f32,
    /// Top-p (nucleus) threshold; 1 keeps all tokens.
    pub top_p: f32,
    /// Min-p threshold; 0 keeps all tokens.
    pub min_p: f32,
    /// Number of likeliest tokens to keep (top-k); 0 keeps all tokens.
    pub top_k: u32,
    /// Seed of the sequence's random numbers for sampling.
    pub seed: u64,
    /// Number of tokens that the sequence has sampled before, which selects the random number.
    pub index: u64,
}

/// Returns the length, in bf16 elements, of the longest vector that `ranks` ranks sum by one
/// kernel; 0 where the number of ranks is not supported.
pub fn all_reduce_capacity(ranks: usize) -> usize {
    match ranks {
        2..=RANKS_MAX => READ_BYTES_MAX / (ranks - 1) / 2 / VECTOR * VECTOR,
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
    let rounds = SUM_BLOCKS_MAX * (RANKS_MAX + 1) * size_of::<u32>();
    rounds + 2 * vectors(capacity) * VECTOR * 2
}

/// Returns the number of eight-element vectors of a row of `cols` elements; panics if they are not
/// whole vectors.
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
        assert_eq!(Launch::rope_and_cache(7, 48).grid, [7, 12, 1]);
        assert_eq!(Launch::route(9).grid, [3, 1, 1]);
        assert_eq!(Launch::argmax_part(3, 151_936).grid, [3, 38, 1]);
        let sorts = [0, 1, 4096, 4097, 65_536 * 8].map(|pairs| Launch::sort_pairs(pairs).grid[0]);
        assert_eq!(sorts, [1, 1, 1, 2, 64]);
    }

    #[test]
    fn more_rows_than_the_second_dimension_takes_are_launched() {
        const ROWS: usize = 70_000;
        for launch in [
            Launch::row_copies(ROWS, 4096),
            Launch::norms(ROWS, 4096),
            Launch::cos_sin_table(ROWS, 64),
            Launch::rope_and_cache(ROWS, 48),
            Launch::route(ROWS),
            Launch::argmax_part(ROWS, 262_144),
            Launch::argmax_merge(ROWS),
            Launch::sample(ROWS),
            Launch::scalars(ROWS, 262_144),
            Launch::elements(ROWS, 16_384),
        ] {
            assert!(launch.grid[0] as usize >= ROWS / WARPS_OF_ONE, "{launch:?}");
        }
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

    #[test]
    fn blocks_have_a_vector_a_thread_until_there_are_enough() {
        assert_eq!(Launch::all_reduce(8).grid, [1, 1, 1]);
        assert_eq!(Launch::all_reduce(4097 * 8).grid, [9, 1, 1]);
        assert_eq!(Launch::all_reduce(1 << 22).grid, [64, 1, 1]);
        assert_eq!(exchange_bytes(4096), 64 * 9 * 4 + 2 * 8192);
    }

    #[test]
    fn more_ranks_leave_shorter_sums_to_one_launch() {
        assert_eq!([1, 2, 4, 8, 9].map(all_reduce_capacity), [0, 524_288, 174_760, 74_896, 0]);
    }
}
