//! Tiled GEMM for many rows: multiplication with weights `[N, K]` of any storage format by tiles of
//! 128 rows and 128 output columns, shared by `tile_matmul`, `grouped_matmul` and their variants
//! for warpgroups.
//!
//! A block goes over K in steps of 64 columns, whose copies run two steps ahead. Quantized weights
//! are copied as they are stored; each thread converts what it copied itself to a bf16 tile. bf16
//! tiles have rows of 128 bytes, whose pieces are swizzled as `piece` does, so that eight rows can
//! be read without bank conflicts and as warpgroup multiplication requires.
//!
//! There are as many blocks as run at once, and each takes every grid-th tile. The number of tiles,
//! and the expert of each, is found from the offsets of the experts' rows on the device, so that
//! the launch does not depend on them. Tiles of 16 x 128 rows follow one another, so that the
//! weights that they share stay in the cache. The bits of a row do not depend on the other rows.
#pragma once
#include "expert_tiles.cuh"
#include "weights.cuh"

#define WARPS 8
#define THREADS (WARPS * LANES)
/// Rows, and columns, of a tile of results.
#define TILE 128
/// Columns of K in a step, and 16-byte pieces of bf16 in as many columns.
#define STEP 64
#define STEP_PIECES 8
/// Steps that shared memory buffers.
#define STAGES 3
#define TILE_BYTES (TILE * STEP * 2)
/// Columns of K that share an e4m3 scale.
#define SCALE_BLOCK 128
/// Elements from one row of sums to the next in shared memory.
#define SUM_STRIDE (TILE + 4)
/// Shared memory of a block: activations and bf16 weights of each stage; or, for quantized weights,
/// activations of each stage, two tiles of converted weights, and the stored weights of each stage.
template <class E> struct Stages {
    static constexpr bool IS_WIDENED = sizeof(E) == 1;
    /// 16-byte pieces of a row of weights in a step.
    static constexpr u32 PIECES = STEP / Format<E>::PIECE;
    /// Pieces of weights that a thread copies in a step.
    static constexpr u32 OWN = TILE * PIECES / THREADS;
    u8* shared;

    DEVICE_MEMBER u8* activations(u32 stage) const { return shared + stage * TILE_BYTES; }
    /// Tile of weights: by stage for bf16, by parity of the step for converted weights.
    DEVICE_MEMBER u8* weights(u32 stage) const { return activations(STAGES + stage); }
    DEVICE_MEMBER u8* code(u32 stage, u32 i) const {
        return weights(2) + ((stage * OWN + i) * THREADS + threadIdx.x) * 16;
    }
    DEVICE_MEMBER float* sums() const { return reinterpret_cast<float*>(shared); }
};

/// Operands of a block's tile: rows of x [rows, K], and rows of w from the tile's first column.
template <class E> struct Factors {
    const bf16* x;
    Matrix<E> w;
    u32 rows, column;

    DEVICE_MEMBER u32 steps() const { return (w.k + STEP - 1) / STEP; }
    /// Row in the tile of the thread's piece i.
    DEVICE_MEMBER u32 own_row(u32 i) const {
        return (i * THREADS + threadIdx.x) / Stages<E>::PIECES;
    }
    DEVICE_MEMBER u32 own_piece() const { return threadIdx.x % Stages<E>::PIECES; }
    /// Location of the thread's piece i of the weights in a step, counted in pieces (fewer than
    /// 2^32); the first piece where there is none.
    DEVICE_MEMBER Place place(u32 step, u32 i) const {
        u32 row = column + own_row(i), at = step * Stages<E>::PIECES + own_piece();
        bool is_there = row < w.n && at < w.row_pieces();
        return {is_there ? row * w.row_pieces() + at : 0, is_there};
    }
    /// e4m3 scale of all the tile's columns in a step.
    DEVICE_MEMBER float scale(u32 step) const {
        u32 blocks = (w.k + SCALE_BLOCK - 1) / SCALE_BLOCK;
        return w.scales[column / SCALE_BLOCK * blocks + step / (SCALE_BLOCK / STEP)];
    }
};

