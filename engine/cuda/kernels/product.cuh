//! Products of at most 16 rows with weights `[N, K]` of any type, by blocks of 64 output columns:
//! what `matmul` and `expert_matmul` share. Bound by reading the weights, once for all rows.
//!
//! The warps of a block take its steps in turns, 128 bytes of each of 64 rows of weights, and their
//! sums are added in the order of the warps. A lane copies to shared memory what it will multiply
//! itself, in pieces of 16 bytes, so that warps wait for nobody; copies run two steps ahead.
//!
//! Weights are the left side of the products, so that few rows of activations waste little. A
//! product does not know which columns of K it sums over as long as both sides agree: a lane's
//! fragments are the words of its pieces as they lie in memory, and those of the activations are put
//! into the order in which weights of fewer bits come out of theirs.
#pragma once
#include "weights.cuh"

#define WARPS 4
#define THREADS (WARPS * LANES)
/// Output columns of a block: rows of weights.
#define COLUMNS 64
/// Rows of activations.
#define TOKENS 16
/// Pieces of a row in one step.
#define PIECES 8
/// Pieces of one lane in one step: of two rows of each 16, two.
#define OWN (COLUMNS * PIECES / LANES)
/// Steps of a warp that shared memory holds.
#define STAGES 3
#define STAGE_BYTES (COLUMNS * PIECES * 16)
/// Elements from one row of sums to the next in shared memory: rows begin in different banks.
#define SUM_STRIDE (COLUMNS + 4)

/// Activations [T, K], T at most 16.
struct Rows {
    const bf16* x;
    u32 tokens;
};

/// Steps over a row.
template <class E> DEVICE u32 steps_of(const Matrix<E>& w) {
    return (w.row_pieces() + PIECES - 1) / PIECES;
}

/// A lane's sums: of each 16 output columns and each 8 tokens what a product leaves it.
struct Sums {
    float x[COLUMNS / 16][TOKENS / 8][4];
};

/// A lane's piece i of a step: of the 16 rows i / 4 the row lane / 4, and that 8 below it where i is
/// odd; of the step's columns the piece lane % 4, and that 4 behind it for i / 2.
template <class E> DEVICE Place place(const Matrix<E>& w, u32 first, u32 step, u32 i) {
    u32 row = first + i / 4 * 16 + i % 2 * 8 + lane() / 4;
    u32 piece = step * PIECES + i / 2 % 2 * 4 + lane() % 4;
    bool is_there = row < w.n && piece < w.row_pieces();
    return {is_there ? static_cast<u64>(row) * w.row_pieces() + piece : 0, is_there};
}

/// Begins to copy a step's weights; zeros where there are none. Behind the last step an empty group
/// keeps the count.
template <class E>
DEVICE void begin_step(u8* stage, const Matrix<E>& w, u32 first, u32 step, u32 to) {
    if (step < to) {
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            Place from = place(w, first, step, i);
            copy_async(stage + (i * LANES + lane()) * 16,
                       reinterpret_cast<const u8*>(w.rows) + from.at * 16, from.is_there);
        }
    }
    close_copies();
}

/// What the weights of each of the lane's pieces are multiplied by.
template <class E>
DEVICE void load_factors(u32 (&factors)[OWN], const Matrix<E>& w, u32 first, u32 step) {
#pragma unroll
    for (u32 i = 0; i < OWN; ++i) {
        if (sizeof(typename Format<E>::Scale) > 1) continue;
        Place from = place(w, first, step, i);
        factors[i] = from.is_there ? Format<E>::factor(w.scales[from.at]) : 0;
    }
}

/// The activations that meet a piece of weights at `column`; zeros where there are none.
template <class E>
DEVICE void load_activations(u32 (&words)[TOKENS / 8][Format<E>::PIECE / 2], const Rows& rows,
                             u32 column, u32 k) {
#pragma unroll
    for (u32 h = 0; h < TOKENS / 8; ++h) {
        u32 token = h * 8 + lane() / 4;
        bool is_there = token < rows.tokens && column < k;
        const bf16* from = rows.x + static_cast<u64>(token) * k + column;
#pragma unroll
        for (u32 i = 0; i < Format<E>::PIECE / 2; i += 4) {
            uint4 both = make_uint4(0, 0, 0, 0);
            if (is_there) both = *reinterpret_cast<const uint4*>(from + 2 * i);
            u32 eight[4] = {both.x, both.y, both.z, both.w};
#pragma unroll
            for (u32 j = 0; j < 4; ++j) words[h][i + j] = Format<E>::activations(eight, j);
        }
    }
}

