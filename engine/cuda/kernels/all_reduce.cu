//! Kernel of the tensor parallel all-reduce (sum) of short vectors in one launch: each rank reads
//! the other ranks' memory.
//!
//! out [N] bf16 = sum over all ranks of x [N] bf16, in f32 and in the order of the ranks, so that
//! every rank gets the same bits. N is a multiple of 8 and at most the capacity. `peers` has the
//! exchange memory of every rank, laid out as `Exchange` says and zeroed before the first launch;
//! out may be x.
//! A block of one rank waits for the same block of all other ranks. The numbers alternate between
//! two buffers: a rank that begins a round has seen all others begin the round before, so nothing
//! that is still read is overwritten. The round is counted in memory, so that a captured CUDA graph
//! can be replayed.
//! Once `ended` is not 0, no block waits any more: a rank has ended, and results are undefined.
//! Grid: the same on each rank, at most 64. Block: 512.
//@ all_reduce: registers 48, shared 0, has ST.E.STRONG.SYS LD.E.STRONG.SYS LDG.E.128 STG.E.128
#include "prims.cuh"

#define RANKS_MAX 8
#define BLOCKS_MAX 64
/// Polls of the other ranks between two polls of `ended`.
#define TURNS 1024

struct Peers {
    u8* exchanges[RANKS_MAX];
};

/// Memory of one rank that the others read and write: for each block, the round that each rank has
/// begun; then the rank's own round of each block; then the numbers of two rounds.
struct Exchange {
    u8* start;

    DEVICE_MEMBER u32* begun(u32 block, u32 rank) const {
        return reinterpret_cast<u32*>(start) + block * RANKS_MAX + rank;
    }
    DEVICE_MEMBER u32* rounds(u32 block) const { return begun(BLOCKS_MAX, 0) + block; }
    DEVICE_MEMBER bf16* numbers(u32 round, u32 capacity) const {
        bf16* first = reinterpret_cast<bf16*>(rounds(BLOCKS_MAX));
        return first + static_cast<u64>(round % 2) * capacity;
    }
};

/// True when a rank has not begun `round` yet. The difference is signed, so that the counter may
/// wrap around.
DEVICE bool is_behind(const u32* begun, u32 round) {
    return static_cast<int>(load_acquire(begun) - round) < 0;
}

extern "C" __global__ void __launch_bounds__(512)
all_reduce(bf16* out, const bf16* x, const __grid_constant__ Peers peers, const u32* ended, u32 rank,
           u32 ranks, u32 n, u32 capacity) {
    Exchange own = {peers.exchanges[rank]};
    u32 round = *own.rounds(blockIdx.x) + 1;
    u32 first = (blockIdx.x * blockDim.x + threadIdx.x) * 8, step = gridDim.x * blockDim.x * 8;
    bf16* left = own.numbers(round, capacity);
    for (u32 at = first; at < n; at += step) {
        *reinterpret_cast<uint4*>(left + at) = *reinterpret_cast<const uint4*>(x + at);
    }
    __syncthreads();
    if (threadIdx.x < ranks) {
        Exchange other = {peers.exchanges[threadIdx.x]};
        store_release(other.begun(blockIdx.x, rank), round);
        // Another rank may already be one round ahead, so the comparison is not for equality.
        for (u32 turn = 1; is_behind(own.begun(blockIdx.x, threadIdx.x), round); ++turn) {
            // `ended` is in host memory and slow to read, so it is polled rarely.
            if (turn % TURNS == 0 && load_acquire(ended) != 0) break;
            give_way();
        }
    }
    __syncthreads();
    for (u32 at = first; at < n; at += step) {
        Eight sum = {};
        for (u32 i = 0; i < ranks; ++i) {
            Eight more = load8(Exchange{peers.exchanges[i]}.numbers(round, capacity) + at);
#pragma unroll
            for (int j = 0; j < 8; ++j) sum.x[j] += more.x[j];
        }
        store8(out + at, sum);
    }
    if (threadIdx.x == 0) *own.rounds(blockIdx.x) = round;
}
