//! Sorts (row, expert) pairs by expert for MoE dispatch: a counting sort, in which the pairs of one
//! expert keep their order, so the result is the same on every run and for every grid.
//!
//! ids [P] u32: the expert of each pair. For the E experts from `first` on: offsets [E + 1] u32 =
//! index of each expert's first pair in sorted order; sources [P] = the pairs in sorted order;
//! slots [P] = sorted index of each pair, or NONE if its expert belongs to another rank.
//! Each block has a chunk of adjacent pairs, and each warp a run of adjacent pairs of the chunk.
//! count_pairs: counts [blocks, E] u32 = number of pairs of each expert in each chunk.
//! sort_pairs: reads the counts of all chunks, or none (null) if there is a single chunk.
//! Grid: chunks, the same for both kernels. Block: 512; a thread for each expert, so E <= 512.
//@ count_pairs: registers 40, shared 32768, has VOTE STG.E
//@ sort_pairs: registers 40, shared 32832, has VOTE STG.E
#include "prims.cuh"

#define WARPS 16
#define THREADS (WARPS * LANES)

/// A number for each warp and expert: pairs that the warp counted, later the next sorted index.
using Numbers = u32[WARPS][THREADS];

/// Pairs of this warp.
struct Run {
    u32 begin, end;
};

DEVICE Run run_of(u32 pairs) {
    u32 size = (pairs + gridDim.x * THREADS - 1) / (gridDim.x * THREADS) * LANES;
    u32 begin = (blockIdx.x * WARPS + warp()) * size;
    return {begin, min(begin + size, pairs)};
}

/// Lanes of the warp that have the same expert `id` as this one; no lane has those of other ranks.
DEVICE u32 same(u32 id, u32 experts) {
    u32 lanes = __ballot_sync(ALL_LANES, id < experts);
    for (u32 bit = 0; (experts - 1) >> bit != 0; ++bit) {
        u32 votes = __ballot_sync(ALL_LANES, (id >> bit & 1) != 0);
        lanes &= (id >> bit & 1) != 0 ? votes : ~votes;
    }
    return id < experts ? lanes : 0;
}

/// Calls `use(pair, id, index)` for each pair of the warp, with its expert's number among this
/// rank's, and `numbers` of the expert plus the number of earlier pairs of it in the run. Adds the
/// run's pairs to `numbers`.
template <class Use>
DEVICE void for_pairs(u32* numbers, const u32* ids, u32 pairs, u32 first, u32 experts, Use use) {
    Run run = run_of(pairs);
    for (u32 base = run.begin; base < run.end; base += LANES) {
        u32 pair = base + lane();
        // For experts below `first` the unsigned difference wraps around to a number beyond all
        // others.
        u32 id = pair < run.end ? ids[pair] - first : NONE;
        u32 lanes = same(id, experts), before = lanes & ((1u << lane()) - 1), index = 0;
        // The first lane of an expert counts for all of them; which lane that is differs from
        // pairs to pairs, so the warp synchronizes.
        if (lanes != 0 && before == 0) {
            index = numbers[id];
            numbers[id] = index + static_cast<u32>(__popc(lanes));
        }
        u32 leader = lanes != 0 ? static_cast<u32>(__popc((lanes & (0 - lanes)) - 1)) : 0;
        index = __shfl_sync(ALL_LANES, index, leader) + static_cast<u32>(__popc(before));
        __syncwarp();
        if (pair < run.end) use(pair, id, index);
    }
}

/// Counts the pairs of each warp by expert.
DEVICE void count(Numbers& numbers, const u32* ids, u32 pairs, u32 first, u32 experts) {
    for (u32 i = lane(); i < experts; i += LANES) numbers[warp()][i] = 0;
    __syncwarp();
    for_pairs(numbers[warp()], ids, pairs, first, experts, [](u32, u32, u32) {});
    __syncthreads();
}

/// Sum of `x` over the threads of the block before this one. `parts` has an element per warp.
DEVICE u32 sum_before(u32 x, u32* parts) {
    u32 sum = x;
#pragma unroll
    for (u32 by = 1; by < LANES; by *= 2) {
        u32 other = __shfl_up_sync(ALL_LANES, sum, by);
        if (lane() >= by) sum += other;
    }
    if (lane() == LANES - 1) parts[warp()] = sum;
    __syncthreads();
    sum -= x;
    for (u32 i = 0; i < warp(); ++i) sum += parts[i];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
count_pairs(u32* counts, const u32* __restrict__ ids, u32 pairs, u32 first, u32 experts) {
    __shared__ Numbers numbers;
    count(numbers, ids, pairs, first, experts);
    if (threadIdx.x >= experts) return;
    u32 all = 0;
#pragma unroll
    for (u32 i = 0; i < WARPS; ++i) all += numbers[i][threadIdx.x];
    counts[blockIdx.x * experts + threadIdx.x] = all;
}

extern "C" __global__ void __launch_bounds__(THREADS)
sort_pairs(u32* offsets, u32* sources, u32* slots, const u32* __restrict__ counts,
           const u32* __restrict__ ids, u32 pairs, u32 first, u32 experts) {
    __shared__ Numbers numbers;
    __shared__ u32 parts[WARPS];
    count(numbers, ids, pairs, first, experts);
    u32 expert = threadIdx.x, all = 0, before = 0;
    if (expert < experts && counts == nullptr) {
        for (u32 i = 0; i < WARPS; ++i) all += numbers[i][expert];
    } else if (expert < experts) {
#pragma unroll 8
        for (u32 i = 0; i < gridDim.x; ++i) {
            u32 counted = counts[i * experts + expert];
            all += counted;
            before += i < blockIdx.x ? counted : 0;
        }
    }
    u32 start = sum_before(all, parts);
    if (expert < experts) {
        if (blockIdx.x == 0) {
            offsets[expert] = start;
            if (expert == experts - 1) offsets[experts] = start + all;
        }
        u32 next = start + before;
        for (u32 i = 0; i < WARPS; ++i) {
            u32 counted = numbers[i][expert];
            numbers[i][expert] = next;
            next += counted;
        }
    }
    __syncthreads();
    for_pairs(numbers[warp()], ids, pairs, first, experts, [&](u32 pair, u32 id, u32 index) {
        slots[pair] = id < experts ? index : NONE;
        if (id < experts) sources[index] = pair;
    });
}
