//! MoE grouped GEMM with MXFP4 weights for GPUs of compute capability 9.0 (Hopper).
//!
//! Arguments are those of `grouped_matmul.cu`. The weights are the left operand of warpgroup
//! multiplication (WGMMA), so that few rows of an expert waste little of the right one, and are
//! converted to bf16 in the registers of the lanes that multiply them. A block has 192 output
//! columns, 64 of each of three warpgroups, and up to 128 rows. Copies of the activations and of the
//! weights, as they are stored, run four steps of 128 columns ahead.
//! Grid: as many blocks as run at once. Block: 12 warps.
//@ for sm_90a
//@ grouped_matmul_mxfp4: registers 168, shared 0, has HGMMA.64x16x16.F32.BF16 HGMMA.64x128x16.F32.BF16 LDGSTS.E.BYPASS.128 WARPGROUP.DEPBAR, lacks HMMA
#include "expert_tiles.cuh"
#include "warpgroup.cuh"
#include "weights.cuh"

using Mxfp4 = Format<e2m1x2>;

#define WARPS 12
#define THREADS (WARPS * LANES)
/// Largest number of rows of a tile, and its number of output columns.
#define ROWS_MAX 128
#define COLUMNS 192
/// Columns of K in a step, and 16-byte pieces of stored weights in as many columns.
#define STEP 128
#define PIECES 4
/// Columns of K in a panel of activations, whose rows have 128 bytes.
#define PANEL 64
#define STAGES 5
/// Bytes of a step: activations in two panels, stored weights, their scales, and padding.
#define ACTIVATION_BYTES (ROWS_MAX * STEP * 2)
#define CODE_BYTES (COLUMNS * PIECES * 16)
#define STAGE_BYTES (ACTIVATION_BYTES + CODE_BYTES + 1024)
/// Elements from one row of results to the next in shared memory, padded so that rows begin in
/// different banks.
#define RESULT_STRIDE (COLUMNS + 8)

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

/// Bytes from one panel of ROWS rows to the next.
template <u32 ROWS> constexpr u32 PANEL_BYTES = ROWS * PANEL * 2;

