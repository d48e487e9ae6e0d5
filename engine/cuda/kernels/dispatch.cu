//! MoE dispatch and combine: moves rows to their experts and sums the experts' results.
//!
//! dispatch: out [P, N] bf16 = rows of x [T, N] in the order of the sorted (row, expert) pairs; the
//! row of a pair is its number divided by `chosen`, the number of experts per row. Only the first
//! *sent of the P rows are written.
//! combine: out [T, N] bf16 = sum over a row's pairs of weights [T, chosen] f32 times the row of x
//! [P, N] at slots [T, chosen], in this order, in f32. A pair whose slot is NONE belongs to another
//! rank.
//! N is a multiple of 8. Grid: P, T. Block: threads over the row, 16 bytes each.
//@ dispatch: registers 24, shared 0, has LDG.E.128 STG.E.128
//@ combine: registers 48, shared 0, has LDG.E.128 STG.E.128
#include "prims.cuh"

extern "C" __global__ void dispatch(bf16* out, const bf16* __restrict__ x,
                                    const u32* __restrict__ sources, const u32* __restrict__ sent,
                                    u32 chosen, u32 n) {
    u32 slot = blockIdx.x;
    // The number of rows is known on the device only, so the grid covers all pairs.
    if (slot >= *sent) return;
    u32 row = sources[slot] / chosen;
    uint4* to = reinterpret_cast<uint4*>(out + static_cast<u64>(slot) * n);
    const uint4* from = reinterpret_cast<const uint4*>(x + static_cast<u64>(row) * n);
    for (u32 i = threadIdx.x; i < n / 8; i += blockDim.x) to[i] = from[i];
}

extern "C" __global__ void combine(bf16* out, const bf16* __restrict__ x,
                                   const u32* __restrict__ slots,
                                   const float* __restrict__ weights, u32 chosen, u32 n) {
    u64 row = blockIdx.x;
    for (u32 column = threadIdx.x * 8; column < n; column += blockDim.x * 8) {
        Eight sum = {};
        for (u32 i = 0; i < chosen; ++i) {
            u32 slot = slots[row * chosen + i];
            if (slot == NONE) continue;
            float weight = weights[row * chosen + i];
            Eight v = load8(x + static_cast<u64>(slot) * n + column);
#pragma unroll
            for (int j = 0; j < 8; ++j) sum.x[j] += weight * v.x[j];
        }
        store8(out + row * n + column, sum);
    }
}
