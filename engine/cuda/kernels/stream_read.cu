//! Reads memory once, to measure the memory bandwidth of a GPU.
//!
//! out [warps of the grid] u32 = XOR of all words that each warp read, so that the compiler keeps
//! the reads. `from` has `vectors` pieces of 16 bytes.
//! Grid: as many blocks as run at once. Block: 512, each thread with four reads in flight.
//@ stream_read: registers 40, shared 0, has LDG.E.128
#include "prims.cuh"

#define THREADS 512
#define PIECES 4

extern "C" __global__ void __launch_bounds__(THREADS, 2)
stream_read(u32* out, const uint4* __restrict__ from, u64 vectors) {
    u32 words = 0;
    u64 stride = static_cast<u64>(gridDim.x) * THREADS * PIECES;
    u64 first = static_cast<u64>(blockIdx.x) * THREADS * PIECES + threadIdx.x;
    for (u64 i = first; i < vectors; i += stride) {
        uint4 v[PIECES];
#pragma unroll
        for (u32 j = 0; j < PIECES; ++j) {
            u64 at = i + j * THREADS;
            v[j] = at < vectors ? from[at] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (u32 j = 0; j < PIECES; ++j) words ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) words ^= __shfl_xor_sync(ALL_LANES, words, step);
    if (lane() == 0) out[blockIdx.x * (THREADS / LANES) + warp()] = words;
}
