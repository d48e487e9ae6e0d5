//! Vector operations of AVX-512: 16 f32 lanes as one register, bf16 dot products with AVX-512 BF16,
//! and int8 dot products with AVX-512 VNNI.

#![expect(unsafe_code, reason = "vector instructions; the types exist only where they do")]

use std::arch::x86_64::*;
use std::mem::transmute;

use super::avx2::{largest_of_eight, sum_of_eight};
use super::{DotKernel, Kernel, PairKernel};
use crate::lanes::{
    BLOCK, Dots, E2M1_DOUBLED, E4M3_REBIAS, E4M3_SMALL, HEAD_BYTES, LANES, Lanes, PAIR, PAIR_BYTES,
    Pairs, Part, STEP_BYTES,
};

/// Runs a kernel of f32 vectors compiled for AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) fn run<K: Kernel>(kernel: K) {
    kernel.run(Avx512(()));
}

/// Runs a kernel of bf16 dot products compiled for AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn run_pairs<K: PairKernel>(kernel: K) {
    kernel.run(Avx512Pairs(Avx512(())));
}

/// Runs a kernel of int8 dot products compiled for AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn run_dots<K: DotKernel>(kernel: K) {
    kernel.run(Avx512Dots(Avx512(())));
}

/// AVX-512 vectors of 16 f32 lanes. A value is the proof that the processor has AVX-512F, since
/// values exist only where detection found it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

/// Returns the lower and the upper eight lanes of `v`.
///
/// # Safety
/// The processor has AVX-512F.
#[inline(always)]
unsafe fn halves(v: __m512) -> [__m256; 2] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v));
        [_mm512_castps512_ps256(v), _mm256_castpd_ps(high)]
    }
}

/// Runs a part of a kernel as a function of its own, compiled for AVX-512 and not inlined.
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn call<P: Part<Avx512>>(lanes: Avx512, part: P) -> P::Output {
    part.run(lanes)
}

impl Lanes for Avx512 {
    type V = __m512;
    type Words = __m512i;

    const ACCUMULATORS: usize = 24;
    const FEW_ROWS_GROUPS: usize = 4;

    fn call<P: Part<Self>>(self, part: P) -> P::Output {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { call(self, part) }
    }

    operations! {
        fn splat(self, x: f32) -> Self::V { _mm512_set1_ps(x) }
        fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V { _mm512_fmadd_ps(a, b, c) }
        fn add(self, a: Self::V, b: Self::V) -> Self::V { _mm512_add_ps(a, b) }
        fn sub(self, a: Self::V, b: Self::V) -> Self::V { _mm512_sub_ps(a, b) }
        fn mul(self, a: Self::V, b: Self::V) -> Self::V { _mm512_mul_ps(a, b) }
        fn div(self, a: Self::V, b: Self::V) -> Self::V { _mm512_div_ps(a, b) }
        fn max(self, a: Self::V, b: Self::V) -> Self::V { _mm512_max_ps(a, b) }
        fn min(self, a: Self::V, b: Self::V) -> Self::V { _mm512_min_ps(a, b) }
        fn exp2_whole(self, n: Self::V) -> Self::V {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
        fn keep_first(self, v: Self::V, n: usize, fill: f32) -> Self::V {
            let mask = if n >= 16 { u16::MAX } else { (1u16 << n) - 1 };
            _mm512_mask_blend_ps(mask, _mm512_set1_ps(fill), v)
        }
        unsafe fn load(self, from: *const f32) -> Self::V { _mm512_loadu_ps(from) }
        unsafe fn store(self, to: *mut f32, v: Self::V) -> () { _mm512_storeu_ps(to, v) }
        unsafe fn store_low_bytes(self, to: *mut u8, v: Self::V) -> () {
            _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(v)))
        }
        unsafe fn load_f16(self, from: *const u16) -> Self::V {
            _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
        }
        unsafe fn store_f16(self, to: *mut u16, v: Self::V) -> () {
            let bits = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(to.cast(), bits);
        }
        unsafe fn load_bf16(self, from: *const u16) -> Self::V {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
        unsafe fn load_i8(self, from: *const i8) -> Self::V {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))
        }
        unsafe fn load_e4m3(self, from: *const u8) -> Self::V {
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
            let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(bytes, _mm256_set1_epi16(0x80)));
            let rest = _mm256_slli_epi16::<7>(_mm256_and_si256(bytes, _mm256_set1_epi16(0x7f)));
            // The bits are an f16 with the same fraction and an exponent bias larger by 8, hence *
            // 256.
            let small = _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
            _mm512_mul_ps(small, _mm512_set1_ps(256.0))
        }
        unsafe fn load_words(self, from: *const u8) -> Self::Words {
            _mm512_loadu_si512(from.cast())
        }
        fn nibble(self, words: Self::Words, i: u32) -> Self::V {
            let values = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0,
                15.0,
            );
            // The permutation uses only four bits of each index, so it masks and converts at once.
            _mm512_permutexvar_ps(_mm512_srlv_epi32(words, _mm512_set1_epi32(4 * i as i32)), values)
        }
        fn doubled_e2m1(self, words: Self::Words, i: u32) -> Self::V {
            let shifted = _mm512_srlv_epi32(words, _mm512_set1_epi32(4 * i as i32));
            _mm512_permutexvar_ps(shifted, _mm512_loadu_ps(E2M1_DOUBLED.as_ptr()))
        }
        fn sum(self, v: Self::V) -> f32 {
            let [low, high] = halves(v);
            sum_of_eight(_mm256_add_ps(low, high))
        }
        fn largest(self, v: Self::V) -> f32 {
            let [low, high] = halves(v);
            largest_of_eight(_mm256_max_ps(low, high))
        }
    }
}

