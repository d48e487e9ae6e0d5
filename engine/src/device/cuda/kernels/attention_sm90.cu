//! `attention` of bf16 by warpgroups where an item has more than 16 lines, for GPUs of compute
//! capability 9.0. Items, tiles and softmax are those of `attention`; the warpgroup multiplies all its
//! lines at once, keys and values read by the tensor cores where they were copied to.
//! Source: Shah et al. 2024 (FlashAttention-3).
//@ for sm_90a
//@ attention_bf16_64: registers 200, shared 1024, has HGMMA.64x64x16.F32.BF16 LDGSTS.E.BYPASS.128 WARPGROUP.DEPBAR
//@ attention_bf16_128: registers 255, shared 1024, has HGMMA.64x128x16.F32.BF16 LDGSTS.E.BYPASS.128 WARPGROUP.DEPBAR
#include "attention.cuh"
#include "warpgroup.cuh"

/// How the warpgroup multiplies its lines with a tile.
template <int D> struct WarpgroupWay {
    static constexpr int STEPS = D / 16, POSITIONS = TILE;
    /// Bytes of 64 columns of a tile.
    static constexpr int PANEL_BYTES = TILE * 128;
    u32 line, first;
    /// The warp's lines of queries, as products take them.
    u32 queries[STEPS][4];

    DEVICE_MEMBER void begin(const Tiles<bf16, D>& tiles) {
        __syncthreads();
        u32 matrix = lane() / 8;
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            u32 row = line + lane() % 8 + matrix % 2 * 8;
            load_matrices(queries[k], place<D / 8>(tiles.queries, row, 2 * k + matrix / 2));
        }
    }

    DEVICE_MEMBER void share() const { publish_to_products(); }

    /// Scores over the tile's keys.
    DEVICE_MEMBER void score(float (&scores)[TILE / 8][4], const Tiles<bf16, D>& tiles,
                             u32 stage) const {
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n) {
            for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
        }
        begin_products();
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const u8* panel = tiles.keys(stage) + k / 4 * PANEL_BYTES;
            multiply_add_64x64<false>(scores, queries[k], describe(panel) + k % 4 * 2);
        }
        close_products();
        await_products();
        take_sums(scores);
    }

    /// `sums += weights * values`.
    DEVICE_MEMBER void weigh(const float (&weights)[TILE / 8][4], const Tiles<bf16, D>& tiles,
                             u32 stage, Lines<D>& lines) const {
        u32 weight[TILE / 16][4];
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) {
            const float(&low)[4] = weights[2 * k], (&high)[4] = weights[2 * k + 1];
            weight[k][0] = narrow(low[0], low[1]);
            weight[k][1] = narrow(low[2], low[3]);
            weight[k][2] = narrow(high[0], high[1]);
            weight[k][3] = narrow(high[2], high[3]);
        }
        u64 values = describe_transposed(tiles.values(stage), PANEL_BYTES);
        begin_products();
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) {
            if constexpr (D == 64) {
                multiply_add_64x64<true>(lines.sums, weight[k], values + 128 * k);
            } else {
                multiply_add_64x128<true>(lines.sums, weight[k], values + 128 * k);
            }
        }
        close_products();
        await_products();
        take_sums(lines.sums);
    }
};

#define ATTENTION(NAME, D)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        NAME(bf16* out, float* parts, const bf16* __restrict__ qkv,                                \
             const bf16* __restrict__ pages, const u32* __restrict__ plan,                         \
             const float* __restrict__ layer, AttentionShape shape) {                              \
        DYNAMIC_TILES(shared);                                                                     \
        attention<bf16, D, WarpgroupWay<D>>(shared, out, parts, qkv, pages, plan, layer, shape);   \
    }

ATTENTION(attention_bf16_64, 64)
ATTENTION(attention_bf16_128, 128)
