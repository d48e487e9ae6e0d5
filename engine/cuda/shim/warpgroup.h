//! Products of warpgroups on a processor: what `warpgroup.cuh` names, read from shared memory as the
//! descriptors say. Source: PTX ISA 8.0, canonical layouts of wgmma.
//!
//! Products happen at once, so that it is not found when their sums are read too early.
#pragma once

#include "shim.h"

namespace shim {

/// Where a descriptor says that an operand's tile is, in bytes of shared memory.
struct Tile {
    u64 start, panel, eight;

    explicit Tile(u64 word)
        : start((word & 0x3fff) * 16), panel((word >> 16 & 0x3fff) * 16),
          eight((word >> 32 & 0x3fff) * 16) {
        if (word >> 62 != 1) fail("a product of a tile that is not placed by 128 bytes");
    }

    static float number(u64 at) {
        // Pieces of 16 bytes are placed by the 128 bytes that they are in.
        at ^= at >> 3 & 0x70;
        u16 bits;
        std::memcpy(&bits, &block().shared.at(at), 2);
        return half(bits, 0);
    }
    /// Row r of a tile along K, column k.
    float along(u32 r, u32 k) const {
        return number(start + r / 8 * eight + r % 8 * 128 + k * 2);
    }
    /// The same where rows are those of K.
    float across(u32 r, u32 k) const {
        return number(start + r / 64 * panel + r % 64 * 2 + k / 8 * eight + k % 8 * 128);
    }
};

/// Columns of K that one product takes of a lane's two rows.
struct Lines {
    float x[2][16];
};

template <int N>
inline void add_products(float (&c)[N][4], const Lines& a, const Tile& b, bool is_transposed) {
    for (u32 n = 0; n < N; ++n) {
        for (u32 i = 0; i < 4; ++i) {
            u32 column = n * 8 + threadIdx.x % 4 * 2 + i % 2;
            float sum = 0.0f;
            for (u32 k = 0; k < 16; ++k) {
                sum += a.x[i / 2][k] * (is_transposed ? b.across(column, k) : b.along(column, k));
            }
            c[n][i] += sum;
        }
    }
}

struct Words {
    u32 x[16];
};

/// The lines of a lane from the fragments of the four that share them.
inline Lines gather(const u32 (&a)[4]) {
    Four mine;
    std::memcpy(mine.x, a, sizeof mine.x);
    Words words = together<Four, Words>("a warpgroup's product", mine, [](Four* in, Words* out) {
        for (u32 l = 0; l < LANES; ++l) {
            for (u32 i = 0; i < 16; ++i) out[l].x[i] = in[l / 4 * 4 + i / 4].x[i % 4];
        }
    });
    Lines lines;
    for (u32 i = 0; i < 16; ++i) {
        u32 k = i / 4 * 2 + i % 4 / 2 * 8;
        for (u32 j = 0; j < 2; ++j) lines.x[i % 2][k + j] = half(words.x[i], j);
    }
    return lines;
}

/// The lines of a lane where they are described.
inline Lines lines_of(u64 a) {
    __syncwarp();
    Tile rows(a);
    Lines lines;
    for (u32 i = 0; i < 2; ++i) {
        u32 row = threadIdx.x % 128 / LANES * 16 + threadIdx.x % LANES / 4 + 8 * i;
        for (u32 k = 0; k < 16; ++k) lines.x[i][k] = rows.along(row, k);
    }
    return lines;
}

}  // namespace shim

inline u32 warpgroup() { return threadIdx.x / 128; }

inline u64 shared_address(const void* at) {
    u64 bytes = static_cast<u64>(static_cast<const u8*>(at) - shim::block().shared.data());
    if (bytes % 1024) shim::fail("a tile of a product does not begin at a multiple of 1024 bytes");
    return bytes;
}

inline void publish_to_products() {}
inline void begin_products() { __syncwarp(); }
inline void close_products() { __syncwarp(); }
inline void await_products() { __syncwarp(); }
template <int N> inline void take_sums(float (&)[N][4]) {}

inline void multiply_add_64x128(float (&c)[16][4], u64 a, u64 b) {
    shim::add_products(c, shim::lines_of(a), shim::Tile(b), false);
}

inline void multiply_add_64x64(float (&c)[8][4], u64 a, u64 b) {
    shim::add_products(c, shim::lines_of(a), shim::Tile(b), false);
}

template <bool IS_TRANSPOSED>
inline void multiply_add_64x64(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    shim::add_products(c, shim::gather(a), shim::Tile(b), IS_TRANSPOSED);
}

template <bool IS_TRANSPOSED>
inline void multiply_add_64x128(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    shim::add_products(c, shim::gather(a), shim::Tile(b), IS_TRANSPOSED);
}
