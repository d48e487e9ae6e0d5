//! Kernel whose warpgroup multiplications ptxas serializes, because some of its sums may be read
//! before a wait. `cargo xtask cuda-check` compiles it, to see that it finds the message of ptxas
//! that says so. It is never run.
#include "../../../engine/cuda/kernels/warpgroup.cuh"

extern "C" __global__ void unawaited(float* x, int steps) {
    DYNAMIC_TILES(shared);
    float sums[2][4] = {};
    u32 a[4] = {1, 2, 3, 4};
    u64 b = describe(shared);
    begin_wgmma();
    for (int i = 0; i < steps; ++i) {
        multiply_add_64x16(sums, a, b + i);
        close_wgmma();
        if (x[i] > 0.0f) await_wgmma<1>();
    }
    take_sums(sums);
    x[threadIdx.x] = sums[0][0] + sums[1][3];
}
