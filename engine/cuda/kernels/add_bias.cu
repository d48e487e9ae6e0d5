//! Kernel that adds a bias to every row.
//!
//! x [T, N] += bias [N] f32, where x is bf16, or f32 for scores. N is a multiple of 8.
//! Grid and block: a thread for each eight elements.
//@ add_bias: registers 32, shared 0, has LDG.E.128 STG.E.128
//@ add_bias_f32: registers 32, shared 0, has LDG.E.128 STG.E.128
#include "prims.cuh"

template <class E> DEVICE void add_bias_to(E* x, const float* bias, u32 rows, u32 n) {
    u64 at = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (at >= static_cast<u64>(rows) * n) return;
    Eight v = load8(x + at), more = load8(bias + at % n);
#pragma unroll
    for (int i = 0; i < 8; ++i) v.x[i] += more.x[i];
    store8(x + at, v);
}

extern "C" __global__ void add_bias(bf16* x, const float* __restrict__ bias, u32 rows, u32 n) {
    add_bias_to(x, bias, rows, n);
}

extern "C" __global__ void add_bias_f32(float* x, const float* __restrict__ bias, u32 rows, u32 n) {
    add_bias_to(x, bias, rows, n);
}
