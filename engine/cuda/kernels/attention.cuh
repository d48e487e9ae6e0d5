//! Implementation of paged attention by the items of a plan, in tiles with an online softmax
//! (FlashAttention): the code that the kernels of `attention.cu` share with their variants for
//! warpgroups.
//!
//! An item of the plan covers some rows of one sequence, one KV head and a range of positions. The
//! query heads that share the KV head are stacked: of M = rows * H / KV lines, line m is row m /
//! group and head m % group. Tiles of 64 positions are copied to shared memory while the previous
//! tile is computed; multiplication is bf16 with f32 accumulation. With more than 16 lines, each
//! warp takes 16 of them. With up to 16 lines, as in decoding, all warps share the lines, and each
//! takes 16 positions of every tile.
//! An item with a part writes, for each of its lines, the weighted sums [D], the largest score and
//! the sum of softmax weights to `parts` [lines, D + 2] f32, which `attention_merge` merges.
//!
//! Keys in e4m3 that are converted in registers come out with their columns in another order. The
//! queries are loaded in the same order, so that the dot products stay correct; for values, the
//! order of the result's columns is corrected at the end.
#pragma once
#include "pages.cuh"

#define WARPS 4
#define THREADS (WARPS * LANES)
/// Positions of a tile, and lines of the largest item.
#define TILE 64
/// Lines, or positions, of one tensor-core operation.
#define LINES 16

struct AttentionShape {
    u32 heads, kv_heads;
    /// Base-2 logarithm of the number of tokens of a KV page.
    u32 page_bits;
    /// Distance from one page of the layer to the next, in units of [page tokens, D].
    u32 page_stride;
    u32 window;
    float scale;
};

/// Work item of the plan. The items begin at word 8 of the plan, those of a block one after another;
/// word 3 is the word from which on the first item of each block is found, then the number of items.
struct Item {
    /// First row in the step, and number of rows.
    u32 row, rows;
    /// Position of the first row in its sequence.
    u32 position;
    /// Word of the plan at which the sequence's page table begins.
    u32 table;
    u32 kv_head;
    /// Range of key positions; the first is a multiple of TILE.
    u32 from, to;
    /// First line in `parts`, or NONE if the positions are not split.
    u32 part;
};

/// Address of a 16-byte piece of a tile, whose 64 rows have the layout of a KV page.
template <int PIECES> DEVICE u8* place(u8* tile, u32 row, u32 column) {
    return tile + place_in_page(PIECES, TILE, row, column);
}

/// Shared memory of a block: 64 lines of queries, then two stages of keys and values.
template <class E, int D> struct Tiles {
    static constexpr int QUERY_PIECES = D / 8, PIECES = D * static_cast<int>(sizeof(E)) / 16;
    /// Pieces of a row that are adjacent, and bytes of one panel, which holds those of all rows.
    static constexpr int WIDTH = PIECES < 8 ? PIECES : 8, PANEL_BYTES = TILE * WIDTH * 16;
    static constexpr int TILE_BYTES = TILE * PIECES * 16;
    u8* queries;

    DEVICE_MEMBER u8* keys(u32 stage) const {
        return queries + TILE * QUERY_PIECES * 16 + stage * 2 * TILE_BYTES;
    }
    DEVICE_MEMBER u8* values(u32 stage) const { return keys(stage) + TILE_BYTES; }
    /// [64, D] f32 sums, in the place of the keys and values, which are not needed any more.
    DEVICE_MEMBER float* sums() const { return reinterpret_cast<float*>(keys(0)); }
};

/// State of one warp's 16 lines in registers: a lane has lines g = lane / 4 and g + 8, and two
/// columns of each tile of eight columns.
template <int D> struct Lines {
    float sums[D / 8][4];
    float largest[2], totals[2];
};

