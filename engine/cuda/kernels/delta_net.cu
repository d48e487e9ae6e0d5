//! Gated delta net (linear attention) between its projections, row by row, for decoding.
//!
//! delta_net: out [T, VH VD] bf16 from projected [T, 2 KH KD + VH (2 VD + 2)] bf16, which holds the
//! queries and keys of all key heads and the values of all value heads, all to be convolved; then
//! gates; inputs of beta; inputs of the decay. layer f32: conv [taps, channels], the oldest token
//! first; rate [VH]; bias [VH]; norm [VD]. A state slot, f32: the last taps - 1 rows of channels,
//! then matrices [VH, KD, VD].
//! A sequence that does not begin in this step reads its state from `place`, or from `load` if that
//! is set; matrices are written to `place`, and to `save` too if that is set. delta_net_history,
//! launched afterwards, does the same for the rows of channels.
//!
//! A block keeps the matrix of one value head in registers while it goes over a sequence's rows: a
//! thread has 32 keys of one value column, or 8 for heads that are not whole warps. KD is a
//! multiple of these; VD times KD divided by them is a multiple of 32, and at most 512.
//! Grid: (VH, sequences); (channels / 256, sequences). Block: a thread for each 32 or 8 of KD VD;
//! 256.
//! Source: Yang, Kautz, Hatamizadeh 2024 (Gated Delta Networks), in the form of Qwen3.5.
//@ delta_net: registers 128, shared 128, has SHFL.BFLY MUFU.EX2 STG.E
//@ delta_net_8: registers 128, shared 128, has SHFL.BFLY MUFU.EX2 STG.E
//@ delta_net_history: registers 40, shared 0, has LDG.E.U16 STG.E
#include "delta_net.cuh"

/// Threads of the largest block. A multiprocessor runs one such block: two would have too few
/// registers.
#define THREADS 512
/// Largest number of earlier tokens that the convolution reads.
#define PAST_MAX 7

/// Sums over a head's convolved query and key, the same in every warp: squared lengths of both, and
/// their dot product.
struct Lengths {
    float query, key, both;
};

DEVICE Lengths lengths_of(const float* query, const float* key, u32 n) {
    Lengths sums = {};
    for (u32 i = lane(); i < n; i += LANES) {
        sums.query += query[i] * query[i];
        sums.key += key[i] * key[i];
        sums.both += query[i] * key[i];
    }
    return {warp_sum(sums.query), warp_sum(sums.key), warp_sum(sums.both)};
}

/// Products of a value's state column with the key and with the query, summed over the threads that
/// share it.
template <int KEYS>
DEVICE float2 sum_parts(float2* parts, const float (&state)[KEYS], const float* query,
                        const float* key, const DeltaNetShape& shape) {
    float2 own = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        own.x += state[i] * key[i];
        own.y += state[i] * query[i];
    }
    parts[threadIdx.x] = own;
    __syncthreads();
    float2 sum = make_float2(0.0f, 0.0f);
    for (u32 at = threadIdx.x % shape.value_dim; at < blockDim.x; at += shape.value_dim) {
        sum.x += parts[at].x;
        sum.y += parts[at].y;
    }
    return sum;
}

/// Convolves the head's query, key and values of row `t` to `to`.
DEVICE void convolve(float* to, const bf16* projected, const float* history, const float* conv,
                     const Span& span, const DeltaNetShape& shape, int t) {
    u32 head = blockIdx.x, key_head = head / (shape.value_heads / shape.key_heads);
    u32 d = shape.key_dim, past = shape.taps - 1;
    for (u32 i = threadIdx.x; i < 2 * d + shape.value_dim; i += blockDim.x) {
        u32 channel = i < d       ? key_head * d + i
                      : i < 2 * d ? (shape.key_heads + key_head) * d + i - d
                                  : 2 * shape.key_heads * d + head * shape.value_dim + i - 2 * d;
        float sum = 0.0f;
        for (u32 tap = 0; tap <= past; ++tap) {
            int at = t + static_cast<int>(tap) - static_cast<int>(past);
            sum += conv[static_cast<u64>(tap) * shape.channels() + channel] *
                   channel_at(projected, history, span, shape, at, channel);
        }
        to[i] = silu(sum);
    }
    __syncthreads();
}

/// Loads a thread's share of a matrix whose rows are `stride` elements apart.
template <int KEYS> DEVICE void load_keys(float (&state)[KEYS], const float* from, u32 stride) {
#pragma unroll
    for (u32 i = 0; i < KEYS; ++i, from += stride) state[i] = *from;
}

template <int KEYS> DEVICE void store_keys(float* to, const float (&state)[KEYS], u32 stride) {
#pragma unroll
    for (u32 i = 0; i < KEYS; ++i, to += stride) *to = state[i];
}

