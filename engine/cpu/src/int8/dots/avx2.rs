//! int8 dot products with AVX2 instructions, and with AVX-VNNI where the processor has it.

#![expect(unsafe_code, reason = "vector instructions; the types exist only where they do")]

use std::arch::x86_64::*;

use super::Dots;
use crate::int8::{BLOCK, LANES};
use crate::lanes::{Avx2, Lanes};

/// Proof that the processor has AVX2, FMA and F16C: a value exists only where it does.
#[derive(Debug, Clone, Copy)]
pub(in super::super::super) struct Avx2Dots(Avx2);

/// Proof that the processor has AVX-VNNI and what [`Avx2Dots`] needs: a value exists only where it
/// does.
#[derive(Debug, Clone, Copy)]
pub(in super::super::super) struct Avx2VnniDots(Avx2);

impl Avx2Dots {
    /// Creates the proof that the processor has the instructions.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[inline(always)]
    pub(in super::super::super) unsafe fn new() -> Self {
        // SAFETY: the caller vouches for them.
        Self(unsafe { Avx2::new() })
    }
}

impl Avx2VnniDots {
    /// Creates the proof that the processor has the instructions.
    ///
    /// # Safety
    /// The processor has AVX2, FMA, F16C and AVX-VNNI.
    #[inline(always)]
    pub(in super::super::super) unsafe fn new() -> Self {
        // SAFETY: the caller vouches for them.
        Self(unsafe { Avx2::new() })
    }
}

// SAFETY of every block below: `self` proves that the processor has the instructions, and where a
// pointer is given the caller vouches for the memory behind it.
impl Dots for Avx2Dots {
    type Lanes = Avx2;
    /// Weights converted to signed bytes: without VNNI, the product of two signed bytes is computed
    /// from a magnitude and a byte that takes over the sign.
    type Weights = [__m256i; 2];
    /// Magnitudes of the activations, and the activations themselves for their signs.
    type Row = [__m256i; 2];
    type Sums = [__m256i; 2];

    const ROWS: usize = 2;

    #[inline(always)]
    fn lanes(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    fn start(self, _start: i32) -> Self::Sums {
        // SAFETY: see above.
        [unsafe { _mm256_setzero_si256() }; 2]
    }

    #[inline(always)]
    fn dot(self, sums: Self::Sums, weights: Self::Weights, row: Self::Row) -> Self::Sums {
        // SAFETY: see above.
        let half = |sums, weights| unsafe {
            // The sum of two products is at most 2 * 127 * 127 in magnitude, which fits an i16.
            let pairs = _mm256_maddubs_epi16(row[0], _mm256_sign_epi8(weights, row[1]));
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        };
        [half(sums[0], weights[0]), half(sums[1], weights[1])]
    }

    #[inline(always)]
    fn floats(self, sums: Self::Sums) -> <Avx2 as Lanes>::V {
        floats(sums)
    }

    #[inline(always)]
    unsafe fn weights(self, from: *const u8) -> Self::Weights {
        // SAFETY: see above.
        unsafe {
            let sign = _mm256_set1_epi8(i8::MIN);
            let [low, high] = halves(from);
            [_mm256_xor_si256(low, sign), _mm256_xor_si256(high, sign)]
        }
    }

    #[inline(always)]
    unsafe fn row(self, from: *const i8) -> Self::Row {
        // SAFETY: see above.
        unsafe {
            let codes = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
            [_mm256_abs_epi8(codes), codes]
        }
    }

    #[inline(always)]
    unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: see above.
        unsafe { widen(from, to, stride) }
    }
}

impl Dots for Avx2VnniDots {
    type Lanes = Avx2;
    type Weights = [__m256i; 2];
    type Row = __m256i;
    type Sums = [__m256i; 2];

    const ROWS: usize = 2;

    #[inline(always)]
    fn lanes(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    fn start(self, start: i32) -> Self::Sums {
        // SAFETY: see above.
        [unsafe { _mm256_set1_epi32(start) }; 2]
    }

    #[inline(always)]
    fn dot(self, sums: Self::Sums, weights: Self::Weights, row: __m256i) -> Self::Sums {
        // SAFETY: see above.
        let half = |sums, weights| unsafe { _mm256_dpbusd_avx_epi32(sums, weights, row) };
        [half(sums[0], weights[0]), half(sums[1], weights[1])]
    }

    #[inline(always)]
    fn floats(self, sums: Self::Sums) -> <Avx2 as Lanes>::V {
        floats(sums)
    }

    #[inline(always)]
    unsafe fn weights(self, from: *const u8) -> Self::Weights {
        // SAFETY: see above.
        unsafe { halves(from) }
    }

    #[inline(always)]
    unsafe fn row(self, from: *const i8) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize) {
        // SAFETY: see above.
        unsafe { widen(from, to, stride) }
    }
}

/// Converts 16 i32 sums to f32.
#[inline(always)]
fn floats(sums: [__m256i; 2]) -> <Avx2 as Lanes>::V {
    // SAFETY: only processors with AVX2 come here, see above.
    unsafe { [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])] }
}

/// Loads 64 bytes as two registers.
///
/// # Safety
/// The processor has AVX2, and 64 bytes can be read at `from`.
#[inline(always)]
unsafe fn halves(from: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller vouches for both.
    unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
}

/// Widens 4-bit weights as [`Dots::widen`] defines, eight columns at a time.
///
/// # Safety
/// The processor has AVX2; otherwise as for [`Dots::widen`].
#[inline(always)]
unsafe fn widen(from: *const u8, to: *mut u8, stride: usize) {
    for half in 0..2 {
        // SAFETY: the caller vouches for both.
        unsafe {
            let both_halves = |half: __m128i| {
                let wide = _mm256_cvtepu16_epi32(half);
                _mm256_or_si256(wide, _mm256_slli_epi32::<16>(wide))
            };
            let factor = both_halves(_mm_loadu_si128(from.add(16 * half).cast()));
            let addend = both_halves(_mm_loadu_si128(from.add(2 * LANES + 16 * half).cast()));
            let low_codes = _mm256_set1_epi32(0x000f_000f);
            let high_bytes = _mm256_set1_epi16(0xff00_u16.cast_signed());
            let value = |codes| {
                let code = _mm256_and_si256(codes, low_codes);
                _mm256_add_epi16(_mm256_mullo_epi16(code, factor), addend)
            };
            let merge = |even, odd| {
                let odd = _mm256_and_si256(odd, high_bytes);
                _mm256_or_si256(_mm256_srli_epi16::<8>(even), odd)
            };
            for word in 0..BLOCK / 8 {
                let codes = from.add(4 * LANES + 64 * word + 32 * half);
                let codes = _mm256_loadu_si256(codes.cast());
                let first = merge(value(codes), value(_mm256_srli_epi32::<4>(codes)));
                let second = merge(
                    value(_mm256_srli_epi32::<8>(codes)),
                    value(_mm256_srli_epi32::<12>(codes)),
                );
                let to = to.add(2 * word * stride + 32 * half);
                _mm256_storeu_si256(to.cast(), first);
                _mm256_storeu_si256(to.add(stride).cast(), second);
            }
        }
    }
}
