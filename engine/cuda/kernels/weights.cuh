//! Storage formats of weights `[N, K]` (bf16, FP8 e4m3, MXFP4): location of their scales, and
//! dequantization from pieces of 16 bytes. A row of weights consists of whole pieces; N is a
//! multiple of 8.
#pragma once
#include "prims.cuh"

/// Dequantization of one format: `weights` returns the i-th word (two numbers) of a piece as bf16,
/// and `activations` the i-th word of eight activations in the matching column order. Word `i` of a
/// piece in the order of columns is word `place(i)` of `weights`.
template <class E> struct Format;

template <> struct Format<bf16> {
    using Scale = float;
    /// Columns of a piece.
    static constexpr u32 PIECE = 8;
    /// True when the weights of a step share a scale.
    static constexpr bool HAS_STEP_SCALES = false;
    /// Factor of the final sums, in addition to scales.
    static constexpr float FACTOR = 1.0f;

    /// Number of scales of a matrix.
    static DEVICE_MEMBER u64 scales(u32, u32) { return 0; }
    static DEVICE_MEMBER u32 factor(Scale) { return 0; }
    static DEVICE_MEMBER u32 weights(const u32 (&piece)[4], u32 i, u32) { return piece[i]; }
    static DEVICE_MEMBER u32 activations(const u32 (&eight)[4], u32 i) { return eight[i]; }
    static DEVICE_MEMBER constexpr u32 place(u32 i) { return i; }
};

/// Format FP8 e4m3, with scales [N / 128, K / 128], rounded up.
template <> struct Format<e4m3> {
    using Scale = float;
    static constexpr u32 PIECE = 16;
    static constexpr bool HAS_STEP_SCALES = true;
    static constexpr float FACTOR = 1.0f;

    static DEVICE_MEMBER u64 scales(u32 n, u32 k) {
        return static_cast<u64>((n + 127) / 128) * ((k + 127) / 128);
    }
    static DEVICE_MEMBER u32 factor(Scale) { return 0; }
    static DEVICE_MEMBER u32 weights(const u32 (&piece)[4], u32 i, u32) {
        return widen_e4m3(i % 2 ? piece[i / 2] << 8 : piece[i / 2]);
    }
    static DEVICE_MEMBER u32 activations(const u32 (&eight)[4], u32 i) {
        u32 first = eight[i / 2 * 2], second = eight[i / 2 * 2 + 1];
        return i % 2 ? low_halves(first, second) : high_halves(first, second);
    }
    static DEVICE_MEMBER constexpr u32 place(u32 i) { return i; }
};

/// Format MXFP4, with scales [K / 128, N, 4], rounded up, one for each piece, so that a copy of 16
/// bytes has those of four output columns: powers of two with bias 127, exact from 2^-60 to 2^65. Converted weights are 2^-64 times too small, so that one multiplication both
/// corrects the exponent and applies the scale; FACTOR undoes it.
///
/// Word q of a piece holds the columns that lane q of four multiplies in two tensor-core steps of 16
/// columns. They are the left operand's four words as pairs: pair p has column 8 p + 2 q in the lower
/// half of the word and the next one in the upper half. A half has the bits of its four numbers where
/// few instructions find them, a number's sign first:
///
/// pair 0: bits 15, 8, 7, 6, as in a bf16
/// pair 1: bits 12, 5, 4, 3, which are those of pair 0 after a shift by 3
/// pair 2: bits 9, 2, 1, 0, after a shift by 6
/// pair 3: bits 14, 13, 11, 10
template <> struct Format<e2m1x2> {
    using Scale = u8;
    static constexpr u32 PIECE = 32;
    static constexpr bool HAS_STEP_SCALES = false;
    static constexpr float FACTOR = 18446744073709551616.0f;

    static DEVICE_MEMBER u64 scales(u32 n, u32 k) { return scale_at(n, 0, (k + 127) / 128 * 4); }
    /// Index of the scale of a piece of output column `column`, of N.
    static DEVICE_MEMBER u64 scale_at(u32 n, u32 column, u32 piece) {
        return (static_cast<u64>(piece / 4) * n + column) * 4 + piece % 4;
    }
    /// The bf16 factor 2^(scale - 127 + 126 - 64), in both halves of a word.
    static DEVICE_MEMBER u32 factor(Scale scale) { return (scale + 62u) * 0x00800080u; }
    /// Bits of pair p in a word, from two numbers in the lowest bits of the halves of `codes`.
    static DEVICE_MEMBER u32 pair(u32 codes, u32 p) {
        return p < 3 ? (codes & 0x00080008u) << (12 - 3 * p) | (codes & 0x00070007u) << (6 - 3 * p)
                     : (codes & 0x000c000cu) << 11 | (codes & 0x00030003u) << 10;
    }
    static DEVICE_MEMBER u32 weights(const u32 (&piece)[4], u32 i, u32 factor) {
        u32 word = piece[i / 4], pair = i % 4;
        u32 bits = pair < 3 ? word << 3 * pair & 0x81c081c0u
                            : (word << 1 & 0x80008000u) | (word >> 5 & 0x01000100u) |
                                  (word >> 4 & 0x00c000c0u);
        return multiply_bf16x2(bits, factor);
    }
    static DEVICE_MEMBER u32 activations(const u32 (&eight)[4], u32 i) { return eight[i]; }
    /// Columns 2 i and 2 i + 1 are converted by number i / 4 of word i % 4.
    static DEVICE_MEMBER constexpr u32 place(u32 i) { return i % 4 * 4 + i / 4; }
};

/// Weight matrix [N, K] with its scales.
template <class E> struct Matrix {
    const E* rows;
    const typename Format<E>::Scale* scales;
    u32 n, k;

    DEVICE_MEMBER u32 row_pieces() const { return k / Format<E>::PIECE; }
    /// Matrix of an expert, if this is the matrix of the first.
    DEVICE_MEMBER Matrix of_expert(u32 expert) const {
        u64 pieces = static_cast<u64>(n) * row_pieces();
        const u8* codes = reinterpret_cast<const u8*>(rows) + expert * pieces * 16;
        u64 apart = Format<E>::scales(n, k) * expert;
        return {reinterpret_cast<const E*>(codes), scales ? scales + apart : nullptr, n, k};
    }
};

/// Location of a piece of weights, counted in pieces from the matrix's first. A piece that does not
/// exist has location 0, which is a valid address.
struct Place {
    u64 at;
    bool is_there;
};
