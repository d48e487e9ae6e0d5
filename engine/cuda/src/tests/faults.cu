//! Kernels with one fault each, and one without any, by which the checks of the shim are tested.
//!
//! Each changes x [64] f32. Grid: 1. Block: 64, with 64 bytes of shared memory.
//@ copies_that_nobody_awaits: registers 16, shared 0
//@ bytes_that_nobody_awaits: registers 16, shared 8
//@ bytes_that_nobody_copies: registers 16, shared 8
//@ half_a_warp: registers 16, shared 0
//@ lanes_apart: registers 16, shared 0
//@ half_a_block: registers 16, shared 0
//@ no_barrier: registers 16, shared 256
//@ behind_the_buffer: registers 16, shared 0
//@ behind_the_shared_memory: registers 16, shared 0
//@ half_a_vector: registers 16, shared 0
//@ rows_in_one_bank: registers 16, shared 0
//@ sound: registers 16, shared 8
#include "../kernels/bulk.cuh"

extern "C" __global__ void copies_that_nobody_awaits(float* x) {
    DYNAMIC_SHARED(shared);
    if (threadIdx.x == 0) copy_async(shared, x, true);
    close_copies();
    __syncthreads();
    x[threadIdx.x] = reinterpret_cast<float*>(shared)[threadIdx.x % 4];
}

/// Starts a bulk copy of 64 bytes and announces `expected` bytes.
DEVICE void copy_by_one(u8* to, const float* from, u64* arrival, u32 expected) {
    if (threadIdx.x == 0) {
        open_arrival(arrival);
        publish_arrivals();
        expect_bytes(arrival, expected);
        copy_bulk(to, from, 64, arrival);
    }
    __syncthreads();
}

extern "C" __global__ void bytes_that_nobody_awaits(float* x) {
    DYNAMIC_SHARED(shared);
    __shared__ u64 arrival;
    copy_by_one(shared, x, &arrival, 64);
    x[threadIdx.x] = reinterpret_cast<float*>(shared)[threadIdx.x % 4];
}

extern "C" __global__ void bytes_that_nobody_copies(float* x) {
    DYNAMIC_SHARED(shared);
    __shared__ u64 arrival;
    copy_by_one(shared, x, &arrival, 80);
    await_bytes(&arrival, 0);
    x[threadIdx.x] = reinterpret_cast<float*>(shared)[threadIdx.x % 4];
}

extern "C" __global__ void half_a_warp(float* x) {
    if (lane() < 16) x[threadIdx.x] = warp_sum(x[threadIdx.x]);
}

extern "C" __global__ void lanes_apart(float* x) {
    if (lane() < 16) {
        x[threadIdx.x] = warp_sum(x[threadIdx.x]);
    } else {
        __syncwarp();
    }
}

extern "C" __global__ void half_a_block(float* x) {
    if (warp() == 0) __syncthreads();
    x[threadIdx.x] = 0.0f;
}

extern "C" __global__ void no_barrier(float* x) {
    __shared__ float shared[64];
    shared[threadIdx.x] = x[threadIdx.x] + threadIdx.x;
    x[threadIdx.x] = shared[(threadIdx.x + 1) % 64];
    __syncthreads();
    shared[threadIdx.x] = 0.0f;
}

extern "C" __global__ void behind_the_buffer(float* x) { x[threadIdx.x + 1] = 0.0f; }

extern "C" __global__ void behind_the_shared_memory(float* x) {
    DYNAMIC_SHARED(shared);
    shared[threadIdx.x + 1] = static_cast<u8>(x[threadIdx.x]);
}

extern "C" __global__ void half_a_vector(float* x) {
    if (threadIdx.x == 0) x[0] = load8(x + 2).x[0];
}

extern "C" __global__ void rows_in_one_bank(float* x) {
    DYNAMIC_SHARED(shared);
    u32 words[4];
    load_matrices(words, shared + lane() % 4 * 16);
    x[threadIdx.x] = static_cast<float>(words[0]);
}

extern "C" __global__ void sound(float* x) {
    __shared__ float parts[2];
    float sum = block_sum(x[threadIdx.x], parts);
    x[threadIdx.x] = sum;
}
