//! Kernels that call every function of the kernels' headers that is an asm statement, on made-up
//! operands. They are compiled in several namespaces: where the functions are the shim's, and where
//! they are the asm statements. Each begins with a line `//# NAME`. Block: 128; words of `in`: 8192.

/// Fills shared memory with `in`.
DEVICE void fill(u32* shared, const u32* in) {
    for (u32 i = threadIdx.x; i < 8192; i += blockDim.x) shared[i] = in[i];
    __syncthreads();
}

/// A small whole number, in bf16, for every value of the word.
DEVICE float small(u32 word) { return static_cast<float>(word % 17) - 8.0f; }

//# conversions
void conversions(u32* out, const u32* in) {
    float x = __uint_as_float(in[2 * threadIdx.x]), y = __uint_as_float(in[2 * threadIdx.x + 1]);
    u32* to = out + 6 * threadIdx.x;
    to[0] = narrow(x, y);
    to[1] = multiply_bf16x2(in[2 * threadIdx.x] >> 16 | 0x3f800000u, 0x40003fc0u);
    to[2] = __float_as_uint(exp2_fast(small(in[threadIdx.x])));
    to[3] = __float_as_uint(shorten(x));
    to[4] = narrow_e4m3(x, y);
    store_release(to + 5, in[threadIdx.x]);
    to[5] += load_acquire(in + threadIdx.x + 1);
}

//# matrices
void matrices(u32* out, const u32* in) {
    DYNAMIC_SHARED(shared);
    fill(reinterpret_cast<u32*>(shared), in);
    u32 first[4], second[4];
    load_matrices(first, shared + 16 * (threadIdx.x ^ 5));
    load_matrices_transposed(second, shared + 16 * (threadIdx.x ^ 3));
    for (u32 i = 0; i < 4; ++i) {
        out[8 * threadIdx.x + i] = first[i];
        out[8 * threadIdx.x + 4 + i] = second[i];
    }
}

//# products
void products(u32* out, const u32* in) {
    const u32* from = in + 8 * threadIdx.x;
    float sums[4], short_sums[4], left[4];
    u32 words[6];
    for (u32 i = 0; i < 6; ++i) words[i] = narrow(small(from[i]), small(from[i] >> 8));
    for (u32 i = 0; i < 4; ++i) {
        sums[i] = short_sums[i] = small(from[i] >> 16);
        left[i] = small(from[i] >> 4);
    }
    u32 a[4] = {words[0], words[1], words[2], words[3]};
    multiply_add(sums, a, words[4], words[5]);
    multiply_add(short_sums, left, small(from[4]), small(from[5]));
    for (u32 i = 0; i < 4; ++i) {
        out[8 * threadIdx.x + i] = __float_as_uint(sums[i]);
        out[8 * threadIdx.x + 4 + i] = __float_as_uint(short_sums[i]);
    }
}

//# copies
void copies(u32* out, const u32* in) {
    DYNAMIC_SHARED(shared);
    u32* words = reinterpret_cast<u32*>(shared);
    fill(words, in);
    u32 at = 4 * threadIdx.x;
    copy_async(words + at, in + 4096 + at, true);
    close_copies();
    copy_async(words + 1024 + at, in + 5120 + at, threadIdx.x % 2);
    close_copies();
    await_copies<1>();
    for (u32 i = 0; i < 4; ++i) out[8 * threadIdx.x + i] = words[at + i];
    await_copies<0>();
    for (u32 i = 0; i < 4; ++i) out[8 * threadIdx.x + 4 + i] = words[1024 + at + i];
}

//# bulk_copies
void bulk_copies(u32* out, const u32* in) {
    DYNAMIC_SHARED(shared);
    u32* words = reinterpret_cast<u32*>(shared);
    fill(words, in);
    u64* arrival = reinterpret_cast<u64*>(shared + 16384);
    if (threadIdx.x == 0) {
        open_arrival(arrival);
        publish_arrivals();
    }
    publish_to_copies();
    for (u32 phase = 0; phase < 2; ++phase) {
        __syncthreads();
        if (threadIdx.x == 0) {
            expect_bytes(arrival, 768);
            copy_bulk(shared, in + 2048, 512, arrival);
            copy_bulk(shared + 1024, in + 3000, 256, arrival);
        }
        __syncthreads();
        await_bytes(arrival, phase);
    }
    for (u32 i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = words[threadIdx.x + 128 * i];
}

//# group_products
template <int N> DEVICE u32* write_sums(u32* out, float (&sums)[N][4]) {
    close_wgmma();
    await_wgmma();
    take_sums(sums);
    for (u32 i = 0; i < 4 * N; ++i) out[i] = __float_as_uint(sums[i / 4][i % 4]);
    return out + 4 * N;
}

/// Shared memory has bf16 of small whole numbers: 64 rows of one operand, then 128 of the other.
void group_products(u32* out, const u32* in) {
    DYNAMIC_TILES(shared);
    for (u32 i = threadIdx.x; i < 8192; i += blockDim.x) {
        reinterpret_cast<u32*>(shared)[i] = narrow(small(in[i]), small(in[i] >> 8));
    }
    publish_to_wgmma();
    __syncthreads();
    float c16[2][4], c32[4][4], c64[3][8][4], c128[3][16][4];
    float* starts[] = {c16[0], c32[0], c64[0][0], c128[0][0]};
    for (u32 part = 0; part < 4; ++part) {
        u32 count = part < 2 ? 8u << part : 96u << (part - 2);
        for (u32 i = 0; i < count; ++i) starts[part][i] = small(in[threadIdx.x + i]);
    }
    u32 a[4];
    for (u32 i = 0; i < 4; ++i) a[i] = narrow(small(in[8 * threadIdx.x + i]), small(in[i] >> 4));
    u64 left = describe(shared) + 2, right = describe(shared + 8192) + 4;
    u64 across = describe_transposed(shared + 8192, 8192) + 128;
    begin_wgmma();
    multiply_add_64x16(c16, a, right);
    multiply_add_64x32(c32, a, right);
    multiply_add_64x64(c64[0], left, right);
    multiply_add_64x64<false>(c64[1], a, right);
    multiply_add_64x64<true>(c64[2], a, across);
    multiply_add_64x128(c128[0], left, right);
    multiply_add_64x128<false>(c128[1], a, right);
    multiply_add_64x128<true>(c128[2], a, across);
    u32* to = out + 312 * threadIdx.x;
    to = write_sums(write_sums(to, c16), c32);
    for (u32 i = 0; i < 3; ++i) to = write_sums(write_sums(to, c64[i]), c128[i]);
}
