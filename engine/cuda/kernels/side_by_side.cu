//! Interleaves the columns that ranks computed separately (after an all-gather), and removes
//! padding columns.
//!
//! side_by_side: out [T, N] f32 from `parts` f32, which holds each rank's columns [T, own], one
//! rank after another. Rank i of R has columns N i / R up to N (i + 1) / R, rounded down.
//! leave_padding: out [T, N] = the first N columns of x [T, K], both f32 or both bf16.
//! Grid: (blocks that cover N, T). Block: 256.
//@ side_by_side: registers 40, shared 0, has LDG.E STG.E
//@ leave_padding_f32: registers 32, shared 0, has LDG.E STG.E
//@ leave_padding_bf16: registers 32, shared 0, has LDG.E.U16 STG.E.U16
#include "prims.cuh"

extern "C" __global__ void __launch_bounds__(256)
side_by_side(float* out, const float* __restrict__ parts, u32 tokens, u32 n, u32 ranks) {
    u32 column = blockIdx.y * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (column >= n) return;
    u64 all = n;
    u64 rank = ((column + u64{1}) * ranks - 1) / all;
    u64 first = all * rank / ranks, own = all * (rank + 1) / ranks - first;
    out[token * all + column] = parts[tokens * first + token * own + column - first];
}

template <class T> DEVICE void leave_padding(T* out, const T* x, u32 n, u32 k) {
    u32 column = blockIdx.y * blockDim.x + threadIdx.x, token = blockIdx.x;
    if (column >= n) return;
    out[token * u64{n} + column] = x[token * u64{k} + column];
}

extern "C" __global__ void __launch_bounds__(256)
leave_padding_f32(float* out, const float* __restrict__ x, u32 n, u32 k) {
    leave_padding(out, x, n, k);
}

extern "C" __global__ void __launch_bounds__(256)
leave_padding_bf16(bf16* out, const bf16* __restrict__ x, u32 n, u32 k) {
    leave_padding(out, x, n, k);
}
