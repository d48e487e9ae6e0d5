//! MoE grouped GEMM with MXFP4 weights for GPUs of compute capability 9.0 (Hopper).
//!
//! Arguments are those of `grouped_matmul.cu`. The weights are the left operand of warpgroup
//! multiplication (WGMMA), so that few rows of an expert waste little of the right one, and are
//! converted to bf16 in the registers of the lanes that multiply them: those of 32 columns of K while
//! those of the 32 before are multiplied. A block has 256 output columns, 64 of each of four
//! warpgroups, and up to 128 rows. Copies of the activations and of the weights, as they are stored,
//! run ahead of the multiplications. Copies and conversions go on into the next tile.
//! Grid: as many blocks as run at once. Block: 16 warps.
//@ for sm_90a
//@ grouped_matmul_mxfp4: registers 128, shared 0, has HGMMA.64x16x16.F32.BF16 HGMMA.64x128x16.F32.BF16 LDGSTS.E.BYPASS.128 WARPGROUP.DEPBAR, lacks HMMA
#include "expert_tiles.cuh"
#include "warpgroup.cuh"
#include "weights.cuh"

using Mxfp4 = Format<e2m1x2>;

#define WARPS 16
#define THREADS (WARPS * LANES)
/// Largest number of rows of a tile, and its number of output columns.
#define ROWS_MAX 128
#define COLUMNS 256
/// Columns of K in a step, and 16-byte pieces of stored weights in as many columns.
#define STEP 128
#define PIECES 4
/// Columns of K that are converted and multiplied at a time, and multiplications by 16 of them.
#define PART 32
#define DEPTHS (PART / 16)
/// Columns of K in a panel of activations, whose rows have 128 bytes.
#define PANEL 64
#define PANEL_BYTES (ROWS_MAX * PANEL * 2)
/// Steps in shared memory, and those of them that copies are ahead.
#define STAGES 4
#define AHEAD (STAGES - 1)
/// Bytes of a step: activations in two panels, stored weights, their scales.
#define ACTIVATION_BYTES (ROWS_MAX * STEP * 2)
#define CODE_BYTES (COLUMNS * PIECES * 16)
#define STAGE_BYTES (ACTIVATION_BYTES + CODE_BYTES + COLUMNS * PIECES)
/// Results of a warp that are transposed at a time: rows, and elements from one row to the next, so
/// that rows begin in different banks.
#define RESULT_ROWS 16
#define RESULT_STRIDE 24

DEVICE void multiply_rows(float (&c)[2][4], const u32 (&a)[4], u64 b) { multiply_add_64x16(c, a, b); }
DEVICE void multiply_rows(float (&c)[4][4], const u32 (&a)[4], u64 b) { multiply_add_64x32(c, a, b); }
DEVICE void multiply_rows(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    multiply_add_64x64<false>(c, a, b);
}
DEVICE void multiply_rows(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    multiply_add_64x128<false>(c, a, b);
}

/// First of a lane's two output columns in the tile; the other one is eight behind it.
DEVICE u32 own_column() { return warp() * 16 + lane() / 4; }

/// Offset of a 16-byte piece in a tile of rows of N pieces, swizzled.
template <u32 N> DEVICE u32 piece_offset(u32 row, u32 column) {
    u8* none = nullptr;
    return static_cast<u32>(piece<N>(none, row, column) - none);
}

/// Copies of a block's tiles, one step after another. A thread's pieces have the same column in each
/// step, and rows a fixed number apart, so that a step takes few instructions.
struct Copies {
    static constexpr u32 ROW_PIECES = STEP / 8, ROWS_APART = THREADS / ROW_PIECES;
    static constexpr u32 ROW_PARTS = ROWS_MAX / ROWS_APART;
    static constexpr u32 CODES_APART = THREADS / PIECES, CODE_PARTS = COLUMNS / CODES_APART;
    static_assert(ROWS_APART % 8 == 0 && CODES_APART % 8 == 0, "swizzled alike");
    const bf16* all;
    Matrix<e2m1x2> all_weights;
    Groups groups;
    /// Tile, and step of it, that are copied next; a tile without rows is behind the last one.
    u32 index, step, rows;
    /// What the next step's copies read.
    const bf16* x;
    const u8 *codes, *scales;
    /// Output columns from the thread's first to the last of the matrix.
    u32 columns_left;

    /// Begins with the block's first tile.
    DEVICE_MEMBER Copies(const bf16* activations, const Matrix<e2m1x2>& weights, const Groups& g)
        : all(activations), all_weights(weights), groups(g), index(blockIdx.x) {
        find();
    }

