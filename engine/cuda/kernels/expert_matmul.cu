//! MoE matrix multiplication for few rows per expert (decoding): rows sorted by expert, each times
//! its expert's weights.
//!
//! out [P, N] bf16 = x [P, K] bf16 times weights [E, N, K] transposed, plus biases [E, N] f32 if
//! given; the rows of expert e are those from offsets[e] to offsets[e + 1], offsets [E + 1] u32.
//! Weights are bf16, with K a multiple of 8; e4m3 with f32 scales [E, N / 128, K / 128], K a
//! multiple of 16; or MXFP4, two values of 4 bits in a byte, with 8-bit scales [E, N, K / 32], K a
//! multiple of 32.
//! Rows are processed 16 at a time, and the weights are read again for each 16: the kernels are for
//! experts with few rows.
//! Grid: N over 64, E. Block: 4 warps.
//@ expert_matmul_bf16: registers 224, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDS.128
//@ expert_matmul_e4m3: registers 176, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDS.128
//@ expert_matmul_mxfp4: registers 216, shared 0, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDS.128
#include "matmul.cuh"

/// Multiplies the rows of the block's expert; `all` is the matrix of the first expert.
template <class E>
DEVICE void expert_matmul(bf16* out, const bf16* x, const Matrix<E>& all, const float* biases,
                          const u32* offsets) {
    DYNAMIC_SHARED(shared);
    Matrix<E> w = all.of_expert(blockIdx.y);
    u32 first = blockIdx.x * COLUMNS, column = first + own_column();
    u32 end = offsets[blockIdx.y + 1];
    for (u32 row = offsets[blockIdx.y]; row < end; row += TOKENS) {
        Rows rows = {x + static_cast<u64>(row) * w.k, min(end - row, static_cast<u32>(TOKENS))};
        Eight sum = multiply_steps(shared, w, rows, first, 0, steps_of(w));
        if (own_token() >= rows.tokens || column >= w.n) continue;
        if (biases) {
            Eight bias = load8(biases + static_cast<u64>(blockIdx.y) * w.n + column);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum.x[i] += bias.x[i];
        }
        store8(out + static_cast<u64>(row + own_token()) * w.n + column, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
expert_matmul_bf16(bf16* out, const bf16* __restrict__ x, const bf16* __restrict__ weights,
                   const float* __restrict__ biases, const u32* __restrict__ offsets, u32 n,
                   u32 k) {
    expert_matmul(out, x, Matrix<bf16>{weights, nullptr, n, k}, biases, offsets);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
expert_matmul_e4m3(bf16* out, const bf16* __restrict__ x, const e4m3* __restrict__ weights,
                   const float* __restrict__ scales, const float* __restrict__ biases,
                   const u32* __restrict__ offsets, u32 n, u32 k) {
    expert_matmul(out, x, Matrix<e4m3>{weights, scales, n, k}, biases, offsets);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
expert_matmul_mxfp4(bf16* out, const bf16* __restrict__ x, const e2m1x2* __restrict__ weights,
                    const u8* __restrict__ scales, const float* __restrict__ biases,
                    const u32* __restrict__ offsets, u32 n, u32 k) {
    expert_matmul(out, x, Matrix<e2m1x2>{weights, scales, n, k}, biases, offsets);
}