/// Loads the item's query lines; lines behind its last are zeros. With IN_ORDER_OF_CODES, columns
/// 4q .. 4q + 3 of sixteen are permuted as `widen_e4m3` leaves the columns of keys: the odd ones in
/// the first piece, the even ones in the second.
template <class E, int D, bool IN_ORDER_OF_CODES>
DEVICE void load_queries(const Tiles<E, D>& tiles, const bf16* qkv, const Item& item,
                         const AttentionShape& shape) {
    constexpr int PIECES = Tiles<E, D>::QUERY_PIECES;
    u32 group = shape.heads / shape.kv_heads, lines = item.rows * group;
    for (u32 i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
        u32 line = i / PIECES, column = i % PIECES;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (line < lines) {
            u64 row = item.row + line / group;
            u32 head = item.kv_head * group + line % group;
            words = *reinterpret_cast<const uint4*>(
                qkv + (row * (shape.heads + 2 * shape.kv_heads) + head) * D + column * 8);
        }
        if (!IN_ORDER_OF_CODES) {
            *reinterpret_cast<uint4*>(place<PIECES>(tiles.queries, line, column)) = words;
        } else {
            u32* first = reinterpret_cast<u32*>(place<PIECES>(tiles.queries, line, column & ~1u));
            u32* second = reinterpret_cast<u32*>(place<PIECES>(tiles.queries, line, column | 1));
            u32 quad = column % 2 * 2;
            first[quad] = words.x >> 16 | (words.y & 0xffff0000u);
            second[quad] = (words.x & 0xffffu) | words.y << 16;
            first[quad + 1] = words.z >> 16 | (words.w & 0xffff0000u);
            second[quad + 1] = (words.z & 0xffffu) | words.w << 16;
        }
    }
}

/// Location in the KV pages of the keys and values from one position on.
struct Source {
    const u8 *keys, *values;
    /// Bytes of one panel of the page.
    u32 panel_bytes;
};

template <class E, int D>
DEVICE Source source(const E* pages, const u32* table, u32 kv_head, u32 position,
                     const AttentionShape& shape) {
    constexpr int ROW_BYTES = Tiles<E, D>::WIDTH * 16;
    u32 page_tokens = 1u << shape.page_bits;
    u64 page_bytes = static_cast<u64>(page_tokens) * D * sizeof(E);
    u64 block = static_cast<u64>(table[position >> shape.page_bits]) * shape.page_stride + 2 * kv_head;
    const u8* keys = reinterpret_cast<const u8*>(pages) + block * page_bytes +
                     (position & (page_tokens - 1)) * ROW_BYTES;
    return {keys, keys + page_bytes, page_tokens * ROW_BYTES};
}

/// Copies tiles with asynchronous copies of 16 bytes (cp.async), each waited for by the thread that
/// started it.
template <class E, int D> struct SmallCopies {
    DEVICE_MEMBER void open() const {}
    DEVICE_MEMBER void close() const {}

    /// Starts to copy the keys and values of 64 positions from `base`; zeros behind the item's last
    /// position.
    DEVICE_MEMBER void begin(const Tiles<E, D>& tiles, u32 stage, const E* pages, const u32* table,
                             const Item& item, u32 base, const AttentionShape& shape) const {
        constexpr int WIDTH = Tiles<E, D>::WIDTH, PIECES = Tiles<E, D>::PIECES;
        for (u32 i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
            u32 position = base + i / WIDTH % TILE, panel = i / (WIDTH * TILE);
            bool is_there = position < item.to;
            // A copy of zeros still needs a valid address, so it names a page that exists.
            Source from = source<E, D>(pages, table, item.kv_head, is_there ? position : base, shape);
            u32 at = panel * from.panel_bytes + i % WIDTH * 16;
            copy_async(tiles.keys(stage) + i * 16, from.keys + at, is_there);
            copy_async(tiles.values(stage) + i * 16, from.values + at, is_there);
        }
        close_copies();
    }

    /// Closes an empty group when no tile follows, so that `await` can keep counting groups.
    DEVICE_MEMBER void skip() const { close_copies(); }
    /// Waits for all tiles except the one started last.
    DEVICE_MEMBER void await(u32) const { await_copies<1>(); }
    DEVICE_MEMBER void finish() const { await_copies<0>(); }
};