    /// Finds the tile of `index` and goes to its first step.
    DEVICE_MEMBER void find() {
        Tile tile = find_tile<ROWS_MAX, COLUMNS>(groups, all_weights.n, index);
        Matrix<e2m1x2> w = all_weights.of_expert(tile.expert);
        u32 row = threadIdx.x / ROW_PIECES, part = threadIdx.x % ROW_PIECES;
        u32 column = threadIdx.x / PIECES, own = threadIdx.x % PIECES;
        step = 0;
        rows = tile.rows;
        x = all + static_cast<u64>(tile.row + row) * w.k + part * 8;
        const u8* first = reinterpret_cast<const u8*>(w.rows);
        codes = first + static_cast<u64>(tile.column + column) * (w.k / 2) + own * 16;
        columns_left = w.n - tile.column;
        scales = w.scales + (tile.column + threadIdx.x * 4) * PIECES;
    }

    /// Starts to copy the next step's operands; zeros where there are none. After the last tile, an
    /// empty group keeps the group count.
    DEVICE_MEMBER void begin(u8* stage) {
        if (rows > 0) {
            copy_step(stage);
            if (++step * STEP >= all_weights.k) {
                index += gridDim.x;
                find();
            }
        }
        close_copies();
    }

    DEVICE_MEMBER void copy_step(u8* stage) {
        u32 row = threadIdx.x / ROW_PIECES, part = threadIdx.x % ROW_PIECES;
        u8* to = stage + piece_offset<PANEL / 8>(row, part % (PANEL / 8)) + part / (PANEL / 8) * PANEL_BYTES;
        u64 x_apart = static_cast<u64>(ROWS_APART) * all_weights.k;
        const bf16* from = x;
        bool is_there = step * STEP + part * 8 < all_weights.k;
#pragma unroll
        for (u32 i = 0; i < ROW_PARTS; ++i) {
            // Results of other rows are not written, whatever was multiplied.
            if (i * ROWS_APART >= rows) break;
            copy_async(to, from, is_there && row + i * ROWS_APART < rows);
            to += ROWS_APART * PANEL * 2;
            from += x_apart;
        }
        u32 column = threadIdx.x / PIECES, own = threadIdx.x % PIECES;
        to = stage + ACTIVATION_BYTES + piece_offset<PIECES>(column, own);
        is_there = step * STEP + own * Mxfp4::PIECE < all_weights.k;
        u64 codes_apart = static_cast<u64>(CODES_APART) * (all_weights.k / 2);
        const u8* code = codes;
#pragma unroll
        for (u32 i = 0; i < CODE_PARTS; ++i) {
            copy_async(to, code, is_there && column + i * CODES_APART < columns_left);
            to += CODES_APART * PIECES * 16;
            code += codes_apart;
        }
        // Those of other columns and pieces are never read, or multiply zeros.
        if (threadIdx.x * 4 < min(columns_left, static_cast<u32>(COLUMNS))) {
            copy_async(stage + ACTIVATION_BYTES + CODE_BYTES + threadIdx.x * 16, scales, true);
        }
        x += STEP;
        codes += PIECES * 16;
        scales += all_weights.n * PIECES;
    }
};

/// Left operands of the multiplications by one part of K.
struct Weights {
    u32 words[DEPTHS][4];
};

/// Converts the lane's weights of one part of the step in `stage`.
DEVICE void widen_part(Weights& to, const u8* stage, u32 part) {
    const u8* codes = stage + ACTIVATION_BYTES + lane() % 4 * 4;
    const u8* scales = stage + ACTIVATION_BYTES + CODE_BYTES + part;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        // Pieces of a column differ in these bits alone, and columns eight apart are swizzled alike.
        u32 at = (piece_offset<PIECES>(own_column(), 0) ^ part * 16) + half * (8 * PIECES * 16);
        u32 code[4] = {*reinterpret_cast<const u32*>(codes + at), 0, 0, 0};
        u32 factor = Mxfp4::factor(scales[(own_column() + half * 8) * PIECES]);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            to.words[i / 2][i % 2 * 2 + half] = Mxfp4::weights(code, i, factor);
        }
    }
}

/// Writes a tile's sums, plus biases if given, through the warp's part of shared memory, so that
/// lanes write 16 bytes. `bias` begins at the expert's first output column.
template <u32 ROWS>
DEVICE void write(bf16* out, const float* bias, const Tile& tile, const float (&sums)[ROWS / 8][4],
                  u8* shared, u32 n) {
    u16* own = reinterpret_cast<u16*>(shared) + warp() * (RESULT_ROWS * RESULT_STRIDE);
    u32 row = lane() / 2, vector = lane() % 2 * 8;
    u32 first = tile.column + warp() * 16, column = lane() / 4;
    float biases[2];
    for (u32 half = 0; half < 2; ++half) {
        u32 at = first + column + half * 8;
        biases[half] = bias && at < n ? bias[at] : 0.0f;
    }
#pragma unroll
    for (u32 part = 0; part < ROWS / RESULT_ROWS; ++part) {
        if (part * RESULT_ROWS >= tile.rows) break;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float(&two)[4] = sums[part * 2 + i / 2];
            u32 half = i % 2, to = i / 2 * 8 + lane() % 4 * 2;
            u32 both = narrow(two[2 * half] * Mxfp4::FACTOR + biases[half],
                              two[2 * half + 1] * Mxfp4::FACTOR + biases[half]);
            own[to * RESULT_STRIDE + column + half * 8] = static_cast<u16>(both);
            own[(to + 1) * RESULT_STRIDE + column + half * 8] = static_cast<u16>(both >> 16);
        }
        __syncwarp();
        u32 in_tile = part * RESULT_ROWS + row;
        if (in_tile < tile.rows && first + vector < n) {
            u64 at = static_cast<u64>(tile.row + in_tile) * n + first + vector;
            *reinterpret_cast<uint4*>(out + at) =
                *reinterpret_cast<const uint4*>(own + row * RESULT_STRIDE + vector);
        }
        __syncwarp();
    }
}

