//! Weights `[N, K]` of every type: where their scales are, and how they come out of the 16 bytes that
//! are copied at a time.
//!
//! Rows of weights are whole pieces. N is a multiple of 8.
#pragma once
#include "prims.cuh"

/// How weights come out of a piece. `weights` gives the i-th word of a piece, two numbers; and
/// `activations` of eight columns the i-th word that meets those.
template <class E> struct Format;

template <> struct Format<bf16> {
    using Scale = float;
    /// Columns of a piece.
    static constexpr u32 PIECE = 8;
    /// Whether the weights of a step share a scale.
    static constexpr bool HAS_STEP_SCALES = false;
    /// What weights are to be multiplied by beside their scales.
    static constexpr float FACTOR = 1.0f;

    /// Scales of a matrix.
    static DEVICE_MEMBER u64 scales(u32, u32) { return 0; }
    static DEVICE_MEMBER u32 factor(Scale) { return 0; }
    static DEVICE_MEMBER u32 weights(const u32 (&piece)[4], u32 i, u32) { return piece[i]; }
    static DEVICE_MEMBER u32 activations(const u32 (&eight)[4], u32 i) { return eight[i]; }
};

/// Scales [N / 128, K / 128], rounded up.
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
};

/// Scales [N, K / 32], one for each piece: powers of two with bias 127 (MXFP4), exact from 2^-60 to
/// 2^65. Weights are kept 2^-64 times too small, so that one product scales them.
template <> struct Format<e2m1x2> {
    using Scale = u8;
    static constexpr u32 PIECE = 32;
    static constexpr bool HAS_STEP_SCALES = false;
    static constexpr float FACTOR = 18446744073709551616.0f;

    static DEVICE_MEMBER u64 scales(u32 n, u32 k) { return static_cast<u64>(n) * (k / PIECE); }
    /// 2^(scale - 127 + 126 - 64), twice.
    static DEVICE_MEMBER u32 factor(Scale scale) { return (scale + 62u) * 0x00800080u; }
    static DEVICE_MEMBER u32 weights(const u32 (&piece)[4], u32 i, u32 factor) {
        return widen_e2m1(piece[i / 4] << 4 * (i % 4), factor);
    }
    /// Word i of four is columns 3 - i and 7 - i.
    static DEVICE_MEMBER u32 activations(const u32 (&eight)[4], u32 i) {
        u32 first = eight[(3 - i) / 2], second = eight[(3 - i) / 2 + 2];
        return i % 2 ? low_halves(first, second) : high_halves(first, second);
    }
};

/// Weights [N, K].
template <class E> struct Matrix {
    const E* rows;
    const typename Format<E>::Scale* scales;
    u32 n, k;

    DEVICE_MEMBER u32 row_pieces() const { return k / Format<E>::PIECE; }
    /// The matrix of an expert, where this is the first's.
    DEVICE_MEMBER Matrix of_expert(u32 expert) const {
        u64 pieces = static_cast<u64>(n) * row_pieces();
        const u8* codes = reinterpret_cast<const u8*>(rows) + expert * pieces * 16;
        u64 apart = Format<E>::scales(n, k) * expert;
        return {reinterpret_cast<const E*>(codes), scales ? scales + apart : nullptr, n, k};
    }
};

/// A piece of the weights, counted from the matrix's first. What is not there has the first's
/// address.
struct Place {
    u64 at;
    bool is_there;
};
