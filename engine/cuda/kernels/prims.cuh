//! The machine instructions that kernels name, each behind a function, and the steps that most of
//! them share. Nothing else may be included, so that a kernel needs no header of a toolkit.
//!
//! Where SHIM is defined the instructions come from `shim.h`, which computes them on a processor:
//! the rest of this file, and every kernel, is the same there.
//!
//! Words of 32 bits hold two bf16, the one of the lower index in the lower half.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

/// A number of the upper half of an f32.
struct bf16 {
    u16 bits;
};

/// Eight bits: sign, four of exponent with bias 7, three of mantissa; no infinity, 448 at most.
/// Source: Micikevicius et al. 2022.
struct e4m3 {
    u8 bits;
};

/// Two numbers of four bits: sign, two of exponent with bias 1, one of mantissa; 0.5 to 6. The lower
/// half is the first. Source: OCP Microscaling Formats 1.0.
struct e2m1x2 {
    u8 bits;
};

#define ALL_LANES 0xffffffffu
#define LANES 32
#define LOG2_E 1.44269504f
/// No row, token or place: what an index says where there is none.
#define NONE 0xffffffffu

#ifdef SHIM
#include "shim.h"
#else

#define DEVICE __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
/// Shared memory whose size is given at launch.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) u8 name[]
/// The same, beginning where tiles that a warpgroup multiplies may.
#define DYNAMIC_TILES(name) extern __shared__ __align__(1024) u8 name[]

/// Two f32 rounded to the nearest bf16, to even between two.
DEVICE u32 narrow(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/// Both halves of `x` times both of `factor`, rounded once.
DEVICE u32 multiply_bf16x2(u32 x, u32 factor) {
    u32 product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(x), "r"(factor), "r"(0x80008000u));
    return product;
}

/// 2^x to within two units of the last place.
DEVICE float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

/// Four 8x8 matrices of 16-bit elements: lane l names row l % 8 of matrix l / 8, 16 bytes, and gets
/// of each matrix the elements 2 (l % 4) and the next of row l / 4.
DEVICE void load_matrices(u32 (&to)[4], const void* row) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/// The same, of each matrix transposed.
DEVICE void load_matrices_transposed(u32 (&to)[4], const void* row) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/// `c += a * b` of bf16 into f32: a is 16x16, b 16x8, c 16x8. With g = lane / 4, q = lane % 4 a lane
/// holds of a the rows g, g + 8, g, g + 8 at columns 2q, 2q, 2q + 8, 2q + 8 and the next ones; of b
/// the rows 2q, 2q + 8 and the next ones at column g; of c the rows g, g, g + 8, g + 8 at columns
/// 2q, 2q + 1, 2q, 2q + 1.
DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// `x` rounded to the eleven bits that products of f32 take.
DEVICE float shorten(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

/// `c += a * b` of f32 of eleven bits: a is 16x8, b 8x8, c 16x8. With g = lane / 4, q = lane % 4 a lane
/// holds of a the rows g, g + 8, g, g + 8 at columns q, q, q + 4, q + 4; of b the rows q, q + 4 at
/// column g; of c what the product of bf16 leaves.
DEVICE void multiply_add(float (&c)[4], const float (&a)[4], float b0, float b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/// Begins to copy 16 bytes to shared memory, or to fill it with zeros where `is_there` is not so.
DEVICE void copy_async(void* to, const void* from, bool is_there) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}

/// Closes a group of copies.
DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for this thread's copies, those of the last `Open` groups excepted.
template <int Open> DEVICE void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Open) : "memory");
}

/// Writes for all processors of the system, behind everything that this thread has seen.
DEVICE void store_release(u32* at, u32 x) {
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

/// Reads what any processor of the system wrote, before everything that follows.
DEVICE u32 load_acquire(const u32* at) {
    u32 x;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

/// What a thread does while it waits for another processor.
DEVICE void give_way() {}

#if __CUDA_ARCH__ >= 890
#define HAS_NARROW_E4M3
/// Two f32 rounded to the nearest e4m3, the lower in the lower byte; what is larger becomes 448.
DEVICE u16 narrow_e4m3(float low, float high) {
    u16 both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
}
#endif
#endif

/// More than any number.
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
    // Below 2^-6 codes are multiples of 2^-9; above, mantissas lose 20 bits.
    if (size < __float_as_uint(0.015625f)) {
        return sign | static_cast<u32>(__float2int_rn(__uint_as_float(size) * 512.0f));
    }
    size += 0x7ffffu + (size >> 20 & 1);
    return sign | ((size >> 20) - ((127 - 7) << 3));
}

DEVICE u16 narrow_e4m3(float low, float high) {
    return static_cast<u16>(narrow_one_e4m3(low) | narrow_one_e4m3(high) << 8);
}
#endif

/// The e4m3 in the second and fourth byte of `codes` as two bf16, exactly: their bits are those of
/// a bf16 but for the exponent's bias, which a factor of 2^120 sets right. NaN is read as 480.
DEVICE u32 widen_e4m3(u32 codes) {
    u32 shifted = (codes & 0x80008000u) | (codes & 0x7f007f00u) >> 4;
    return multiply_bf16x2(shifted, 0x7b807b80u);
}

/// The e2m1 in the upper four bits of each half of `codes` as two bf16, times 2^-126 `factor`: their
/// bits are those of a bf16 but for the exponent's bias.
DEVICE u32 widen_e2m1(u32 codes, u32 factor) {
    return multiply_bf16x2((codes & 0x80008000u) | (codes >> 6 & 0x01c001c0u), factor);
}

/// The lower halves of two words.
DEVICE u32 low_halves(u32 first, u32 second) { return (first & 0xffffu) | second << 16; }

/// The upper halves of two words.
DEVICE u32 high_halves(u32 first, u32 second) { return first >> 16 | (second & 0xffff0000u); }

/// Rows of 16-byte pieces, so placed that eight rows' pieces of one column lie in different banks.
template <int PIECES, class Byte> DEVICE Byte* piece(Byte* tile, u32 row, u32 column) {
    constexpr u32 ROWS_PER_LINE = PIECES < 8 ? 8 / PIECES : 1;
    return tile + (row * PIECES + (column ^ (row / ROWS_PER_LINE & (min(PIECES, 8) - 1)))) * 16;
}

/// Eight numbers in registers, 16 bytes of bf16 in memory.
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

/// Larger for larger numbers and, of equal bits, for lower indices.
DEVICE u64 rank(float x, u32 index) {
    u32 bits = __float_as_uint(x);
    u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
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

/// The sum over a block of whole warps, for each of its threads. `parts` is shared, of one element
/// a warp, and used for nothing else until the block's next barrier.
DEVICE float block_sum(float x, float* parts) {
    x = warp_sum(x);
    if (lane() == 0) parts[warp()] = x;
    __syncthreads();
    return warp_sum(lane() < blockDim.x / LANES ? parts[lane()] : 0.0f);
}
