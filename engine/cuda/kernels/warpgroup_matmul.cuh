//! GEMM micro-kernel of a warpgroup (WGMMA) for the tiles of `tile_matmul.cuh`: each warpgroup
//! computes 64 rows and all columns of a tile, and reads both operands from shared memory.
#pragma once
#include "tile_matmul.cuh"
#include "warpgroup.cuh"

struct WarpgroupMatmul {
    /// Multiplication is asynchronous: the warps do other work meanwhile.
    static constexpr bool IS_ASYNC = true;

    /// First row of the warpgroup in the tile.
    static DEVICE_MEMBER u32 row() { return warpgroup() * 64; }
    /// Position of part i of the sums: row relative to the warpgroup's first, column in the tile.
    static DEVICE_MEMBER u32 part_row(u32) { return warp() % GROUP_WARPS * 16; }
    static DEVICE_MEMBER u32 part_column(u32 i) { return i * 8; }

    /// Before a barrier: waits for the multiplications that read shared memory, so that it can be
    /// overwritten, and makes this thread's writes visible to the next ones.
    static DEVICE_MEMBER void share() {
        await_wgmma();
        publish_to_wgmma();
    }

    static DEVICE_MEMBER void finish(Sums& sums) {
        await_wgmma();
        take_sums(sums.x);
    }

    /// Starts to multiply one step: `sums += activations * weights`.
    static DEVICE_MEMBER void multiply(Sums& sums, const u8* activations, const u8* weights) {
        u64 x = describe(activations + row() * STEP * 2), w = describe(weights);
        begin_wgmma();
#pragma unroll
        for (u32 k = 0; k < STEP / 16; ++k) multiply_add_64x128(sums.x, x + 2 * k, w + 2 * k);
        close_wgmma();
    }
};
