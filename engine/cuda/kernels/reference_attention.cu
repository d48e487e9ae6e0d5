//! Reference results of attention, and of the rotation and the keys and values that a step stores,
//! for `redline bench --kernels --check`.
//!
//! reference_attention: want and size [count, D] f32 of lines (a row's query of one head): exact
//! softmax over all visible positions, in two passes. `sinks` [H] and `scales` [2, KV] may be null.
//! reference_rope: want [count] f32 of elements of qkv [T, (H + 2 KV) D] bf16 after head norms
//! (norms [2, D] f32 or null) and rotation, divided by the scale of its head if it is stored with
//! one; angles are computed in f64 from positions [T] and frequencies [P].
//! Grid: a warp for each line; a thread for each element. Block: 128.
//@ reference_attention_bf16: registers 128, shared 0, has LDG.E DFMA
//@ reference_attention_e4m3: registers 128, shared 0, has LDG.E DFMA
//@ reference_rope: registers 96, shared 0, has LDG.E DFMA
#include "pages.cuh"
#include "reference.cuh"

/// Elements of a head that a lane has at most.
#define ELEMENTS 8

struct ReferenceLine {
    u32 row, head;
    /// Positions that precede the row in its sequence, and first entry of the sequence's page table.
    u32 position, table;
};

struct ReferenceAttention {
    u32 count, heads, kv_heads, head_dim, page_tokens;
    /// Distance from one page of the layer to the next, in units of [page tokens, D].
    u32 page_stride;
    u32 window;
    float scale;
};

/// Element of the key (`is_value` 0) or value (1) at a position.
template <class E>
DEVICE double stored(const E* pages, const u32* table, const ReferenceAttention& s, u32 kv_head,
                     u32 is_value, u32 position, u32 i) {
    constexpr u32 PER_PIECE = 16 / sizeof(E);
    u64 page = static_cast<u64>(table[position / s.page_tokens]) * s.page_stride + 2 * kv_head;
    u64 first = (page + is_value) * s.page_tokens * s.head_dim;
    u32 bytes = place_in_page(s.head_dim / PER_PIECE, s.page_tokens, position % s.page_tokens,
                              i / PER_PIECE);
    return value_of(pages[first + bytes / sizeof(E) + i % PER_PIECE]);
}

template <class E>
DEVICE void reference_attention(float* want, float* size, const ReferenceLine* lines,
                                const u32* tables, const bf16* qkv, const E* pages,
                                const float* sinks, const float* scales,
                                const ReferenceAttention& s) {
    u32 index = warp_index(), d = s.head_dim;
    if (index >= s.count) return;
    ReferenceLine line = lines[index];
    const u32* table = tables + line.table;
    u32 kv_head = line.head / (s.heads / s.kv_heads);
    u64 query = (static_cast<u64>(line.row) * (s.heads + 2 * s.kv_heads) + line.head) * d;
    u32 seen = line.position + 1, first = s.window > 0 && seen > s.window ? seen - s.window : 0;
    double key_scale = scales ? scales[kv_head] : 1.0f;
    double value_scale = scales ? scales[s.kv_heads + kv_head] : 1.0f;
    auto score = [&](u32 position) -> double {
        double dot = 0.0;
        for (u32 i = lane(); i < d; i += LANES) {
            dot += value_of(qkv[query + i]) * stored(pages, table, s, kv_head, 0, position, i);
        }
        return lanes_sum(dot) * key_scale * s.scale;
    };
    double largest = sinks ? sinks[line.head] : -1e300;
    for (u32 position = first; position < seen; ++position) largest = fmax(largest, score(position));
    double total = sinks ? exp(sinks[line.head] - largest) : 0.0;
    double sums[ELEMENTS] = {}, sizes[ELEMENTS] = {};
    for (u32 position = first; position < seen; ++position) {
        double weight = exp(score(position) - largest);
        total += weight;
#pragma unroll
        for (u32 j = 0; j < ELEMENTS; ++j) {
            u32 i = lane() + j * LANES;
            if (i >= d) continue;
            double term = weight * stored(pages, table, s, kv_head, 1, position, i);
            sums[j] += term;
            sizes[j] += fabs(term);
        }
    }
#pragma unroll
    for (u32 j = 0; j < ELEMENTS; ++j) {
        u32 i = lane() + j * LANES;
        if (i >= d) continue;
        want[static_cast<u64>(index) * d + i] = static_cast<float>(sums[j] / total * value_scale);
        size[static_cast<u64>(index) * d + i] = static_cast<float>(sizes[j] / total * value_scale);
    }
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_attention_bf16(float* want, float* size, const ReferenceLine* lines, const u32* tables,
                         const bf16* qkv, const bf16* pages, const float* sinks,
                         const float* scales, ReferenceAttention shape) {
    reference_attention(want, size, lines, tables, qkv, pages, sinks, scales, shape);
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_attention_e4m3(float* want, float* size, const ReferenceLine* lines, const u32* tables,
                         const bf16* qkv, const e4m3* pages, const float* sinks,
                         const float* scales, ReferenceAttention shape) {
    reference_attention(want, size, lines, tables, qkv, pages, sinks, scales, shape);
}

struct ReferenceRope {
    u32 count, heads, kv_heads, head_dim, pairs;
    float epsilon, factor;
};

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_rope(float* want, const u32* at, const bf16* qkv, const u32* positions,
               const float* frequencies, const float* norms, const float* scales, ReferenceRope s) {
    u32 index = thread_index();
    if (index >= s.count) return;
    u32 d = s.head_dim, i = at[index] % d, all = s.heads + 2 * s.kv_heads;
    u32 head = at[index] / d % all, row = at[index] / d / all;
    const bf16* own = qkv + (at[index] - i);
    bool is_query = head < s.heads, is_value = head >= s.heads + s.kv_heads;
    double norm = 1.0;
    if (norms && !is_value) {
        double squares = 0.0;
        for (u32 j = 0; j < d; ++j) squares += value_of(own[j]) * value_of(own[j]);
        norm = 1.0 / sqrt(squares / d + s.epsilon);
    }
    auto element = [&](u32 j) -> double {
        double weight = norms && !is_value ? norms[(is_query ? 0 : d) + j] : 1.0f;
        return value_of(own[j]) * norm * weight;
    };
    double result = element(i);
    if (!is_value && i < 2 * s.pairs) {
        u32 pair = i % s.pairs;
        // The angle is rounded to f32, as models are trained with it.
        float angle = static_cast<float>(positions[row]) * frequencies[pair];
        double halves = angle * 0.318309886183790671538;
        double cosine = cospi(halves), sine = sinpi(halves);
        double low = element(pair), high = element(pair + s.pairs);
        result = s.factor * (i < s.pairs ? low * cosine - high * sine : high * cosine + low * sine);
    }
    if (scales && !is_query) result /= scales[head - s.heads];
    want[index] = static_cast<float>(result);
}
