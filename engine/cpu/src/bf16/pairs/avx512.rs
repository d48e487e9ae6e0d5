//! bf16 dot products of pairs with AVX-512 BF16 instructions.

#![expect(unsafe_code, reason = "vector instructions; the type exists only where they do")]

use std::arch::x86_64::*;
use std::mem::transmute;

use super::Pairs;
use crate::lanes::{Avx512, LANES};

/// Proof that the processor has AVX-512F and AVX-512 BF16: a value exists only where it does.
#[derive(Debug, Clone, Copy)]
pub(in super::super::super) struct Avx512Pairs(Avx512);

impl Avx512Pairs {
    /// Creates the proof that the processor has the instructions.
    ///
    /// # Safety
    /// The processor has AVX-512F and AVX-512 BF16.
    #[inline(always)]
    pub(in super::super::super) unsafe fn new() -> Self {
        // SAFETY: the caller vouches for AVX-512F.
        Self(unsafe { Avx512::new() })
    }
}

// SAFETY of every block below: `self` proves that the processor has the instructions, and where a
// pointer is given the caller vouches for the memory behind it.
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
