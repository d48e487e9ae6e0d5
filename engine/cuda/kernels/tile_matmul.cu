//! Matrix multiplication (GEMM) of many rows with weights in tiles, for prefill, where cuBLASLt is
//! missing or slower.
//!
//! out [T, N] bf16, or without it wide [T, N] f32 = x [T, K] bf16 times weights [N, K] transposed,
//! summed in f32. K is a multiple of 8 for bf16 weights, and of 16 for e4m3 weights, which have an
//! f32 scale for each 128 x 128.
//! Grid: as many blocks as run at once. Block: 8 warps.
//@ tile_matmul_bf16: registers 128, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.M88.4
//@ tile_matmul_e4m3: registers 255, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.M88.4
#include "warp_matmul.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
tile_matmul_bf16(bf16* out, float* wide, const bf16* __restrict__ x,
                 const bf16* __restrict__ weights, u32 rows, u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<bf16, WarpMatmul>(shared, out, wide, x, {weights, nullptr, n, k}, nullptr,
                                      {nullptr, 1, rows});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tile_matmul_e4m3(bf16* out, float* wide, const bf16* __restrict__ x,
                 const e4m3* __restrict__ weights, const float* __restrict__ scales, u32 rows, u32 n,
                 u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<e4m3, WarpMatmul>(shared, out, wide, x, {weights, scales, n, k}, nullptr,
                                      {nullptr, 1, rows});
}
