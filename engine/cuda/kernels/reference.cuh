//! Parts that the reference kernels share: positions of threads and sums over a warp in f64.
//!
//! Reference kernels compute single elements of another kernel's result with plain loops, in f64
//! where that kernel sums in f32. They share no code with the kernels that they check, except
//! functions that define the layout of stored data. `want` [count] f32 are the elements at the
//! indices `at` [count], and `size` [count] f32 the same sums over absolute values, from which
//! tolerances are computed.
#pragma once
#include "prims.cuh"

#define REFERENCE_BLOCK 128

/// Index of this thread, or of this thread's warp, in the grid.
DEVICE u32 thread_index() { return blockIdx.x * REFERENCE_BLOCK + threadIdx.x; }
DEVICE u32 warp_index() { return blockIdx.x * (REFERENCE_BLOCK / LANES) + warp(); }

DEVICE double lanes_sum(double x) {
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/// Value of a stored number, computed from its sign, exponent and mantissa.
DEVICE double value_of(bf16 x) { return widen(x); }
DEVICE double value_of(e4m3 x) {
    int exponent = x.bits >> 3 & 15, mantissa = x.bits & 7;
    float size = exponent > 0 ? ldexpf(static_cast<float>(8 + mantissa), exponent - 10)
                              : ldexpf(static_cast<float>(mantissa), -9);
    return x.bits & 0x80 ? -size : size;
}

DEVICE double logistic(double x) { return 1.0 / (1.0 + exp(-x)); }
