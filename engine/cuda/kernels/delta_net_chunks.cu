//! Gated delta net for prefill chunks: computes what `delta_net` does, 32 rows at a time.
//!
//! Arguments, states and results are those of `delta_net`. Let g_t be the product of the decays up
//! to row t of a chunk, S the matrix before the chunk, and A_ts = beta_t g_t / g_s (k_t k_s) below
//! the diagonal. The rows D that the chunk adds solve (I + A) D = beta (V - g K S). Its results are
//! g Q S + P D, where P_ts = g_t / g_s (q_t k_s) up to the diagonal. The matrix after it is g_last
//! S + the sum over s of g_last / g_s k_s d_s. All quotients are at most 1.
//!
//! Multiplication uses f32 rounded to eleven bits (TF32): with bf16, small results would be off by
//! more than their own rounding. Each warp computes up to 16 columns of the values and needs no
//! others; queries, keys, A and P are shared by all warps. KD and VD are multiples of 32, at most
//! 128.
//! Grid: (VH, sequences). Block: 8 warps.
//! Source: Yang, Kautz, Hatamizadeh 2024 (Gated Delta Networks); Yang et al. 2024 (chunks of
//! DeltaNet).
//@ delta_net_chunks: registers 176, shared 1280, has HMMA.1688.F32.TF32 MUFU.EX2 STG.E
#include "delta_net.cuh"

#define WARPS 8
#define THREADS (WARPS * LANES)
/// Rows of a chunk.
#define CHUNK 32
/// Rows, and columns, of one tensor-core operation.
#define ROWS 16
#define COLUMNS 8
/// Elements from one row of A or P to the next.
#define PAIR_STRIDE (CHUNK + 4)

/// Shared memory of a block. Strides are padded so that the threads of a warp read from different
/// banks.
struct Chunk {
    float* start;
    u32 key_dim, value_dim;

    DEVICE_MEMBER u32 key_stride() const { return key_dim + 4; }
    DEVICE_MEMBER u32 value_stride() const { return value_dim + 8; }
    DEVICE_MEMBER float* queries() const { return start; }
    DEVICE_MEMBER float* keys() const { return queries() + CHUNK * key_stride(); }
    /// Values V, replaced first by the right-hand side, then by the solution D.
    DEVICE_MEMBER float* values() const { return keys() + CHUNK * key_stride(); }
    DEVICE_MEMBER float* state() const { return values() + CHUNK * value_stride(); }
    /// A (0) or P (1).
    DEVICE_MEMBER float* pairs(u32 of) const {
        return state() + key_dim * value_stride() + of * CHUNK * PAIR_STRIDE;
    }
};

/// Gates of each row of a chunk: cumulative sum of the base-2 logarithms of the decays, and beta.
struct Gates {
    float decays[CHUNK], betas[CHUNK];

    /// Decay from row `from` to row `to`.
    DEVICE_MEMBER float left(u32 to, u32 from) const {
        return exp2_fast(decays[to] - decays[from]);
    }
};

/// Loads a left operand of 16 rows and 8 columns, whose rows are `stride` elements apart.
DEVICE void load_left(float (&a)[4], const float* from, u32 stride) {
    const float* at = from + lane() / 4 * stride + lane() % 4;
    a[0] = shorten(at[0]);
    a[1] = shorten(at[8 * stride]);
    a[2] = shorten(at[4]);
    a[3] = shorten(at[8 * stride + 4]);
}

/// Loads a left operand transposed: columns in memory are rows of the operand.
DEVICE void load_left_transposed(float (&a)[4], const float* from, u32 stride) {
    const float* at = from + lane() % 4 * stride + lane() / 4;
    a[0] = shorten(at[0]);
    a[1] = shorten(at[8]);
    a[2] = shorten(at[4 * stride]);
    a[3] = shorten(at[4 * stride + 8]);
}

