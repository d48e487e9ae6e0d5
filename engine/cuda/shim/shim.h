//! Emulation of CUDA on a host processor, as far as the kernels use it: the instructions of
//! `prims.cuh` for the threads of `block.h`.
//!
//! Matrices can be loaded from dynamic shared memory only.
//!
//! It detects lanes that do not arrive at the same warp operation, barriers that not all threads
//! reach, asynchronous copies that no thread waited for, bank conflicts of matrix loads, and, under
//! sanitizers, what those find in global and shared memory. It cannot detect races between two
//! barriers, except that threads may be run in either order, and copies at either of two times.
#pragma once

#include <cmath>
#include <thread>

#include "accesses.h"

#define __global__
#define __shared__ static
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define DEVICE static inline
#define DEVICE_MEMBER inline
#define DYNAMIC_SHARED(name) u8* name = shim::block().shared.data()
#define DYNAMIC_TILES(name) DYNAMIC_SHARED(name)

struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace shim {

struct Four {
    u32 x[4];
};
struct Rows {
    const void* row;
};
struct Fragments {
    float c[4];
    u32 a[4], b[2];
};

NOT_WATCHED inline float half(u32 word, u32 which) {
    u32 bits = which ? word & 0xffff0000u : word << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

/// Fails if two of the eight rows of a matrix lie in the same banks.
inline void check_banks(const Rows* rows) {
    const u8* start = block().shared.data();
    u32 used = 0;
    for (u32 r = 0; r < 8; ++r) {
        std::size_t at = static_cast<std::size_t>(static_cast<const u8*>(rows[r].row) - start);
        if (at % 16) fail("a row is not aligned");
        used |= 1u << at / 16 % 8;
    }
    if (used != 0xff) fail("rows of one matrix share banks");
}

template <bool Transposed> inline void load_matrices(u32 (&to)[4], const void* row) {
    const char* name = Transposed ? "load_matrices_transposed" : "load_matrices";
    Four four = together<Rows, Four>(name, Rows{row}, [](Rows* rows, Four* out) {
        for (u32 i = 0; i < 4; ++i) {
            u16 matrix[8][8];
            check_banks(rows + 8 * i);
            for (u32 r = 0; r < 8; ++r) std::memcpy(matrix[r], rows[8 * i + r].row, 16);
            for (u32 l = 0; l < LANES; ++l) {
                u32 r = l / 4, c = l % 4 * 2;
                u32 low = Transposed ? matrix[c][r] : matrix[r][c];
                u32 high = Transposed ? matrix[c + 1][r] : matrix[r][c + 1];
                out[l].x[i] = low | high << 16;
            }
        }
    });
    std::memcpy(to, four.x, sizeof to);
}

/// Tensor-core operation of a warp in bf16: collects both matrices from the lanes' fragments, and
/// returns the sums.
NOT_WATCHED inline void multiply(Fragments* lanes, Four* out) {
    float a[16][16], b[16][8];
    for (u32 l = 0; l < LANES; ++l) {
        u32 g = l / 4, q = l % 4 * 2;
        for (u32 i = 0; i < 4; ++i) {
            a[g + i % 2 * 8][q + i / 2 * 8] = half(lanes[l].a[i], 0);
            a[g + i % 2 * 8][q + i / 2 * 8 + 1] = half(lanes[l].a[i], 1);
        }
        for (u32 i = 0; i < 2; ++i) {
            b[q + i * 8][g] = half(lanes[l].b[i], 0);
            b[q + i * 8 + 1][g] = half(lanes[l].b[i], 1);
        }
    }
    float sums[16][8] = {};
    for (u32 row = 0; row < 16; ++row) {
        for (u32 k = 0; k < 16; ++k) {
            for (u32 column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
        }
    }
    for (u32 l = 0; l < LANES; ++l) {
        for (u32 i = 0; i < 4; ++i) {
            float sum = sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] + lanes[l].c[i];
            std::memcpy(&out[l].x[i], &sum, 4);
        }
    }
}

/// The part of an f32 that TF32 has.
NOT_WATCHED inline float number(u32 bits) {
    float x;
    bits &= 0xffffe000u;
    std::memcpy(&x, &bits, 4);
    return x;
}

/// Tensor-core operation of a warp in TF32, which ignores the lower 13 bits of an f32.
NOT_WATCHED inline void multiply_short(Fragments* lanes, Four* out) {
    float a[16][8], b[8][8];
    for (u32 l = 0; l < LANES; ++l) {
        u32 g = l / 4, q = l % 4;
        for (u32 i = 0; i < 4; ++i) a[g + i % 2 * 8][q + i / 2 * 4] = number(lanes[l].a[i]);
        for (u32 i = 0; i < 2; ++i) b[g][q + i * 4] = number(lanes[l].b[i]);
    }
    for (u32 l = 0; l < LANES; ++l) {
        for (u32 i = 0; i < 4; ++i) {
            const float* row = a[l / 4 + i / 2 * 8];
            const float* column = b[l % 4 * 2 + i % 2];
            float sum = 0.0f;
            for (u32 k = 0; k < 8; ++k) sum += row[k] * column[k];
            sum += lanes[l].c[i];
            std::memcpy(&out[l].x[i], &sum, 4);
        }
    }
}

}  // namespace shim

#define threadIdx (dim3{shim::block().current, 0, 0})
#define blockDim (dim3{shim::block().threads, 1, 1})
#define blockIdx (shim::block().index)
#define gridDim (shim::block().grid)

inline void __syncthreads() {
    shim::Block& b = shim::block();
    if (++b.at_barrier < b.threads) return shim::wait("__syncthreads");
    b.at_barrier = 0;
    ++b.barriers;
    for (u32 i = 0; i < b.threads; ++i) b.fibers[i].awaits = nullptr;
    shim::watch_thread();
}

inline void __syncwarp() {
    shim::together<u32, u32>("__syncwarp", 0, [](u32*, u32* out) { std::fill(out, out + LANES, 0); });
}

template <class T> inline T __shfl_xor_sync(u32, T x, int mask) {
    return shim::together<T, T>("__shfl_xor_sync", x, [mask](T* in, T* out) {
        for (u32 l = 0; l < LANES; ++l) out[l] = in[l ^ static_cast<u32>(mask)];
    });
}

/// Each lane names its own source lane.
template <class T> inline T __shfl_sync(u32, T x, u32 from) {
    struct Asked {
        T x;
        u32 from;
    };
    return shim::together<Asked, T>("__shfl_sync", Asked{x, from}, [](Asked* in, T* out) {
        for (u32 l = 0; l < LANES; ++l) out[l] = in[in[l].from % LANES].x;
    });
}

template <class T> inline T __shfl_up_sync(u32, T x, u32 by) {
    return shim::together<T, T>("__shfl_up_sync", x, [by](T* in, T* out) {
        for (u32 l = 0; l < LANES; ++l) out[l] = in[l < by ? l : l - by];
    });
}

inline u32 __ballot_sync(u32, bool is_so) {
    return shim::together<u32, u32>("__ballot_sync", is_so, [](u32* in, u32* out) {
        u32 bits = 0;
        for (u32 l = 0; l < LANES; ++l) bits |= (in[l] ? 1u : 0u) << l;
        std::fill(out, out + LANES, bits);
    });
}

inline u32 __float_as_uint(float x) {
    u32 bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(u32 bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __popc(u32 x) { return __builtin_popcount(x); }
inline u64 __umul64hi(u64 a, u64 b) {
    return static_cast<u64>(static_cast<unsigned __int128>(a) * b >> 64);
}
using std::isnan;
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline void sincospif(float x, float* sine, float* cosine) {
    *sine = static_cast<float>(std::sin(M_PI * x));
    *cosine = static_cast<float>(std::cos(M_PI * x));
}
inline double cospi(double x) { return std::cos(M_PI * std::remainder(x, 2.0)); }
inline double sinpi(double x) { return std::sin(M_PI * std::remainder(x, 2.0)); }
template <class T> inline T min(T a, T b) { return a < b ? a : b; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
template <class T> inline T atomicAdd(T* at, T x) {
    T before = *at;
    *at += x;
    return before;
}

template <class T> inline T atomicMin(T* at, T x) {
    T before = *at;
    *at = min(before, x);
    return before;
}

DEVICE u32 narrow(float low, float high) {
    auto one = [](float x) {
        u32 bits = __float_as_uint(x);
        if (std::isnan(x)) return 0x7fffu;
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return one(low) | one(high) << 16;
}

DEVICE u32 multiply_bf16x2(u32 x, u32 factor) {
    return narrow(shim::half(x, 0) * shim::half(factor, 0), shim::half(x, 1) * shim::half(factor, 1));
}

DEVICE float exp2_fast(float x) { return std::exp2(x); }

DEVICE void load_matrices(u32 (&to)[4], const void* row) { shim::load_matrices<false>(to, row); }
DEVICE void load_matrices_transposed(u32 (&to)[4], const void* row) {
    shim::load_matrices<true>(to, row);
}

DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    shim::Fragments mine = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    shim::Four sums = shim::together<shim::Fragments, shim::Four>("multiply_add", mine, shim::multiply);
    std::memcpy(c, sums.x, sizeof c);
}

DEVICE float shorten(float x) {
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

DEVICE void multiply_add(float (&c)[4], const float (&a)[4], float b0, float b1) {
    shim::Fragments mine = {{c[0], c[1], c[2], c[3]}, {}, {__float_as_uint(b0), __float_as_uint(b1)}};
    std::memcpy(mine.a, a, sizeof mine.a);
    shim::Four sums = shim::together<shim::Fragments, shim::Four>("multiply_add of f32", mine,
                                                                  shim::multiply_short);
    std::memcpy(c, sums.x, sizeof c);
}

DEVICE void store_release(u32* at, u32 x) { __atomic_store_n(at, x, __ATOMIC_RELEASE); }
DEVICE u32 load_acquire(const u32* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
DEVICE void give_way() { std::this_thread::yield(); }

namespace shim {

/// Fails if the bytes that a copy had to copy when it was started are others at the wait.
inline void check_source(const void* from, const u8* source, std::size_t bytes) {
    if (std::memcmp(from, source, bytes) != 0) fail("a source changes before its copy is awaited");
}

inline void perform(const Copy& copy) {
    if (copy.is_there) {
        std::memcpy(copy.to, copy.from, 16);
    } else {
        std::memset(copy.to, 0, 16);
    }
}

/// Completes a copy that the current thread has waited for, as late as allowed if it was not
/// performed when it was started. For fences, it is a write of the thread.
inline void complete(const Copy& copy) {
    if (copy.is_there) check_source(copy.from, copy.source, sizeof copy.source);
    Granule* g = granule(copy.to);
    if (g) g->copier = NONE;
    if (!block().are_copies_early) perform(copy);
    if (!g) return;
    see(copy.to, sizeof copy.source, true);
    g->is_copied = g->is_asynchronous = true;
}

}  // namespace shim

DEVICE void copy_async(void* to, const void* from, bool is_there) {
    if ((reinterpret_cast<std::size_t>(to) | reinterpret_cast<std::size_t>(from)) % 16) {
        shim::fail("a copy is not aligned");
    }
    auto& copies = shim::fiber().copies;
    if (copies.empty()) copies.emplace_back();
    copies.back().push_back({to, from, is_there, {}});
    shim::Copy& copy = copies.back().back();
    if (is_there) std::memcpy(copy.source, from, 16);
    shim::check_copy(to);
    if (shim::block().are_copies_early) shim::perform(copy);
    shim::begin_copy(to);
}

DEVICE void close_copies() {
    auto& copies = shim::fiber().copies;
    if (copies.empty()) copies.emplace_back();
    copies.emplace_back();
}

/// Waits for copy groups.
template <int Open> DEVICE void await_copies() {
    auto& groups = shim::fiber().copies;
    if (!groups.empty() && !groups.back().empty()) shim::fail("copies of no closed group");
    while (groups.size() > Open + 1) {
        for (const shim::Copy& copy : groups.front()) shim::complete(copy);
        groups.erase(groups.begin());
    }
    if (Open == 0) groups.clear();
}
