//! int8 dot products with AVX-512 VNNI instructions.

#![expect(unsafe_code, reason = "vector instructions; the type exists only where they do")]

use std::arch::x86_64::*;

use super::Dots;
use crate::int8::{BLOCK, LANES, STEP_BYTES};
use crate::lanes::{Avx512, Lanes};

/// Proof that the processor has AVX-512F, AVX-512BW and AVX-512 VNNI: a value exists only where it
/// does.
#[derive(Debug, Clone, Copy)]
pub(in super::super::super) struct Avx512Dots(Avx512);

impl Avx512Dots {
    /// Creates the proof that the processor has the instructions.
    ///
    /// # Safety
    /// The processor has AVX-512F, AVX-512BW and AVX-512 VNNI.
    #[inline(always)]
    pub(in super::super::super) unsafe fn new() -> Self {
        // SAFETY: the caller vouches for AVX-512F.
        Self(unsafe { Avx512::new() })
    }
}

// SAFETY of every block below: `self` proves that the processor has the instructions, and where a
// pointer is given the caller vouches for the memory behind it.
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
