//! Random bf16 weights, with the same bits as `weights/random.rs` generates.
//!
//! out [rows, cols] bf16: element c of row r is number `first` + r `stride` + c of the random
//! stream that begins at `start`; cols is a multiple of 8, `first` and `stride` are multiples of 4.
//! Each 64 bits of the stream give four numbers, uniform in [-1, 1), times `factor`.
//! Grid and block: a thread for each eight results. Source: Steele, Lea, Flood 2014 (SplitMix64).
//@ random_bf16: registers 40, shared 0, has STG.E.128
#include "prims.cuh"

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