/// State of a block that goes from step to step, and from tile to tile.
struct Pipeline {
    Copies copies;
    u8* shared;
    /// Stage of the current step.
    u32 stage;
    /// Weights of two parts; the first are those of the current step's first part.
    Weights weights[2];

    /// Stage of the step that comes `steps` steps after the current one.
    DEVICE_MEMBER u8* stage_at(u32 steps) const {
        return shared + (stage + steps) % STAGES * STAGE_BYTES;
    }

    /// Waits until the current step and the next one are in shared memory.
    DEVICE_MEMBER void await() const {
        await_copies<AHEAD - 2>();
        publish_to_wgmma();
        __syncthreads();
    }

    /// Starts the first copies and converts the first weights.
    DEVICE_MEMBER void begin() {
        for (u32 i = 0; i < AHEAD; ++i) copies.begin(stage_at(i));
        await();
        widen_part(weights[0], stage_at(0), 0);
    }

    /// Multiplies the weights of the current step with its activations. While the tensor cores
    /// multiply one part, the next one is converted.
    template <u32 ROWS> DEVICE_MEMBER void multiply_step(float (&sums)[ROWS / 8][4]) {
        const u8* own = stage_at(0);
#pragma unroll
        for (u32 part = 0; part < STEP / PART; ++part) {
            u64 x = describe(own + part / 2 * PANEL_BYTES) + part % 2 * (2 * DEPTHS);
            begin_wgmma();
#pragma unroll
            for (u32 i = 0; i < DEPTHS; ++i) {
                multiply_rows(sums, weights[part % 2].words[i], x + 2 * i);
            }
            close_wgmma();
            // All warps have finished the previous step, whose memory is filled again.
            if (part == 0) copies.begin(stage_at(AHEAD));
            // The registers of the part before are free.
            if (part > 0) await_wgmma<1>();
            bool is_last = part == STEP / PART - 1;
            widen_part(weights[(part + 1) % 2], is_last ? stage_at(1) : own, is_last ? 0 : part + 1);
        }
        await_wgmma();
        await();
        stage = (stage + 1) % STAGES;
    }
};

/// Computes a tile of at most ROWS rows, whose first step is the pipeline's current one.
template <u32 ROWS>
DEVICE void multiply_tile(bf16* out, const float* bias, const Tile& tile, Pipeline& pipeline) {
    float sums[ROWS / 8][4];
#pragma unroll
    for (u32 i = 0; i < ROWS / 8; ++i) {
        for (u32 j = 0; j < 4; ++j) sums[i][j] = 0.0f;
    }
    u32 n = pipeline.copies.all_weights.n, k = pipeline.copies.all_weights.k;
    // A last step that is shorter multiplies zeros.
    for (u32 step = 0; step * STEP < k; ++step) pipeline.multiply_step<ROWS>(sums);
    take_sums(sums);
    write<ROWS>(out, bias, tile, sums, pipeline.shared + STAGES * STAGE_BYTES, n);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
grouped_matmul_mxfp4(bf16* out, const bf16* __restrict__ x, const e2m1x2* __restrict__ weights,
                     const u8* __restrict__ scales, const float* __restrict__ biases,
                     const u32* __restrict__ offsets, u32 experts, u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    Groups groups = {offsets, experts, 0};
    Pipeline pipeline = {Copies(x, {weights, scales, n, k}, groups), shared, 0, {}};
    pipeline.begin();
    for (u32 index = blockIdx.x;; index += gridDim.x) {
        Tile tile = find_tile<ROWS_MAX, COLUMNS>(groups, n, index);
        if (tile.rows == 0) break;
        const float* bias = biases ? biases + static_cast<u64>(tile.expert) * n : nullptr;
        if (tile.rows <= 16) {
            multiply_tile<16>(out, bias, tile, pipeline);
        } else if (tile.rows <= 32) {
            multiply_tile<32>(out, bias, tile, pipeline);
        } else if (tile.rows <= 64) {
            multiply_tile<64>(out, bias, tile, pipeline);
        } else {
            multiply_tile<128>(out, bias, tile, pipeline);
        }
    }
    await_copies<0>();
}
