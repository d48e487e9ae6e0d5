//! Kernel of temperature, top-k, top-p sampling and min-p: samples the next token of each row whose
//! temperature is above 0.
//!
//! ids [R] u32 hold the likeliest tokens before, and the sampled ones after; rows at temperature 0,
//! and those without a finite logit (NONE), keep theirs. logits [R, V] f32.
//! The weight of a token is exp((logit - largest) / temperature). Tokens of a weight below min_p
//! are dropped, then all but the top_k likeliest (0 keeps all), then all behind those that first
//! reach the share top_p. The token is sampled with random number `index` of the row's seed: in the
//! order of the vocabulary if neither top-k nor top-p applies, else in the order of falling weight,
//! the lower id first among equals. The CPU's sampler does the same.
//!
//! Nothing is sorted: the token at which a cumulative sum is reached is found by a search over the
//! bits of the weights. Sums are of integers, so they do not depend on the order of addition.
//! Grid: R. Block: 512. Random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
//@ sample: registers 64, shared 1024, has SHFL.BFLY SHFL.UP
#include "prims.cuh"

#define WARPS 16
/// Integer units that a weight of 1 has: 2^40.
#define UNITS 1099511627776.0f

/// Sampling parameters of one row.
struct Sampling {
    float temperature, top_p, min_p;
    u32 top_k;
    u64 seed;
    /// Index of the random number among those of the seed.
    u64 index;
};

/// Last token that is kept, by the bits of its weight and its id.
struct Cut {
    u32 weight, id;
};

struct Row {
    const float* logits;
    u32 vocab;
    float largest, temperature, min_p;
    Cut cut;

    /// Bits of a token's weight, which sort like the weight; 0 for tokens that are not kept.
    DEVICE_MEMBER u32 weight(u32 id) const {
        if (id >= vocab) return 0;
        float weight = expf((logits[id] - largest) / temperature);
        if (!(weight > 0.0f && weight >= min_p)) return 0;
        u32 bits = __float_as_uint(weight);
        bool is_kept = bits > cut.weight || (bits == cut.weight && id <= cut.id);
        return is_kept ? bits : 0;
    }
};

/// Unit of a cumulative sum: each token counts as one (top-k), or by its weight (top-p).
struct Ones {
    static DEVICE_MEMBER u64 of(u32 bits) { return bits > 0; }
};
struct Weights {
    static DEVICE_MEMBER u64 of(u32 bits) { return static_cast<u64>(__uint_as_float(bits) * UNITS); }
};

struct Shared {
    u64 parts[3][WARPS];
    u32 found;
};

/// Sums over the block, returned to every thread.
DEVICE void block_sums(u64 (&x)[3], Shared& shared) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) x[i] += __shfl_xor_sync(ALL_LANES, x[i], step);
        if (lane() == 0) shared.parts[i][warp()] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        x[i] = 0;
        for (int w = 0; w < WARPS; ++w) x[i] += shared.parts[i][w];
    }
    __syncthreads();
}

/// Sum over all tokens of a row.
template <class Unit> DEVICE u64 total(const Row& row, Shared& shared) {
    u64 sums[3] = {};
    for (u32 id = threadIdx.x; id < row.vocab; id += blockDim.x) sums[0] += Unit::of(row.weight(id));
    block_sums(sums, shared);
    return sums[0];
}

/// Returns the first token, in the order of the vocabulary, at which the sum of `unit(id)` exceeds
/// `wanted`.
template <class Unit> DEVICE u32 walk(u32 vocab, u64 wanted, Shared& shared, const Unit& unit) {
    u64 before = 0;
    for (u32 base = 0; base < vocab && before <= wanted; base += blockDim.x) {
        u64 mine = unit(base + threadIdx.x), upto = mine;
#pragma unroll
        for (u32 step = 1; step < LANES; step *= 2) {
            u64 below = __shfl_up_sync(ALL_LANES, upto, step);
            if (lane() >= step) upto += below;
        }
        if (lane() == LANES - 1) shared.parts[0][warp()] = upto;
        __syncthreads();
        u64 all = before;
        upto += before;
        for (u32 w = 0; w < WARPS; ++w) {
            if (w < warp()) upto += shared.parts[0][w];
            all += shared.parts[0][w];
        }
        if (upto > wanted && upto - mine <= wanted) shared.found = base + threadIdx.x;
        before = all;
        __syncthreads();
    }
    return shared.found;
}

