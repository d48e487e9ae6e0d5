//! Gated activation functions (SwiGLU and its variants).
//!
//! silu_mul: out [T, N] = silu(gate) * up, where gate_up [T, 2 N] has the gates first.
//! clamped_swiglu: out = (up' + 1) * gate' * sigmoid(alpha * gate'), gate' at most `limit`, up' from
//! -limit to limit. Source: OpenAI 2025 (gpt-oss).
//! sigmoid_mul: x [T, N] *= sigmoid(gate [T, N]).
//! All bf16, computed in f32; N is a multiple of 8.
//! Grid and block: a thread for each eight outputs.
//@ silu_mul: registers 48, shared 0, has LDG.E.128 STG.E.128 MUFU.EX2
//@ clamped_swiglu: registers 48, shared 0, has LDG.E.128 STG.E.128 MUFU.EX2
//@ sigmoid_mul: registers 48, shared 0, has LDG.E.128 STG.E.128 MUFU.EX2
#include "prims.cuh"

/// Index of the first of this thread's eight outputs.
DEVICE u64 first_output() {
    return (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
}

DEVICE float sigmoid(float x) {
    return 1.0f / (1.0f + exp2_fast(-LOG2_E * x));
}

extern "C" __global__ void silu_mul(bf16* out, const bf16* __restrict__ gate_up, u32 rows, u32 n) {
    u64 at = first_output();
    if (at >= static_cast<u64>(rows) * n) return;
    const bf16* from = gate_up + at / n * n + at;
    Eight gate = load8(from), up = load8(from + n);
#pragma unroll
    for (int i = 0; i < 8; ++i) up.x[i] *= gate.x[i] * sigmoid(gate.x[i]);
    store8(out + at, up);
}

extern "C" __global__ void clamped_swiglu(bf16* out, const bf16* __restrict__ gate_up, u32 rows,
                                          u32 n, float alpha, float limit) {
    u64 at = first_output();
    if (at >= static_cast<u64>(rows) * n) return;
    const bf16* from = gate_up + at / n * n + at;
    Eight gate = load8(from), up = load8(from + n);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float g = fminf(gate.x[i], limit);
        float u = fminf(fmaxf(up.x[i], -limit), limit);
        up.x[i] = (u + 1.0f) * g * sigmoid(alpha * g);
    }
    store8(out + at, up);
}

extern "C" __global__ void sigmoid_mul(bf16* x, const bf16* __restrict__ gate, u32 rows, u32 n) {
    u64 at = first_output();
    if (at >= static_cast<u64>(rows) * n) return;
    Eight v = load8(x + at), gates = load8(gate + at);
#pragma unroll
    for (int i = 0; i < 8; ++i) v.x[i] *= sigmoid(gates.x[i]);
    store8(x + at, v);
}