/// `c += a * b`, where b has 8 rows and 8 columns at the given address.
DEVICE void multiply_right(float (&c)[4], const float (&a)[4], const float* b, u32 stride) {
    const float* at = b + lane() % 4 * stride + lane() / 4;
    multiply_add(c, a, shorten(at[0]), shorten(at[4 * stride]));
}

/// Convolves the head's queries, keys and values of `rows` rows from `first` of the sequence; rows
/// behind them become zeros.
DEVICE void convolve_chunk(const Chunk& chunk, const bf16* projected, const float* history,
                           const float* conv, const Span& span, const DeltaNetShape& shape,
                           u32 first, u32 rows) {
    u32 head = blockIdx.x, key_head = head / (shape.value_heads / shape.key_heads);
    u32 d = shape.key_dim, width = 2 * d + shape.value_dim;
    for (u32 i = threadIdx.x; i < CHUNK * width; i += THREADS) {
        u32 row = i / width, column = i % width, part = min(column / d, 2u), in = column - part * d;
        u32 channel = (part == 0   ? key_head * d
                       : part == 1 ? (shape.key_heads + key_head) * d
                                   : 2 * shape.key_heads * d + head * shape.value_dim) +
                      in;
        float sum = 0.0f;
        for (u32 tap = 0; tap < shape.taps && row < rows; ++tap) {
            int at = static_cast<int>(first + row + tap) - static_cast<int>(shape.taps - 1);
            sum += conv[static_cast<u64>(tap) * shape.channels() + channel] *
                   channel_at(projected, history, span, shape, at, channel);
        }
        float* to = part == 0   ? chunk.queries() + row * chunk.key_stride()
                    : part == 1 ? chunk.keys() + row * chunk.key_stride()
                                : chunk.values() + row * chunk.value_stride();
        to[in] = silu(sum);
    }
}

/// Normalizes queries and keys to their lengths, one row per warp at a time.
DEVICE void normalize(const Chunk& chunk) {
    for (u32 i = warp(); i < 2 * CHUNK; i += WARPS) {
        float* row = chunk.queries() + i * chunk.key_stride();
        float sum = 0.0f;
        for (u32 j = lane(); j < chunk.key_dim; j += LANES) sum += row[j] * row[j];
        float scale = rsqrtf((warp_sum(sum) + 1e-6f) * (i < CHUNK ? chunk.key_dim : 1));
        for (u32 j = lane(); j < chunk.key_dim; j += LANES) row[j] = shorten(row[j] * scale);
    }
}

/// Computes the gates of a chunk's rows in one warp. Missing rows have decay 1 and beta 0, so they
/// change nothing.
DEVICE void load_gates(Gates& gates, const bf16* rows_from, const float* rates,
                       const DeltaNetShape& shape, u32 rows) {
    Step step = {0.0f, 0.0f};
    if (lane() < rows) {
        const bf16* row = rows_from + static_cast<u64>(lane()) * shape.cols();
        step = step_of(row, rates, shape, blockIdx.x);
    }
    float decay = step.log_decay * LOG2_E;
#pragma unroll
    for (u32 by = 1; by < LANES; by *= 2) {
        float before = __shfl_up_sync(ALL_LANES, decay, by);
        if (lane() >= by) decay += before;
    }
    gates.decays[lane()] = decay;
    gates.betas[lane()] = step.beta;
}