/// Returns the first token, in the order of falling weight, at which the sum of units exceeds
/// `wanted`; the sum of all must exceed it.
template <class Unit> DEVICE Cut find(const Row& row, u64 wanted, Shared& shared) {
    // Finds, two bits at a time, the largest bits such that tokens of at least these bits sum to
    // more than `wanted`. Weights are at most 1, so the upper bits are 0.
    u32 bits = 0;
    u64 beyond = 0;
    for (int shift = 28; shift >= 0; shift -= 2) {
        u64 sums[3] = {};
        for (u32 id = threadIdx.x; id < row.vocab; id += blockDim.x) {
            u32 weight = row.weight(id);
            u64 unit = Unit::of(weight);
#pragma unroll
            for (u32 i = 0; i < 3; ++i) sums[i] += weight >= bits + ((i + 1) << shift) ? unit : 0;
        }
        block_sums(sums, shared);
        u32 digit = (sums[0] > wanted) + (sums[1] > wanted) + (sums[2] > wanted);
        beyond = digit == 0 ? sums[0] : digit == 1 ? sums[1] : digit == 2 ? sums[2] : beyond;
        bits += digit << shift;
    }
    // Tokens of exactly these bits have equal units, so a division gives the token's index among
    // them.
    u64 rank = (wanted - beyond) / Unit::of(bits);
    u32 id = walk(row.vocab, rank, shared, [&](u32 id) -> u64 { return row.weight(id) == bits; });
    return {bits, id};
}

DEVICE u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/// Random number with 53 bits, scaled to a fraction of 2^64.
DEVICE u64 random_bits(u64 seed, u64 index) {
    constexpr u64 GOLDEN_GAMMA = 0x9e3779b97f4a7c15ull;
    u64 start = mix(seed + GOLDEN_GAMMA);
    return mix(start + (index + 1) * GOLDEN_GAMMA) >> 11 << 11;
}

extern "C" __global__ void __launch_bounds__(WARPS* LANES)
sample(u32* ids, const float* __restrict__ logits, const Sampling* __restrict__ all, u32 vocab) {
    __shared__ Shared shared;
    Sampling s = all[blockIdx.x];
    u32 likeliest = ids[blockIdx.x];
    if (s.temperature == 0.0f || likeliest == NONE) return;
    const float* own = logits + static_cast<u64>(blockIdx.x) * vocab;
    Row row = {own, vocab, own[likeliest], s.temperature, s.min_p, {0, 0}};
    if (s.top_k > 0 && total<Ones>(row, shared) > s.top_k) {
        row.cut = find<Ones>(row, s.top_k - 1, shared);
    }
    if (s.top_p < 1.0f) {
        double share = static_cast<double>(s.top_p) * static_cast<double>(total<Weights>(row, shared));
        u64 reached = static_cast<u64>(ceil(share));
        // `find` looks for the first sum beyond a limit, so one unit less than the share is passed.
        row.cut = find<Weights>(row, reached > 0 ? reached - 1 : 0, shared);
    }
    // Scales the random fraction to the sum of the weights.
    u64 drawn = __umul64hi(random_bits(s.seed, s.index), total<Weights>(row, shared));
    bool is_ranked = s.top_k > 0 || s.top_p < 1.0f;
    auto weight = [&](u32 id) { return Weights::of(row.weight(id)); };
    u32 token = is_ranked ? find<Weights>(row, drawn, shared).id : walk(vocab, drawn, shared, weight);
    if (threadIdx.x == 0) ids[blockIdx.x] = token;
}