/// Operands of a tile as one thread copies and loads them: its pieces have the same column in each
/// step, and rows a fixed number apart, so that a step takes few instructions.
template <u32 ROWS> struct Operands {
    static constexpr u32 ROW_PIECES = STEP / 8, ROWS_APART = THREADS / ROW_PIECES;
    static constexpr u32 PARTS = (ROWS + ROWS_APART - 1) / ROWS_APART;
    static constexpr u32 CODES_APART = THREADS / PIECES, CODE_PARTS = COLUMNS / CODES_APART;
    static_assert(ROWS_APART % 8 == 0 && CODES_APART % 8 == 0, "swizzled alike");
    /// What the next step's copies read.
    const bf16* x;
    const u8 *codes, *scales;
    /// Elements between the activations, and bytes between the stored weights, that a thread copies.
    u64 x_apart, codes_apart;
    /// Where they go in a stage, and where the lane's weights and scales are in it.
    u32 x_to, codes_to, codes_from, scales_from;
    /// Number of columns of K that the thread's own pieces are before the end.
    int x_left, codes_left;
    /// Rows, or output columns, from the thread's first to the last of the tile.
    u32 rows_left, code_columns_left;
    /// True if the thread copies the scales of four output columns.
    bool has_scales;
    /// Bytes from the scales of one step to those of the next.
    u32 scales_apart;

    /// Operands of `tile`: its rows of x [rows, K], and the weights of its expert.
    DEVICE_MEMBER Operands(const bf16* all, const Matrix<e2m1x2>& w, const Tile& tile) {
        constexpr u32 PANEL_PIECES = PANEL / 8;
        u32 k = w.k, columns = w.n - tile.column;
        u64 row_bytes = k / 2;
        u32 row = threadIdx.x / ROW_PIECES, part = threadIdx.x % ROW_PIECES;
        x = all + static_cast<u64>(tile.row + row) * k + part * 8;
        x_apart = static_cast<u64>(ROWS_APART) * k;
        x_left = static_cast<int>(k - part * 8);
        u8* none = nullptr;
        x_to = static_cast<u32>(piece<PANEL_PIECES>(none, row, part % PANEL_PIECES) - none) +
               part / PANEL_PIECES * PANEL_BYTES<ROWS>;
        rows_left = tile.rows > row ? tile.rows - row : 0;
        u32 column = threadIdx.x / PIECES, own = threadIdx.x % PIECES;
        const u8* first = reinterpret_cast<const u8*>(w.rows);
        codes = first + (tile.column + column) * row_bytes + own * 16;
        codes_apart = CODES_APART * row_bytes;
        codes_left = static_cast<int>(k - own * Mxfp4::PIECE);
        codes_to = static_cast<u32>(piece<PIECES>(none, column, own) - none) + ACTIVATION_BYTES;
        code_columns_left = columns > column ? columns - column : 0;
        scales = w.scales + (tile.column + threadIdx.x * 4) * 4;
        has_scales = threadIdx.x * 4 < min(columns, static_cast<u32>(COLUMNS));
        scales_apart = w.n * PIECES;
        codes_from = static_cast<u32>(piece<PIECES>(none, own_column(), 0) - none) + lane() % 4 * 4 +
                     ACTIVATION_BYTES;
        scales_from = ACTIVATION_BYTES + CODE_BYTES + own_column() * PIECES;
    }

    /// Starts to copy the next step's operands; zeros where there are none. After the last step, an
    /// empty group keeps the group count.
    DEVICE_MEMBER void begin(u8* stage, bool is_step) {
        if (is_step) {
            const bf16* from = x;
#pragma unroll
            for (u32 i = 0; i < PARTS; ++i) {
                if (i * ROWS_APART + ROWS_APART > ROWS && threadIdx.x / ROW_PIECES + i * ROWS_APART >= ROWS) break;
                copy_async(stage + x_to + i * (ROWS_APART * PANEL * 2), from,
                           x_left > 0 && i * ROWS_APART < rows_left);
                from += x_apart;
            }
            const u8* code = codes;
#pragma unroll
            for (u32 i = 0; i < CODE_PARTS; ++i) {
                copy_async(stage + codes_to + i * (CODES_APART * PIECES * 16), code,
                           codes_left > 0 && i * CODES_APART < code_columns_left);
                code += codes_apart;
            }
            // Those of other columns and pieces are never read, or multiply zeros.
            if (has_scales) copy_async(stage + ACTIVATION_BYTES + CODE_BYTES + threadIdx.x * 16, scales, true);
            scales += scales_apart;
            x += STEP;
            x_left -= STEP;
            codes += PIECES * 16;
            codes_left -= STEP;
        }
        close_copies();
    }
};

/// Converts the lane's weights of one panel, from `codes` with `scales` of the lane's two output
/// columns: operands of four multiplications by 16 columns.
DEVICE void widen_panel(u32 (&weights)[4][4], const u8* stage, u32 codes, u32 panel,
                        const u32 (&scales)[2]) {
#pragma unroll
    for (u32 p = 0; p < 2; ++p) {
        u32 column = 2 * panel + p;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            // Output columns eight apart are swizzled alike.
            u32 at = (codes ^ column * 16) + half * (8 * PIECES * 16);
            u32 code[4] = {*reinterpret_cast<const u32*>(stage + at), 0, 0, 0};
            u32 factor = Mxfp4::factor(static_cast<u8>(scales[half] >> 8 * column));
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                weights[2 * p + i / 2][i % 2 * 2 + half] = Mxfp4::weights(code, i, factor);
            }
        }
    }
}

/// Starts to multiply the weights of one panel with all rows of its activations.
template <u32 ROWS>
DEVICE void multiply_panel(float (&sums)[ROWS / 8][4], const u32 (&weights)[4][4], const u8* panel) {
    u64 x = describe(panel);
    begin_wgmma();
#pragma unroll
    for (u32 k = 0; k < PANEL / 16; ++k) multiply_rows(sums, weights[k], x + 2 * k);
    close_wgmma();
}

