//! The PTX instructions that the kernels use, on a host processor. `inline_asm.rs` turns every asm
//! statement of the kernels' headers into calls of these functions: the name is the opcode with
//! underscores, a list of registers is a tuple, and an address is `at`. Types are those of the
//! constraints, so an operand of another kind does not compile.
//!
//! Written from the PTX ISA 8.5 alone and not from the shim, since both are compared.
#include <array>
#include <map>
#include <tuple>

namespace ptx {

/// How often each asm statement was executed, in the order of the headers.
inline std::array<u32, 64> executed;

inline u32& out_r(u32& x) { return x; }
inline u16& out_h(u16& x) { return x; }
inline float& out_f(float& x) { return x; }
template <class T> u32 in_r(T x) {
    static_assert(std::is_integral_v<T> && sizeof x == 4, "a register of 32 bits");
    return static_cast<u32>(x);
}
inline float in_f(float x) { return x; }
inline u64 in_l(u64 x) { return x; }
inline u64 in_l(const void* x) { return reinterpret_cast<u64>(x); }
constexpr int in_n(int x) { return x; }
template <class... T> std::tuple<T...> list(T&&... x) { return std::tuple<T...>(std::forward<T>(x)...); }

/// Address in the shared window (32 bits) or in global memory (64 bits).
struct Shared {
    u32 offset;
    u8* bytes(u32 size) const {
        if (offset + size > shim::block().shared.size()) shim::fail("an address beyond shared memory");
        return shim::block().shared.data() + offset;
    }
};
struct Global {
    u64 address;
};
inline Shared at(u32 x) { return {x}; }
inline Global at(u64 x) { return {x}; }
struct Sink {};
constexpr Sink sink;

inline u64 to_shared(const void* p) {
    return static_cast<u64>(static_cast<const u8*>(p) - shim::block().shared.data());
}

/// The registers of a list, as an array.
template <class T, class... R> std::array<T, sizeof...(R)> values(const std::tuple<R...>& regs) {
    return std::apply([](auto&... x) { return std::array<T, sizeof...(R)>{x...}; }, regs);
}
template <class T, std::size_t N, class... R>
void assign(const std::tuple<R...>& regs, const std::array<T, N>& all) {
    static_assert(sizeof...(R) == N, "as many registers as the instruction has");
    std::size_t i = 0;
    std::apply([&](auto&... x) { ((x = all[i++]), ...); }, regs);
}

inline float number(u32 bits) { return __uint_as_float(bits); }
inline float bf16_of(u32 word, u32 half) { return number(half ? word & 0xffff0000u : word << 16); }
inline u32 lane_id() { return threadIdx.x % 32; }

/// Nearest bf16, ties to even, of a number that doubles hold exactly.
inline u32 round_bf16(double x) {
    if (std::isnan(x)) return 0x7fff;
    float f = static_cast<float>(x);
    u32 low = __float_as_uint(f) & 0xffff0000u, best = low;
    for (u32 next : {low, low + 0x10000u}) {
        double d = std::fabs(number(next) - x), e = std::fabs(number(best) - x);
        if (d < e || (d == e && (next >> 16 & 1) == 0)) best = next;
    }
    return best >> 16;
}

// The first source is the upper half.
inline void cvt_rn_bf16x2_f32(u32& d, float a, float b) { d = round_bf16(a) << 16 | round_bf16(b); }
inline void fma_rn_bf16x2(u32& d, u32 a, u32 b, u32 c) {
    u32 halves[2];
    for (u32 i = 0; i < 2; ++i) {
        halves[i] = round_bf16(static_cast<double>(bf16_of(a, i)) * bf16_of(b, i) + bf16_of(c, i));
    }
    d = halves[1] << 16 | halves[0];
}
inline void ex2_approx_ftz_f32(float& d, float a) { d = static_cast<float>(std::exp2(double{a})); }
inline void cvt_rna_tf32_f32(u32& d, float a) {
    // To nearest, ties away from zero, to ten bits of fraction.
    int exponent;
    double scaled = std::ldexp(std::frexp(double{a}, &exponent), 11);
    d = __float_as_uint(static_cast<float>(std::ldexp(std::round(scaled), exponent - 11)));
}
inline double e4m3_of(u32 code) {
    u32 exponent = code >> 3 & 15, fraction = code & 7;
    return exponent ? std::ldexp(8 + fraction, static_cast<int>(exponent) - 10) : std::ldexp(fraction, -9);
}
inline u32 round_e4m3(float x) {
    if (std::isnan(x)) return 0x7f;
    double size = std::min(std::fabs(double{x}), 448.0);
    u32 best = 0;
    for (u32 code = 1; code < 0x7f; ++code) {
        double d = std::fabs(e4m3_of(code) - size), e = std::fabs(e4m3_of(best) - size);
        if (d < e || (d == e && code % 2 == 0)) best = code;
    }
    return best | (std::signbit(x) ? 0x80 : 0);
}
inline void cvt_rn_satfinite_e4m3x2_f32(u16& d, float a, float b) {
    d = static_cast<u16>(round_e4m3(a) << 8 | round_e4m3(b));
}
inline void selp_u32(u32& d, u32 a, u32 b, bool p) { d = p ? a : b; }

/// Lanes 8i to 8i + 7 have the row addresses of matrix i, whose words go to register i.
template <bool TRANSPOSED, class D> void ldmatrix(D d, Shared row) {
    std::array<u32, 4> words;
    for (u32 i = 0; i < 4; ++i) {
        u16 m[8][8];
        for (u32 r = 0; r < 8; ++r) {
            std::memcpy(m[r], Shared{__shfl_sync(0, row.offset, 8 * i + r)}.bytes(16), 16);
        }
        u32 r = lane_id() / 4, c = lane_id() % 4 * 2;
        words[i] = TRANSPOSED ? m[c][r] | m[c + 1][r] << 16 : m[r][c] | m[r][c + 1] << 16;
    }
    assign(d, words);
}
template <class D> void ldmatrix_sync_aligned_m8n8_x4_shared_b16(D d, Shared p) { ldmatrix<false>(d, p); }
template <class D> void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(D d, Shared p) {
    ldmatrix<true>(d, p);
}

/// Rows g and g + 8 of the fragment of a 16x16 bf16 matrix, from the lanes that hold them.
inline void rows_of(const std::array<u32, 4>& a, float (&rows)[2][16]) {
    for (u32 k = 0; k < 16; ++k) {
        for (u32 h = 0; h < 2; ++h) {
            u32 word = __shfl_sync(0, a[h + k / 8 * 2], lane_id() / 4 * 4 + k % 8 / 2);
            rows[h][k] = bf16_of(word, k % 2);
        }
    }
}
template <class D, class A, class B, class C>
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(D d, A a, B b, C c) {
    std::array<float, 4> sums = values<float>(c);
    std::array<u32, 2> words = values<u32>(b);
    float rows[2][16];
    rows_of(values<u32>(a), rows);
    for (u32 k = 0; k < 16; ++k) {
        for (u32 j = 0; j < 2; ++j) {
            u32 column = lane_id() % 4 * 2 + j;
            float x = bf16_of(__shfl_sync(0, words[k / 8], column * 4 + k % 8 / 2), k % 2);
            for (u32 h = 0; h < 2; ++h) sums[2 * h + j] += rows[h][k] * x;
        }
    }
    assign(d, sums);
}
template <class D, class A, class B, class C>
void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(D d, A a, B b, C c) {
    std::array<float, 4> sums = values<float>(c);
    std::array<u32, 4> left = values<u32>(a);
    std::array<u32, 2> right = values<u32>(b);
    for (u32 k = 0; k < 8; ++k) {
        for (u32 i = 0; i < 4; ++i) {
            u32 x = __shfl_sync(0, left[i / 2 + k / 4 * 2], lane_id() / 4 * 4 + k % 4);
            u32 y = __shfl_sync(0, right[k / 4], (lane_id() % 4 * 2 + i % 2) * 4 + k % 4);
            sums[i] += number(x & 0xffffe000u) * number(y & 0xffffe000u);
        }
    }
    assign(d, sums);
}

struct Copy {
    Shared to;
    Global from;
    u32 bytes;
};
/// Groups of copies of each thread, the last of which is open.
inline std::vector<std::vector<Copy>>& groups() {
    static std::map<u32, std::vector<std::vector<Copy>>> all;
    auto& mine = all[threadIdx.x];
    if (mine.empty()) mine.emplace_back();
    return mine;
}
inline void cp_async_cg_shared_global(Shared to, Global from, int size, u32 source_size) {
    if (size != 16 || source_size > 16) shim::fail("cp.async.cg copies 16 bytes");
    groups().back().push_back({to, from, source_size});
}
inline void cp_async_commit_group() { groups().emplace_back(); }
inline void cp_async_wait_group(int open) {
    auto& all = groups();
    while (all.size() > static_cast<std::size_t>(open) + 1) {
        for (const Copy& one : all.front()) {
            std::memset(one.to.bytes(16), 0, 16);
            std::memcpy(one.to.bytes(16), reinterpret_cast<const void*>(one.from.address), one.bytes);
        }
        all.erase(all.begin());
    }
}
inline void st_release_sys_u32(Global to, u32 x) { *reinterpret_cast<u32*>(to.address) = x; }
inline void ld_acquire_sys_u32(u32& d, Global from) { d = *reinterpret_cast<const u32*>(from.address); }

/// Arrival barrier: the arrivals and bytes that its current phase still waits for.
struct Barrier {
    u32 count, arrivals, phase;
    long long bytes;