/// Scales scores and applies the causal mask and the window. Most tiles are visible to all lines
/// and are only scaled.
template <int POSITIONS>
DEVICE void mask(float (&scores)[POSITIONS / 8][4], float scale, const u32 (&own)[2], u32 first,
                 const Item& item, u32 window) {
    bool is_seen_by_all = first + POSITIONS - 1 <= item.position &&
                          (window == 0 || first + window >= item.position + item.rows);
#pragma unroll
    for (int n = 0; n < POSITIONS / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (is_seen_by_all) {
                scores[n][i] *= scale;
                continue;
            }
            u32 position = first + n * 8 + lane() % 4 * 2 + i % 2, row = own[i / 2];
            bool is_seen = position <= row && (window == 0 || position + window > row);
            scores[n][i] = is_seen ? scores[n][i] * scale : -infinity();
        }
    }
}

/// Online softmax: replaces scores (base 2) by weights relative to the largest score so far, and
/// rescales the sums to it.
template <int D, int POSITIONS>
DEVICE void softmax(float (&scores)[POSITIONS / 8][4], Lines<D>& lines) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float largest = lines.largest[half];
#pragma unroll
        for (int n = 0; n < POSITIONS / 8; ++n) {
            largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        // If nothing was visible yet, the largest score is -infinity; 0 as base makes every weight
        // 0, not NaN.
        float base = largest == -infinity() ? 0.0f : largest;
        float shrink = exp2_fast(lines.largest[half] - base), total = 0.0f;
#pragma unroll
        for (int n = 0; n < POSITIONS / 8; ++n) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
                scores[n][i] = exp2_fast(scores[n][i] - base);
                total += scores[n][i];
            }
        }
        lines.largest[half] = largest;
        lines.totals[half] = lines.totals[half] * shrink + total;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            lines.sums[n][2 * half] *= shrink;
            lines.sums[n][2 * half + 1] *= shrink;
        }
    }
}

/// Tensor-core multiplication by one warp: its 16 lines from `line`, with POSITIONS positions of
/// each tile from `first`.
template <class E, int D, int POSITIONS> struct WarpWay {
    /// e4m3 values are converted in the column order in which masks and shifts leave them.
    static constexpr bool IN_ORDER_OF_CODES = sizeof(E) == 1;
    u32 line, first;

    /// Nothing to do before the first tile, nor before the barrier in front of each tile.
    DEVICE_MEMBER void begin(const Tiles<E, D>&) const {}
    DEVICE_MEMBER void share(const Tiles<E, D>&, u32) const {}

    /// Computes the scores of the lines over the tile's keys.
    DEVICE_MEMBER void score(float (&scores)[POSITIONS / 8][4], const Tiles<E, D>& tiles, u32 stage) const {
        constexpr int PIECES = Tiles<E, D>::PIECES, QUERY_PIECES = Tiles<E, D>::QUERY_PIECES;
        u32 in_eight = lane() % 8, matrix = lane() / 8;
#pragma unroll
        for (int n = 0; n < POSITIONS / 8; ++n) {
            for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
        }
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            u32 query[4];
            load_matrices(query, place<QUERY_PIECES>(tiles.queries, line + in_eight + matrix % 2 * 8,
                                                     2 * k + matrix / 2));
#pragma unroll
            for (int n = 0; n < POSITIONS / 8; n += 2) {
                u32 row = first + n * 8 + in_eight + matrix / 2 * 8, key[4];
                if (sizeof(E) == 2) {
                    load_matrices(key, place<PIECES>(tiles.keys(stage), row, 2 * k + matrix % 2));
                    multiply_add(scores[n], query, key[0], key[1]);
                    multiply_add(scores[n + 1], query, key[2], key[3]);
                } else {
                    // A 16-byte piece holds 16 e4m3 columns, so a load covers two steps, and this
                    // step uses half of it.
                    load_matrices(key, place<PIECES>(tiles.keys(stage), row, k / 2 * 2 + matrix % 2));
                    u32 low = key[k % 2], high = key[2 + k % 2];
                    multiply_add(scores[n], query, widen_e4m3(low), widen_e4m3(low << 8));
                    multiply_add(scores[n + 1], query, widen_e4m3(high), widen_e4m3(high << 8));
                }
            }
        }
    }

    /// Multiplies the softmax weights by the values: `sums += weights * values`.
    DEVICE_MEMBER void multiply_values(const float (&weights)[POSITIONS / 8][4], const Tiles<E, D>& tiles, u32 stage,
                                 Lines<D>& lines) const {
        constexpr int PIECES = Tiles<E, D>::PIECES;
        u32 matrix = lane() / 8;
#pragma unroll
        for (int k = 0; k < POSITIONS / 16; ++k) {
            const float(&low)[4] = weights[2 * k], (&high)[4] = weights[2 * k + 1];
            u32 weight[4] = {narrow(low[0], low[1]), narrow(low[2], low[3]), narrow(high[0], high[1]),
                             narrow(high[2], high[3])};
            u32 row = first + 16 * k + lane() % 8 + matrix % 2 * 8;
#pragma unroll
            for (int column = 0; column < PIECES; column += 2) {
                u32 value[4];
                load_matrices_transposed(
                    value, place<PIECES>(tiles.values(stage), row, column + matrix / 2));
                if (sizeof(E) == 2) {
                    multiply_add(lines.sums[column], weight, value[0], value[1]);
                    multiply_add(lines.sums[column + 1], weight, value[2], value[3]);
                } else {
                    // A word holds two columns of two positions: the even columns are converted
                    // first, then the odd ones.
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        u32 upper = value[2 * i], lower = value[2 * i + 1];
                        multiply_add(lines.sums[2 * (column + i)], weight, widen_e4m3(upper << 8),
                                     widen_e4m3(lower << 8));
                        multiply_add(lines.sums[2 * (column + i) + 1], weight, widen_e4m3(upper),
                                     widen_e4m3(lower));
                    }
                }
            }
        }
    }
};

