//! Kernels of paged attention for GPUs of compute capability 9.0 (Hopper). Items, tiles and softmax
//! are those of `attention.cu`. Keys and values are copied by bulk copies (TMA), the rows of a page
//! at a time. With more than 16 lines, the warpgroup multiplies all of them at once (WGMMA), and
//! the tensor cores read keys and values from shared memory, where they were copied to or converted
//! to bf16. Source: Shah et al. 2024 (FlashAttention-3).
//@ for sm_90a
//@ attention_bf16_64: registers 128, shared 1024, has HGMMA.64x64x16.F32.BF16 UBLKCP WARPGROUP.DEPBAR, lacks LDGSTS
//@ attention_bf16_128: registers 176, shared 1024, has HGMMA.64x128x16.F32.BF16 UBLKCP WARPGROUP.DEPBAR, lacks LDGSTS
//@ attention_bf16_256: registers 255, shared 1024, has HGMMA.64x128x16.F32.BF16 UBLKCP WARPGROUP.DEPBAR, lacks LDGSTS
//@ attention_e4m3_64: registers 128, shared 1024, has HGMMA.64x64x16.F32.BF16 UBLKCP WARPGROUP.DEPBAR, lacks LDGSTS
//@ attention_e4m3_128: registers 176, shared 1024, has HGMMA.64x128x16.F32.BF16 UBLKCP WARPGROUP.DEPBAR, lacks LDGSTS
//@ attention_e4m3_256: registers 255, shared 1024, has HGMMA.64x128x16.F32.BF16 UBLKCP WARPGROUP.DEPBAR, lacks LDGSTS
#include "attention.cuh"
#include "bulk.cuh"
#include "warpgroup.cuh"

/// Copies tiles by bulk copies, each of as many rows as a page has of one panel, started by the
/// first warp.
template <class E, int D> struct BulkCopies {
    using Own = Tiles<E, D>;
    static constexpr u32 ROW_BYTES = Own::WIDTH * 16, PANELS = Own::PIECES / Own::WIDTH;
    /// Arrival barriers of the two stages, in shared memory.
    u64* arrivals;
    /// Phase of each stage's barrier, one bit per stage.
    u32 phases;

    DEVICE_MEMBER void open() const {
        if (threadIdx.x < 2) open_arrival(arrivals + threadIdx.x);
        publish_arrivals();
        __syncthreads();
    }

    DEVICE_MEMBER void begin(const Own& tiles, u32 stage, const E* pages, const u32* table,
                             const Item& item, u32 base, const AttentionShape& shape) const {
        u32 rows = min(item.to - base, static_cast<u32>(TILE));
        if (rows < TILE) clear_values(tiles.values(stage), rows);
        if (warp() > 0) return;
        u32 rows_at_once = min(1u << shape.page_bits, static_cast<u32>(TILE));
        u32 copies = (rows + rows_at_once - 1) / rows_at_once * PANELS;
        if (lane() == 0) expect_bytes(arrivals + stage, 2 * rows * PANELS * ROW_BYTES);
        __syncwarp();
        for (u32 i = lane(); i < copies; i += LANES) {
            u32 panel = i % PANELS, row = i / PANELS * rows_at_once;
            Source from = source<E, D>(pages, table, item.kv_head, base + row, shape);
            u32 at = panel * from.panel_bytes, to = panel * Own::PANEL_BYTES + row * ROW_BYTES;
            u32 bytes = min(rows_at_once, rows - row) * ROW_BYTES;
            copy_bulk(tiles.keys(stage) + to, from.keys + at, bytes, arrivals + stage);
            copy_bulk(tiles.values(stage) + to, from.values + at, bytes, arrivals + stage);
        }
    }

    DEVICE_MEMBER void skip() const {}

    DEVICE_MEMBER void await(u32 stage) {
        await_bytes(arrivals + stage, phases >> stage & 1);
        phases ^= 1u << stage;
    }

    DEVICE_MEMBER void finish() const {}

    /// The next item's copies overwrite memory to which sums were written, so those writes are made
    /// visible to copies first.
    DEVICE_MEMBER void close() const { publish_to_copies(); }

    /// Zeros the value rows that are not copied: their softmax weights are 0, but 0 times NaN would
    /// still be NaN.
    DEVICE_MEMBER static void clear_values(u8* values, u32 from) {
        constexpr u32 WIDTH = Own::WIDTH;
        for (u32 i = threadIdx.x; i < (TILE - from) * Own::PIECES; i += THREADS) {
            u32 panel = i / WIDTH % PANELS, row = from + i / Own::PIECES;
            u8* to = values + panel * Own::PANEL_BYTES + row * ROW_BYTES + i % WIDTH * 16;
            *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        }
        publish_to_wgmma();
    }
};

