//! Shapes, rows and gates of gated DeltaNet, as all its kernels have them.
#pragma once
#include "prims.cuh"

struct DeltaNetShape {
    u32 key_heads, value_heads, key_dim, value_dim, taps;
    /// From one place to the next, in f32.
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
    /// Of the first row; a sequence that begins has a state of zeros.
    u32 position;
    u32 place;
    /// Another place to read from, or to write to as well, or NONE.
    u32 load, save;

    DEVICE_MEMBER u32 from() const { return load == NONE ? place : load; }
};

DEVICE float silu(float x) { return x / (1.0f + exp2_fast(-LOG2_E * x)); }

/// One channel of a span's row `t`, or of one that was before it; 0 before the sequence.
DEVICE float channel_at(const bf16* projected, const float* history, const Span& span,
                        const DeltaNetShape& shape, int t, u32 channel) {
    if (t >= 0) return widen(projected[(span.row + t) * static_cast<u64>(shape.cols()) + channel]);
    if (span.position == 0) return 0.0f;
    u64 row = static_cast<u64>(t + static_cast<int>(shape.taps) - 1);
    return history[row * shape.channels() + channel];
}

/// How much a row leaves of a head's matrix, as a logarithm, and how much it adds.
struct Step {
    float log_decay, beta;

    DEVICE_MEMBER float decay() const { return expf(log_decay); }
};

DEVICE Step step_of(const bf16* row, const float* rates, const DeltaNetShape& shape, u32 head) {
    const bf16* scalars = row + shape.channels() + shape.value_heads * shape.value_dim;
    float input = widen(scalars[shape.value_heads + head]) + rates[shape.value_heads + head];
    // Above, 1 + e^x has no other bits than e^x.
    float softplus = input > 20.0f ? input : log1pf(expf(input));
    float beta = 1.0f / (1.0f + exp2_fast(-LOG2_E * widen(scalars[head])));
    return {rates[head] * softplus, beta};
}
