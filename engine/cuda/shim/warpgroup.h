//! Emulation of the warpgroup multiplication of `warpgroup.cuh` on a host processor: operands are
//! read from shared memory as their descriptors say. Source: PTX ISA 8.0, canonical layouts of
//! wgmma.
//!
//! Multiplications are executed when they are started, or as late as allowed, when the warp waits
//! for them; their sums are NaN until then. It detects groups that are not begun by
//! `begin_wgmma`, not closed, or not waited for; registers of the left operand that change before
//! the wait or are out of scope at it (AddressSanitizer); sums that are written before it; and
//! what `fences.h` and `accesses.h` say.
#pragma once

#include "shim.h"

namespace shim {

/// Bits of a sum that is not there yet.
constexpr u32 HIDDEN = 0x7fc0dead;
/// Columns of K of one multiplication, rows of a warp, and largest number of columns.
constexpr u32 DEPTH = 16, WARP_ROWS = 16, COLUMNS_MAX = 256;

/// Location of an operand's tile in shared memory, in bytes, decoded from its descriptor.
struct Tile {
    u64 start, panel, eight;

    explicit Tile(u64 word)
        : start((word & 0x3fff) * 16), panel((word >> 16 & 0x3fff) * 16),
          eight((word >> 32 & 0x3fff) * 16) {
        if (word >> 62 != 1) fail("a multiplication of a tile that is not placed by 128 bytes");
    }

