//! Embedding lookup: rows of an embedding table by token id.
//!
//! out [T, K] bf16 = table [N, K] bf16 at ids [T] - first; zeros where the table has no such row,
//! since it holds only one rank's share of the vocabulary. An id with the highest bit set is an
//! index into `drawn`, the token ids that the previous step sampled. K is a multiple of 8.
//! Grid: T. Block: threads over the row, 16 bytes each.
//@ embed: registers 24, shared 0, has LDG.E.128 STG.E.128
#include "prims.cuh"

#define DRAWN 0x80000000u

extern "C" __global__ void embed(bf16* out, const bf16* __restrict__ table,
                                 const u32* __restrict__ ids, const u32* __restrict__ drawn,
                                 u32 first, u32 n, u32 k) {
    u32 id = ids[blockIdx.x];
    if (id & DRAWN) id = drawn[id & ~DRAWN];
    u32 row = id - first;
    uint4* to = reinterpret_cast<uint4*>(out + static_cast<u64>(blockIdx.x) * k);
    const uint4* from = reinterpret_cast<const uint4*>(table + static_cast<u64>(row) * k);
    // For an id below `first` the unsigned difference wraps around to a row beyond the table.
    bool is_here = row < n;
    for (u32 i = threadIdx.x; i < k / 8; i += blockDim.x) {
        to[i] = is_here ? from[i] : make_uint4(0, 0, 0, 0);
    }
}
