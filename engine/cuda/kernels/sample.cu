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
//! Nothing is sorted: the token at which a cumulative sum is reached is found by the bits of its
//! weight, from histograms of their first 11, next 11 and last 8 bits (radix select), and among equal
//! weights by its id. Sums are of integers, so they do not depend on the order of addition.
//! Grid: R. Block: 1024. Random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
//@ sample: registers 64, shared 33792, has ATOMS.ADD SHFL.UP
#include "prims.cuh"

#define WARPS 32
#define THREADS (WARPS * LANES)
/// Bins of a histogram, and those of a thread.
#define BINS 2048
#define OWN_BINS (BINS / THREADS)
/// Tokens of a thread at a time in a walk through the vocabulary.
#define OWN_TOKENS 8
/// Exponent of weights whose last mantissa bit is one unit. A weight of 1 has 2^40 units.
#define UNIT_EXPONENT 110
/// Bits of a token's units in the lower of a bin's two sums.
#define LOW_BITS 12

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

/// What a token counts in a cumulative sum: one (top-k).
struct Ones {
    static DEVICE_MEMBER u32 units(u32) { return 1; }
    static DEVICE_MEMBER u32 shift(u32) { return 0; }
};
/// What a token counts in a cumulative sum: its weight in units, rounded down (top-p). It is `units`,
/// below 2^24, times 2^`shift`, which is the same for weights with the same exponent.
struct Weights {
    static DEVICE_MEMBER u32 units(u32 bits) {
        u32 exponent = bits >> 23, mantissa = (bits & 0x7fffffu) | 0x800000u;
        u32 down = exponent < UNIT_EXPONENT ? UNIT_EXPONENT - exponent : 0;
        return down < 24 ? mantissa >> down : 0;
    }
    static DEVICE_MEMBER u32 shift(u32 bits) { return max(bits >> 23, UNIT_EXPONENT + 0u) - UNIT_EXPONENT; }
};

/// Sums over the tokens of each bin, as low and high bits of the tokens' units: neither sum
/// overflows with up to 2^20 tokens.
struct Histogram {
    u32 low[BINS], high[BINS];
};

struct Shared {
    /// Histograms of the first bits of the weights, and of later ones.
    Histogram first, later;
    u64 parts[WARPS];
    u64 before;
    u32 found;
};

/// Token at which a cumulative sum is reached: the bits of its weight, its id, and the sum up to and
/// including the token.
struct Found {
    Cut cut;
    u64 sum;
};

/// Sum of `mine` over the threads before this one; `all` is increased by that over all threads.
DEVICE u64 sum_before(u64 mine, u64& all, Shared& shared) {
    u64 upto = mine;
#pragma unroll
    for (u32 step = 1; step < LANES; step *= 2) {
        u64 below = __shfl_up_sync(ALL_LANES, upto, step);
        if (lane() >= step) upto += below;
    }
    if (lane() == LANES - 1) shared.parts[warp()] = upto;
    __syncthreads();
    u64 before = upto - mine;
    for (u32 w = 0; w < WARPS; ++w) {
        if (w < warp()) before += shared.parts[w];
        all += shared.parts[w];
    }
    __syncthreads();
    return before;
}

/// Fills a histogram of the bits from `shift` on, of the tokens whose bits from `upper` on are those
/// of `bits`.
template <class Unit>
DEVICE void fill(Histogram& to, const Row& row, u32 bits, u32 upper, u32 shift) {
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) to.low[i] = to.high[i] = 0;
    __syncthreads();
    for (u32 id = threadIdx.x; id < row.vocab; id += THREADS) {
        u32 weight = row.weight(id);
        if (weight == 0 || weight >> upper != bits >> upper) continue;
        u32 units = Unit::units(weight), bin = weight >> shift & (BINS - 1);
        u32 low = units & ((1u << LOW_BITS) - 1), high = units >> LOW_BITS;
        if (low > 0) atomicAdd(&to.low[bin], low);
        if (high > 0) atomicAdd(&to.high[bin], high);
    }
    __syncthreads();
}

/// Returns the units of a bin, whose tokens have the bits of `bits` from the exponent on.
template <class Unit> DEVICE u64 units_of(const Histogram& from, u32 bin, u32 bits) {
    u64 units = (static_cast<u64>(from.high[bin]) << LOW_BITS) + from.low[bin];
    return units << Unit::shift(bits);
}

/// Returns the units of all tokens in the histogram of first bits.
template <class Unit> DEVICE u64 total(Shared& shared) {
    u64 mine = 0, all = 0;
    for (u32 i = 0; i < OWN_BINS; ++i) {
        u32 bin = threadIdx.x * OWN_BINS + i;
        mine += units_of<Unit>(shared.first, bin, bin << 19);
    }
    sum_before(mine, all, shared);
    return all;
}

