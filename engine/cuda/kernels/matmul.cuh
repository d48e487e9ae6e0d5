//! GEMM micro-kernel for at most 16 rows: multiplication with weights `[N, K]` of any storage
//! format by blocks of 64 output columns, shared by `matmul` and `expert_matmul`. It is bound by
//! the memory bandwidth of reading the weights once for all rows.
//!
//! The warps of a block take every fourth step along K; a step is 128 bytes of each of 64 rows of
//! weights. Their sums are added in the order of the warps. A lane copies to shared memory only
//! what it multiplies itself, in pieces of 16 bytes, so no warp waits for another; copies run two
//! steps ahead.
//!
//! The weights are the left operand (16 rows) of the tensor cores, so that few rows of activations
//! waste little of the right one. The sum over K does not depend on the order of columns as long as
//! both sides agree: a lane's operands are the words of its pieces as they are in memory, and
//! activations are permuted to the order in which quantized weights are converted.
#pragma once
#include "weights.cuh"

#define WARPS 4
#define THREADS (WARPS * LANES)
/// Output columns of a block, which are rows of weights.
#define COLUMNS 64
/// Largest number of activation rows.
#define TOKENS 16
/// 16-byte pieces of a row in one step.
#define PIECES 8
/// Pieces of one lane in one step: two columns of pieces for each of two rows out of every 16.
#define OWN (COLUMNS * PIECES / LANES)
/// Steps of a warp that shared memory buffers.
#define STAGES 3
#define STAGE_BYTES (COLUMNS * PIECES * 16)
/// Elements from one row of sums to the next in shared memory, padded so that rows begin in
/// different banks.
#define SUM_STRIDE (COLUMNS + 4)

/// Activations [T, K], T at most 16.
struct Rows {
    const bf16* x;
    u32 tokens;
};

/// Number of steps along a row of weights.
template <class E> DEVICE u32 steps_of(const Matrix<E>& w) {
    return (w.row_pieces() + PIECES - 1) / PIECES;
}

/// Sums of a lane: for each 16 output columns and each 8 tokens, its elements of a tensor-core
/// result.
struct Sums {
    float x[COLUMNS / 16][TOKENS / 8][4];
};

/// Output column of a lane's piece i, and its piece along K: in row group i / 4, row lane / 4, plus 8
/// if i is odd; in the step's columns, piece lane % 4, plus 4 if i / 2 is odd.
DEVICE u32 own_row(u32 first, u32 i) { return first + i / 4 * 16 + i % 2 * 8 + lane() / 4; }
DEVICE u32 own_piece(u32 step, u32 i) { return step * PIECES + i / 2 % 2 * 4 + lane() % 4; }

/// Location of a lane's piece i of a step.
template <class E> DEVICE Place place(const Matrix<E>& w, u32 first, u32 step, u32 i) {
    u32 row = own_row(first, i), piece = own_piece(step, i);
    bool is_there = row < w.n && piece < w.row_pieces();
    return {is_there ? static_cast<u64>(row) * w.row_pieces() + piece : 0, is_there};
}

/// Starts to copy a step's weights; zeros where there are none. After the last step, an empty group
/// keeps the group count.
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

/// Loads the MXFP4 scale of each of the lane's pieces. Where there is no piece, the weights are zero,
/// and any scale will do.
template <class E>
DEVICE void load_scales(u32 (&scales)[OWN], const Matrix<E>& w, u32 first, u32 step) {
    // Only MXFP4 has a scale for each piece, of one byte.
    if constexpr (sizeof(typename Format<E>::Scale) == 1) {
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            u32 row = own_row(first, i), piece = own_piece(step, i);
            bool is_there = row < w.n && piece < w.row_pieces();
            scales[i] = is_there ? w.scales[Format<E>::scale_at(w.n, row, piece)] : 0;
        }
    }
}

/// Loads the activations that are multiplied with a piece of weights at `column`; zeros where there
/// are none.
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
            for (u32 j = 0; j < 4; ++j) {
                words[h][Format<E>::place(i + j)] = Format<E>::activations(eight, j);
            }
        }
    }
}

/// Multiplies one step: `sums += weights * activations`.
template <class E>
DEVICE void multiply_step(Sums& sums, const u8* stage, const u32 (&scales)[OWN], const Rows& rows,
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
            u32 factors[2] = {};
            if constexpr (sizeof(typename Format<E>::Scale) == 1) {
                factors[0] = Format<E>::factor(static_cast<u8>(scales[own]));
                factors[1] = Format<E>::factor(static_cast<u8>(scales[own + 1]));
            }
#pragma unroll
            for (u32 i = 0; i < WORDS; i += 2) {
                u32 weights[4] = {Format<E>::weights(piece[0], i, factors[0]),
                                  Format<E>::weights(piece[1], i, factors[1]),
                                  Format<E>::weights(piece[0], i + 1, factors[0]),
                                  Format<E>::weights(piece[1], i + 1, factors[1])};
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

/// Multiplies the warp's share of the steps from `from` to `to`.
template <class E>
DEVICE Sums multiply(u8* stages, const Matrix<E>& w, const Rows& rows, u32 first, u32 from,
                     u32 to) {
    Sums sums = {};
    u32 begun = from + warp(), stage = 0;
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; ++i, begun += WARPS) {
        begin_step(stages + i * STAGE_BYTES, w, first, begun, to);
    }
    // Scales are loaded one step ahead, since nothing else hides the latency of memory.
    u32 scales[OWN] = {}, next[OWN] = {};
    load_scales(scales, w, first, from + warp());
    for (u32 step = from + warp(); step < to; step += WARPS, begun += WARPS) {
        load_scales(next, w, first, step + WARPS);
        // Groups complete in order, so with this many open the oldest stage has arrived.
        await_copies<STAGES - 2>();
        u32 last = stage == 0 ? STAGES - 1 : stage - 1;
        begin_step(stages + last * STAGE_BYTES, w, first, begun, to);
        if (Format<E>::HAS_STEP_SCALES) {
            Sums own = {};
            multiply_step<E>(own, stages + stage * STAGE_BYTES, scales, rows, step, w.k);
            add_scaled(sums, own, w.scales[first / 128 * steps_of(w) + step]);
        } else {
            multiply_step<E>(sums, stages + stage * STAGE_BYTES, scales, rows, step, w.k);
        }
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) scales[i] = next[i];
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    await_copies<0>();
    return sums;
}

/// Token and output column of the first of a thread's eight results.
DEVICE u32 own_token() { return threadIdx.x / (COLUMNS / 8); }
DEVICE u32 own_column() { return threadIdx.x % (COLUMNS / 8) * 8; }

/// Multiplies `rows` with the 64 rows of `w` from `first`, over the steps from `from` to `to`, and
/// returns eight columns from `first + own_column()` of token `own_token()`. `shared` has space for
/// each warp's stages and may be reused at once.
template <class E>
DEVICE Eight multiply_steps(u8* shared, const Matrix<E>& w, const Rows& rows, u32 first, u32 from,
                     u32 to) {
    Sums own = multiply(shared + warp() * STAGES * STAGE_BYTES, w, rows, first, from, to);
    // The sums go where the stages were, which all warps must have finished reading.
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
