//! The likeliest token of each row, in two stages.
//!
//! best [R, parts] u64: of a part of logits [R, V] f32 the largest, with its index; then ids [R] u32:
//! the index of the largest finite logit, the lowest of equals, or NONE where no logit is finite or
//! one is infinitely large. NaN are passed over.
//! Grid: (parts, R), then R. Block: 256, then one warp.
//@ argmax_part: registers 40, shared 64, has LDG.E SHFL.BFLY
//@ argmax_merge: registers 32, shared 0, has LDG.E.64 SHFL.BFLY
#include "prims.cuh"

#define WARPS 8
#define NONE 0xffffffffu

/// Larger for larger logits and, of equal ones, for lower indices; 0 for what is no number.
DEVICE u64 rank(float logit, u32 index) {
    u32 bits = __float_as_uint(logit + 0.0f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
    u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<u64>(ordered) << 32 | static_cast<u32>(~index);
}

DEVICE u64 warp_best(u64 x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

extern "C" __global__ void __launch_bounds__(WARPS* LANES)
argmax_part(u64* best, const float* __restrict__ logits, u32 vocab) {
    __shared__ u64 parts[WARPS];
    const float* row = logits + static_cast<u64>(blockIdx.y) * vocab;
    u64 mine = 0;
#pragma unroll 4
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < vocab; i += gridDim.x * blockDim.x) {
        mine = max(mine, rank(row[i], i));
    }
    mine = warp_best(mine);
    if (lane() == 0) parts[warp()] = mine;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 i = 1; i < WARPS; ++i) mine = max(mine, parts[i]);
    best[static_cast<u64>(blockIdx.y) * gridDim.x + blockIdx.x] = mine;
}

extern "C" __global__ void __launch_bounds__(LANES)
argmax_merge(u32* ids, const u64* __restrict__ best, u32 parts) {
    u64 mine = 0;
    for (u32 i = lane(); i < parts; i += LANES) {
        mine = max(mine, best[static_cast<u64>(blockIdx.x) * parts + i]);
    }
    mine = warp_best(mine);
    u32 ordered = static_cast<u32>(mine >> 32);
    // Between the ranks of the infinities.
    bool is_finite = ordered > 0x007fffffu && ordered < 0xff800000u;
    if (lane() == 0) ids[blockIdx.x] = is_finite ? ~static_cast<u32>(mine) : NONE;
}