/// Computes A and P, the products of keys and of queries with the keys of earlier rows; each warp
/// computes a part of both.
DEVICE void multiply_pairs(const Chunk& chunk, const Gates& gates) {
    u32 first_row = warp() / 4 * ROWS, first_column = warp() % 4 * COLUMNS;
    u32 stride = chunk.key_stride();
#pragma unroll
    for (u32 of = 0; of < 2; ++of) {
        const float* left = of == 0 ? chunk.keys() : chunk.queries();
        float c[4] = {};
        if (first_column < first_row + ROWS) {
            for (u32 k = 0; k < chunk.key_dim; k += 8) {
                float a[4];
                load_left(a, left + first_row * stride + k, stride);
                const float* b = chunk.keys() + (first_column + lane() / 4) * stride + k;
                // No `shorten` for the keys: `normalize` has rounded them to TF32.
                multiply_add(c, a, b[lane() % 4], b[lane() % 4 + 4]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32 row = first_row + lane() / 4 + i / 2 * 8, column = first_column + lane() % 4 * 2 + i % 2;
            float share = of == 0 ? gates.betas[row] : 1.0f;
            bool is_before = column < row + of;
            chunk.pairs(of)[row * PAIR_STRIDE + column] =
                is_before ? share * gates.left(row, column) * c[i] : 0.0f;
        }
    }
}

/// First of a warp's eight value columns of part 0, or of part 1, which is 64 columns further and
/// exists for heads of more than 64 values.
DEVICE u32 own_column(u32 part) { return (warp() + part * WARPS) * COLUMNS; }

/// Results of a lane, for each of the warp's column parts and each 16 rows.
struct Results {
    float x[2][CHUNK / ROWS][4];
};

/// Replaces V by `beta (V - g K S)` and returns g Q S.
DEVICE Results multiply_state(const Chunk& chunk, const Gates& gates) {
    Results keys = {}, queries = {};
    u32 stride = chunk.key_stride();
    for (u32 k = 0; k < chunk.key_dim; k += 8) {
#pragma unroll
        for (u32 m = 0; m < CHUNK / ROWS; ++m) {
            float key[4], query[4];
            load_left(key, chunk.keys() + m * ROWS * stride + k, stride);
            load_left(query, chunk.queries() + m * ROWS * stride + k, stride);
#pragma unroll
            for (u32 p = 0; p < 2; ++p) {
                if (own_column(p) >= chunk.value_dim) continue;
                const float* b = chunk.state() + k * chunk.value_stride() + own_column(p);
                multiply_right(keys.x[p][m], key, b, chunk.value_stride());
                multiply_right(queries.x[p][m], query, b, chunk.value_stride());
            }
        }
    }
#pragma unroll
    for (u32 p = 0; p < 2; ++p) {
        if (own_column(p) >= chunk.value_dim) continue;
#pragma unroll
        for (u32 i = 0; i < 4 * (CHUNK / ROWS); ++i) {
            u32 row = i / 4 * ROWS + lane() / 4 + i % 4 / 2 * 8;
            float* value = chunk.values() + row * chunk.value_stride() + own_column(p) +
                           lane() % 4 * 2 + i % 2;
            float left = exp2_fast(gates.decays[row]);
            *value = gates.betas[row] * (*value - left * keys.x[p][i / 4][i % 4]);
            queries.x[p][i / 4][i % 4] *= left;
        }
    }
    __syncwarp();
    return queries;
}

/// Solves (I + A) D = R for 16 rows of the warp's columns in place, by forward substitution. The
/// contribution of earlier rows is already subtracted from R.
DEVICE void solve_rows(const Chunk& chunk, u32 first) {
    u32 column = own_column(lane() / COLUMNS % 2) + lane() % COLUMNS;
    // Lanes without a column of their own repeat another lane's work.
    if (column >= chunk.value_dim) column = own_column(0) + lane() % COLUMNS;
    float* values = chunk.values() + first * chunk.value_stride() + column;
    const float* pairs = chunk.pairs(0) + first * PAIR_STRIDE + first;
    float rows[ROWS];
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
        float sum = values[i * chunk.value_stride()];
#pragma unroll
        for (u32 j = 0; j < i; ++j) sum -= pairs[i * PAIR_STRIDE + j] * rows[j];
        rows[i] = sum;
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) values[i * chunk.value_stride()] = rows[i];
    __syncwarp();
}

/// Solves (I + A) D = R for all rows of a chunk: the first 16, then the rest with their
/// contribution subtracted.
DEVICE void solve(const Chunk& chunk) {
    if (own_column(0) >= chunk.value_dim) return;
    solve_rows(chunk, 0);
    float known[2][4] = {};
#pragma unroll
    for (u32 k = 0; k < ROWS; k += 8) {
        float a[4];
        load_left(a, chunk.pairs(0) + ROWS * PAIR_STRIDE + k, PAIR_STRIDE);
#pragma unroll
        for (u32 p = 0; p < 2; ++p) {
            if (own_column(p) >= chunk.value_dim) continue;
            const float* b = chunk.values() + k * chunk.value_stride() + own_column(p);
            multiply_right(known[p], a, b, chunk.value_stride());
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        if (own_column(i / 4) >= chunk.value_dim) continue;
        u32 row = ROWS + lane() / 4 + i % 4 / 2 * 8;
        u32 column = own_column(i / 4) + lane() % 4 * 2 + i % 2;
        chunk.values()[row * chunk.value_stride() + column] -= known[i / 4][i % 4];
    }
    __syncwarp();
    solve_rows(chunk, ROWS);
}

/// Adds the chunk's own rows to the results: `results += P D`.
DEVICE void add_rows(Results& results, const Chunk& chunk) {
#pragma unroll
    for (u32 k = 0; k < CHUNK; k += 8) {
#pragma unroll
        for (u32 m = 0; m < CHUNK / ROWS; ++m) {
            if (k >= (m + 1) * ROWS) continue;
            float a[4];
            load_left(a, chunk.pairs(1) + m * ROWS * PAIR_STRIDE + k, PAIR_STRIDE);
#pragma unroll
            for (u32 p = 0; p < 2; ++p) {
                if (own_column(p) >= chunk.value_dim) continue;
                const float* b = chunk.values() + k * chunk.value_stride() + own_column(p);
                multiply_right(results.x[p][m], a, b, chunk.value_stride());
            }
        }
    }
}

/// Computes the warp's columns of the matrix after the chunk.
DEVICE void leave_state(const Chunk& chunk, const Gates& gates) {
    float left = exp2_fast(gates.decays[CHUNK - 1]);
#pragma unroll
    for (u32 p = 0; p < 2; ++p) {
        if (own_column(p) >= chunk.value_dim) continue;
        float rows[CHUNK / 8][2];
#pragma unroll
        for (u32 i = 0; i < CHUNK / 4; ++i) {
            u32 row = i / 2 * 8 + lane() % 4 + i % 2 * 4;
            const float* from = chunk.values() + row * chunk.value_stride() + own_column(p);
            rows[i / 2][i % 2] = shorten(gates.left(CHUNK - 1, row) * from[lane() / 4]);
        }
        for (u32 first = 0; first < chunk.key_dim; first += ROWS) {
            float* state = chunk.state() + (first + lane() / 4) * chunk.value_stride() +
                           own_column(p) + lane() % 4 * 2;
            float* below = state + 8 * chunk.value_stride();
            float c[4] = {left * state[0], left * state[1], left * below[0], left * below[1]};
#pragma unroll
            for (u32 k = 0; k < CHUNK / 8; ++k) {
                float a[4];
                load_left_transposed(a, chunk.keys() + k * 8 * chunk.key_stride() + first,
                                     chunk.key_stride());
                multiply_add(c, a, rows[k][0], rows[k][1]);
            }
            state[0] = c[0];
            state[1] = c[1];
            below[0] = c[2];
            below[1] = c[3];
        }
    }
}

/// Normalizes the results and writes those of `rows` rows, multiplied by their output gates.
DEVICE void write(bf16* out, const bf16* projected, const Results& results, const float* norm,
                  float (&squares)[WARPS][CHUNK], const Chunk& chunk, const DeltaNetShape& shape,
                  u64 first, u32 rows) {
#pragma unroll
    for (u32 i = 0; i < CHUNK / 8; ++i) {
        float sum = 0.0f;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            float y = results.x[j / 2][i / 2][i % 2 * 2 + j % 2];
            sum += y * y;
        }
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (lane() % 4 == 0) squares[warp()][i * 8 + lane() / 4] = sum;
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < CHUNK / 8; ++i) {
        u32 row = i * 8 + lane() / 4;
        if (row >= rows) continue;
        float sum = 0.0f;
#pragma unroll
        for (u32 j = 0; j < WARPS; ++j) sum += squares[j][row];
        float scale = rsqrtf(sum / chunk.value_dim + shape.epsilon);
#pragma unroll
        for (u32 p = 0; p < 2; ++p) {
            u32 column = own_column(p) + lane() % 4 * 2;
            if (column >= chunk.value_dim) continue;
            u32 at = blockIdx.x * chunk.value_dim + column;
            const bf16* gates = projected + (first + row) * shape.cols() + shape.channels() + at;
            u32 gate = *reinterpret_cast<const u32*>(gates);
            const float(&y)[4] = results.x[p][i / 2];
            float low = y[i % 2 * 2] * scale * norm[column] * silu(widen_low(gate));
            float high = y[i % 2 * 2 + 1] * scale * norm[column + 1] * silu(widen_high(gate));
            u64 to = (first + row) * shape.value_heads * chunk.value_dim + at;
            *reinterpret_cast<u32*>(out + to) = narrow(low, high);
        }
    }
}

/// Loads the head's matrix from a state slot into shared memory; zeros if `from` is null.
DEVICE void load_state(const Chunk& chunk, const float* from) {
    for (u32 i = threadIdx.x; i < chunk.key_dim * chunk.value_dim; i += THREADS) {
        float* to = chunk.state() + i / chunk.value_dim * chunk.value_stride();
        to[i % chunk.value_dim] = from ? from[i] : 0.0f;
    }
}

DEVICE void store_state(float* to, const Chunk& chunk) {
    for (u32 i = threadIdx.x; i < chunk.key_dim * chunk.value_dim; i += THREADS) {
        const float* from = chunk.state() + i / chunk.value_dim * chunk.value_stride();
        to[i] = from[i % chunk.value_dim];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
delta_net_chunks(bf16* out, float* states, const bf16* __restrict__ projected,
                 const Span* __restrict__ spans, const float* __restrict__ layer,
                 DeltaNetShape shape) {
    DYNAMIC_SHARED(shared);
    __shared__ Gates gates;
    __shared__ float squares[WARPS][CHUNK];
    Chunk chunk = {reinterpret_cast<float*>(shared), shape.key_dim, shape.value_dim};
    const float* rates = layer + static_cast<u64>(shape.taps) * shape.channels();
    const float* norm = rates + 2 * shape.value_heads;
    Span span = spans[blockIdx.y];
    const float* history = states + static_cast<u64>(span.from()) * shape.place_stride;
    u64 matrix = static_cast<u64>(shape.taps - 1) * shape.channels() +
                 static_cast<u64>(blockIdx.x) * shape.key_dim * shape.value_dim;
    load_state(chunk, span.position > 0 ? history + matrix : nullptr);
    for (u32 first = 0; first < span.rows; first += CHUNK) {
        u32 rows = min(span.rows - first, static_cast<u32>(CHUNK));
        u64 row = span.row + static_cast<u64>(first);
        convolve_chunk(chunk, projected, history, layer, span, shape, first, rows);
        if (warp() == 0) load_gates(gates, projected + row * shape.cols(), rates, shape, rows);
        __syncthreads();
        normalize(chunk);
        __syncthreads();
        multiply_pairs(chunk, gates);
        Results results = multiply_state(chunk, gates);
        __syncthreads();
        solve(chunk);
        add_rows(results, chunk);
        leave_state(chunk, gates);
        write(out, projected, results, norm, squares, chunk, shape, row, rows);
    }
    __syncthreads();
    store_state(states + static_cast<u64>(span.place) * shape.place_stride + matrix, chunk);
    if (span.save == NONE) return;
    store_state(states + static_cast<u64>(span.save) * shape.place_stride + matrix, chunk);
}
