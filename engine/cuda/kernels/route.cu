//! MoE routing: top-k experts of each row, and the weights of their results.
//!
//! ids [T, chosen] u32 and weights [T, chosen] f32 from logits [T, E] f32: the largest logits in
//! falling order, the lower index among equals. If `is_normalized`, weights are the softmax over
//! the selected experts, which equals a softmax over all experts divided by the sum of the
//! selected; otherwise they are the softmax over all experts. E is at most 512, chosen at most 32.
//! Grid: T over 4. Block: 4 warps, one per row; a lane holds every 32nd logit.
//@ route: registers 64, shared 0, has SHFL.BFLY MUFU.EX2
#include "prims.cuh"

#define ROWS_PER_BLOCK 4
#define LOGITS_PER_LANE 16

extern "C" __global__ void __launch_bounds__(ROWS_PER_BLOCK* LANES)
route(u32* ids, float* weights, const float* __restrict__ logits, u32 rows, u32 experts, u32 chosen,
      u32 is_normalized) {
    u32 row = blockIdx.x * ROWS_PER_BLOCK + warp();
    if (row >= rows) return;
    const float* own = logits + static_cast<u64>(row) * experts;
    u64 ranks[LOGITS_PER_LANE];
#pragma unroll
    for (u32 i = 0; i < LOGITS_PER_LANE; ++i) {
        u32 expert = lane() + i * LANES;
        // A rank of 0 is below every number, so that experts beyond the last are never selected.
        ranks[i] = expert < experts ? rank(own[expert], expert) : 0;
    }
    u64 mine = 0;
    float largest = 0.0f, all = 0.0f;
    for (u32 nth = 0; nth < chosen; ++nth) {
        u64 best = 0;
#pragma unroll
        for (u32 i = 0; i < LOGITS_PER_LANE; ++i) best = max(best, ranks[i]);
        best = warp_best(best);
        if (nth == 0) largest = number_of(best);
        if (lane() == nth) mine = best;
#pragma unroll
        for (u32 i = 0; i < LOGITS_PER_LANE; ++i) {
            if (ranks[i] != best) continue;
            // Only the lane that holds the expert adds its weight; lanes are summed below.
            all += exp2_fast(LOG2_E * (number_of(best) - largest));
            ranks[i] = 0;
        }
    }
    if (!is_normalized) {
#pragma unroll
        for (u32 i = 0; i < LOGITS_PER_LANE; ++i) {
            if (ranks[i] != 0) all += exp2_fast(LOG2_E * (number_of(ranks[i]) - largest));
        }
    }
    all = warp_sum(all);
    if (lane() >= chosen) return;
    u64 to = static_cast<u64>(row) * chosen + lane();
    ids[to] = index_of(mine);
    weights[to] = exp2_fast(LOG2_E * (number_of(mine) - largest)) / all;
}
