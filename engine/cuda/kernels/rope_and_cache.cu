//! Rotary embedding (RoPE) with optional head norms, and write of keys and values to the paged KV
//! cache.
//!
//! qkv [T, (H + 2 KV) D] bf16: query heads, key heads, value heads. Queries are written back; keys
//! and values go to the KV pages only. Each query and key head x is divided by sqrt(mean(x^2) +
//! epsilon) and multiplied by its norm's weight if the layer has one (norms [2, D] f32, of queries
//! and of keys, else null); then elements i and i + P are rotated by the cos/sin table cos_sin [T, P]
//! (cosine, sine), P at most D / 2. slots [T]: the row's page times the tokens of a page, plus its
//! row in the page.
//! pages: for each page and KV head the keys of the page's tokens, [page tokens, D], in the layout
//! of `pages.cuh`, then their values; bf16, or e4m3 of x / scale with scales [2, KV] f32 of the
//! heads' keys and values. Sums and rotations are f32; D is a power of two, at most 256, and a row
//! of a page has at least 16 bytes.
//! Grid: (H + 2 KV over 4, T). Block: 4 warps, one per head. Source: Su et al. 2021.
//@ rope_and_cache_bf16: registers 48, shared 4096, has STG.E LDG.E.64
//@ rope_and_cache_e4m3: registers 48, shared 4096, has STG.E.U16 LDG.E.64
#include "pages.cuh"

#define HEADS_PER_BLOCK 4
#define HEAD_DIM_MAX 256

struct RopeShape {
    u32 heads, kv_heads, head_dim, pairs, page_tokens;
    /// Distance from one page of the layer to the next, in units of [page tokens, D].
    u32 page_stride;
    float epsilon;
};

DEVICE void put(bf16* to, float low, float high, float) {
    *reinterpret_cast<u32*>(to) = narrow(low, high);
}

DEVICE void put(e4m3* to, float low, float high, float scale) {
    *reinterpret_cast<u16*>(to) = narrow_e4m3(low / scale, high / scale);
}

/// Address of element `i` of a row of `d` elements in a page.
template <class E> DEVICE E* element(E* page, u32 page_tokens, u32 row, u32 d, u32 i) {
    constexpr u32 PER_PIECE = 16 / sizeof(E);
    u32 bytes = place_in_page(d / PER_PIECE, page_tokens, row, i / PER_PIECE);
    return page + bytes / sizeof(E) + i % PER_PIECE;
}

/// Reads one head into shared memory by the lanes of a warp, two elements at a time.
DEVICE void read(float* head, const bf16* from, u32 d) {
    for (u32 i = lane() * 2; i < d; i += 2 * LANES) {
        u32 both = *reinterpret_cast<const u32*>(from + i);
        head[i] = widen_low(both);
        head[i + 1] = widen_high(both);
    }
}

DEVICE void norm(float* head, const float* weight, u32 d, float epsilon) {
    float squares = 0.0f;
    for (u32 i = lane() * 2; i < d; i += 2 * LANES) {
        squares += head[i] * head[i] + head[i + 1] * head[i + 1];
    }
    float scale = rsqrtf(warp_sum(squares) / d + epsilon);
    for (u32 i = lane() * 2; i < d; i += 2 * LANES) {
        head[i] = head[i] * scale * weight[i];
        head[i + 1] = head[i + 1] * scale * weight[i + 1];
    }
}

/// Element `i` of a head after its rotation.
DEVICE float turned(const float* head, const float2* cos_sin, u32 pairs, u32 i) {
    if (i >= 2 * pairs) return head[i];
    float2 pair = cos_sin[i < pairs ? i : i - pairs];
    return i < pairs ? head[i] * pair.x - head[i + pairs] * pair.y
                     : head[i] * pair.x + head[i - pairs] * pair.y;
}

template <class E>
DEVICE void rope_and_cache(bf16* qkv, E* pages, const float2* cos_sin, const u32* slots,
                           const float* norms, const float* scales, const RopeShape& s) {
    __shared__ float heads[HEADS_PER_BLOCK][HEAD_DIM_MAX];
    float* head = heads[warp()];
    u32 index = blockIdx.y * HEADS_PER_BLOCK + warp(), row = blockIdx.x, d = s.head_dim;
    if (index >= s.heads + 2 * s.kv_heads) return;
    bf16* from = qkv + (static_cast<u64>(row) * (s.heads + 2 * s.kv_heads) + index) * d;
    bool is_query = index < s.heads, is_value = index >= s.heads + s.kv_heads;
    read(head, from, d);
    if (norms && !is_value) norm(head, norms + (is_query ? 0 : d), d, s.epsilon);
    // The rotation of an element needs another one, which a different lane may have written.
    __syncwarp();
    // Index of the KV head, counting key heads, then value heads.
    u32 stored = is_query ? 0 : index - s.heads;
    u32 page = slots[row] / s.page_tokens, token = slots[row] % s.page_tokens;
    u64 block = static_cast<u64>(page) * s.page_stride + 2 * (stored % s.kv_heads) + is_value;
    float scale = scales && !is_query ? scales[stored] : 1.0f;
    u32 pairs = is_value ? 0 : s.pairs;
    const float2* own = cos_sin + static_cast<u64>(row) * s.pairs;
    for (u32 i = lane() * 2; i < d; i += 2 * LANES) {
        float low = turned(head, own, pairs, i), high = turned(head, own, pairs, i + 1);
        if (is_query) {
            *reinterpret_cast<u32*>(from + i) = narrow(low, high);
        } else {
            E* to = element(pages + block * s.page_tokens * d, s.page_tokens, token, d, i);
            put(to, low, high, scale);
        }
    }
}

extern "C" __global__ void __launch_bounds__(HEADS_PER_BLOCK* LANES)
rope_and_cache_bf16(bf16* qkv, bf16* pages, const float2* __restrict__ cos_sin,
                    const u32* __restrict__ slots, const float* __restrict__ norms,
                    const float* __restrict__ scales, RopeShape shape) {
    rope_and_cache(qkv, pages, cos_sin, slots, norms, scales, shape);
}

extern "C" __global__ void __launch_bounds__(HEADS_PER_BLOCK* LANES)
rope_and_cache_e4m3(bf16* qkv, e4m3* pages, const float2* __restrict__ cos_sin,
                    const u32* __restrict__ slots, const float* __restrict__ norms,
                    const float* __restrict__ scales, RopeShape shape) {
    rope_and_cache(qkv, pages, cos_sin, slots, norms, scales, shape);
}
