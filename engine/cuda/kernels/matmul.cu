//! Matrix multiplication (GEMM) of few rows with weights, for decoding, with K optionally split
//! among blocks (split-K).
//!
//! matmul: out [T, N] bf16 = x [T, K] bf16 times weights [N, K] transposed, T at most 16, summed in
//! f32. K is a multiple of 8 for bf16 weights, and of 16 for e4m3 weights, which have an f32 scale
//! for each 128 x 128. Without `out`, sums go to parts [splits, T, N] f32: to be merged if K is
//! split, or as the f32 result if there is one part.
//! matmul_merge: out [T, N] bf16, or else wide [T, N] f32 = sum of the parts, in their order. The
//! split of K does not depend on T, so the bits of a row do not depend on the batch either.
//! Grid: (N over 64, splits); for the merge a thread for each eight results. Block: 4 warps; 256.
//@ matmul_bf16: registers 120, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDS.128
//@ matmul_e4m3: registers 136, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDS.128
//@ matmul_merge: registers 40, shared 0, has LDG.E.128 STG.E.128
#include "matmul.cuh"

struct MatmulShape {
    u32 tokens, n, k;
    /// Steps of one split; a step is 128 bytes of a row of weights.
    u32 steps;
};

template <class E>
DEVICE void matmul(bf16* out, float* parts, const bf16* x, const Matrix<E>& w,
                   const MatmulShape& shape) {
    DYNAMIC_SHARED(shared);
    u32 first = blockIdx.x * COLUMNS, from = blockIdx.y * shape.steps;
    u32 to = min(from + shape.steps, steps_of(w));
    Eight sum = multiply_steps(shared, w, Rows{x, shape.tokens}, first, from, to);
    u32 token = own_token(), column = first + own_column();
    if (token >= shape.tokens || column >= shape.n) return;
    if (out) {
        store8(out + static_cast<u64>(token) * shape.n + column, sum);
    } else {
        u64 row = static_cast<u64>(blockIdx.y) * shape.tokens + token;
        store8(parts + row * shape.n + column, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
matmul_bf16(bf16* out, float* parts, const bf16* __restrict__ x, const bf16* __restrict__ weights,
            MatmulShape shape) {
    matmul(out, parts, x, Matrix<bf16>{weights, nullptr, shape.n, shape.k}, shape);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
matmul_e4m3(bf16* out, float* parts, const bf16* __restrict__ x, const e4m3* __restrict__ weights,
            const float* __restrict__ scales, MatmulShape shape) {
    matmul(out, parts, x, Matrix<e4m3>{weights, scales, shape.n, shape.k}, shape);
}

extern "C" __global__ void matmul_merge(bf16* out, float* wide, const float* __restrict__ parts,
                                        u32 splits, u32 rows, u32 n) {
    u64 at = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    u64 size = static_cast<u64>(rows) * n;
    if (at >= size) return;
    Eight sum = load8(parts + at);
    // In a fixed order, so that the bits do not depend on which block ended first.
    for (u32 split = 1; split < splits; ++split) {
        Eight more = load8(parts + split * size + at);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum.x[i] += more.x[i];
    }
    if (out) {
        store8(out + at, sum);
    } else {
        store8(wide + at, sum);
    }
}
