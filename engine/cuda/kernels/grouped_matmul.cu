//! MoE matrix multiplication for many rows per expert (grouped GEMM): rows sorted by expert, each
//! times its expert's weights, in tiles.
//!
//! Arguments and weights are those of `expert_matmul`, and in addition the number of experts.
//! Weights are read once per 128 rows of an expert: the kernels are for prefill chunks.
//! Grid: as many blocks as run at once. Block: 8 warps.
//@ grouped_matmul_bf16: registers 128, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.M88.4
//@ grouped_matmul_e4m3: registers 255, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.M88.4
//@ grouped_matmul_mxfp4: registers 128, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.M88.4
#include "warp_matmul.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
grouped_matmul_bf16(bf16* out, const bf16* __restrict__ x, const bf16* __restrict__ weights,
                    const float* __restrict__ biases, const u32* __restrict__ offsets, u32 experts,
                    u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<bf16, WarpMatmul>(shared, out, nullptr, x, {weights, nullptr, n, k}, biases,
                                      {offsets, experts, 0});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
grouped_matmul_e4m3(bf16* out, const bf16* __restrict__ x, const e4m3* __restrict__ weights,
                    const float* __restrict__ scales, const float* __restrict__ biases,
                    const u32* __restrict__ offsets, u32 experts, u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<e4m3, WarpMatmul>(shared, out, nullptr, x, {weights, scales, n, k}, biases,
                                      {offsets, experts, 0});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
grouped_matmul_mxfp4(bf16* out, const bf16* __restrict__ x, const e2m1x2* __restrict__ weights,
                     const u8* __restrict__ scales, const float* __restrict__ biases,
                     const u32* __restrict__ offsets, u32 experts, u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    multiply_tiles<e2m1x2, WarpMatmul>(shared, out, nullptr, x, {weights, scales, n, k}, biases,
                                        {offsets, experts, 0});
}
