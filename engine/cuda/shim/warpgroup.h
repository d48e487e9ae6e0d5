//! Emulation of the warpgroup multiplication of `warpgroup.cuh` on a host processor: operands are
//! read from shared memory as their descriptors say. Source: PTX ISA 8.0, canonical layouts of
//! wgmma.
//!
//! Multiplication is executed at once, so reading its sums too early is not detected.
#pragma once

#include "shim.h"

namespace shim {

/// Location of an operand's tile in shared memory, in bytes, decoded from its descriptor.
struct Tile {
    u64 start, panel, eight;

    explicit Tile(u64 word)
        : start((word & 0x3fff) * 16), panel((word >> 16 & 0x3fff) * 16),
          eight((word >> 32 & 0x3fff) * 16) {
        if (word >> 62 != 1) fail("a product of a tile that is not placed by 128 bytes");
    }

    static float number(u64 at) {
        // 128-byte swizzle: the 16-byte pieces of a row are permuted by the number of the row.
        at ^= at >> 3 & 0x70;
        u16 bits;
        std::memcpy(&bits, &block().shared.at(at), 2);
        return half(bits, 0);
    }
    /// Element at row r and column k of a tile whose rows are along K.
    float along(u32 r, u32 k) const {
        return number(start + r / 8 * eight + r % 8 * 128 + k * 2);
    }
    /// Element at row r and column k of a transposed tile, whose rows are along K.
    float across(u32 r, u32 k) const {
        return number(start + r / 64 * panel + r % 64 * 2 + k / 8 * eight + k % 8 * 128);
    }
};

/// The 16 columns of K of one multiplication, for the two rows of a lane.
struct Lines {
    float x[2][16];
};

template <int N>
inline void add_matmul(float (&c)[N][4], const Lines& a, const Tile& b, bool is_transposed) {
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

/// Collects the rows of a lane from the register fragments of the four lanes that share them.
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

/// Reads the rows of a lane from shared memory at a descriptor.
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

inline void publish_to_wgmma() {}
inline void begin_wgmma() { __syncwarp(); }
inline void close_wgmma() { __syncwarp(); }
inline void await_wgmma() { __syncwarp(); }
template <int N> inline void take_sums(float (&)[N][4]) {}

inline void multiply_add_64x128(float (&c)[16][4], u64 a, u64 b) {
    shim::add_matmul(c, shim::lines_of(a), shim::Tile(b), false);
}

inline void multiply_add_64x64(float (&c)[8][4], u64 a, u64 b) {
    shim::add_matmul(c, shim::lines_of(a), shim::Tile(b), false);
}

inline void multiply_add_64x16(float (&c)[2][4], const u32 (&a)[4], u64 b) {
    shim::add_matmul(c, shim::gather(a), shim::Tile(b), false);
}

inline void multiply_add_64x32(float (&c)[4][4], const u32 (&a)[4], u64 b) {
    shim::add_matmul(c, shim::gather(a), shim::Tile(b), false);
}

template <bool IS_TRANSPOSED>
inline void multiply_add_64x64(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    shim::add_matmul(c, shim::gather(a), shim::Tile(b), IS_TRANSPOSED);
}

template <bool IS_TRANSPOSED>
inline void multiply_add_64x128(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    shim::add_matmul(c, shim::gather(a), shim::Tile(b), IS_TRANSPOSED);
}
