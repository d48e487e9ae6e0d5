//! Cos/sin table of the rotary embedding for a step's rows, computed once for all layers.
//!
//! out [T, P] (cosine, sine) f32 of the angles positions [T] * frequencies [P], times `factor`.
//! Angles are rounded to f32, as on the CPU; full rotations are then subtracted in f64, so that
//! large positions stay accurate.
//! Grid and block: a thread for each angle. Source: Su et al. 2021.
//@ cos_sin_table: registers 48, shared 0, has DMUL STG.E.64
#include "prims.cuh"

extern "C" __global__ void cos_sin_table(float2* out, const u32* __restrict__ positions,
                                         const float* __restrict__ frequencies, u32 rows, u32 pairs,
                                         float factor) {
    constexpr double ONE_OVER_PI = 0.318309886183790671538;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * pairs) return;
    float angle = static_cast<float>(positions[i / pairs]) * frequencies[i % pairs];
    // In units of pi, as `sincospif` takes it: whole rotations are even integers.
    double halves = angle * ONE_OVER_PI;
    float sine, cosine;
    sincospif(static_cast<float>(halves - 2.0 * rint(0.5 * halves)), &sine, &cosine);
    out[i] = make_float2(cosine * factor, sine * factor);
}
