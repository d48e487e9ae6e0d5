//! RMS norm of rows, alone or after a residual addition.
//!
//! rms_norm: out [T, N] bf16 = x [T, N] bf16 / sqrt(mean(x^2) + epsilon) * weight [N] f32.
//! add_rms_norm: x += delta [T, N] bf16 first. The norm is computed from the rounded x, so that it
//! has the same bits as rms_norm of the x in memory. Sums are f32.
//! N is a multiple of 8, at most 8192: each thread keeps eight elements of the row in registers, so
//! memory is read once.
//! Grid: T. Block: whole warps, N / 8 threads or a few more. Source: Zhang and Sennrich 2019.
//@ rms_norm: registers 40, shared 128, has LDG.E.128 STG.E.128 SHFL.BFLY
//@ add_rms_norm: registers 40, shared 128, has LDG.E.128 STG.E.128 SHFL.BFLY
#include "prims.cuh"

DEVICE float square_sum(const Eight& v) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += v.x[i] * v.x[i];
    return sum;
}

/// Normalizes the row of which this thread holds `v`, the elements from `column`.
DEVICE void norm(bf16* out, Eight v, const float* weight, u32 column, u32 n, float epsilon) {
    __shared__ float parts[LANES];
    float scale = rsqrtf(block_sum(square_sum(v), parts) / n + epsilon);
    if (column >= n) return;
    Eight weights = load8(weight + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) v.x[i] = v.x[i] * scale * weights.x[i];
    store8(out + static_cast<u64>(blockIdx.x) * n + column, v);
}

extern "C" __global__ void __launch_bounds__(1024)
rms_norm(bf16* out, const bf16* __restrict__ x, const float* __restrict__ weight, u32 n,
         float epsilon) {
    u32 column = threadIdx.x * 8;
    Eight v = {};
    if (column < n) v = load8(x + static_cast<u64>(blockIdx.x) * n + column);
    norm(out, v, weight, column, n, epsilon);
}

extern "C" __global__ void __launch_bounds__(1024)
add_rms_norm(bf16* out, bf16* x, const bf16* __restrict__ delta, const float* __restrict__ weight,
             u32 n, float epsilon) {
    u32 column = threadIdx.x * 8;
    u64 at = static_cast<u64>(blockIdx.x) * n + column;
    Eight v = {};
    if (column < n) {
        v = load8(x + at);
        Eight more = load8(delta + at);
#pragma unroll
        for (int i = 0; i < 8; ++i) v.x[i] += more.x[i];
        store8(x + at, v);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            // Rounds as the store does, so that the norm is that of the x in memory.
            u32 both = narrow(v.x[i], v.x[i + 1]);
            v.x[i] = widen_low(both);
            v.x[i + 1] = widen_high(both);
        }
    }
    norm(out, v, weight, column, n, epsilon);
}
