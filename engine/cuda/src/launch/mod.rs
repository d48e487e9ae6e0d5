//! How kernels are launched: grids, blocks and shared memory from shapes. It knows no driver, so
//! that it is tested where there is no GPU.

pub mod all_reduce;
pub mod attention;
pub mod delta_net;
pub mod product;
pub mod tiles;

use bytemuck::NoUninit;

/// Elements that a thread moves at a time: 16 bytes of bf16.
const VECTOR: usize = 8;
/// Threads of a warp.
const LANES: usize = 32;
/// Threads of a block where nothing asks for another number.
const BLOCK: usize = 256;
/// Warps of a block whose warps know nothing of each other.
const WARPS_OF_ONE: usize = 4;
/// Threads of a block that samples.
const SAMPLE_BLOCK: usize = 512;
/// Threads of a block that only reads; a processor has two.
const READ_BLOCK: usize = 512;
/// Threads of the largest block.
const BLOCK_MAX: usize = 1024;
/// Shared memory that the system keeps of each block.
const SYSTEM_BYTES: usize = 1024;

/// The multiprocessors of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    /// How many the GPU has.
    pub count: usize,
    /// Shared memory of one: 164 KiB on sm_80, 228 KiB on sm_90.
    pub shared_bytes: usize,
    /// Whether warpgroups multiply from shared memory, as on sm_90 alone.
    pub has_warpgroups: bool,
}

impl Processors {
    /// Blocks that run at once, each with so many bytes of shared memory of its own; no more than
    /// `most` on one multiprocessor.
    ///
    /// # Panics
    /// A multiprocessor has less shared memory than a block.
    fn resident_blocks(self, shared_bytes: usize, most: usize) -> usize {
        let fit = self.shared_bytes / (shared_bytes + SYSTEM_BYTES);
        assert!(fit > 0, "{shared_bytes} bytes of shared memory are more than a processor has");
        self.count * fit.min(most)
    }
}

#[cfg(test)]
impl Processors {
    /// sm_80.
    pub const A100: Self = Self { count: 108, shared_bytes: 164 << 10, has_warpgroups: false };
    /// sm_90.
    pub const H200: Self = Self { count: 132, shared_bytes: 228 << 10, has_warpgroups: true };
}

/// The shape of one kernel launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in each dimension.
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

    /// `turns`: a thread for each angle.
    pub fn turns(rows: usize, pairs: usize) -> Self {
        Self::new([(rows * pairs).div_ceil(BLOCK), 1, 1], BLOCK)
    }

    /// `rope_and_cache`: a warp a head, of queries, keys and values.
    pub fn rope_and_cache(rows: usize, heads: usize) -> Self {
        Self::new([heads.div_ceil(WARPS_OF_ONE), rows, 1], WARPS_OF_ONE * LANES)
    }

    /// `route`: a warp a row.
    pub fn route(rows: usize) -> Self {
        Self::new([rows.div_ceil(WARPS_OF_ONE), 1, 1], WARPS_OF_ONE * LANES)
    }

    /// `sort_pairs`: a block an expert.
    pub fn sort_pairs(experts: usize) -> Self {
        Self::new([experts, 1, 1], BLOCK)
    }

    /// `argmax_part`: blocks that each look at sixteen logits a thread. Its grid's first number is
    /// that of the parts.
    pub fn argmax_part(rows: usize, vocab: usize) -> Self {
        Self::new([vocab.div_ceil(16 * BLOCK), rows, 1], BLOCK)
    }

    /// `argmax_merge`: a warp a row.
    pub fn argmax_merge(rows: usize) -> Self {
        Self::new([rows, 1, 1], LANES)
    }

    /// `sample`: a block a row.
    pub fn sample(rows: usize) -> Self {
        Self::new([rows, 1, 1], SAMPLE_BLOCK)
    }

    /// `stream_read`: as many blocks as run at once.
    pub fn stream_read(processors: Processors) -> Self {
        Self::new([2 * processors.count, 1, 1], READ_BLOCK)
    }

    /// Warps of all blocks.
    pub fn warps(&self) -> usize {
        self.grid.iter().product::<u32>() as usize * self.block as usize / LANES
    }

    /// `side_by_side` and `leave_padding`: a thread a number.
    pub fn numbers(rows: usize, cols: usize) -> Self {
        Self::new([cols.div_ceil(BLOCK), rows, 1], BLOCK)
    }

    /// `random_bf16`, and what does the same to all elements: a thread for each vector.
    pub fn elements(rows: usize, cols: usize) -> Self {
        Self::new([(rows * vectors(cols)).div_ceil(BLOCK), 1, 1], BLOCK)
    }
}

/// How the last argument of `rope_and_cache` lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, NoUninit)]
#[repr(C)]
pub struct RopeArguments {
    /// Query heads.
    pub heads: u32,
    /// Key heads, and as many value heads.
    pub kv_heads: u32,
    /// D: elements of a head.
    pub head_dim: u32,
    /// Pairs of elements that are turned.
    pub pairs: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// From one page of the layer to the next, in `[page tokens, D]`.
    pub page_stride: u32,
    /// Added to the mean square of a head.
    pub epsilon: f32,
}

/// How `sample` reads [`DrawParams`](engine_core::sample::DrawParams) of one row.
#[derive(Debug, Clone, Copy, PartialEq, NoUninit)]
#[repr(C)]
pub struct SamplingArguments {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// Which stream of random numbers the token is drawn by.
    pub seed: u64,
    /// Tokens that the sequence has drawn before.
    pub index: u64,
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
        assert_eq!(Launch::rope_and_cache(7, 48).grid, [12, 7, 1]);
        assert_eq!(Launch::route(9).grid, [3, 1, 1]);
        assert_eq!(Launch::argmax_part(3, 151_936).grid, [38, 3, 1]);
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