/// bf16 dot products of AVX-512. A value is the proof that the processor has AVX-512F, AVX-512BW
/// and AVX-512 BF16, since values exist only where detection found them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512Pairs(Avx512);

impl Pairs for Avx512Pairs {
    type Lanes = Avx512;
    type Weights = __m512bh;
    type Row = __m512bh;

    const ROWS: usize = 8;

    operations! {
        plain fn lanes(self) -> Avx512 { self.0 }
        fn dot(self, sums: __m512, weights: __m512bh, row: __m512bh) -> __m512 {
            _mm512_dpbf16_ps(sums, weights, row)
        }
        fn round(self, x: &[f32; LANES]) -> [u16; LANES] {
            transmute(_mm512_cvtneps_pbh(_mm512_loadu_ps(x.as_ptr())))
        }
        unsafe fn weights(self, from: *const u8) -> __m512bh {
            transmute(_mm512_loadu_si512(from.cast()))
        }
        unsafe fn row(self, from: *const u16) -> __m512bh {
            transmute(_mm512_set1_epi32(from.cast::<i32>().read_unaligned()))
        }
        fn widen(self, values: &[u8; PAIR * LANES], to: &mut [u8; PAIR_BYTES]) -> () {
            let bits = _mm512_cvtepu8_epi16(_mm256_loadu_si256(values.as_ptr().cast()));
            let magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7f));
            let rebias = _mm512_set1_epi16(E4M3_REBIAS.cast_signed());
            let normal = _mm512_add_epi16(_mm512_slli_epi16::<4>(magnitude), rebias);
            let is_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
            // The permutation uses only five bits of each index, so it ignores the sign.
            let small = _mm512_broadcast_i32x4(_mm_loadu_si128(E4M3_SMALL.as_ptr().cast()));
            let widened = _mm512_mask_permutexvar_epi16(normal, is_small, bits, small);
            // widened | (shifted & sign)
            let (shifted, sign) = (_mm512_slli_epi16::<8>(bits), _mm512_set1_epi16(i16::MIN));
            let widened = _mm512_ternarylogic_epi32::<0xf8>(widened, shifted, sign);
            _mm512_storeu_si512(to.as_mut_ptr().cast(), widened);
        }
    }
}

/// int8 dot products of AVX-512. A value is the proof that the processor has AVX-512F, AVX-512BW
/// and AVX-512 VNNI, since values exist only where detection found them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512Dots(Avx512);

impl Dots for Avx512Dots {
    type Lanes = Avx512;
    type Weights = __m512i;
    type Row = __m512i;
    type Sums = __m512i;
    type Halves = __m512i;

    const ROWS: usize = 4;

