//! Kernels with one fault each, and one without any, by which the checks of the shim are tested.
//!
//! Each changes x [64] f32. Grid: 1. Block: 64, with 64 bytes of shared memory. Those behind `sound`
//! change x [2048] f32, and have 128 threads and 4 KiB of shared memory.
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
//@ source_changes_before_the_wait: registers 16, shared 0
//@ copy_before_the_last_read: registers 16, shared 0
//@ bulk_copy_before_the_last_read: registers 16, shared 8
//@ bulk_copy_over_unpublished_writes: registers 16, shared 8
//@ unpublished_arrivals: registers 16, shared 8
//@ copy_before_the_last_reads: registers 16, shared 0
//@ copies_to_the_same_bytes: registers 16, shared 0
//@ copy_is_read_without_a_barrier: registers 16, shared 0
//@ bulk_source_changes_before_the_wait: registers 16, shared 8
//@ bulk_copy_is_read_before_the_wait: registers 16, shared 8
//@ bulk_copy_is_overwritten_before_the_wait: registers 16, shared 8
//@ operand_changes_before_the_wait: registers 32, shared 0
//@ operand_is_refilled_before_the_wait: registers 32, shared 0
//@ operand_changes_after_one_wait: registers 32, shared 0
//@ bulk_copy_over_an_operand: registers 32, shared 8
//@ operand_before_its_bulk_copy: registers 32, shared 8
//@ sums_are_read_before_the_wait: registers 32, shared 0
//@ sums_are_written_before_the_wait: registers 32, shared 0
//@ registers_change_before_the_wait: registers 32, shared 0
//@ multiplication_without_begin: registers 32, shared 0
//@ multiplication_without_close: registers 32, shared 0
//@ multiplication_without_wait: registers 32, shared 0
//@ unpublished_operand: registers 32, shared 0
//@ operand_published_before_its_copy: registers 32, shared 0
//@ operand_published_without_a_barrier: registers 32, shared 0
//@ sound_multiplication: registers 32, shared 8
#include "../kernels/bulk.cuh"
#include "../kernels/warpgroup.cuh"

