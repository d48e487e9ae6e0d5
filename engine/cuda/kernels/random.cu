//! Random weights in bf16 and MXFP4, with the same bits as `weights/random.rs` generates.
//!
//! Weight c of row r of a launch is weight `first` + r `stride` + c of the random tensor whose
//! random stream begins at `start`.
//!
//! random_bf16: out [rows, cols]; cols is a multiple of 8, `first` and `stride` are multiples of 4.
//! Each 64 bits of the stream give four weights, uniform in [-1, 1), times `factor`. Grid and
//! block: a thread for each eight weights.
//!
//! random_mxfp4: out [rows, K] and scales [K / 128, N, 4], rounded up, both from the launch's first
//! row in a matrix of N rows on; `weights.cuh` states the order of the weights. K, `first` and
//! `stride` are multiples of 32, the weights of a block. Three words of 64 bits of the stream give
//! a block. The first gives its scale: `scale` - 1 if the word is a multiple of four, else `scale`.
//! The others are the 16 bytes of its weights in host memory. Scales of blocks beyond K are zeros.
//! Grid: (rows, blocks that cover all scales of a row). Block: 256, a thread for each scale.
//!
//! Source: Steele, Lea, Flood 2014 (SplitMix64).
//@ random_bf16: registers 40, shared 0, has STG.E.128
//@ random_mxfp4: registers 32, shared 0, has STG.E.128 STG.E.U8
#include "weights.cuh"

/// 64-bit word `index` of the random stream.
DEVICE u64 random_word(u64 start, u64 index) {
    u64 z = start + (index + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/// Two of a word's four numbers, the lower first.
DEVICE u32 random_pair(u32 bits, float factor) {
    float low = static_cast<short>(bits & 0xffffu), high = static_cast<short>(bits >> 16);
    return narrow(factor * (low / 32768.0f), factor * (high / 32768.0f));
}

extern "C" __global__ void random_bf16(bf16* out, u64 start, u64 first, u64 stride, u64 rows,
                                       u32 cols, float factor) {
    u64 at = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    u64 row = at / cols;
    if (row >= rows) return;
    u64 word = (first + row * stride + at % cols) / 4;
    u64 words[2] = {random_word(start, word), random_word(start, word + 1)};
    u32 pairs[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        pairs[i] = random_pair(static_cast<u32>(words[i / 2] >> 32 * (i % 2)), factor);
    }
    *reinterpret_cast<uint4*>(out + at) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/// Bytes 2 i and 2 i + 1 of a word of the stream, each in the lower byte of a half of the result.
DEVICE u32 spread_bytes(u64 word, u32 i) {
    u32 two = static_cast<u32>(word >> 16 * i);
    return (two & 0xffu) | (two & 0xff00u) << 8;
}

extern "C" __global__ void __launch_bounds__(256)
random_mxfp4(e2m1x2* out, u8* scales, u64 start, u64 first, u64 stride, u32 n, u32 k, u32 scale) {
    u32 row = blockIdx.x, piece = blockIdx.y * blockDim.x + threadIdx.x, pieces = k / 32;
    if (piece >= (pieces + 3) / 4 * 4) return;
    u64 scale_at = Format<e2m1x2>::scale_at(n, row, piece);
    if (piece >= pieces) {
        scales[scale_at] = 0;
        return;
    }
    u64 word = ((first + row * stride) / 32 + piece) * 3;
    scales[scale_at] = static_cast<u8>(scale - (random_word(start, word) % 4 == 0));
    u64 low = random_word(start, word + 1), high = random_word(start, word + 2);
    u32 words[4];
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
        // In host memory, byte i of a block has weight i in its lower half and weight i + 16 in its
        // upper half. So two bytes of `low` have the weights of word q in the columns 0 to 7 and
        // 16 to 23, and two bytes of `high` those in the columns 8 to 15 and 24 to 31.
        u32 a = spread_bytes(low, q), b = spread_bytes(high, q);
        words[q] = Format<e2m1x2>::pair(a & 0x000f000fu, 0) | Format<e2m1x2>::pair(b & 0x000f000fu, 1) |
                   Format<e2m1x2>::pair(a >> 4 & 0x000f000fu, 2) |
                   Format<e2m1x2>::pair(b >> 4 & 0x000f000fu, 3);
    }
    u64 at = row * static_cast<u64>(pieces) + piece;
    reinterpret_cast<uint4*>(out)[at] = make_uint4(words[0], words[1], words[2], words[3]);
}
