//! Checks of the kernels on a GPU, for `redline bench --kernels --check`: random operands, and
//! reference results of all operations except attention and the gated delta net.
//!
//! reference_random: out [words] u32 = random weights or scales. Kind 0: e4m3 [N, K] without NaN, of
//! magnitudes below 2 except in every eighth row; 1: any bits, as for MXFP4; 2: MXFP4 scales from
//! 2^-7 to 2^8; 3: f32 from 0.5 to 2; 4: bf16 of magnitudes from 0.5 to 1.
//! reference_fill: out [words] u32 = value.
//! reference_compare: counts [4] u32 = number of elements that differ between `first` and `second`
//! and index of the first, then number of elements of `second` whose bits are all set and index of
//! the first; elements have 1, 2 or 4 bytes.
//! reference_read: out [count] f32 = elements `at` of `from`, of bf16 (type 0), f32 (1), e4m3 (2) or
//! u32 (3).
//! reference_matmul: elements of x [P, K] times weights [E, N, K] transposed, plus biases [E, N];
//! the rows of an expert begin at offsets [E + 1], or all rows belong to the first if it is null.
//! reference_rows: elements of operations without a matrix.
//! reference_copy: elements of rows of x [., N] that are listed in `rows`, divided by `divisor`.
//! reference_combine: elements of the weighted sum of a row's results.
//! Grid: a thread for each element; a warp for each element of a matmul or norm. Block: 128.
//@ reference_random: registers 40, shared 0, has STG.E
//@ reference_fill: registers 24, shared 0, has STG.E
//@ reference_compare: registers 48, shared 0, has LDG.E
//@ reference_read: registers 40, shared 0, has LDG.E
//@ reference_matmul_bf16: registers 80, shared 0, has LDG.E DADD
//@ reference_matmul_e4m3: registers 80, shared 0, has LDG.E DADD
//@ reference_matmul_mxfp4: registers 80, shared 0, has LDG.E DADD
//@ reference_rows: registers 80, shared 0, has LDG.E DFMA
//@ reference_copy: registers 32, shared 0, has LDG.E
//@ reference_combine: registers 48, shared 0, has LDG.E DADD
#include "reference.cuh"