    void pass() {
        if (arrivals > 0 || bytes != 0) return;
        arrivals = count;
        phase ^= 1;
    }
};
inline std::map<u32, Barrier>& barriers() {
    static std::map<u32, Barrier> all;
    return all;
}
inline Barrier& barrier(Shared at) {
    auto found = barriers().find(at.offset);
    if (found == barriers().end()) shim::fail("a barrier that was not initialized");
    return found->second;
}
inline void mbarrier_init_shared__cta_b64(Shared at, u32 count) {
    barriers()[at.offset] = {count, count, 0, 0};
}
inline void mbarrier_arrive_expect_tx_shared__cta_b64(Sink, Shared at, u32 bytes) {
    barrier(at).bytes += bytes;
    barrier(at).arrivals -= 1;
    barrier(at).pass();
}
inline void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(Shared to, Global from,
                                                                              u32 bytes, Shared at) {
    std::memcpy(to.bytes(bytes), reinterpret_cast<const void*>(from.address), bytes);
    barrier(at).bytes -= bytes;
    barrier(at).pass();
}
inline void mbarrier_try_wait_parity_shared__cta_b64(bool& p, Shared at, u32 parity) {
    p = barrier(at).phase != parity;
    if (!p) shim::fail("a wait for a phase that does not end");
}
inline void fence_mbarrier_init_release_cluster() {}
inline void fence_proxy_async_shared__cta() {}
inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() {}
inline void wgmma_wait_group_sync_aligned(int) {}

/// Operand of a warpgroup multiplication in shared memory, with swizzled rows of 128 bytes: element
/// `line` along M or N, and `k`, of a matrix that is contiguous along K, or along the lines.
inline float element(u64 descriptor, u32 line, u32 k, bool is_along_lines) {
    if (descriptor >> 62 != 1) shim::fail("a descriptor without 128-byte swizzle");
    u64 start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    u64 stride = (descriptor >> 32 & 0x3fff) << 4;
    u64 place = is_along_lines
                    ? start + line / 64 * leading + k / 8 * stride + k % 8 * 128 + line % 64 * 2
                    : start + line / 8 * stride + line % 8 * 128 + k * 2;
    place ^= (place >> 7 & 7) << 4;
    u16 bits;
    std::memcpy(&bits, Shared{static_cast<u32>(place)}.bytes(2), 2);
    return bf16_of(bits, 0);
}
template <u32 N, class D>
void wgmma(D d, const float (&rows)[2][16], u64 b, int scale_d, int scale_a, int scale_b, int trans_b) {
    if (std::abs(scale_a) != 1 || std::abs(scale_b) != 1 || trans_b >> 1) shim::fail("an immediate");
    std::array<float, N / 2> sums = values<float>(d);
    for (u32 i = 0; i < N / 2; ++i) {
        float sum = scale_d ? sums[i] : 0.0f;
        u32 column = i / 4 * 8 + lane_id() % 4 * 2 + i % 2;
        for (u32 k = 0; k < 16; ++k) {
            float x = element(b, column, k, trans_b) * static_cast<float>(scale_a * scale_b);
            sum += rows[i / 2 % 2][k] * x;
        }
        sums[i] = sum;
    }
    assign(d, sums);
}
#define WGMMA(N)                                                                                   \
    template <class D>                                                                             \
    void wgmma_mma_async_sync_aligned_m64n##N##k16_f32_bf16_bf16(                                  \
        D d, u64 a, u64 b, int scale_d, int scale_a, int scale_b, int trans_a, int trans_b) {      \
        float rows[2][16];                                                                         \
        u32 row = threadIdx.x % 128 / 32 * 16 + lane_id() / 4;                                     \
        for (u32 k = 0; k < 16; ++k) {                                                             \
            for (u32 h = 0; h < 2; ++h) rows[h][k] = element(a, row + 8 * h, k, trans_a);          \
        }                                                                                          \
        wgmma<N>(d, rows, b, scale_d, scale_a, scale_b, trans_b);                                  \
    }                                                                                              \
    template <class D, class... A>                                                                 \
    void wgmma_mma_async_sync_aligned_m64n##N##k16_f32_bf16_bf16(                                  \
        D d, std::tuple<A...> a, u64 b, int scale_d, int scale_a, int scale_b, int trans_b) {      \
        float rows[2][16];                                                                         \
        rows_of(values<u32>(a), rows);                                                             \
        wgmma<N>(d, rows, b, scale_d, scale_a, scale_b, trans_b);                                  \
    }
WGMMA(16)
WGMMA(32)
WGMMA(64)
WGMMA(128)

}  // namespace ptx

/// Returns how often each of the first `count` asm statements was executed.
void executed(u32* out, u32 count) {
    if (threadIdx.x > 0) return;
    for (u32 i = 0; i < count; ++i) out[i] = ptx::executed.at(i);
}
