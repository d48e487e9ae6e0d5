//! Vector operations of AVX2: 16 f32 lanes as two registers, and int8 dot products with and without
//! AVX-VNNI.

#![expect(unsafe_code, reason = "vector instructions; the types exist only where they do")]

use std::arch::x86_64::*;

use super::{DotKernel, Kernel};
use crate::lanes::{BLOCK, Dots, HEAD_BYTES, LANES, Lanes, Part};

/// Runs a kernel of f32 vectors compiled for AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) {
    kernel.run(Avx2(()));
}

/// Runs a kernel of int8 dot products compiled for AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run_dots<K: DotKernel>(kernel: K) {
    kernel.run(Avx2Dots::<false>(Avx2(())));
}

/// Runs a kernel of int8 dot products compiled for AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) fn run_vnni_dots<K: DotKernel>(kernel: K) {
    kernel.run(Avx2Dots::<true>(Avx2(())));
}

/// Implements operations on two 16-lane vectors by one intrinsic for each half.
macro_rules! binary {
    ($($name:ident: $intrinsic:ident),*) => {$(
        #[inline(always)]
        fn $name(self, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: `self` proves that the processor has AVX2.
            unsafe { [$intrinsic(a[0], b[0]), $intrinsic(a[1], b[1])] }
        }
    )*};
}

/// AVX2 vectors of 16 f32 lanes. A value is the proof that the processor has AVX2, FMA and F16C,
/// since values exist only where detection found them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

/// Applies `f` to the lower and to the upper eight lanes of a vector.
#[inline(always)]
fn both<A: Copy, B>(halves: [A; 2], f: impl Fn(A) -> B) -> [B; 2] {
    [f(halves[0]), f(halves[1])]
}

/// Returns the sum of the eight lanes of `v`, adding halves to halves.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn sum_of_eight(v: __m256) -> f32 {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// Returns the largest of the eight lanes of `v`.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn largest_of_eight(v: __m256) -> f32 {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    }
}

/// Runs a part of a kernel as a function of its own, compiled for AVX2 and not inlined.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn call<P: Part<Avx2>>(lanes: Avx2, part: P) -> P::Output {
    part.run(lanes)
}

impl Lanes for Avx2 {
    type V = [__m256; 2];
    type Words = [__m256i; 2];

    const ACCUMULATORS: usize = 6;
    const FEW_ROWS_GROUPS: usize = 2;

    fn call<P: Part<Self>>(self, part: P) -> P::Output {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { call(self, part) }
    }

    operations! {
        fn splat(self, x: f32) -> Self::V { [_mm256_set1_ps(x); 2] }
        fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
    }

    binary! {
        add: _mm256_add_ps, sub: _mm256_sub_ps, mul: _mm256_mul_ps,
        div: _mm256_div_ps, max: _mm256_max_ps, min: _mm256_min_ps
    }