DEVICE u32 mixed(u32 seed, u64 index) {
    u64 z = (index + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    return static_cast<u32>((z ^ z >> 27) * 0x94d049bb133111ebull >> 32);
}

DEVICE u64 grid_threads() { return static_cast<u64>(gridDim.x) * REFERENCE_BLOCK; }

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_random(u32* out, u64 words, u32 seed, u32 kind, u32 k) {
    for (u64 i = thread_index(); i < words; i += grid_threads()) {
        u32 bits = mixed(seed, i);
        if (kind == 0) {
            bool is_large = i * 4 / k % 8 == 7;
            // Without the exponent's highest bit magnitudes are below 2; NaN have all bits set.
            for (u32 byte = 0; byte < 4; ++byte) {
                u32 mask = 0x7fu << 8 * byte;
                if (!is_large || (bits & mask) == mask) bits &= ~(0x40u << 8 * byte);
            }
        } else if (kind == 2) {
            bits = (bits & 0x0f0f0f0fu) + 0x78787878u;
        } else if (kind == 4) {
            bits = (bits & 0x807f807fu) | 0x3f003f00u;
        } else if (kind == 3) {
            bits = __float_as_uint(0.5f + 1.5f * static_cast<float>(bits >> 8) / 16777216.0f);
        }
        out[i] = bits;
    }
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_fill(u32* out, u64 words, u32 value) {
    for (u64 i = thread_index(); i < words; i += grid_threads()) out[i] = value;
}

DEVICE u32 bits_at(const u8* from, u64 index, u32 bytes) {
    if (bytes == 1) return from[index];
    if (bytes == 2) return reinterpret_cast<const u16*>(from)[index];
    return reinterpret_cast<const u32*>(from)[index];
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_compare(u32* counts, const u8* first, const u8* second, u64 count, u32 bytes) {
    u32 unset = bytes == 1 ? 0xffu : bytes == 2 ? 0xffffu : 0xffffffffu;
    for (u64 i = thread_index(); i < count; i += grid_threads()) {
        u32 got = bits_at(second, i, bytes), index = static_cast<u32>(i);
        if (bits_at(first, i, bytes) != got) {
            atomicAdd(&counts[0], 1u);
            atomicMin(&counts[1], index);
        }
        if (got == unset) {
            atomicAdd(&counts[2], 1u);
            atomicMin(&counts[3], index);
        }
    }
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_read(float* out, const u32* at, const u8* from, u32 count, u32 type) {
    u32 i = thread_index();
    if (i >= count) return;
    u32 index = at[i];
    if (type == 0) {
        out[i] = widen(reinterpret_cast<const bf16*>(from)[index]);
    } else if (type == 1) {
        out[i] = reinterpret_cast<const float*>(from)[index];
    } else if (type == 2) {
        e4m3 x = reinterpret_cast<const e4m3*>(from)[index];
        // A quiet NaN for the two codes that mean it.
        bool is_nan = (x.bits & 0x7f) == 0x7f;
        out[i] = is_nan ? __uint_as_float(0x7fffffffu) : static_cast<float>(value_of(x));
    } else {
        out[i] = static_cast<float>(reinterpret_cast<const u32*>(from)[index]);
    }
}

struct ReferenceMatmul {
    u32 count, experts, n, k;
};

/// Weight at `row` and `column` of the matrix of `expert`.
DEVICE double weight_at(const bf16* w, const float*, const ReferenceMatmul& s, u32 expert, u32 row,
                        u32 column) {
    return value_of(w[(static_cast<u64>(expert) * s.n + row) * s.k + column]);
}

DEVICE double weight_at(const e4m3* w, const float* scales, const ReferenceMatmul& s, u32 expert,
                        u32 row, u32 column) {
    u64 across = (s.k + 127) / 128, down = (s.n + 127) / 128;
    float scale = scales[(expert * down + row / 128) * across + column / 128];
    return scale * value_of(w[(static_cast<u64>(expert) * s.n + row) * s.k + column]);
}

DEVICE double weight_at(const e2m1x2* w, const u8* scales, const ReferenceMatmul& s, u32 expert,
                        u32 row, u32 column) {
    // Column c of 32 is in half c % 2 of word c % 8 / 2, where the bits of the numbers of columns 0 to
    // 7, 8 to 15, 16 to 23 and 24 to 31 are, each with its sign first:
    const u8 places[4][4] = {{15, 8, 7, 6}, {12, 5, 4, 3}, {9, 2, 1, 0}, {14, 13, 11, 10}};
    u64 block = (static_cast<u64>(expert) * s.n + row) * (s.k / 32) + column / 32;
    const u8* half = &w[block * 16 + column % 8 / 2 * 4 + column % 2 * 2].bits;
    u32 code = 0;
    for (u32 i = 0; i < 4; ++i) {
        u32 place = places[column % 32 / 8][i];
        code = code << 1 | (half[place / 8] >> place % 8 & 1);
    }
    // Half units: 0, 1, 2, 3, 4, 6, 8, 12.
    u32 exponent = code >> 1 & 3, mantissa = code & 1;
    u32 halves = exponent > 0 ? (2 + mantissa) << (exponent - 1) : mantissa;
    u64 group = static_cast<u64>(expert) * ((s.k + 127) / 128) + column / 128;
    u32 scale = scales[(group * s.n + row) * 4 + column / 32 % 4];
    float size = ldexpf(static_cast<float>(halves), static_cast<int>(scale) - 128);
    return code & 8 ? -size : size;
}

template <class E, class S>
DEVICE void reference_matmul(float* want, float* size, const u32* at, const bf16* x, const E* w,
                             const S* scales, const float* biases, const u32* offsets,
                             const ReferenceMatmul& s) {
    u32 i = warp_index();
    if (i >= s.count) return;
    u32 row = at[i] / s.n, column = at[i] % s.n, expert = 0;
    if (offsets) {
        while (expert + 1 < s.experts && offsets[expert + 1] <= row) ++expert;
    }
    double sum = 0.0, all = 0.0;
    for (u32 j = lane(); j < s.k; j += LANES) {
        double product = value_of(x[static_cast<u64>(row) * s.k + j]) *
                         weight_at(w, scales, s, expert, column, j);
        sum += product;
        all += fabs(product);
    }
    sum = lanes_sum(sum);
    all = lanes_sum(all);
    if (lane() > 0) return;
    if (biases) sum += biases[static_cast<u64>(expert) * s.n + column];
    want[i] = static_cast<float>(sum);
    size[i] = static_cast<float>(all);
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_matmul_bf16(float* want, float* size, const u32* at, const bf16* x, const bf16* w,
                      const float* scales, const float* biases, const u32* offsets,
                      ReferenceMatmul shape) {
    reference_matmul(want, size, at, x, w, scales, biases, offsets, shape);
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_matmul_e4m3(float* want, float* size, const u32* at, const bf16* x, const e4m3* w,
                      const float* scales, const float* biases, const u32* offsets,
                      ReferenceMatmul shape) {
    reference_matmul(want, size, at, x, w, scales, biases, offsets, shape);
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_matmul_mxfp4(float* want, float* size, const u32* at, const bf16* x, const e2m1x2* w,
                       const u8* scales, const float* biases, const u32* offsets,
                       ReferenceMatmul shape) {
    reference_matmul(want, size, at, x, w, scales, biases, offsets, shape);
}

/// Operation of `reference_rows`, in the order of their numbers.
enum RowsOperation { ADD_BIAS, RMS_NORM, ADD_RMS_NORM, ADD, SILU_MUL, CLAMPED_SWIGLU, SIGMOID_MUL };

struct ReferenceRows {
    u32 count, operation, n;
    /// The norm's epsilon, or alpha and the limit of the clamped SwiGLU.
    float epsilon, limit;
};

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_rows(float* want, float* size, const u32* at, const bf16* x, const bf16* y,
               const float* weight, ReferenceRows s) {
    u32 i = warp_index();
    if (i >= s.count) return;
    u64 row = at[i] / s.n;
    u32 column = at[i] % s.n;
    bool is_added = s.operation == ADD_RMS_NORM, is_norm = is_added || s.operation == RMS_NORM;
    // The norm is that of the sum as it is stored, rounded to bf16.
    auto element = [&](u32 j) -> double {
        float sum = widen(x[row * s.n + j]) + (is_added ? widen(y[row * s.n + j]) : 0.0f);
        return widen_low(narrow(sum, 0.0f));
    };
    double squares = 0.0;
    if (is_norm) {
        for (u32 j = lane(); j < s.n; j += LANES) squares += element(j) * element(j);
    }
    squares = lanes_sum(squares);
    if (lane() > 0) return;
    double result = 0.0;
    if (is_norm) {
        result = element(column) / sqrt(squares / s.n + s.epsilon) * weight[column];
    } else if (s.operation == SILU_MUL || s.operation == CLAMPED_SWIGLU) {
        double gate = widen(x[row * 2 * s.n + column]), up = widen(x[row * 2 * s.n + s.n + column]);
        if (s.operation == CLAMPED_SWIGLU) {
            double limit = s.limit;
            gate = gate > limit ? limit : gate;
            up = up > limit ? limit : up < -limit ? -limit : up;
            result = (up + 1.0) * gate * logistic(s.epsilon * gate);
        } else {
            result = up * gate * logistic(gate);
        }
    } else {
        double own = widen(x[at[i]]);
        double other = s.operation == ADD_BIAS ? weight[column] : widen(y[at[i]]);
        result = s.operation == SIGMOID_MUL ? own * logistic(other) : own + other;
    }
    want[i] = static_cast<float>(result);
    size[i] = static_cast<float>(fabs(result));
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_copy(float* want, const u32* at, const bf16* x, const u32* rows, u32 count, u32 n,
               u32 divisor) {
    u32 i = thread_index();
    if (i >= count) return;
    u64 row = rows[at[i] / n] / divisor;
    want[i] = widen(x[row * n + at[i] % n]);
}

extern "C" __global__ void __launch_bounds__(REFERENCE_BLOCK)
reference_combine(float* want, float* size, const u32* at, const bf16* x, const u32* slots,
                  const float* weights, u32 count, u32 chosen, u32 n) {
    u32 i = thread_index();
    if (i >= count) return;
    u64 row = at[i] / n;
    double sum = 0.0, all = 0.0;
    for (u32 j = 0; j < chosen; ++j) {
        u64 slot = slots[row * chosen + j];
        double term = static_cast<double>(weights[row * chosen + j]) *
                      value_of(x[slot * n + at[i] % n]);
        sum += term;
        all += fabs(term);
    }
    want[i] = static_cast<float>(sum);
    size[i] = static_cast<float>(all);
}