    /// 128-byte swizzle: the 16-byte pieces of a row are permuted by the number of the row.
    static u64 swizzled(u64 at) { return at ^ (at >> 3 & 0x70); }
    /// Offset of the element at row r and column k of a tile whose rows are along K.
    u64 along(u32 r, u32 k) const {
        return swizzled(start + r / 8 * eight + r % 8 * 128 + k * 2);
    }
    /// Offset of the element at row r and column k of a transposed tile, whose columns are along K.
    u64 across(u32 r, u32 k) const {
        return swizzled(start + r / 64 * panel + r % 64 * 2 + k / 8 * eight + k % 8 * 128);
    }
};

/// Reads eight numbers at an offset in shared memory. For `proxies.h` no thread accesses it here.
NOT_WATCHED inline void read_eight(float* to, u64 at) {
    if (at + 16 > block().shared.size()) {
        fail("a multiplication of a tile behind the shared memory");
    }
    u16 bits[8];
    __builtin_memcpy(bits, block().shared.data() + at, sizeof bits);
    for (u32 i = 0; i < 8; ++i) to[i] = half(bits[i], 0);
}

/// Operands of one warp's multiplication.
struct Operands {
    float a[WARP_ROWS][DEPTH], b[DEPTH][COLUMNS_MAX];
};

/// Calls `with` for each eight adjacent elements of a multiplication's operands in shared memory:
/// their offset, whether they are of the left operand, the row or column of the first, and its
/// place in K. They are adjacent along K, or along the columns of a transposed operand.
template <class With>
inline void for_each_eight(const Multiplication& m, u32 warp, const With& with) {
    if (!m.a[0]) {
        Tile a(m.a_tile);
        u32 first = warp % 4 * WARP_ROWS;
        for (u32 row = 0; row < WARP_ROWS; ++row) {
            for (u32 k = 0; k < DEPTH; k += 8) with(a.along(first + row, k), true, row, k);
        }
    }
    Tile b(m.b_tile);
    for (u32 column = 0; column < m.parts * 8; column += m.is_transposed ? 8 : 1) {
        for (u32 k = 0; k < DEPTH; k += m.is_transposed ? 1 : 8) {
            with(m.is_transposed ? b.across(column, k) : b.along(column, k), false, column, k);
        }
    }
}

/// Adds the products to the lanes' sums, in the order of K.
NOT_WATCHED inline void add_products(const Multiplication& m, const Operands& x,
                                     float* const* sums) {
    for (u32 row = 0; row < WARP_ROWS; ++row) {
        float own[COLUMNS_MAX] = {};
        for (u32 k = 0; k < DEPTH; ++k) {
            float a = x.a[row][k];
            const float* b = x.b[k];
            for (u32 n = 0; n < m.parts * 8; ++n) own[n] += a * b[n];
        }
        for (u32 n = 0; n < m.parts * 8; ++n) {
            sums[row % 8 * 4 + n % 8 / 2][n / 8 * 4 + row / 8 * 2 + n % 2] += own[n];
        }
    }
}

/// Performs a multiplication of the current warp.
inline void perform(const Multiplication& m, float* const* sums) {
    static thread_local Operands x;
    u32 warp = block().current / LANES;
    for_each_eight(m, warp, [&](u64 at, bool is_left, u32 row, u32 k) {
        float eight[8];
        read_eight(eight, at);
        for (u32 i = 0; i < 8; ++i) {
            if (is_left) {
                x.a[row][k + i] = eight[i];
            } else if (m.is_transposed) {
                x.b[k][row + i] = eight[i];
            } else {
                x.b[k + i][row] = eight[i];
            }
        }
    });
    for (u32 l = 0; m.a[0] && l < LANES; ++l) {
        for (u32 i = 0; i < 8; ++i) {
            u32 word = i / 2, row = l / 4 + word % 2 * 8, k = l % 4 * 2 + word / 2 * 8 + i % 2;
            x.a[row][k] = half(m.held[l][word], i % 2);
        }
    }
    add_products(m, x, sums);
}

/// Replaces the sums of a multiplication by NaN until it is performed.
inline void hide(Warp& warp, const Multiplication& m) {
    for (HiddenSums& one : warp.hidden) {
        if (one.at[0] != m.sums[0]) continue;
        ++one.open;
        return;
    }
    HiddenSums& one = warp.hidden.emplace_back();
    one.open = 1;
    for (u32 l = 0; l < LANES; ++l) {
        one.at[l] = m.sums[l];
        one.values[l].assign(m.sums[l], m.sums[l] + m.parts * 4);
        std::fill(m.sums[l], m.sums[l] + m.parts * 4, __uint_as_float(HIDDEN));
    }
}

/// Performs a multiplication with hidden sums, and shows them if it was the last one.
inline void perform_late(Warp& warp, const Multiplication& m) {
    auto one = std::find_if(warp.hidden.begin(), warp.hidden.end(),
                            [&](const HiddenSums& each) { return each.at[0] == m.sums[0]; });
    float* sums[LANES];
    for (u32 l = 0; l < LANES; ++l) sums[l] = one->values[l].data();
    perform(m, sums);
    if (--one->open > 0) return;
    for (u32 l = 0; l < LANES; ++l) {
        for (u32 i = 0; i < m.parts * 4; ++i) {
            if (__float_as_uint(m.sums[l][i]) != HIDDEN) {
                fail("sums are written before they are awaited");
            }
            m.sums[l][i] = sums[l][i];
        }
    }
    warp.hidden.erase(one);
}

/// Fails if a lane has written registers of the left operand since the multiplication was started.
inline void check_registers(const Multiplication& m) {
    for (u32 l = 0; m.a[0] && l < LANES; ++l) {
        if (!std::equal(m.a[l], m.a[l] + 4, m.held[l])) {
            fail("registers change before the multiplication is awaited");
        }
    }
}

/// What a lane passes to a multiplication: its sums, its registers of the left operand or null, and
/// descriptors.
struct BroughtOperands {
    float* sums;
    const u32* a;
    u64 a_tile, b_tile;
};

/// Starts a multiplication of the current warp. The left operand is in registers `a` of each lane,
/// or at a descriptor if `a` is null.
template <int N>
inline void begin_multiplication(float (&c)[N][4], const u32* a, u64 a_tile, u64 b_tile,
                                 bool is_transposed) {
    BroughtOperands mine = {c[0], a, a_tile, b_tile};
    together<BroughtOperands, u32>("a multiplication", mine, [&](BroughtOperands* in, u32* out) {
        Block& b = block();
        Warp& warp = b.warps[b.current / LANES];
        Multiplication m = {};
        m.a_tile = a_tile, m.b_tile = b_tile, m.parts = N, m.is_transposed = is_transposed;
        for (u32 l = 0; l < LANES; ++l) {
            if (in[l].a_tile != a_tile || in[l].b_tile != b_tile) {
                fail("lanes multiply different tiles");
            }
            m.sums[l] = in[l].sums, m.a[l] = in[l].a;
            if (a) std::memcpy(m.held[l], in[l].a, sizeof m.held[l]);
            out[l] = 0;
        }
        // Only sums of multiplications that were started before need no fence.
        bool is_ordered = warp.has_begun;
        for (const auto& group : warp.multiplications) {
            for (const Multiplication& each : group) is_ordered |= !a && each.sums[0] == m.sums[0];
        }
        if (!is_ordered) fail("a multiplication without begin_wgmma");
        if (warp.multiplications.empty()) warp.multiplications.emplace_back();
        for_each_eight(m, b.current / LANES, [](u64 at, bool, u32, u32) { begin_operand(at); });
        if (b.are_copies_early) {
            hide(warp, m);
        } else {
            perform(m, m.sums);
        }
        warp.multiplications.back().push_back(m);
    });
}

template <class Change> inline void change_warp(const char* operation, const Change& change) {
    together<u32, u32>(operation, 0, [&](u32*, u32* out) {
        std::fill(out, out + LANES, 0);
        change(block().warps[block().current / LANES]);
    });
}

}  // namespace shim

