//! Warpgroup instructions (WGMMA) and their matrix descriptors. A warpgroup is four warps, the
//! first of which has a number that is a multiple of four. For sm_90a only.
#pragma once
#include "prims.cuh"

#define GROUP_WARPS 4

#ifdef SHIM
#include "warpgroup.h"
#else

/// Index of this thread's warpgroup, in a form that the compiler knows to be the same for all
/// lanes.
DEVICE u32 warpgroup() { return __shfl_sync(ALL_LANES, threadIdx.x / (GROUP_WARPS * LANES), 0); }

/// Address of `at` in the shared memory window.
DEVICE u64 shared_address(const void* at) { return __cvta_generic_to_shared(at); }

/// Makes this thread's writes to shared memory visible to warpgroup multiplication after the next
/// barrier.
DEVICE void publish_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Orders earlier register writes before warpgroup multiplication that adds to these registers.
DEVICE void begin_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes a group of multiplications.
DEVICE void close_wgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits for this warpgroup's multiplications except those of the last `Open` groups.
template <int Open = 0> DEVICE void await_wgmma() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Open) : "memory");
}

#define FOUR(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])

/// Keeps the compiler from reading the sums of asynchronous multiplication before this point.
template <int N> DEVICE void take_sums(float (&c)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : FOUR(c, i)::"memory");
}

/// Starts `c += a * b` of bf16 with f32 accumulation: a is 64 rows of 16 columns, b 128 of 16, c
/// 64x128. Warp w of the group holds rows 16w to 16w + 15 of c, in parts of 8 columns as
/// `multiply_add` leaves them.
DEVICE void multiply_add_64x128(float (&c)[16][4], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
                 "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
                 "%62, %63"
                 "}, %64, %65, 1, 1, 1, 0, 0;"
                 : FOUR(c, 0), FOUR(c, 1), FOUR(c, 2), FOUR(c, 3), FOUR(c, 4), FOUR(c, 5),
                   FOUR(c, 6), FOUR(c, 7), FOUR(c, 8), FOUR(c, 9), FOUR(c, 10), FOUR(c, 11),
                   FOUR(c, 12), FOUR(c, 13), FOUR(c, 14), FOUR(c, 15)
                 : "l"(a), "l"(b));
}

/// Starts `c += a * b` of bf16 with f32 accumulation: a is 64 rows of 16 columns, b 64 of 16, c
/// 64x64.
DEVICE void multiply_add_64x64(float (&c)[8][4], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : FOUR(c, 0), FOUR(c, 1), FOUR(c, 2), FOUR(c, 3), FOUR(c, 4), FOUR(c, 5),
                   FOUR(c, 6), FOUR(c, 7)
                 : "l"(a), "l"(b));
}

/// Starts `c += a * b` of bf16 with f32 accumulation: b is 16x16, c 64x16. Each warp has its 16 rows
/// of a in registers, as `multiply_add` takes them.
DEVICE void multiply_add_64x16(float (&c)[2][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
                 : FOUR(c, 0), FOUR(c, 1)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// Starts `c += a * b` of bf16 with f32 accumulation: b is 16x32, c 64x32. Each warp has its 16 rows
/// of a in registers, as `multiply_add` takes them.
DEVICE void multiply_add_64x32(float (&c)[4][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                 : FOUR(c, 0), FOUR(c, 1), FOUR(c, 2), FOUR(c, 3)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// Starts `c += a * b` of bf16 with f32 accumulation: b is 16x64, c 64x64. Each warp has its 16
/// rows of a in registers, as `multiply_add` takes them; the descriptor of b is transposed or not.
template <bool IS_TRANSPOSED>
DEVICE void multiply_add_64x64(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                 : FOUR(c, 0), FOUR(c, 1), FOUR(c, 2), FOUR(c, 3), FOUR(c, 4), FOUR(c, 5),
                   FOUR(c, 6), FOUR(c, 7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(IS_TRANSPOSED));
}

/// Starts `c += a * b` of bf16 with f32 accumulation: b is 16x128, c 64x128. Each warp has its 16
/// rows of a in registers, as `multiply_add` takes them; the descriptor of b is transposed or not.
template <bool IS_TRANSPOSED>
DEVICE void multiply_add_64x128(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
                 "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
                 "%62, %63"
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
                 : FOUR(c, 0), FOUR(c, 1), FOUR(c, 2), FOUR(c, 3), FOUR(c, 4), FOUR(c, 5),
                   FOUR(c, 6), FOUR(c, 7), FOUR(c, 8), FOUR(c, 9), FOUR(c, 10), FOUR(c, 11),
                   FOUR(c, 12), FOUR(c, 13), FOUR(c, 14), FOUR(c, 15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(IS_TRANSPOSED));
}
#endif

/// Matrix descriptor of an operand in shared memory with rows of 128 bytes along K, swizzled as
/// `piece` does. The tile, and each eight rows, begin at a multiple of 1024 bytes. Adding 2 to the
/// descriptor advances it by 16 columns of bf16. Source: PTX ISA 8.0, matrix descriptors of wgmma.
DEVICE u64 describe(const void* tile) {
    u64 at = shared_address(tile);
    constexpr u64 EIGHT_ROWS = 1024 / 16, SWIZZLE_128 = 1;
    return (at & 0x3ffff) >> 4 | 1ull << 16 | EIGHT_ROWS << 32 | SWIZZLE_128 << 62;
}

/// Matrix descriptor of a transposed operand, whose rows are along K, with panels of 64 columns
/// that begin `apart` bytes after one another. Adding 128 to the descriptor advances it by 16 rows.
DEVICE u64 describe_transposed(const void* tile, u64 apart) {
    return (describe(tile) & ~(0x3fffull << 16)) | apart / 16 << 16;
}