/// Converts a tile of e4m3 to bf16, in the layout that warpgroup multiplication reads.
template <class E, int D> DEVICE void widen_tile(u8* to, u8* from) {
    constexpr int PIECES = Tiles<E, D>::PIECES;
    for (u32 i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
        u32 row = i / PIECES, column = i % PIECES;
        uint4 codes = *reinterpret_cast<const uint4*>(place<PIECES>(from, row, column));
        u32 words[4] = {codes.x, codes.y, codes.z, codes.w}, wide[8];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            u32 even = widen_e4m3(words[n] << 8), odd = widen_e4m3(words[n]);
            wide[2 * n] = low_halves(even, odd);
            wide[2 * n + 1] = high_halves(even, odd);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32* w = wide + 4 * half;
            *reinterpret_cast<uint4*>(place<D / 8>(to, row, 2 * column + half)) =
                make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/// Tensor-core multiplication of all lines with a tile by the warpgroup (WGMMA).
template <class E, int D> struct WarpgroupWay {
    static constexpr bool IN_ORDER_OF_CODES = false, IS_WIDENED = sizeof(E) == 1;
    static constexpr int STEPS = D / 16, POSITIONS = TILE;
    /// Bytes of a panel of 64 columns of a bf16 tile.
    static constexpr int PANEL_BYTES = TILE * 128;
    using Own = Tiles<E, D>;
    u32 line, first;

    DEVICE_MEMBER static u8* keys(const Own& tiles, u32 stage) {
        return IS_WIDENED ? tiles.keys(2) : tiles.keys(stage);
    }
    DEVICE_MEMBER static u8* values(const Own& tiles, u32 stage) {
        return IS_WIDENED ? tiles.keys(2) + TILE * D * 2 : tiles.values(stage);
    }

    DEVICE_MEMBER void begin(const Own&) const {
        publish_to_wgmma();
        __syncthreads();
    }

    DEVICE_MEMBER void share(const Own& tiles, u32 stage) const {
        if constexpr (IS_WIDENED) {
            widen_tile<E, D>(keys(tiles, stage), tiles.keys(stage));
            widen_tile<E, D>(values(tiles, stage), tiles.values(stage));
            publish_to_wgmma();
        }
    }

    /// Computes the scores of the lines over the tile's keys. Queries are read from shared memory:
    /// ptxas of CUDA 13.0 gives registers that hold them to the softmax weights after the first
    /// tile.
    DEVICE_MEMBER void score(float (&scores)[TILE / 8][4], const Own& tiles, u32 stage) const {
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n) {
            for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
        }
        begin_wgmma();
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            // A panel has 64 columns, which are four steps of 16.
            int panel = k / 4 * PANEL_BYTES, step = k % 4 * 2;
            u64 key = describe(keys(tiles, stage) + panel) + step;
            multiply_add_64x64(scores, describe(tiles.queries + panel) + step, key);
        }
        close_wgmma();
        await_wgmma();
        take_sums(scores);
    }

    /// Multiplies the softmax weights by the values: `sums += weights * values`.
    DEVICE_MEMBER void multiply_values(const float (&weights)[TILE / 8][4], const Own& tiles, u32 stage,
                             Lines<D>& lines) const {
        u32 weight[TILE / 16][4];
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) {
            const float(&low)[4] = weights[2 * k], (&high)[4] = weights[2 * k + 1];
            weight[k][0] = narrow(low[0], low[1]);
            weight[k][1] = narrow(low[2], low[3]);
            weight[k][2] = narrow(high[0], high[1]);
            weight[k][3] = narrow(high[2], high[3]);
        }
        begin_wgmma();
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) {
            if constexpr (D == 64) {
                u64 value = describe_transposed(values(tiles, stage), PANEL_BYTES);
                multiply_add_64x64<true>(lines.sums, weight[k], value + 128 * k);
            } else {
#pragma unroll
                for (int n = 0; n < D / 128; ++n) {
                    u8* panels = values(tiles, stage) + 2 * n * PANEL_BYTES;
                    u64 value = describe_transposed(panels, PANEL_BYTES);
                    auto& sums = reinterpret_cast<float(&)[16][4]>(lines.sums[16 * n]);
                    multiply_add_64x128<true>(sums, weight[k], value + 128 * k);
                }
            }
        }
        close_wgmma();
        await_wgmma();
        take_sums(lines.sums);
    }
};

/// Blocks of heads of 64 fit four times into a multiprocessor, others twice.
#define ATTENTION(NAME, E, D)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, D == 64 ? 4 : 2)                         \
        NAME(bf16* out, float* parts, const bf16* __restrict__ qkv, const E* __restrict__ pages,   \
             const u32* __restrict__ plan, const float* __restrict__ layer, AttentionShape shape) { \
        DYNAMIC_TILES(shared);                                                                     \
        __shared__ u64 arrivals[2];                                                                \
        BulkCopies<E, D> copies = {arrivals, 0};                                                   \
        using Way = WarpgroupWay<E, D>;                                                            \
        attention<E, D, Way>(shared, copies, out, parts, qkv, pages, plan, layer, shape);          \
    }

ATTENTION(attention_bf16_64, bf16, 64)
ATTENTION(attention_bf16_128, bf16, 128)
ATTENTION(attention_bf16_256, bf16, 256)
ATTENTION(attention_e4m3_64, e4m3, 64)
ATTENTION(attention_e4m3_128, e4m3, 128)
ATTENTION(attention_e4m3_256, e4m3, 256)
