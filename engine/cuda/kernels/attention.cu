//! Kernels of paged attention, causal, for prefill chunks and decoding sequences in one launch.
//!
//! out [T, H D] bf16 from the query heads of qkv [T, (H + 2 KV) D] bf16, rotated already, and the
//! KV pages as `rope_and_cache` fills them. `layer` [H + 2 KV] f32 holds the attention sink of each
//! query head, -infinity where there is none, then the scales of the KV heads' keys and of their
//! values (e4m3 only). A row sees the positions up to its own, and only the last `window` of them
//! if that is not 0.
//!
//! Grid: as many blocks as run at once, which is the number of blocks of the plan. Block: 4 warps.
//! Source: Dao 2023 (FlashAttention-2), Hong et al. 2023 (Flash-Decoding), Xiao et al. 2023
//! (sinks).
//@ attention_bf16_16: registers 104, shared 512, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.MT88.4
//@ attention_bf16_32: registers 152, shared 512, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.MT88.4
//@ attention_bf16_64: registers 168, shared 512, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.MT88.4
//@ attention_bf16_128: registers 192, shared 512, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.MT88.4
//@ attention_bf16_256: registers 255, shared 512, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.MT88.4
//@ attention_e4m3_64: registers 240, shared 512, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.MT88.4
//@ attention_e4m3_128: registers 252, shared 512, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.MT88.4
//@ attention_e4m3_256: registers 255, shared 512, has HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128 LDSM.16.MT88.4
#include "attention.cuh"

#define ATTENTION(NAME, E, D)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                        \
        NAME(bf16* out, float* parts, const bf16* __restrict__ qkv, const E* __restrict__ pages,   \
             const u32* __restrict__ plan, const float* __restrict__ layer, AttentionShape shape) { \
        DYNAMIC_SHARED(shared);                                                                    \
        using Way = WarpWay<E, D, TILE>;                                                           \
        SmallCopies<E, D> copies;                                                                  \
        attention<E, D, Way>(shared, copies, out, parts, qkv, pages, plan, layer, shape);          \
    }

ATTENTION(attention_bf16_16, bf16, 16)
ATTENTION(attention_bf16_32, bf16, 32)
ATTENTION(attention_bf16_64, bf16, 64)
ATTENTION(attention_bf16_128, bf16, 128)
ATTENTION(attention_bf16_256, bf16, 256)
ATTENTION(attention_e4m3_64, e4m3, 64)
ATTENTION(attention_e4m3_128, e4m3, 128)
ATTENTION(attention_e4m3_256, e4m3, 256)