/// Column of sum `i` of the eight-column tile `n`.
template <bool IN_ORDER_OF_CODES> DEVICE u32 column_of(u32 n, u32 i) {
    u32 quad = lane() % 4;
    return IN_ORDER_OF_CODES ? n / 2 * 16 + 4 * quad + 2 * i + n % 2 : n * 8 + 2 * quad + i;
}

/// Loops over the item's tiles of positions; `way` multiplies the lines of a warp with a tile.
/// Leaves each warp's 16 lines in shared memory: sums, largest scores and totals.
template <class E, int D, int POSITIONS, class Way, class Copies>
DEVICE void attend(Way way, Copies& copies, const Tiles<E, D>& tiles, float2 (&ends)[TILE], const E* pages,
                   const u32* table, const Item& item, const AttentionShape& shape, float scale) {
    u32 group = shape.heads / shape.kv_heads;
    u32 own[2] = {item.position + (way.line + lane() / 4) / group,
                  item.position + (way.line + lane() / 4 + 8) / group};
    Lines<D> lines;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        for (int i = 0; i < 4; ++i) lines.sums[n][i] = 0.0f;
    }
    for (int half = 0; half < 2; ++half) {
        lines.largest[half] = -infinity();
        lines.totals[half] = 0.0f;
    }
    copies.begin(tiles, 0, pages, table, item, item.from, shape);
    way.begin(tiles);
    u32 stage = 0;
    for (u32 base = item.from; base < item.to; base += TILE, stage ^= 1) {
        if (base + TILE < item.to) {
            copies.begin(tiles, stage ^ 1, pages, table, item, base + TILE, shape);
        } else {
            copies.skip();
        }
        copies.await(stage);
        way.share(tiles, stage);
        __syncthreads();
        float scores[POSITIONS / 8][4];
        way.score(scores, tiles, stage);
        mask<POSITIONS>(scores, scale, own, base + way.first, item, shape.window);
        softmax<D, POSITIONS>(scores, lines);
        way.multiply_values(scores, tiles, stage, lines);
        // The next turn's copies overwrite this stage.
        __syncthreads();
    }
    copies.finish();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        u32 to = warp() * LINES + lane() / 4 + 8 * half;
        float total = lines.totals[half] + __shfl_xor_sync(ALL_LANES, lines.totals[half], 1);
        total += __shfl_xor_sync(ALL_LANES, total, 2);
        if (lane() % 4 == 0) ends[to] = make_float2(lines.largest[half], total);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            for (u32 i = 0; i < 2; ++i) {
                tiles.sums()[to * D + column_of<Way::IN_ORDER_OF_CODES>(n, i)] = lines.sums[n][2 * half + i];
            }
        }
    }
    copies.close();
    __syncthreads();
}

