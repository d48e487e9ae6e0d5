//! How warpgroups multiply the tiles of `tile_product.cuh`: each has 64 rows of the results, of all
//! columns. Tiles lie in shared memory as their products read them.
#pragma once
#include "tile_product.cuh"
#include "warpgroup.cuh"

struct WarpgroupProduct {
    /// Products go on while the warps do something else.
    static constexpr bool IS_ASYNC = true;

    /// The warpgroup's first row.
    static DEVICE_MEMBER u32 row() { return warpgroup() * 64; }
    /// Where part i of the sums is: its row from the warpgroup's first, its column in the tile.
    static DEVICE_MEMBER u32 part_row(u32) { return warp() % GROUP_WARPS * 16; }
    static DEVICE_MEMBER u32 part_column(u32 i) { return i * 8; }

    /// Before a barrier: what this thread wrote is for products, and what they read is free.
    static DEVICE_MEMBER void share() {
        await_products();
        publish_to_products();
    }

    static DEVICE_MEMBER void finish(Sums& sums) {
        await_products();
        take_sums(sums.x);
    }

    /// Begins `sums += activations * weights` over a step.
    static DEVICE_MEMBER void multiply(Sums& sums, const u8* activations, const u8* weights) {
        u64 x = describe(activations + row() * STEP * 2), w = describe(weights);
        begin_products();
#pragma unroll
        for (u32 k = 0; k < STEP / 16; ++k) multiply_add_64x128(sums.x, x + 2 * k, w + 2 * k);
        close_products();
    }
};
