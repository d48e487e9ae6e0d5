//! MoE grouped GEMM (`grouped_matmul`) by warpgroups (WGMMA), for GPUs of compute capability 9.0
//! (Hopper).
//@ for sm_90a
//@ grouped_matmul_bf16: registers 120, shared 0, has HGMMA.64x128x16.F32.BF16 LDGSTS.E.BYPASS.128 WARPGROUP.DEPBAR, lacks HMMA
//@ grouped_matmul_e4m3: registers 176, shared 0, has HGMMA.64x128x16.F32.BF16 LDGSTS.E.BYPASS.128 WARPGROUP.DEPBAR, lacks HMMA
#include "warpgroup_matmul.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
grouped_matmul_bf16(bf16* out, const bf16* __restrict__ x, const bf16* __restrict__ weights,
                    const float* __restrict__ biases, const u32* __restrict__ offsets, u32 experts,
                    u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<bf16, WarpgroupMatmul>(shared, out, nullptr, x, {weights, nullptr, n, k}, biases,
                                      {offsets, experts, 0});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
grouped_matmul_e4m3(bf16* out, const bf16* __restrict__ x, const e4m3* __restrict__ weights,
                    const float* __restrict__ scales, const float* __restrict__ biases,
                    const u32* __restrict__ offsets, u32 experts, u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<e4m3, WarpgroupMatmul>(shared, out, nullptr, x, {weights, scales, n, k}, biases,
                                      {offsets, experts, 0});
}