    operations! {
        fn exp2_whole(self, n: Self::V) -> Self::V {
            both(n, |n| {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            })
        }
        fn keep_first(self, v: Self::V, n: usize, fill: f32) -> Self::V {
            let n = n.min(16) as i32;
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let keep = |v: __m256, n: i32| {
                let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
                _mm256_blendv_ps(_mm256_set1_ps(fill), v, _mm256_castsi256_ps(mask))
            };
            [keep(v[0], n), keep(v[1], n - 8)]
        }
        unsafe fn load(self, from: *const f32) -> Self::V {
            [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
        }
        unsafe fn store(self, to: *mut f32, v: Self::V) -> () {
            _mm256_storeu_ps(to, v[0]);
            _mm256_storeu_ps(to.add(8), v[1]);
        }
        unsafe fn store_low_bytes(self, to: *mut u8, v: Self::V) -> () {
            let low = |v| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0xff));
            // Packing works within 128-bit halves of a register: the quarters come out as 0, 2, 1,
            // 3.
            let words = _mm256_packus_epi32(low(v[0]), low(v[1]));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packus_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(to.cast(), bytes);
        }
        unsafe fn load_f16(self, from: *const u16) -> Self::V {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            ]
        }
        unsafe fn store_f16(self, to: *mut u16, v: Self::V) -> () {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<NEAREST>(v[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<NEAREST>(v[1]));
        }
        unsafe fn load_bf16(self, from: *const u16) -> Self::V {
            let widen = |from: *const u16| {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            };
            [widen(from), widen(from.add(8))]
        }
        unsafe fn load_i8(self, from: *const i8) -> Self::V {
            let widen = |from: *const i8| {
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))
            };
            [widen(from), widen(from.add(8))]
        }
        unsafe fn load_e4m3(self, from: *const u8) -> Self::V {
            let widen = |from: *const u8| {
                let bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast()));
                let sign = _mm_slli_epi16::<8>(_mm_and_si128(bytes, _mm_set1_epi16(0x80)));
                let rest = _mm_slli_epi16::<7>(_mm_and_si128(bytes, _mm_set1_epi16(0x7f)));
                // The bits are an f16 with the same fraction and an exponent bias larger by 8,
                // hence * 256.
                let small = _mm256_cvtph_ps(_mm_or_si128(sign, rest));
                _mm256_mul_ps(small, _mm256_set1_ps(256.0))
            };
            [widen(from), widen(from.add(8))]
        }
        unsafe fn load_words(self, from: *const u8) -> Self::Words {
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
        }
        fn nibble(self, words: Self::Words, i: u32) -> Self::V {
            both(words, |words| {
                let shifted = _mm256_srlv_epi32(words, _mm256_set1_epi32(4 * i as i32));
                _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)))
            })
        }
        fn doubled_e2m1(self, words: Self::Words, i: u32) -> Self::V {
            both(words, |words| {
                // Twice a float is a small whole number, so one shuffle of bytes looks up every
                // other value of the words; the compiler shares it among the `i` of equal parity.
                let table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
                    0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
                ));
                let words = if i.is_multiple_of(2) { words } else { _mm256_srli_epi32::<4>(words) };
                let bytes =
                    _mm256_shuffle_epi8(table, _mm256_and_si256(words, _mm256_set1_epi8(15)));
                let left = _mm256_set1_epi32(24 - 8 * (i as i32 / 2));
                let top = _mm256_sllv_epi32(bytes, left);
                _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(top))
            })
        }
        fn sum(self, v: Self::V) -> f32 { sum_of_eight(_mm256_add_ps(v[0], v[1])) }
        fn largest(self, v: Self::V) -> f32 { largest_of_eight(_mm256_max_ps(v[0], v[1])) }
    }
}

/// int8 dot products of AVX2. A value is the proof that the processor has what [`Avx2`] needs and,
/// if `VNNI` is true, AVX-VNNI, since values exist only where detection found them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2Dots<const VNNI: bool>(Avx2);

impl<const VNNI: bool> Dots for Avx2Dots<VNNI> {
    type Lanes = Avx2;
    /// int8 weights of four steps of k for 16 columns: with VNNI the unsigned bytes as stored,
    /// without it converted to signed bytes. Without it, the product of two signed bytes is
    /// computed from a magnitude and a byte that takes over the sign.
    type Weights = [__m256i; 2];
    /// int8 activations of four steps of k of one row: their magnitudes, which VNNI does not use,
    /// and the activations themselves.
    type Row = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Halves = [__m256i; 2];

    const ROWS: usize = 2;

