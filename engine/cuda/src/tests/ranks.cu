//! Test program of the one-kernel all-reduce: ranks that read each other's memory, each on a host
//! thread.
//!
//! out [rounds, ranks, N] bf16 = result of each rank for x [rounds, ranks, N] bf16. Grid: 1. Block:
//! any.
//@ ranks: registers 255, shared 0
#include "../kernels/all_reduce.cu"

struct RanksShape {
    u32 ranks, rounds, n, capacity, blocks, block;
};

extern "C" void ranks(bf16* out, const bf16* x, RanksShape shape) {
    if (threadIdx.x != 0) return;
    std::vector<std::vector<u64>> memory(shape.ranks);
    Peers peers = {};
    u32 ended = 0;
    for (u32 rank = 0; rank < shape.ranks; ++rank) {
        u64 words = BLOCKS_MAX * (RANKS_MAX + 1), numbers = 2 * u64{shape.capacity};
        memory[rank].resize((words * 4 + numbers * 2) / 8);
        peers.exchanges[rank] = reinterpret_cast<u8*>(memory[rank].data());
    }
    bool is_reversed = shim::block().is_reversed;
    std::vector<std::thread> threads;
    const u32* alive = &ended;
    for (u32 rank = 0; rank < shape.ranks; ++rank) {
        threads.emplace_back([=] {
            shim::block().is_reversed = is_reversed;
            for (u32 round = 0; round < shape.rounds; ++round) {
                u64 at = (round * u64{shape.ranks} + rank) * shape.n;
                shim::launch({shape.blocks, 1, 1}, shape.block, 0, [=] {
                    all_reduce(out + at, x + at, peers, alive, rank, shape.ranks, shape.n,
                               shape.capacity);
                });
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}
