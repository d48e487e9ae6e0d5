//! Sorts (row, expert) pairs by expert for MoE dispatch; the rows of one expert keep their order,
//! so the result is the same on every run.
//!
//! ids [P] u32: the expert of each pair. For the E experts from `first` on: offsets [E + 1] u32 =
//! index of each expert's first pair in sorted order; sources [P] = the pairs in sorted order;
//! slots [P] = sorted index of each pair, or NONE if its expert belongs to another rank.
//! Grid: E. Block: 256; each block counts the pairs of lower experts, then writes those of its own.
//@ sort_pairs: registers 40, shared 64, has VOTE STG.E
#include "prims.cuh"

#define WARPS 8

/// Number of threads of the block before this one for which `is_so` is true, and number in the
/// whole block.
DEVICE uint2 count(bool is_so, u32* parts) {
    u32 votes = __ballot_sync(ALL_LANES, is_so);
    if (lane() == 0) parts[warp()] = static_cast<u32>(__popc(votes));
    __syncthreads();
    u32 before = static_cast<u32>(__popc(votes & ((1u << lane()) - 1))), all = 0;
#pragma unroll
    for (u32 i = 0; i < WARPS; ++i) {
        before += i < warp() ? parts[i] : 0;
        all += parts[i];
    }
    __syncthreads();
    return make_uint2(before, all);
}

extern "C" __global__ void __launch_bounds__(WARPS* LANES)
sort_pairs(u32* offsets, u32* sources, u32* slots, const u32* __restrict__ ids, u32 pairs,
           u32 first) {
    __shared__ u32 parts[WARPS];
    u32 expert = blockIdx.x, experts = gridDim.x, start = 0;
    for (u32 base = 0; base < pairs; base += blockDim.x) {
        u32 pair = base + threadIdx.x;
        // For experts below `first` the unsigned difference wraps around to a number beyond all
        // others.
        u32 id = pair < pairs ? ids[pair] - first : NONE;
        start += count(id < expert, parts).y;
        if (expert == 0 && pair < pairs && id >= experts) slots[pair] = NONE;
    }
    u32 to = start;
    for (u32 base = 0; base < pairs; base += blockDim.x) {
        u32 pair = base + threadIdx.x;
        bool is_mine = pair < pairs && ids[pair] - first == expert;
        uint2 counted = count(is_mine, parts);
        if (is_mine) {
            sources[to + counted.x] = pair;
            slots[pair] = to + counted.x;
        }
        to += counted.y;
    }
    if (threadIdx.x == 0) {
        offsets[expert] = start;
        if (expert == experts - 1) offsets[experts] = to;
    }
}
