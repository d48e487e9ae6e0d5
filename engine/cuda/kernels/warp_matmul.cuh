//! GEMM micro-kernel of a warp for the tiles of `tile_matmul.cuh`: each warp computes 64 rows and
//! 32 columns of a tile.
#pragma once
#include "tile_matmul.cuh"

struct WarpMatmul {
    static constexpr bool IS_ASYNC = false;

    /// First row, and first column, of the warp in the tile.
    static DEVICE_MEMBER u32 row() { return warp() / 4 * 64; }
    static DEVICE_MEMBER u32 column() { return warp() % 4 * 32; }
    /// Position of part i of the sums: row relative to the warp's first, column in the tile.
    static DEVICE_MEMBER u32 part_row(u32 i) { return i / 4 * 16; }
    static DEVICE_MEMBER u32 part_column(u32 i) { return column() + i % 4 * 8; }

    /// Nothing to do: warps read shared memory and add up synchronously.
    static DEVICE_MEMBER void share() {}
    static DEVICE_MEMBER void finish(Sums&) {}

    /// Multiplies one step: `sums += activations * weights`.
    static DEVICE_MEMBER void multiply(Sums& sums, const u8* activations, const u8* weights) {
        u32 in_eight = lane() % 8, matrix = lane() / 8;
#pragma unroll
        for (u32 k = 0; k < STEP / 16; ++k) {
            u32 x[4][4], w[2][4];
#pragma unroll
            for (u32 m = 0; m < 4; ++m) {
                u32 line = row() + m * 16 + in_eight + matrix % 2 * 8;
                load_matrices(x[m], piece<STEP_PIECES>(activations, line, 2 * k + matrix / 2));
            }
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
                u32 line = column() + n * 16 + in_eight + matrix / 2 * 8;
                load_matrices(w[n], piece<STEP_PIECES>(weights, line, 2 * k + matrix % 2));
            }
#pragma unroll
            for (u32 i = 0; i < 16; ++i) {
                const u32(&two)[4] = w[i % 4 / 2];
                multiply_add(sums.x[i], x[i / 4], two[i % 2 * 2], two[i % 2 * 2 + 1]);
            }
        }
    }
};
