//! Device primitives: the machine instructions that kernels use, each behind a function, and small
//! steps that most kernels share. Nothing else may be included, so that kernels compile without the
//! headers of a CUDA toolkit.
//!
//! With SHIM defined, the instructions come from `shim.h`, which computes them on a host processor;
//! the rest of this file, and every kernel, is the same there.
//!
//! A 32-bit word holds two bf16, the one with the lower index in the lower half.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

/// Number of type bf16: the upper half of an f32.
struct bf16 {
    u16 bits;
};

/// Number of type FP8 e4m3: sign, four exponent bits with bias 7, three mantissa bits; no infinity,
/// at most 448.
/// Source: Micikevicius et al. 2022.
struct e4m3 {
    u8 bits;
};

/// Two FP4 e2m1 numbers: sign, two exponent bits with bias 1, one mantissa bit; magnitudes 0 and
/// 0.5 to 6. The lower four bits are the first number. Source: OCP Microscaling Formats 1.0.
struct e2m1x2 {
    u8 bits;
};

#define ALL_LANES 0xffffffffu
#define LANES 32
#define LOG2_E 1.44269504f
/// Index that means no row, token or slot.
#define NONE 0xffffffffu

#ifdef SHIM
#include "shim.h"
#else

#define DEVICE __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
/// Declares dynamic shared memory, whose size is given at launch.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) u8 name[]
/// Declares dynamic shared memory aligned to 1024 bytes, as tiles for warpgroup multiplication
/// require.
#define DYNAMIC_TILES(name) extern __shared__ __align__(1024) u8 name[]

/// Rounds two f32 to the nearest bf16, ties to even.
DEVICE u32 narrow(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/// Multiplies both bf16 halves of `x` with those of `factor`, with one rounding each.
DEVICE u32 multiply_bf16x2(u32 x, u32 factor) {
    u32 product;
    // sm_80 cannot multiply bf16 pairs, only fma; adding -0 changes no product.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(x), "r"(factor), "r"(0x80008000u));
    return product;
}

/// Returns 2^x to within two units in the last place.
DEVICE float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

/// Loads four 8x8 matrices of 16-bit elements from shared memory (ldmatrix). Lane l passes the
/// address of row l % 8 of matrix l / 8, and gets from each matrix the elements 2 (l % 4) and 2 (l
/// % 4) + 1 of row l / 4.
DEVICE void load_matrices(u32 (&to)[4], const void* row) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/// Loads four 8x8 matrices like `load_matrices`, each transposed.
DEVICE void load_matrices_transposed(u32 (&to)[4], const void* row) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/// Tensor-core operation `c += a * b` of bf16 with f32 accumulation: a is 16x16, b 16x8, c 16x8.
/// With g = lane / 4 and q = lane % 4, a lane holds of a the rows g, g + 8, g, g + 8 at columns 2q,
/// 2q, 2q + 8, 2q + 8 and the next ones; of b the rows 2q, 2q + 8 and the next ones at column g; of
/// c the rows g, g, g + 8, g + 8 at columns 2q, 2q + 1, 2q, 2q + 1.
DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Rounds `x` to TF32, the eleven significant bits that the tensor cores use of an f32.
DEVICE float shorten(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

/// Tensor-core operation `c += a * b` of TF32: a is 16x8, b 8x8, c 16x8. With g = lane / 4 and q =
/// lane % 4, a lane holds of a the rows g, g + 8, g, g + 8 at columns q, q, q + 4, q + 4; of b the
/// rows q, q + 4 at column g; of c the same elements as in the bf16 operation.
DEVICE void multiply_add(float (&c)[4], const float (&a)[4], float b0, float b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/// Starts an asynchronous copy of 16 bytes to shared memory, or of zeros if `is_there` is false.
DEVICE void copy_async(void* to, const void* from, bool is_there) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}

/// Closes a group of asynchronous copies.
DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for this thread's asynchronous copies except those of the last `Open` groups.
template <int Open> DEVICE void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Open) : "memory");
}