inline u32 warpgroup() { return threadIdx.x / 128; }

inline u64 shared_address(const void* at) {
    u64 bytes = static_cast<u64>(static_cast<const u8*>(at) - shim::block().shared.data());
    if (bytes % 1024) {
        shim::fail("a tile of a multiplication does not begin at a multiple of 1024 bytes");
    }
    return bytes;
}

inline void publish_to_wgmma() { shim::publish(); }

inline void begin_wgmma() {
    shim::change_warp("begin_wgmma", [](shim::Warp& warp) { warp.has_begun = true; });
}

inline void close_wgmma() {
    shim::change_warp("close_wgmma", [](shim::Warp& warp) {
        warp.has_begun = false;
        if (warp.multiplications.empty()) warp.multiplications.emplace_back();
        warp.multiplications.emplace_back();
    });
}

/// Waits for the warp's multiplications except those of the last `Open` groups.
template <int Open = 0> inline void await_wgmma() {
    shim::change_warp("await_wgmma", [](shim::Warp& warp) {
        auto& groups = warp.multiplications;
        if (!groups.empty() && !groups.back().empty()) {
            shim::fail("multiplications of no closed group");
        }
        while (groups.size() > Open + 1) {
            for (const shim::Multiplication& m : groups.front()) {
                shim::check_registers(m);
                if (shim::block().are_copies_early) shim::perform_late(warp, m);
                shim::for_each_eight(m, shim::block().current / LANES,
                                     [](u64 at, bool, u32, u32) { shim::end_operand(at); });
            }
            groups.erase(groups.begin());
        }
        if (Open == 0) groups.clear();
    });
}

template <int N> inline void take_sums(float (&)[N][4]) {}

inline void multiply_add_64x128(float (&c)[16][4], u64 a, u64 b) {
    shim::begin_multiplication(c, nullptr, a, b, false);
}

inline void multiply_add_64x64(float (&c)[8][4], u64 a, u64 b) {
    shim::begin_multiplication(c, nullptr, a, b, false);
}

inline void multiply_add_64x16(float (&c)[2][4], const u32 (&a)[4], u64 b) {
    shim::begin_multiplication(c, a, 0, b, false);
}

inline void multiply_add_64x32(float (&c)[4][4], const u32 (&a)[4], u64 b) {
    shim::begin_multiplication(c, a, 0, b, false);
}

template <bool IS_TRANSPOSED>
inline void multiply_add_64x64(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    shim::begin_multiplication(c, a, 0, b, IS_TRANSPOSED);
}

template <bool IS_TRANSPOSED>
inline void multiply_add_64x128(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    shim::begin_multiplication(c, a, 0, b, IS_TRANSPOSED);
}