/// Starts to copy a step's operands; zeros where there are none. After the last step, an empty
/// group keeps the group count.
template <class E>
DEVICE void begin_step(const Stages<E>& stages, u32 stage, const Factors<E>& f, u32 step) {
    if (step < f.steps()) {
#pragma unroll
        for (u32 i = 0; i < TILE * STEP_PIECES / THREADS; ++i) {
            u32 row = (i * THREADS + threadIdx.x) / STEP_PIECES, column = threadIdx.x % STEP_PIECES;
            u32 k = step * STEP + column * 8;
            bool is_there = row < f.rows && k < f.w.k;
            copy_async(piece<STEP_PIECES>(stages.activations(stage), row, column),
                       f.x + (is_there ? row * f.w.k + k : 0), is_there);
        }
#pragma unroll
        for (u32 i = 0; i < Stages<E>::OWN; ++i) {
            Place from = f.place(step, i);
            u8* to = stages.code(stage, i);
            if (!Stages<E>::IS_WIDENED) {
                to = piece<STEP_PIECES>(stages.weights(stage), f.own_row(i), f.own_piece());
            }
            copy_async(to, reinterpret_cast<const u8*>(f.w.rows) + from.at * 16, from.is_there);
        }
    }
    close_copies();
}

/// Loads the MXFP4 scale factor of each of the thread's pieces.
template <class E>
DEVICE void load_factors(u32 (&factors)[Stages<E>::OWN], const Factors<E>& f, u32 step) {
    if constexpr (sizeof(typename Format<E>::Scale) == 1) {
#pragma unroll
        for (u32 i = 0; i < Stages<E>::OWN; ++i) {
            bool is_there = f.place(step, i).is_there;
            u64 at = Format<E>::scale_at(f.w.n, f.column + f.own_row(i),
                                         step * Stages<E>::PIECES + f.own_piece());
            factors[i] = is_there ? Format<E>::factor(f.w.scales[at]) : 0;
        }
    }
}

/// Converts a piece of 16 e4m3 weights to bf16, in the order of their columns.
DEVICE void widen_piece(u32 (&words)[8], const u32 (&code)[4], u32 factor) {
#pragma unroll
    for (u32 i = 0; i < 8; i += 2) {
        u32 odd = Format<e4m3>::weights(code, i, factor);
        u32 even = Format<e4m3>::weights(code, i + 1, factor);
        words[i] = low_halves(even, odd);
        words[i + 1] = high_halves(even, odd);
    }
}

/// Converts a piece of 32 MXFP4 weights to bf16, in the order of their columns.
DEVICE void widen_piece(u32 (&words)[16], const u32 (&code)[4], u32 factor) {
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        words[i] = Format<e2m1x2>::weights(code, Format<e2m1x2>::place(i), factor);
    }
}

/// Converts the weights of a step that this thread copied.
template <class E>
DEVICE void widen_step(const Stages<E>& stages, u32 stage, const Factors<E>& f, u32 step,
                       const u32 (&factors)[Stages<E>::OWN]) {
    constexpr u32 PIECE = Format<E>::PIECE;
#pragma unroll
    for (u32 i = 0; i < Stages<E>::OWN; ++i) {
        uint4 from = *reinterpret_cast<const uint4*>(stages.code(stage, i));
        u32 code[4] = {from.x, from.y, from.z, from.w}, words[PIECE / 2];
        widen_piece(words, code, factors[i]);
#pragma unroll
        for (u32 j = 0; j < PIECE / 8; ++j) {
            u8* to = piece<STEP_PIECES>(stages.weights(step % 2), f.own_row(i),
                                        f.own_piece() * (PIECE / 8) + j);
            *reinterpret_cast<uint4*>(to) =
                make_uint4(words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3]);
        }
    }
}

/// Sums of a lane: one 16 x 8 tensor-core result for each part of the warp.
struct Sums {
    float x[TILE * TILE / WARPS / 128][4];
};

/// Adds the sums of a scale block, `sums += scale * block`, and resets `block` to zero.
DEVICE void add_block(Sums& sums, Sums& block, float scale) {
#pragma unroll
    for (u32 i = 0; i < sizeof sums.x / sizeof sums.x[0]; ++i) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            sums.x[i][j] += scale * block.x[i][j];
            block.x[i][j] = 0.0f;
        }
    }
}

