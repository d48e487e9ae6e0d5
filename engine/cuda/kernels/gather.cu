//! Copies selected rows of a buffer, such as those that need logits.
//!
//! out [R, N] bf16 = x [T, N] bf16 at rows [R]. N is a multiple of 8.
//! Grid: R. Block: threads over the row, 16 bytes each.
//@ gather: registers 24, shared 0, has LDG.E.128 STG.E.128
#include "prims.cuh"

extern "C" __global__ void gather(bf16* out, const bf16* __restrict__ x,
                                  const u32* __restrict__ rows, u32 n) {
    u32 row = rows[blockIdx.x];
    uint4* to = reinterpret_cast<uint4*>(out + static_cast<u64>(blockIdx.x) * n);
    const uint4* from = reinterpret_cast<const uint4*>(x + static_cast<u64>(row) * n);
    for (u32 i = threadIdx.x; i < n / 8; i += blockDim.x) to[i] = from[i];
}