/// Writes a tile's sums, plus biases if given, through shared memory, so that threads write whole
/// rows. `bias` begins at the expert's first output column.
template <u32 ROWS>
DEVICE void write(bf16* out, const float* bias, const Tile& tile, const float (&sums)[ROWS / 8][4],
                  u8* shared, u32 n) {
    u16* all = reinterpret_cast<u16*>(shared);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        u32 column = own_column() + 8 * half;
        float own = bias && tile.column + column < n ? bias[tile.column + column] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < ROWS / 8; ++i) {
            u32 row = i * 8 + lane() % 4 * 2;
            u32 both = narrow(sums[i][2 * half] * Mxfp4::FACTOR + own,
                              sums[i][2 * half + 1] * Mxfp4::FACTOR + own);
            all[row * RESULT_STRIDE + column] = static_cast<u16>(both);
            all[(row + 1) * RESULT_STRIDE + column] = static_cast<u16>(both >> 16);
        }
    }
    __syncthreads();
    constexpr u32 VECTORS = COLUMNS / 8;
    u32 in_row = threadIdx.x % VECTORS * 8, column = tile.column + in_row;
    for (u32 row = threadIdx.x / VECTORS; row < tile.rows && column < n; row += THREADS / VECTORS) {
        u64 to = static_cast<u64>(tile.row + row) * n + column;
        *reinterpret_cast<uint4*>(out + to) =
            *reinterpret_cast<const uint4*>(all + row * RESULT_STRIDE + in_row);
    }
    __syncthreads();
}

/// Computes a tile of at most ROWS rows.
template <u32 ROWS>
DEVICE void multiply_tile(u8* shared, bf16* out, const float* bias, const Tile& tile,
                          const bf16* x, const Matrix<e2m1x2>& w) {
    Operands<ROWS> operands(x, w, tile);
    float sums[ROWS / 8][4];
#pragma unroll
    for (u32 i = 0; i < ROWS / 8; ++i) {
        for (u32 j = 0; j < 4; ++j) sums[i][j] = 0.0f;
    }
    u32 steps = (w.k + STEP - 1) / STEP, stage = 0;
#pragma unroll
    for (u32 i = 0; i < STAGES - 1; ++i) operands.begin(shared + i * STAGE_BYTES, i < steps);
    for (u32 step = 0; step < steps; ++step) {
        await_copies<STAGES - 2>();
        publish_to_wgmma();
        // All warpgroups have also finished the previous step, whose memory is filled again.
        __syncthreads();
        u8* own = shared + stage * STAGE_BYTES;
        u32 scales[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u8* from = own + operands.scales_from + half * (8 * PIECES);
            scales[half] = *reinterpret_cast<const u32*>(from);
        }
        u8* filled = shared + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE_BYTES;
        operands.begin(filled, step + STAGES - 1 < steps);
#pragma unroll
        for (u32 panel = 0; panel < STEP / PANEL; ++panel) {
            if (step * STEP + panel * PANEL >= w.k) break;
            u32 weights[4][4];
            widen_panel(weights, own, operands.codes_from, panel, scales);
            multiply_panel<ROWS>(sums, weights, own + panel * PANEL_BYTES<ROWS>);
            // The other warpgroups convert meanwhile. Converting the next panel here would take
            // more registers than there are: ptxas then waits for every single multiplication.
            await_wgmma();
            take_sums(sums);
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    await_copies<0>();
    __syncthreads();
    write<ROWS>(out, bias, tile, sums, shared, w.n);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
grouped_matmul_mxfp4(bf16* out, const bf16* __restrict__ x, const e2m1x2* __restrict__ weights,
                     const u8* __restrict__ scales, const float* __restrict__ biases,
                     const u32* __restrict__ offsets, u32 experts, u32 n, u32 k) {
    DYNAMIC_TILES(shared);
    Groups groups = {offsets, experts, 0};
    Matrix<e2m1x2> w = {weights, scales, n, k};
    for (u32 index = blockIdx.x;; index += gridDim.x) {
        Tile tile = find_tile<ROWS_MAX, COLUMNS>(groups, n, index);
        if (tile.rows == 0) return;
        Matrix<e2m1x2> own = w.of_expert(tile.expert);
        const float* bias = biases ? biases + static_cast<u64>(tile.expert) * n : nullptr;
        if (tile.rows <= 16) {
            multiply_tile<16>(shared, out, bias, tile, x, own);
        } else if (tile.rows <= 32) {
            multiply_tile<32>(shared, out, bias, tile, x, own);
        } else if (tile.rows <= 64) {
            multiply_tile<64>(shared, out, bias, tile, x, own);
        } else {
            multiply_tile<128>(shared, out, bias, tile, x, own);
        }
    }
}
