//! 16 f32 lanes as one AVX-512 register.

#![expect(unsafe_code, reason = "vector instructions; the type exists only where they do")]

use std::arch::x86_64::*;

use super::Lanes;
use super::avx2::{largest_of_eight, sum_of_eight};

/// Proof that the processor has AVX-512F: a value exists only where it does.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Avx512(());

impl Avx512 {
    /// Creates the proof that the processor has the instructions.
    ///
    /// # Safety
    /// The processor has AVX-512F.
    #[inline(always)]
    pub(in super::super) unsafe fn new() -> Self {
        Self(())
    }
}

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

// SAFETY of every block below: `self` proves that the processor has AVX-512F, and where a pointer
// is given the caller vouches for the memory behind it.
impl Lanes for Avx512 {
    type V = __m512;
    type Codes = __m512i;

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

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { _mm512_min_ps(a, b) }
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
    unsafe fn load_codes(self, from: *const u8) -> Self::Codes {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    fn code(self, codes: Self::Codes, i: u32) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let values = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0,
                15.0,
            );
            // The permutation uses only four bits of each index, so it masks and converts at once.
            _mm512_permutexvar_ps(_mm512_srlv_epi32(codes, _mm512_set1_epi32(4 * i as i32)), values)
        }
    }

    #[inline(always)]
    fn pick(self, codes: Self::Codes, i: u32, table: &[f32; 16]) -> Self::V {
        // SAFETY: see above; the table holds sixteen f32.
        unsafe {
            let shifted = _mm512_srlv_epi32(codes, _mm512_set1_epi32(4 * i as i32));
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