/// `sums += weights * activations` over one step.
template <class E>
DEVICE void multiply_step(Sums& sums, const u8* stage, const u32 (&factors)[OWN], const Rows& rows,
                          u32 step, u32 k) {
    constexpr u32 WORDS = Format<E>::PIECE / 2;
#pragma unroll
    for (u32 p = 0; p < 2; ++p) {
        u32 column = (step * PIECES + p * 4 + lane() % 4) * Format<E>::PIECE;
        u32 x[TOKENS / 8][WORDS];
        load_activations<E>(x, rows, column, k);
#pragma unroll
        for (u32 m = 0; m < COLUMNS / 16; ++m) {
            u32 piece[2][4], own = 4 * m + 2 * p;
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u8* from = stage + ((own + half) * LANES + lane()) * 16;
                uint4 words = *reinterpret_cast<const uint4*>(from);
                piece[half][0] = words.x;
                piece[half][1] = words.y;
                piece[half][2] = words.z;
                piece[half][3] = words.w;
            }
#pragma unroll
            for (u32 i = 0; i < WORDS; i += 2) {
                u32 weights[4] = {Format<E>::weights(piece[0], i, factors[own]),
                                  Format<E>::weights(piece[1], i, factors[own + 1]),
                                  Format<E>::weights(piece[0], i + 1, factors[own]),
                                  Format<E>::weights(piece[1], i + 1, factors[own + 1])};
#pragma unroll
                for (u32 h = 0; h < TOKENS / 8; ++h) {
                    multiply_add(sums.x[m][h], weights, x[h][i], x[h][i + 1]);
                }
            }
        }
    }
}

/// `sums += scale * more`.
DEVICE void add_scaled(Sums& sums, const Sums& more, float scale) {
#pragma unroll
    for (u32 m = 0; m < COLUMNS / 16; ++m) {
#pragma unroll
        for (u32 h = 0; h < TOKENS / 8; ++h) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sums.x[m][h][i] += scale * more.x[m][h][i];
        }
    }
}

/// The warp's share of the steps from `from` to `to`.
template <class E>
DEVICE Sums multiply(u8* stages, const Matrix<E>& w, const Rows& rows, u32 first, u32 from,
                     u32 to) {
    Sums sums = {};
    u32 begun = from + warp(), stage = 0;
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; ++i, begun += WARPS) {
        begin_step(stages + i * STAGE_BYTES, w, first, begun, to);
    }
    for (u32 step = from + warp(); step < to; step += WARPS, begun += WARPS) {
        u32 factors[OWN];
        load_factors(factors, w, first, step);
        await_copies<STAGES - 2>();
        u32 last = stage == 0 ? STAGES - 1 : stage - 1;
        begin_step(stages + last * STAGE_BYTES, w, first, begun, to);
        if (Format<E>::HAS_STEP_SCALES) {
            Sums own = {};
            multiply_step<E>(own, stages + stage * STAGE_BYTES, factors, rows, step, w.k);
            add_scaled(sums, own, w.scales[first / 128 * steps_of(w) + step]);
        } else {
            multiply_step<E>(sums, stages + stage * STAGE_BYTES, factors, rows, step, w.k);
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    await_copies<0>();
    return sums;
}

/// Where a thread's eight results belong.
DEVICE u32 own_token() { return threadIdx.x / (COLUMNS / 8); }
DEVICE u32 own_column() { return threadIdx.x % (COLUMNS / 8) * 8; }

/// The products of `rows` with the 64 rows of `w` from `first` over the steps from `from` to `to`:
/// of the token `own_token()` the eight columns from `first + own_column()`. `shared` has a place for
/// each warp's stages, and may be used again at once.
template <class E>
DEVICE Eight product(u8* shared, const Matrix<E>& w, const Rows& rows, u32 first, u32 from,
                     u32 to) {
    Sums own = multiply(shared + warp() * STAGES * STAGE_BYTES, w, rows, first, from, to);
    __syncthreads();
    float* all = reinterpret_cast<float*>(shared);
#pragma unroll
    for (u32 m = 0; m < COLUMNS / 16; ++m) {
#pragma unroll
        for (u32 h = 0; h < TOKENS / 8; ++h) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                u32 token = h * 8 + lane() % 4 * 2 + i % 2, row = m * 16 + lane() / 4 + i / 2 * 8;
                all[(warp() * TOKENS + token) * SUM_STRIDE + row] = own.x[m][h][i];
            }
        }
    }
    __syncthreads();
    Eight sum = {};
    for (u32 i = 0; i < WARPS; ++i) {
        Eight more = load8(all + (i * TOKENS + own_token()) * SUM_STRIDE + own_column());
#pragma unroll
        for (u32 j = 0; j < 8; ++j) sum.x[j] += more.x[j];
    }
#pragma unroll
    for (u32 j = 0; j < 8; ++j) sum.x[j] *= Format<E>::FACTOR;
    __syncthreads();
    return sum;
}
