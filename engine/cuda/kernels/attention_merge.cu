//! Merges the partial attention results of lines whose key positions were split (second stage of
//! Flash-Decoding).
//!
//! out [T, H D] bf16 from parts [lines, D + 2] f32, in the order of rising positions; the attention
//! sinks of `layer` [H + 2 KV] are added here. The second word of the plan is the number of merges,
//! and the third is the word at which they begin.
//! Grid: as many blocks as run at once; each takes every grid-th merge. Block: 128.
//! Source: Hong et al. 2023 (Flash-Decoding).
//@ attention_merge: registers 48, shared 0, has LDG.E.64 STG.E MUFU.EX2
#include "prims.cuh"

struct MergeShape {
    u32 heads, kv_heads, head_dim;
};

struct Merge {
    /// First row in the step, and number of rows.
    u32 row, rows;
    u32 kv_head;
    /// First line in `parts`, and number of splits; each split has as many lines.
    u32 part, splits;
};

/// Merges two columns of one line over its splits, each weighted relative to the largest score of
/// all.
DEVICE float2 merge(const float* parts, u32 splits, u64 stride, u32 d, u32 column, float sink) {
    // The attention sink is a term of the softmax that has no value.
    float largest = sink;
    for (u32 s = 0; s < splits; ++s) largest = fmaxf(largest, parts[s * stride + d]);
    float total = exp2_fast(sink - largest), low = 0.0f, high = 0.0f;
    for (u32 s = 0; s < splits; ++s) {
        const float* from = parts + s * stride;
        float2 end = *reinterpret_cast<const float2*>(from + d);
        float2 sums = *reinterpret_cast<const float2*>(from + column);
        float share = exp2_fast(end.x - largest);
        total += share * end.y;
        low += share * sums.x;
        high += share * sums.y;
    }
    return make_float2(low / total, high / total);
}

extern "C" __global__ void __launch_bounds__(128)
attention_merge(bf16* out, const float* __restrict__ parts, const u32* __restrict__ plan,
                const float* __restrict__ layer, MergeShape shape) {
    u32 group = shape.heads / shape.kv_heads, d = shape.head_dim;
    for (u32 i = blockIdx.x; i < plan[1]; i += gridDim.x) {
        Merge m = reinterpret_cast<const Merge*>(plan + plan[2])[i];
        u32 lines = m.rows * group;
        for (u32 at = threadIdx.x; at < lines * (d / 2); at += blockDim.x) {
            u32 line = at / (d / 2), column = at % (d / 2) * 2;
            u32 head = m.kv_head * group + line % group;
            const float* from = parts + static_cast<u64>(m.part + line) * (d + 2);
            float2 x = merge(from, m.splits, static_cast<u64>(lines) * (d + 2), d, column,
                             layer[head] * LOG2_E);
            u64 row = m.row + line / group;
            *reinterpret_cast<u32*>(out + (row * shape.heads + head) * d + column) =
                narrow(x.x, x.y);
        }
    }
}
