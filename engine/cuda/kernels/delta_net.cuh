//! Shapes, rows and gates of the gated delta net, shared by its kernels.
#pragma once
#include "prims.cuh"

struct DeltaNetShape {
    u32 key_heads, value_heads, key_dim, value_dim, taps;
    /// Distance from one state slot to the next, in f32 elements.
    u32 place_stride;
    float epsilon;

    DEVICE_MEMBER u32 channels() const {
        return 2 * key_heads * key_dim + value_heads * value_dim;
    }
    DEVICE_MEMBER u32 cols() const { return channels() + value_heads * (value_dim + 2); }
};

/// One sequence's rows of the step.
struct Span {
    u32 row, rows;
    /// Position of the first row; at position 0 the state is zeros.
    u32 position;
    u32 place;
    /// Another state slot to read from, and another to write to as well, or NONE.
    u32 load, save;

    DEVICE_MEMBER u32 from() const { return load == NONE ? place : load; }
};

DEVICE float silu(float x) { return x / (1.0f + exp2_fast(-LOG2_E * x)); }

/// One convolution channel of the sequence's row `t`, or for negative `t` of a row before this
/// step; 0 before the start of the sequence.
DEVICE float channel_at(const bf16* projected, const float* history, const Span& span,
                        const DeltaNetShape& shape, int t, u32 channel) {
    if (t >= 0) return widen(projected[(span.row + t) * static_cast<u64>(shape.cols()) + channel]);
    if (span.position == 0) return 0.0f;
    u64 row = static_cast<u64>(t + static_cast<int>(shape.taps) - 1);
    return history[row * shape.channels() + channel];
}

/// Gates of one row: logarithm of the factor by which the head's matrix decays, and weight beta of
/// the update.
struct Step {
    float log_decay, beta;

    DEVICE_MEMBER float decay() const { return expf(log_decay); }
};

DEVICE Step step_of(const bf16* row, const float* rates, const DeltaNetShape& shape, u32 head) {
    const bf16* scalars = row + shape.channels() + shape.value_heads * shape.value_dim;
    float input = widen(scalars[shape.value_heads + head]) + rates[shape.value_heads + head];
    // For larger inputs, 1 + e^x and e^x are the same f32.
    float softplus = input > 20.0f ? input : log1pf(expf(input));
    float beta = 1.0f / (1.0f + exp2_fast(-LOG2_E * widen(scalars[head])));
    return {rates[head] * softplus, beta};
}
