//! AVX-512: 16 f32 lanes as one register, bf16 dot products with AVX-512 BF16, and int8 dot products
//! with AVX-512 VNNI.

#![expect(unsafe_code, reason = "vector instructions; the types exist only where they do")]

use std::arch::x86_64::*;
use std::mem::transmute;

use super::avx2::{largest_of_eight, sum_of_eight};
use super::{DotKernel, Kernel, PairKernel};
use crate::lanes::{BLOCK, Dots, LANES, Lanes, Pairs, STEP_BYTES};

/// Runs a kernel of f32 vectors compiled for AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) fn run<K: Kernel>(kernel: K) {
    kernel.run(Avx512(()));
}

/// Runs a kernel of bf16 dot products compiled for AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn run_pairs<K: PairKernel>(kernel: K) {
    kernel.run(Avx512Pairs(Avx512(())));
}

/// Runs a kernel of int8 dot products compiled for AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn run_dots<K: DotKernel>(kernel: K) {
    kernel.run(Avx512Dots(Avx512(())));
}

/// Implements operations on two vectors by one intrinsic each.
macro_rules! binary {
    ($($name:ident: $intrinsic:ident),*) => {$(
        #[inline(always)]
        fn $name(self, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: see above.
            unsafe { $intrinsic(a, b) }
        }
    )*};
}

/// Proof that the processor has AVX-512F: a value exists only where it does.
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

// SAFETY of every block below: `self` proves that the processor has the instructions, and where a
// pointer is given the caller vouches for the memory behind it.
impl Lanes for Avx512 {
    type V = __m512;
    type Words = __m512i;

    const ACCUMULATORS: usize = 24;
    const FEW_ROWS_GROUPS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    binary! {
        add: _mm512_add_ps, sub: _mm512_sub_ps, mul: _mm512_mul_ps,
        div: _mm512_div_ps, max: _mm512_max_ps, min: _mm512_min_ps
    }

    #[inline(always)]
    fn exp2_whole(self, n: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }

    #[inline(always)]
    fn keep_first(self, v: Self::V, n: usize, fill: f32) -> Self::V {
        let mask = if n >= 16 { u16::MAX } else { (1u16 << n) - 1 };
        // SAFETY: see above.
        unsafe { _mm512_mask_blend_ps(mask, _mm512_set1_ps(fill), v) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: Self::V) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(self, to: *mut u8, v: Self::V) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(v))) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, v: Self::V) {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(to.cast(), bits);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const u8) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
            let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)));
            let rest = _mm256_slli_epi16::<7>(_mm256_and_si256(codes, _mm256_set1_epi16(0x7f)));
            // The bits are an f16 with the same fraction and an exponent bias larger by 8, hence *
            // 256.
            let small = _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
            _mm512_mul_ps(small, _mm512_set1_ps(256.0))
        }
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const u8) -> Self::Words {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    fn nibble(self, words: Self::Words, i: u32) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let values = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0,
                15.0,
            );
            // The permutation uses only four bits of each index, so it masks and converts at once.
            _mm512_permutexvar_ps(_mm512_srlv_epi32(words, _mm512_set1_epi32(4 * i as i32)), values)
        }
    }

    #[inline(always)]
    fn pick(self, words: Self::Words, i: u32, table: &[f32; 16]) -> Self::V {
        // SAFETY: see above; the table holds sixteen f32.
        unsafe {
            let shifted = _mm512_srlv_epi32(words, _mm512_set1_epi32(4 * i as i32));
            _mm512_permutexvar_ps(shifted, _mm512_loadu_ps(table.as_ptr()))
        }
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let [low, high] = halves(v);
            sum_of_eight(_mm256_add_ps(low, high))
        }
    }

    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let [low, high] = halves(v);
            largest_of_eight(_mm256_max_ps(low, high))
        }
    }
}

/// Proof that the processor has AVX-512F and AVX-512 BF16: a value exists only where it does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512Pairs(Avx512);

impl Pairs for Avx512Pairs {
    type Lanes = Avx512;
    type Weights = __m512bh;
    type Row = __m512bh;

    const ROWS: usize = 8;

    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0
    }

    #[inline(always)]
    fn dot(self, sums: __m512, weights: __m512bh, row: __m512bh) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_dpbf16_ps(sums, weights, row) }
    }

    #[inline(always)]
    fn round(self, x: &[f32; LANES]) -> [u16; LANES] {
        // SAFETY: see above; sixteen bf16 are sixteen u16 of any bits.
        unsafe { transmute(_mm512_cvtneps_pbh(_mm512_loadu_ps(x.as_ptr()))) }
    }

    #[inline(always)]
    unsafe fn weights(self, from: *const u8) -> __m512bh {
        // SAFETY: see above; both types are 512 bits of any value.
        unsafe { transmute(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn row(self, from: *const u16) -> __m512bh {
        // SAFETY: as for weights.
        unsafe { transmute(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
    }
}

/// Proof that the processor has AVX-512F, AVX-512BW and AVX-512 VNNI: a value exists only where it
/// does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512Dots(Avx512);

impl Dots for Avx512Dots {
    type Lanes = Avx512;
    type Weights = __m512i;
    type Row = __m512i;
    type Sums = __m512i;

    const ROWS: usize = 4;

    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0
    }

    #[inline(always)]
    fn start(self, start: i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(start) }
    }

    #[inline(always)]
    fn dot(self, sums: __m512i, weights: __m512i, row: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_dpbusd_epi32(sums, weights, row) }
    }

    #[inline(always)]
    fn floats(self, sums: __m512i) -> <Avx512 as Lanes>::V {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }

    #[inline(always)]
    unsafe fn weights(self, from: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn row(self, from: *const i8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: see above.
        unsafe {
            let both_halves = |half: __m256i| {
                let wide = _mm512_cvtepu16_epi32(half);
                _mm512_or_si512(wide, _mm512_slli_epi32::<16>(wide))
            };
            let factor = both_halves(_mm256_loadu_si256(from.cast()));
            let addend = both_halves(_mm256_loadu_si256(from.add(2 * LANES).cast()));
            let low_codes = _mm512_set1_epi32(0x000f_000f);
            let high_bytes = _mm512_set1_epi16(0xff00_u16.cast_signed());
            let value = |codes| {
                let code = _mm512_and_si512(codes, low_codes);
                _mm512_add_epi16(_mm512_mullo_epi16(code, factor), addend)
            };
            // Combines the high bytes of two results: those of even steps move to the low bytes,
            // those of odd steps stay: (a >> 8) | (b & high).
            let merge = |even, odd| {
                let even = _mm512_srli_epi16::<8>(even);
                _mm512_ternarylogic_epi32::<0xf8>(even, odd, high_bytes)
            };
            for word in 0..BLOCK / 8 {
                let codes = _mm512_loadu_si512(from.add(4 * LANES + word * STEP_BYTES).cast());
                let first = merge(value(codes), value(_mm512_srli_epi32::<4>(codes)));
                let second = merge(
                    value(_mm512_srli_epi32::<8>(codes)),
                    value(_mm512_srli_epi32::<12>(codes)),
                );
                _mm512_storeu_si512(to.add(2 * word * stride).cast(), first);
                _mm512_storeu_si512(to.add((2 * word + 1) * stride).cast(), second);
            }
        }
    }
}