/// Returns the largest bin at which the sum of units, from the largest bin down, exceeds `wanted`.
/// `beyond` is the sum before the histogram, and then before the bin. Bins are the bits from `shift`
/// on; the others are those of `bits`.
template <class Unit>
DEVICE u32 search(const Histogram& in, u32 bits, u32 shift, u64 wanted, u64& beyond, Shared& shared) {
    auto of = [&](u32 i) {
        u32 bin = BINS - 1 - (threadIdx.x * OWN_BINS + i);
        return units_of<Unit>(in, bin, bits | bin << shift);
    };
    u64 mine = 0, all = 0;
    for (u32 i = 0; i < OWN_BINS; ++i) mine += of(i);
    u64 upto = beyond + sum_before(mine, all, shared);
    for (u32 i = 0; i < OWN_BINS; ++i) {
        u64 before = upto;
        upto += of(i);
        if (before <= wanted && wanted < upto) {
            shared.found = BINS - 1 - (threadIdx.x * OWN_BINS + i);
            shared.before = before;
        }
    }
    __syncthreads();
    u32 bin = shared.found;
    beyond = shared.before;
    __syncthreads();
    return bin;
}

/// Returns the first token, in the order of the vocabulary, at which the sum of `unit(id)` exceeds
/// `wanted`.
template <class Unit> DEVICE u32 walk(u32 vocab, u64 wanted, Shared& shared, const Unit& unit) {
    u64 all = 0;
    for (u32 base = 0; base < vocab && all <= wanted; base += THREADS * OWN_TOKENS) {
        u32 first = base + threadIdx.x * OWN_TOKENS;
        u64 mine = 0, upto = all;
        for (u32 i = 0; i < OWN_TOKENS; ++i) mine += unit(first + i);
        upto += sum_before(mine, all, shared);
        if (upto > wanted || upto + mine <= wanted) continue;
        for (u32 i = 0; i < OWN_TOKENS; ++i) {
            u64 before = upto;
            upto += unit(first + i);
            if (before <= wanted && wanted < upto) shared.found = first + i;
        }
    }
    __syncthreads();
    u32 id = shared.found;
    __syncthreads();
    return id;
}

/// Returns the first token, in the order of falling weight, at which the sum of units exceeds
/// `wanted`; the sum of all must exceed it. The histogram of first bits must be filled.
template <class Unit> DEVICE Found find(const Row& row, u64 wanted, Shared& shared) {
    u64 beyond = 0;
    u32 bits = search<Unit>(shared.first, 0, 19, wanted, beyond, shared) << 19;
    fill<Unit>(shared.later, row, bits, 19, 8);
    bits |= search<Unit>(shared.later, bits, 8, wanted, beyond, shared) << 8;
    fill<Unit>(shared.later, row, bits, 8, 0);
    bits |= search<Unit>(shared.later, bits, 0, wanted, beyond, shared) & 0xff;
    // Tokens of exactly these bits have equal units, so a division gives the token's index among
    // them.
    u64 unit = static_cast<u64>(Unit::units(bits)) << Unit::shift(bits);
    u64 rank = (wanted - beyond) / unit;
    u32 id = walk(row.vocab, rank, shared, [&](u32 id) -> u64 { return row.weight(id) == bits; });
    return {{bits, id}, beyond + (rank + 1) * unit};
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

extern "C" __global__ void __launch_bounds__(THREADS)
sample(u32* ids, const float* __restrict__ logits, const Sampling* __restrict__ all, u32 vocab) {
    __shared__ Shared shared;
    Sampling s = all[blockIdx.x];
    u32 likeliest = ids[blockIdx.x];
    if (s.temperature == 0.0f || likeliest == NONE) return;
    const float* own = logits + static_cast<u64>(blockIdx.x) * vocab;
    Row row = {own, vocab, own[likeliest], s.temperature, s.min_p, {0, 0}};
    if (s.top_k > 0) {
        fill<Ones>(shared.first, row, 0, 30, 19);
        if (total<Ones>(shared) > s.top_k) row.cut = find<Ones>(row, s.top_k - 1, shared).cut;
    }
    fill<Weights>(shared.first, row, 0, 30, 19);
    u64 kept = total<Weights>(shared);
    if (s.top_p < 1.0f) {
        u64 reached = static_cast<u64>(ceil(static_cast<double>(s.top_p) * static_cast<double>(kept)));
        // `find` looks for the first sum beyond a limit, so one unit less than the share is passed.
        kept = find<Weights>(row, reached > 0 ? reached - 1 : 0, shared).sum;
    }
    // Scales the random fraction to the sum of the weights. What top-p drops is behind that sum.
    u64 drawn = __umul64hi(random_bits(s.seed, s.index), kept);
    bool is_ranked = s.top_k > 0 || s.top_p < 1.0f;
    auto unit = [&](u32 id) {
        u32 bits = row.weight(id);
        return bits == 0 ? 0 : static_cast<u64>(Weights::units(bits)) << Weights::shift(bits);
    };
    u32 token = is_ranked ? find<Weights>(row, drawn, shared).cut.id : walk(vocab, drawn, shared, unit);
    if (threadIdx.x == 0) ids[blockIdx.x] = token;
}