/// Writes the item's lines: combines the 16-line results of the warps that shared them, then writes
/// final results to `out`, or partial results to `parts` if the positions are split.
template <class E, int D>
DEVICE void finish(bf16* out, float* parts, const float* layer, const Tiles<E, D>& tiles,
                   const float2 (&ends)[TILE], const Item& item, const AttentionShape& shape) {
    u32 group = shape.heads / shape.kv_heads, lines = item.rows * group;
    u32 blocks = lines <= LINES ? WARPS : 1;
    float value_scale = sizeof(E) == 2 ? 1.0f : layer[shape.heads + shape.kv_heads + item.kv_head];
    for (u32 i = threadIdx.x; i < lines * (D / 2); i += THREADS) {
        u32 line = i / (D / 2), column = i % (D / 2) * 2;
        u32 head = item.kv_head * group + line % group;
        bool is_whole = item.part == NONE;
        // The sink is added once: here, or in the merge if positions are split.
        float largest = is_whole ? layer[head] * LOG2_E : -infinity();
        for (u32 b = 0; b < blocks; ++b) largest = fmaxf(largest, ends[b * LINES + line].x);
        float base = largest == -infinity() ? 0.0f : largest;
        float total = is_whole ? exp2_fast(layer[head] * LOG2_E - base) : 0.0f;
        float low = 0.0f, high = 0.0f;
        for (u32 b = 0; b < blocks; ++b) {
            float2 end = ends[b * LINES + line];
            float share = exp2_fast(end.x - base);
            const float* sums = tiles.sums() + (b * LINES + line) * D + column;
            total += share * end.y;
            low += share * sums[0];
            high += share * sums[1];
        }
        low *= value_scale;
        high *= value_scale;
        if (is_whole) {
            u64 row = item.row + line / group;
            u32 both = narrow(low / total, high / total);
            *reinterpret_cast<u32*>(out + (row * shape.heads + head) * D + column) = both;
        } else {
            float* to = parts + static_cast<u64>(item.part + line) * (D + 2);
            *reinterpret_cast<float2*>(to + column) = make_float2(low, high);
            if (column == 0) *reinterpret_cast<float2*>(to + D) = make_float2(largest, total);
        }
    }
    __syncthreads();
}

/// Processes this block's items of the plan, which follow one another there. `Way` multiplies items
/// of more than 16 lines.
template <class E, int D, class Way, class Copies>
DEVICE void attention(u8* dynamic, Copies copies, bf16* out, float* parts, const bf16* qkv,
                      const E* pages, const u32* plan, const float* layer,
                      const AttentionShape& shape) {
    __shared__ float2 ends[TILE];
    Tiles<E, D> tiles = {dynamic};
    copies.open();
    const u32* starts = plan + plan[3] + blockIdx.x;
    for (u32 i = starts[0]; i < starts[1]; ++i) {
        Item item = reinterpret_cast<const Item*>(plan + 8)[i];
        // Scores are in base 2, because the hardware computes powers of two.
        float scale = shape.scale * LOG2_E;
        // All keys of a head share a scale, so it becomes a part of the factor of scores.
        if (sizeof(E) == 1) scale *= layer[shape.heads + item.kv_head];
        const u32* table = plan + item.table;
        if (item.rows * (shape.heads / shape.kv_heads) <= LINES) {
            constexpr int POSITIONS = TILE / WARPS;
            using Few = WarpWay<E, D, POSITIONS>;
            load_queries<E, D, Few::IN_ORDER_OF_CODES>(tiles, qkv, item, shape);
            Few way = {0, warp() * POSITIONS};
            attend<E, D, POSITIONS>(way, copies, tiles, ends, pages, table, item, shape, scale);
        } else {
            load_queries<E, D, Way::IN_ORDER_OF_CODES>(tiles, qkv, item, shape);
            Way way = {};
            way.line = warp() * LINES;
            attend<E, D, TILE>(way, copies, tiles, ends, pages, table, item, shape, scale);
        }
        finish(out, parts, layer, tiles, ends, item, shape);
    }
}
