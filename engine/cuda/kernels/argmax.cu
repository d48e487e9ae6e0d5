//! Argmax over the vocabulary: the likeliest token of each row, in two stages (greedy sampling).
//!
//! argmax_part: best [R, parts] u64 = the largest logit, with its index, of each part of logits [R,
//! V] f32.
//! argmax_merge: ids [R] u32 = index of the largest finite logit, the lowest index among equals, or
//! NONE where no logit is finite or one is +infinity. NaN are skipped.
//! Grid: (parts, R), then R. Block: 256, then one warp.
//@ argmax_part: registers 40, shared 64, has LDG.E SHFL.BFLY
//@ argmax_merge: registers 32, shared 0, has LDG.E.64 SHFL.BFLY
#include "prims.cuh"

#define WARPS 8

/// Orders logits by value and then by lower index; 0 for NaN. Adding 0.0 makes both zeros equal.
DEVICE u64 logit_rank(float logit, u32 index) {
    return isnan(logit) ? 0 : rank(logit + 0.0f, index);
}

extern "C" __global__ void __launch_bounds__(WARPS* LANES)
argmax_part(u64* best, const float* __restrict__ logits, u32 vocab) {
    __shared__ u64 parts[WARPS];
    const float* row = logits + static_cast<u64>(blockIdx.x) * vocab;
    u64 mine = 0;
#pragma unroll 4
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < vocab; i += gridDim.y * blockDim.x) {
        mine = max(mine, logit_rank(row[i], i));
    }
    mine = warp_best(mine);
    if (lane() == 0) parts[warp()] = mine;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 i = 1; i < WARPS; ++i) mine = max(mine, parts[i]);
    best[static_cast<u64>(blockIdx.x) * gridDim.y + blockIdx.y] = mine;
}

extern "C" __global__ void __launch_bounds__(LANES)
argmax_merge(u32* ids, const u64* __restrict__ best, u32 parts) {
    u64 mine = 0;
    for (u32 i = lane(); i < parts; i += LANES) {
        mine = max(mine, best[static_cast<u64>(blockIdx.x) * parts + i]);
    }
    mine = warp_best(mine);
    bool is_finite = mine != 0 && fabsf(number_of(mine)) < infinity();
    if (lane() == 0) ids[blockIdx.x] = is_finite ? index_of(mine) : NONE;
}