    operations! {
        plain fn lanes(self) -> Avx2 { self.0 }
        fn start(self, start: i32) -> Self::Sums {
            [_mm256_set1_epi32(if VNNI { start } else { 0 }); 2]
        }
        fn dot(self, sums: Self::Sums, weights: Self::Weights, row: Self::Row) -> Self::Sums {
            let half = |sums, weights| {
                if VNNI {
                    return _mm256_dpbusd_avx_epi32(sums, weights, row[1]);
                }
                // The sum of two products is at most 2 * 127 * 127 in magnitude, which fits an i16.
                let pairs = _mm256_maddubs_epi16(row[0], _mm256_sign_epi8(weights, row[1]));
                _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            };
            [half(sums[0], weights[0]), half(sums[1], weights[1])]
        }
        fn floats(self, sums: Self::Sums) -> <Avx2 as Lanes>::V {
            [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])]
        }
        unsafe fn weights(self, from: *const u8) -> Self::Weights {
            let sign = _mm256_set1_epi8(if VNNI { 0 } else { i8::MIN });
            let half = |from: *const u8| _mm256_xor_si256(_mm256_loadu_si256(from.cast()), sign);
            [half(from), half(from.add(32))]
        }
        unsafe fn row(self, from: *const i8) -> Self::Row {
            let bytes = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
            [_mm256_abs_epi8(bytes), bytes]
        }
        unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize) -> () {
            let low_values = _mm256_set1_epi32(0x000f_000f);
            let high_bytes = _mm256_set1_epi16(0xff00_u16.cast_signed());
            let both_halves = |half: __m128i| {
                let wide = _mm256_cvtepu16_epi32(half);
                _mm256_or_si256(wide, _mm256_slli_epi32::<16>(wide))
            };
            let merge = |even, odd| {
                let odd = _mm256_and_si256(odd, high_bytes);
                _mm256_or_si256(_mm256_srli_epi16::<8>(even), odd)
            };
            // Eight columns at a time.
            for half in 0..2 {
                let factor = both_halves(_mm_loadu_si128(from.add(16 * half).cast()));
                let addend = both_halves(_mm_loadu_si128(from.add(2 * LANES + 16 * half).cast()));
                let value = |words| {
                    let quantized = _mm256_and_si256(words, low_values);
                    _mm256_add_epi16(_mm256_mullo_epi16(quantized, factor), addend)
                };
                for word in 0..BLOCK / 8 {
                    let words = from.add(HEAD_BYTES + 64 * word + 32 * half);
                    let words = _mm256_loadu_si256(words.cast());
                    let first = merge(value(words), value(_mm256_srli_epi32::<4>(words)));
                    let [third, fourth] =
                        [_mm256_srli_epi32::<8>(words), _mm256_srli_epi32::<12>(words)];
                    let to = to.add(2 * word * stride + 32 * half);
                    _mm256_storeu_si256(to.cast(), first);
                    _mm256_storeu_si256(to.add(stride).cast(), merge(value(third), value(fourth)));
                }
            }
        }
        unsafe fn look_up(
            self,
            table: &[u8; LANES],
            from: *const u8,
            to: *mut u8,
            stride: usize
        ) -> () {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            let low_values = _mm256_set1_epi8(15);
            // Eight columns at a time.
            for half in 0..2 {
                for word in 0..BLOCK / 8 {
                    let words = from.add(HEAD_BYTES + 64 * word + 32 * half);
                    let words = _mm256_loadu_si256(words.cast());
                    let low = _mm256_and_si256(words, low_values);
                    let high = _mm256_and_si256(_mm256_srli_epi32::<4>(words), low_values);
                    let to = to.add(2 * word * stride + 32 * half);
                    _mm256_storeu_si256(to.cast(), _mm256_shuffle_epi8(table, low));
                    _mm256_storeu_si256(to.add(stride).cast(), _mm256_shuffle_epi8(table, high));
                }
            }
        }
        unsafe fn halves(self, from: *const u8) -> Self::Halves {
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
        }
        unsafe fn head(self, from: *const u8) -> Self::Halves {
            let eight = |from: *const u8| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_or_si256(wide, _mm256_slli_epi32::<16>(wide))
            };
            [eight(from), eight(from.add(16))]
        }
        fn splat(self, x: i16) -> Self::Halves { [_mm256_set1_epi16(x); 2] }
        fn shift_left(self, halves: Self::Halves, bits: i32) -> Self::Halves {
            let bits = _mm_cvtsi32_si128(bits);
            [_mm256_sll_epi16(halves[0], bits), _mm256_sll_epi16(halves[1], bits)]
        }
        fn and(self, a: Self::Halves, b: Self::Halves) -> Self::Halves {
            [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])]
        }
        fn select(self, mask: Self::Halves, a: Self::Halves, b: Self::Halves) -> Self::Halves {
            let half = |mask, a, b| {
                _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b))
            };
            [half(mask[0], a[0], b[0]), half(mask[1], a[1], b[1])]
        }
        fn mul_high_add(self, a: Self::Halves, b: Self::Halves, c: Self::Halves) -> Self::Halves {
            // A saturating addition, since the compiler would merge others with the shifts that
            // follow, and multiply in 32 bits.
            let half = |a, b, c| _mm256_adds_epi16(_mm256_mulhi_epi16(a, b), c);
            [half(a[0], b[0], c[0]), half(a[1], b[1], c[1])]
        }
        unsafe fn store_step(self, to: *mut u8, even: Self::Halves, odd: Self::Halves) -> () {
            let high_bytes = _mm256_set1_epi16(0xff00_u16.cast_signed());
            let bytes = |even, odd| {
                let odd = _mm256_and_si256(_mm256_slli_epi16::<2>(odd), high_bytes);
                _mm256_or_si256(_mm256_srli_epi16::<6>(even), odd)
            };
            _mm256_storeu_si256(to.cast(), bytes(even[0], odd[0]));
            _mm256_storeu_si256(to.add(32).cast(), bytes(even[1], odd[1]));
        }
    }
}