template <int KEYS>
DEVICE void run(bf16* out, float* states, const bf16* projected, const Span* spans,
                const float* layer, const DeltaNetShape& shape) {
    DYNAMIC_SHARED(shared);
    __shared__ float squares[LANES];
    u32 head = blockIdx.x, d = shape.key_dim, value = threadIdx.x % shape.value_dim;
    u32 first = threadIdx.x / shape.value_dim * KEYS;
    float* convolved = reinterpret_cast<float*>(shared);
    float2* parts = reinterpret_cast<float2*>(convolved + 2 * d + shape.value_dim);
    const float *query = convolved, *key = convolved + d;
    const float* rates = layer + static_cast<u64>(shape.taps) * shape.channels();
    Span span = spans[blockIdx.y];
    const float* history = states + static_cast<u64>(span.from()) * shape.place_stride;
    u64 matrix = static_cast<u64>(shape.taps - 1) * shape.channels() +
                 (static_cast<u64>(head) * d + first) * shape.value_dim + value;
    float state[KEYS] = {};
    if (span.position > 0) load_keys(state, history + matrix, shape.value_dim);
    for (u32 t = 0; t < span.rows; ++t) {
        const bf16* row = projected + static_cast<u64>(span.row + t) * shape.cols();
        convolve(convolved, projected, history, layer, span, shape, static_cast<int>(t));
        Step step = step_of(row, rates, shape, head);
        float decay = step.decay();
        Lengths lengths = lengths_of(query, key, d);
        float key_scale = rsqrtf(lengths.key + 1e-6f);
        // Normalizes the query and scales it by 1 / sqrt(KD) in one step.
        float query_scale = rsqrtf((lengths.query + 1e-6f) * d);
        float2 sums = sum_parts(parts, state, query + first, key + first, shape);
        float delta = (convolved[2 * d + value] - decay * sums.x * key_scale) * step.beta;
        // The update is the key, normalized to length 1, times delta.
        delta *= key_scale;
        float y = (decay * sums.y + delta * lengths.both) * query_scale;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) state[i] = decay * state[i] + key[first + i] * delta;
        // Only the first thread of each value contributes; the others hold the same value for other
        // keys.
        float mean = block_sum(first == 0 ? y * y : 0.0f, squares) / shape.value_dim;
        // One thread per value writes; the others were needed for the barriers above.
        if (first > 0) continue;
        u32 column = head * shape.value_dim + value;
        float gate = silu(widen(row[shape.channels() + column]));
        y *= rsqrtf(mean + shape.epsilon) * rates[2 * shape.value_heads + value] * gate;
        u64 to = static_cast<u64>(span.row + t) * shape.value_heads * shape.value_dim + column;
        out[to].bits = static_cast<u16>(narrow(y, 0.0f));
    }
    store_keys(states + static_cast<u64>(span.place) * shape.place_stride + matrix, state,
               shape.value_dim);
    if (span.save == NONE) return;
    store_keys(states + static_cast<u64>(span.save) * shape.place_stride + matrix, state,
               shape.value_dim);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
delta_net(bf16* out, float* states, const bf16* __restrict__ projected,
          const Span* __restrict__ spans, const float* __restrict__ layer, DeltaNetShape shape) {
    run<32>(out, states, projected, spans, layer, shape);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
delta_net_8(bf16* out, float* states, const bf16* __restrict__ projected,
            const Span* __restrict__ spans, const float* __restrict__ layer, DeltaNetShape shape) {
    run<8>(out, states, projected, spans, layer, shape);
}

extern "C" __global__ void delta_net_history(float* states, const bf16* __restrict__ projected,
                                             const Span* __restrict__ spans, DeltaNetShape shape) {
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= shape.channels()) return;
    Span span = spans[blockIdx.y];
    const float* history = states + static_cast<u64>(span.from()) * shape.place_stride;
    int past = static_cast<int>(shape.taps) - 1;
    float last[PAST_MAX];
    // Rows move towards the front, so that all are read before any is written.
#pragma unroll
    for (int i = 0; i < PAST_MAX; ++i) {
        int t = static_cast<int>(span.rows) + i - past;
        last[i] = i < past ? channel_at(projected, history, span, shape, t, channel) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < PAST_MAX; ++i) {
        if (i >= past) continue;
        u64 at = static_cast<u64>(i) * shape.channels() + channel;
        states[static_cast<u64>(span.place) * shape.place_stride + at] = last[i];
        if (span.save == NONE) continue;
        states[static_cast<u64>(span.save) * shape.place_stride + at] = last[i];
    }
}
