//! GEMM of many rows (`tile_matmul`) by warpgroups (WGMMA), for GPUs of compute capability 9.0
//! (Hopper).
//@ for sm_90a
//@ tile_matmul_bf16: registers 120, shared 0, has HGMMA.64x128x16.F32.BF16 LDGSTS.E.BYPASS.128 WARPGROUP.DEPBAR, lacks HMMA
//@ tile_matmul_e4m3: registers 176, shared 0, has HGMMA.64x128x16.F32.BF16 LDGSTS.E.BYPASS.128 WARPGROUP.DEPBAR, lacks HMMA
#include "warpgroup_matmul.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
tile_matmul_bf16(bf16* out, float* wide, const bf16* __restrict__ x,
                 const bf16* __restrict__ weights, u32 rows, u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<bf16, WarpgroupMatmul>(shared, out, wide, x, {weights, nullptr, n, k}, nullptr,
                                      {nullptr, 1, rows});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
tile_matmul_e4m3(bf16* out, float* wide, const bf16* __restrict__ x,
                 const e4m3* __restrict__ weights, const float* __restrict__ scales, u32 rows, u32 n,
                 u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<e4m3, WarpgroupMatmul>(shared, out, wide, x, {weights, scales, n, k}, nullptr,
                                      {nullptr, 1, rows});
}
