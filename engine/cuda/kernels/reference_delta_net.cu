//! Reference results of the gated delta net, for `redline bench --kernels --check`. The arguments
//! are those of `delta_net.cu`; only own state slots are read, and none is written.
//!
//! reference_convolve: out [T, channels] f32 = convolved and activated channels.
//! reference_delta: states [sequences, VH, KD, VD] f32 = state matrices after the step, and
//! results [T, VH, VD] f32 before the norm, row by row, a thread for each value column.
//! reference_delta_gate: want [count] f32 = normalized and gated results at indices `at`.
//! Grid: a thread for each result. Block: 128. Source: Yang, Kautz, Hatamizadeh 2024.
//@ reference_convolve: registers 64, shared 0, has LDG.E DFMA
//@ reference_delta: registers 80, shared 0, has LDG.E DFMA
//@ reference_delta_gate: registers 64, shared 0, has LDG.E DFMA
#include "delta_net.cuh"
#include "reference.cuh"

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_convolve(float* out, const float* states, const bf16* projected, const Span* spans,
                   const float* conv, u32 sequences, DeltaNetShape s) {
    u32 channel = thread_index();
    if (channel >= s.channels()) return;
    int past = static_cast<int>(s.taps) - 1;
    for (u32 i = 0; i < sequences; ++i) {
        Span span = spans[i];
        const float* history = states + static_cast<u64>(span.place) * s.place_stride;
        for (int t = 0; t < static_cast<int>(span.rows); ++t) {
            double sum = 0.0;
            for (int tap = 0; tap <= past; ++tap) {
                int from = t + tap - past;
                double x = 0.0;
                if (from >= 0) {
                    x = widen(projected[static_cast<u64>(span.row + from) * s.cols() + channel]);
                } else if (span.position > 0) {
                    x = history[static_cast<u64>(from + past) * s.channels() + channel];
                }
                sum += x * conv[static_cast<u64>(tap) * s.channels() + channel];
            }
            out[static_cast<u64>(span.row + t) * s.channels() + channel] =
                static_cast<float>(sum * logistic(sum));
        }
    }
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_delta(float* results, float* after, const float* convolved, const float* states,
                const bf16* projected, const Span* spans, const float* rate, const float* bias,
                u32 sequences, DeltaNetShape s) {
    u32 index = thread_index(), d = s.key_dim;
    if (index >= sequences * s.value_heads * s.value_dim) return;
    u32 value = index % s.value_dim, head = index / s.value_dim % s.value_heads;
    Span span = spans[index / s.value_dim / s.value_heads];
    u32 key_head = head / (s.value_heads / s.key_heads);
    u64 matrix = static_cast<u64>(s.taps - 1) * s.channels() + static_cast<u64>(head) * d * s.value_dim;
    const float* before = states + static_cast<u64>(span.place) * s.place_stride + matrix + value;
    float* state = after + static_cast<u64>(index / s.value_dim) * d * s.value_dim + value;
    for (u32 i = 0; i < d; ++i) {
        state[i * s.value_dim] = span.position > 0 ? before[i * s.value_dim] : 0.0f;
    }
    for (u32 t = span.row; t < span.row + span.rows; ++t) {
        const float* row = convolved + static_cast<u64>(t) * s.channels();
        const float *query = row + key_head * d, *key = row + (s.key_heads + key_head) * d;
        double own = row[2 * s.key_heads * d + head * s.value_dim + value];
        const bf16* inputs = projected + static_cast<u64>(t) * s.cols() + s.channels() +
                             s.value_heads * s.value_dim;
        double beta = logistic(widen(inputs[head]));
        double input = widen(inputs[s.value_heads + head]) + bias[head];
        double decay = exp(rate[head] * log(1.0 + exp(input)));
        double query_length = 0.0, key_length = 0.0, known = 0.0;
        for (u32 i = 0; i < d; ++i) {
            query_length += static_cast<double>(query[i]) * query[i];
            key_length += static_cast<double>(key[i]) * key[i];
            known += static_cast<double>(state[i * s.value_dim]) * key[i];
        }
        query_length = sqrt((query_length + 1e-6) * d);
        key_length = sqrt(key_length + 1e-6);
        double delta = (own - decay * known / key_length) * beta, result = 0.0;
        for (u32 i = 0; i < d; ++i) {
            double now = decay * state[i * s.value_dim] + key[i] / key_length * delta;
            state[i * s.value_dim] = static_cast<float>(now);
            result += now * query[i] / query_length;
        }
        results[(static_cast<u64>(t) * s.value_heads + head) * s.value_dim + value] =
            static_cast<float>(result);
    }
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_delta_gate(float* want, const u32* at, const float* results, const bf16* projected,
                     const float* norm, u32 count, DeltaNetShape s) {
    u32 i = thread_index();
    if (i >= count) return;
    u32 value = at[i] % s.value_dim, column = at[i] % (s.value_heads * s.value_dim);
    u64 row = at[i] / (s.value_heads * s.value_dim);
    const float* head = results + (at[i] - value);
    double squares = 0.0;
    for (u32 j = 0; j < s.value_dim; ++j) squares += static_cast<double>(head[j]) * head[j];
    double gate = widen(projected[row * s.cols() + s.channels() + column]);
    double y = head[value] / sqrt(squares / s.value_dim + s.epsilon) * norm[value];
    want[i] = static_cast<float>(y * gate * logistic(gate));
}