extern "C" __global__ void copies_that_nobody_awaits(float* x) {
    DYNAMIC_SHARED(shared);
    if (threadIdx.x == 0) copy_async(shared, x, true);
    close_copies();
    __syncthreads();
    x[threadIdx.x] = 0.0f;
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
    x[threadIdx.x] = 0.0f;
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

/// Starts to copy 16 bytes to the thread's own part of shared memory.
DEVICE void copy_own(u8* shared, const float* from) {
    copy_async(shared + threadIdx.x * 16, from + threadIdx.x * 4, true);
    close_copies();
}

DEVICE float own(const u8* shared) { return reinterpret_cast<const float*>(shared)[threadIdx.x * 4]; }

extern "C" __global__ void source_changes_before_the_wait(float* x) {
    DYNAMIC_SHARED(shared);
    copy_own(shared, x);
    x[threadIdx.x * 4] = 0.0f;
    await_copies<0>();
    x[512 + threadIdx.x] = own(shared);
}

extern "C" __global__ void copy_before_the_last_read(float* x) {
    DYNAMIC_SHARED(shared);
    copy_own(shared, x);
    await_copies<0>();
    copy_own(shared, x + 512);
    float last = own(shared);
    await_copies<0>();
    x[1024 + threadIdx.x] = last;
}

extern "C" __global__ void copy_before_the_last_reads(float* x) {
    DYNAMIC_SHARED(shared);
    reinterpret_cast<float*>(shared)[threadIdx.x * 4] = 0.0f;
    __syncthreads();
    // Read by another warp than the one that copies to it.
    float last = reinterpret_cast<float*>(shared)[(threadIdx.x + LANES) % 128 * 4];
    copy_own(shared, x);
    await_copies<0>();
    x[1024 + threadIdx.x] = last;
}

extern "C" __global__ void copies_to_the_same_bytes(float* x) {
    DYNAMIC_SHARED(shared);
    copy_own(shared, x);
    copy_own(shared, x + 512);
    await_copies<0>();
    x[1024 + threadIdx.x] = own(shared);
}

extern "C" __global__ void copy_is_read_without_a_barrier(float* x) {
    DYNAMIC_SHARED(shared);
    copy_own(shared, x);
    __syncthreads();
    await_copies<0>();
    x[1024 + threadIdx.x] = reinterpret_cast<float*>(shared)[(threadIdx.x + LANES) % 128 * 4];
}

/// Initializes an arrival barrier for one bulk copy of 2 KiB to `shared`, which the first thread
/// starts.
DEVICE void open_by_one(u64* arrival) {
    if (threadIdx.x == 0) {
        open_arrival(arrival);
        publish_arrivals();
    }
    __syncthreads();
}

DEVICE void begin_tile(u8* shared, const float* from, u64* arrival) {
    if (threadIdx.x == 0) {
        expect_bytes(arrival, 2048);
        copy_bulk(shared, from, 2048, arrival);
    }
    __syncthreads();
}

DEVICE void copy_tile(u8* shared, const float* from, u64* arrival) {
    begin_tile(shared, from, arrival);
    await_bytes(arrival, 0);
}

/// Writes a tile of 16 rows of 64 bf16, all of which are `both`.
DEVICE void fill(u8* shared, u32 both) {
    reinterpret_cast<uint4*>(shared)[threadIdx.x] = make_uint4(both, both, both, both);
}

extern "C" __global__ void bulk_copy_before_the_last_read(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    fill(shared, 0);
    publish_to_copies();
    open_by_one(&arrival);
    float last = own(shared);
    copy_tile(shared, x, &arrival);
    x[512 + threadIdx.x] = last;
}

extern "C" __global__ void bulk_source_changes_before_the_wait(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    open_by_one(&arrival);
    begin_tile(shared, x, &arrival);
    x[threadIdx.x] = -1.0f;
    await_bytes(&arrival, 0);
}

extern "C" __global__ void bulk_copy_is_read_before_the_wait(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    open_by_one(&arrival);
    begin_tile(shared, x, &arrival);
    float first = own(shared);
    await_bytes(&arrival, 0);
    x[512 + threadIdx.x] = first;
}

/// The first warp alone waits for the bytes.
extern "C" __global__ void bulk_copy_is_overwritten_before_the_wait(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    open_by_one(&arrival);
    begin_tile(shared, x, &arrival);
    if (warp() == 0) await_bytes(&arrival, 0);
    fill(shared, 0);
}

extern "C" __global__ void bulk_copy_over_unpublished_writes(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    fill(shared, 0);
    open_by_one(&arrival);
    copy_tile(shared, x, &arrival);
    x[512 + threadIdx.x] = own(shared);
}

extern "C" __global__ void unpublished_arrivals(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    if (threadIdx.x == 0) open_arrival(&arrival);
    __syncthreads();
    copy_tile(shared, x, &arrival);
    x[512 + threadIdx.x] = own(shared);
}

#define ONES 0x3f803f80u

/// Operands and sums of one multiplication: ones in registers by a tile of ones, which give 16.
struct Multiplied {
    u32 a[4] = {ONES, ONES, ONES, ONES};
    float sums[2][4] = {};

    DEVICE_MEMBER void begin(const u8* shared) {
        begin_wgmma();
        multiply_add_64x16(sums, a, describe(shared));
        close_wgmma();
    }

    DEVICE_MEMBER void finish(float* x) {
        await_wgmma();
        take_sums(sums);
        x[threadIdx.x] = sums[1][3];
    }
};

/// Writes a tile of ones that multiplications may read.
DEVICE void fill_and_publish(u8* shared) {
    fill(shared, ONES);
    publish_to_wgmma();
    __syncthreads();
}

extern "C" __global__ void operand_changes_before_the_wait(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    m.begin(shared);
    fill(shared, 0);
    m.finish(x);
}

extern "C" __global__ void operand_is_refilled_before_the_wait(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    m.begin(shared);
    copy_own(shared, x);
    m.finish(x + 512);
    await_copies<0>();
}

/// Each warp waits for its own part of the multiplication, and none for that of the others.
extern "C" __global__ void operand_changes_after_one_wait(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    m.begin(shared);
    __syncthreads();
    m.finish(x);
    fill(shared, 0);
}

extern "C" __global__ void bulk_copy_over_an_operand(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    open_by_one(&arrival);
    Multiplied m;
    fill_and_publish(shared);
    m.begin(shared);
    copy_tile(shared, x, &arrival);
    m.finish(x + 512);
}

extern "C" __global__ void operand_before_its_bulk_copy(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    open_by_one(&arrival);
    begin_tile(shared, x, &arrival);
    Multiplied m;
    m.begin(shared);
    await_bytes(&arrival, 0);
    m.finish(x + 512);
}

extern "C" __global__ void sums_are_read_before_the_wait(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    m.begin(shared);
    x[512 + threadIdx.x] = m.sums[0][0];
    m.finish(x);
}

extern "C" __global__ void sums_are_written_before_the_wait(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    m.begin(shared);
    m.sums[0][0] = 0.0f;
    m.finish(x);
}

extern "C" __global__ void registers_change_before_the_wait(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    m.begin(shared);
    m.a[3] = 0;
    m.finish(x);
}

extern "C" __global__ void multiplication_without_begin(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    multiply_add_64x16(m.sums, m.a, describe(shared));
    close_wgmma();
    m.finish(x);
}

extern "C" __global__ void multiplication_without_close(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    begin_wgmma();
    multiply_add_64x16(m.sums, m.a, describe(shared));
    m.finish(x);
}

extern "C" __global__ void multiplication_without_wait(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill_and_publish(shared);
    m.begin(shared);
    x[threadIdx.x] = 0.0f;
}

extern "C" __global__ void unpublished_operand(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill(shared, ONES);
    __syncthreads();
    m.begin(shared);
    m.finish(x);
}

extern "C" __global__ void operand_published_before_its_copy(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    copy_own(shared, x);
    publish_to_wgmma();
    await_copies<0>();
    __syncthreads();
    m.begin(shared);
    m.finish(x);
}

extern "C" __global__ void operand_published_without_a_barrier(float* x) {
    DYNAMIC_TILES(shared);
    Multiplied m;
    fill(shared, ONES);
    publish_to_wgmma();
    m.begin(shared);
    m.finish(x);
}

/// Copies a tile, overwrites it by ones, multiplies by it and copies it again: two groups are open
/// at once.
extern "C" __global__ void sound_multiplication(float* x) {
    DYNAMIC_TILES(shared);
    __shared__ u64 arrival;
    open_by_one(&arrival);
    copy_tile(shared, x, &arrival);
    __syncthreads();
    fill_and_publish(shared);
    Multiplied first, second;
    first.begin(shared);
    second.begin(shared);
    await_wgmma<1>();
    take_sums(first.sums);
    x[threadIdx.x] = first.sums[0][0];
    second.finish(x + 512);
    __syncthreads();
    copy_own(shared, x + 512);
    await_copies<0>();
    x[threadIdx.x] += own(shared);
}