/// Writes a word visible to all processors of the system, after everything that this thread did
/// before (release).
DEVICE void store_release(u32* at, u32 x) {
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

/// Reads a word written by any processor of the system, before everything that follows (acquire).
DEVICE u32 load_acquire(const u32* at) {
    u32 x;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

/// Called in a loop that waits for another processor; the shim yields the host thread there.
DEVICE void give_way() {}

#if __CUDA_ARCH__ >= 890
#define HAS_NARROW_E4M3
/// Rounds two f32 to the nearest e4m3, the first in the lower byte; larger magnitudes become 448.
DEVICE u16 narrow_e4m3(float low, float high) {
    u16 both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
}
#endif
#endif

/// Positive infinity.
DEVICE float infinity() { return __uint_as_float(0x7f800000u); }

DEVICE u32 lane() { return threadIdx.x % LANES; }
DEVICE u32 warp() { return threadIdx.x / LANES; }

DEVICE float widen(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
DEVICE float widen_low(u32 both) { return __uint_as_float(both << 16); }
DEVICE float widen_high(u32 both) { return __uint_as_float(both & 0xffff0000u); }

#ifndef HAS_NARROW_E4M3
DEVICE u32 narrow_one_e4m3(float x) {
    u32 bits = __float_as_uint(x);
    u32 sign = bits >> 24 & 0x80, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7f;
    if (size >= __float_as_uint(448.0f)) return sign | 0x7e;
    // Below 2^-6, e4m3 values are multiples of 2^-9; above, the mantissa loses 20 bits.
    if (size < __float_as_uint(0.015625f)) {
        return sign | static_cast<u32>(__float2int_rn(__uint_as_float(size) * 512.0f));
    }
    // Rounds to nearest, ties to even, when the shift below drops the bits.
    size += 0x7ffffu + (size >> 20 & 1);
    return sign | ((size >> 20) - ((127 - 7) << 3));
}

DEVICE u16 narrow_e4m3(float low, float high) {
    return static_cast<u16>(narrow_one_e4m3(low) | narrow_one_e4m3(high) << 8);
}
#endif

/// Converts the e4m3 in the second and fourth byte of `codes` to two bf16, exactly: shifted into
/// place they differ from bf16 only in the exponent's bias, which a factor of 2^120 corrects. NaN
/// is read as 480.
DEVICE u32 widen_e4m3(u32 codes) {
    u32 shifted = (codes & 0x80008000u) | (codes & 0x7f007f00u) >> 4;
    return multiply_bf16x2(shifted, 0x7b807b80u);
}

/// Lower halves of two words, the first in the lower half.
DEVICE u32 low_halves(u32 first, u32 second) { return (first & 0xffffu) | second << 16; }

/// Upper halves of two words, the first in the lower half.
DEVICE u32 high_halves(u32 first, u32 second) { return first >> 16 | (second & 0xffff0000u); }

/// Address of a 16-byte piece of a tile, swizzled so that the same column of eight rows lies in
/// eight different banks.
template <int PIECES, class Byte> DEVICE Byte* piece(Byte* tile, u32 row, u32 column) {
    constexpr u32 ROWS_PER_LINE = PIECES < 8 ? 8 / PIECES : 1;
    return tile + (row * PIECES + (column ^ (row / ROWS_PER_LINE & (min(PIECES, 8) - 1)))) * 16;
}

/// Eight numbers in registers; in memory, 16 bytes of bf16 or 32 bytes of f32.
struct Eight {
    float x[8];
};

DEVICE Eight load8(const bf16* from) {
    uint4 words = *reinterpret_cast<const uint4*>(from);
    return {widen_low(words.x), widen_high(words.x), widen_low(words.y), widen_high(words.y),
            widen_low(words.z), widen_high(words.z), widen_low(words.w), widen_high(words.w)};
}

DEVICE Eight load8(const float* from) {
    float4 first = reinterpret_cast<const float4*>(from)[0];
    float4 second = reinterpret_cast<const float4*>(from)[1];
    return {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
}

DEVICE void store8(bf16* to, const Eight& v) {
    *reinterpret_cast<uint4*>(to) = make_uint4(narrow(v.x[0], v.x[1]), narrow(v.x[2], v.x[3]),
                                               narrow(v.x[4], v.x[5]), narrow(v.x[6], v.x[7]));
}

DEVICE void store8(float* to, const Eight& v) {
    reinterpret_cast<float4*>(to)[0] = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(v.x[4], v.x[5], v.x[6], v.x[7]);
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

DEVICE float warp_max(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/// Sort key of a number with an index: larger for larger numbers and, for equal numbers, for lower
/// indices.
DEVICE u64 rank(float x, u32 index) {
    u32 bits = __float_as_uint(x);
    // Maps f32 to unsigned integers of the same order.
    u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    // The index is inverted, so that the lower one wins among equal numbers.
    return static_cast<u64>(ordered) << 32 | static_cast<u32>(~index);
}

DEVICE float number_of(u64 rank) {
    u32 ordered = static_cast<u32>(rank >> 32);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

DEVICE u32 index_of(u64 rank) { return ~static_cast<u32>(rank); }

DEVICE u64 warp_best(u64 x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/// Sum over a block of whole warps, returned to every thread. `parts` is shared memory with one
/// element per warp, which must not be used otherwise before the block's next barrier.
DEVICE float block_sum(float x, float* parts) {
    x = warp_sum(x);
    if (lane() == 0) parts[warp()] = x;
    __syncthreads();
    return warp_sum(lane() < blockDim.x / LANES ? parts[lane()] : 0.0f);
}