/// Computes the sums of a tile. `Matmul` says which parts belong to a warp, and how a step is
/// multiplied.
template <class E, class Matmul>
DEVICE Sums multiply(const Stages<E>& stages, const Factors<E>& f) {
    Sums sums = {}, block = {};
    u32 factors[Stages<E>::OWN] = {}, stage = 0, steps = f.steps();
    load_factors(factors, f, 0);
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; ++i) begin_step(stages, i, f, i);
    for (u32 step = 0; step < steps; ++step) {
        auto begin_next = [&] {
            begin_step(stages, stage == 0 ? STAGES - 1 : stage - 1, f, step + STAGES - 1);
            if (step + 1 < steps) load_factors(factors, f, step + 1);
        };
        await_copies<STAGES - 2>();
        if constexpr (Stages<E>::IS_WIDENED) widen_step(stages, stage, f, step, factors);
        Matmul::share();
        __syncthreads();
        // Copies overlap with the multiplication: they start before it if it blocks the warp.
        if (!Matmul::IS_ASYNC) begin_next();
        // Warps without rows skip the multiplication, but take part in copies and barriers.
        if (Matmul::row() < f.rows) {
            const u8* weights = stages.weights(Stages<E>::IS_WIDENED ? step % 2 : stage);
            Matmul::multiply(Format<E>::HAS_STEP_SCALES ? block : sums, stages.activations(stage),
                              weights);
        }
        if (Matmul::IS_ASYNC) begin_next();
        bool is_last = step == steps - 1 || step % (SCALE_BLOCK / STEP) == SCALE_BLOCK / STEP - 1;
        if (Format<E>::HAS_STEP_SCALES && is_last) {
            Matmul::finish(block);
            add_block(sums, block, f.scale(step));
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    Matmul::finish(sums);
    await_copies<0>();
    return sums;
}

/// Output target: `out` [rows, N] in bf16, or else `wide` in f32; biases [N] are added if given.
struct Results {
    bf16* out;
    float* wide;
    const float* biases;
    u32 n;
};

/// Writes a tile's sums, times `factor`, through shared memory, so that threads write whole rows.
template <class Matmul>
DEVICE void write(const Results& results, const Tile& tile, const Sums& own, float* all,
                  float factor) {
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < sizeof own.x / sizeof own.x[0]; ++i) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            u32 row = Matmul::row() + Matmul::part_row(i) + lane() / 4 + 8 * half;
            float* to = all + row * SUM_STRIDE + Matmul::part_column(i) + lane() % 4 * 2;
            *reinterpret_cast<float2*>(to) =
                make_float2(own.x[i][2 * half] * factor, own.x[i][2 * half + 1] * factor);
        }
    }
    __syncthreads();
    u32 in_row = threadIdx.x % (TILE / 8) * 8, column = tile.column + in_row;
    for (u32 row = threadIdx.x / (TILE / 8); row < tile.rows; row += THREADS / (TILE / 8)) {
        if (column >= results.n) break;
        Eight sum = load8(all + row * SUM_STRIDE + in_row);
        if (results.biases) {
            Eight bias = load8(results.biases + column);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum.x[i] += bias.x[i];
        }
        u64 at = static_cast<u64>(tile.row + row) * results.n + column;
        if (results.out) {
            store8(results.out + at, sum);
        } else {
            store8(results.wide + at, sum);
        }
    }
    __syncthreads();
}

/// Computes every grid-th tile of `groups`: rows of x [rows, K] times their expert's weights, plus
/// biases [experts, N] if given. `w` is the matrix of the first expert.
template <class E, class Matmul>
DEVICE void multiply_tiles(u8* shared, bf16* out, float* wide, const bf16* x, const Matrix<E>& w,
                           const float* biases, const Groups& groups) {
    Stages<E> stages = {shared};
    for (u32 index = blockIdx.x;; index += gridDim.x) {
        Tile tile = find_tile<TILE, TILE>(groups, w.n, index);
        if (tile.rows == 0) return;
        Factors<E> f = {x + static_cast<u64>(tile.row) * w.k, w.of_expert(tile.expert), tile.rows,
                        tile.column};
        Sums sums = multiply<E, Matmul>(stages, f);
        const float* bias = biases ? biases + static_cast<u64>(tile.expert) * w.n : nullptr;
        Results results = {out, wide, bias, w.n};
        write<Matmul>(results, tile, sums, stages.sums(), Format<E>::FACTOR);
    }
}