    operations! {
        plain fn lanes(self) -> Avx512 { self.0 }
        fn start(self, start: i32) -> __m512i { _mm512_set1_epi32(start) }
        fn dot(self, sums: __m512i, weights: __m512i, row: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(sums, weights, row)
        }
        fn floats(self, sums: __m512i) -> <Avx512 as Lanes>::V { _mm512_cvtepi32_ps(sums) }
        unsafe fn weights(self, from: *const u8) -> __m512i { _mm512_loadu_si512(from.cast()) }
        unsafe fn row(self, from: *const i8) -> __m512i {
            _mm512_set1_epi32(from.cast::<i32>().read_unaligned())
        }
        unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize) -> () {
            let both_halves = |half: __m256i| {
                let wide = _mm512_cvtepu16_epi32(half);
                _mm512_or_si512(wide, _mm512_slli_epi32::<16>(wide))
            };
            let factor = both_halves(_mm256_loadu_si256(from.cast()));
            let addend = both_halves(_mm256_loadu_si256(from.add(2 * LANES).cast()));
            let low_values = _mm512_set1_epi32(0x000f_000f);
            let high_bytes = _mm512_set1_epi16(0xff00_u16.cast_signed());
            let value = |words| {
                let quantized = _mm512_and_si512(words, low_values);
                _mm512_add_epi16(_mm512_mullo_epi16(quantized, factor), addend)
            };
            // Combines the high bytes of two results: those of even steps move to the low bytes,
            // those of odd steps stay: (a >> 8) | (b & high).
            let merge = |even, odd| {
                let even = _mm512_srli_epi16::<8>(even);
                _mm512_ternarylogic_epi32::<0xf8>(even, odd, high_bytes)
            };
            for word in 0..BLOCK / 8 {
                let words = _mm512_loadu_si512(from.add(HEAD_BYTES + word * STEP_BYTES).cast());
                let first = merge(value(words), value(_mm512_srli_epi32::<4>(words)));
                let second = merge(
                    value(_mm512_srli_epi32::<8>(words)),
                    value(_mm512_srli_epi32::<12>(words)),
                );
                _mm512_storeu_si512(to.add(2 * word * stride).cast(), first);
                _mm512_storeu_si512(to.add((2 * word + 1) * stride).cast(), second);
            }
        }
        unsafe fn look_up(
            self,
            table: &[u8; LANES],
            from: *const u8,
            to: *mut u8,
            stride: usize
        ) -> () {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            let low_values = _mm512_set1_epi8(15);
            for word in 0..BLOCK / 8 {
                let words = _mm512_loadu_si512(from.add(HEAD_BYTES + word * STEP_BYTES).cast());
                let low = _mm512_and_si512(words, low_values);
                let high = _mm512_and_si512(_mm512_srli_epi32::<4>(words), low_values);
                let to = to.add(2 * word * stride);
                _mm512_storeu_si512(to.cast(), _mm512_shuffle_epi8(table, low));
                _mm512_storeu_si512(to.add(stride).cast(), _mm512_shuffle_epi8(table, high));
            }
        }
        unsafe fn halves(self, from: *const u8) -> __m512i { _mm512_loadu_si512(from.cast()) }
        unsafe fn head(self, from: *const u8) -> __m512i {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_or_si512(wide, _mm512_slli_epi32::<16>(wide))
        }
        fn splat(self, x: i16) -> __m512i { _mm512_set1_epi16(x) }
        fn shift_left(self, halves: __m512i, bits: i32) -> __m512i {
            _mm512_sll_epi16(halves, _mm_cvtsi32_si128(bits))
        }
        fn and(self, a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn select(self, mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
            _mm512_ternarylogic_epi32::<0xca>(mask, a, b)
        }
        fn mul_high_add(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
            // A saturating addition, since the compiler would merge others with the shifts that
            // follow, and multiply in 32 bits.
            _mm512_adds_epi16(_mm512_mulhi_epi16(a, b), c)
        }
        unsafe fn store_step(self, to: *mut u8, even: __m512i, odd: __m512i) -> () {
            let (even, odd) = (_mm512_srli_epi16::<6>(even), _mm512_slli_epi16::<2>(odd));
            // even | (odd & high bytes)
            let high_bytes = _mm512_set1_epi16(0xff00_u16.cast_signed());
            let bytes = _mm512_ternarylogic_epi32::<0xf8>(even, odd, high_bytes);
            _mm512_storeu_si512(to.cast(), bytes);
        }
    }
}
