//! Activations as signed codes, a scale for each segment of a row.

#![expect(unsafe_code, reason = "threads write disjoint rows")]

use super::SEGMENT;
use crate::device::cpu::elementwise::for_rows;
use crate::device::cpu::isa::{Isa, Kernel};
use crate::device::cpu::lanes::{LANES, Lanes};
use crate::device::cpu::pool::Pool;
use crate::device::cpu::shared::Shared;

/// Largest code; the smallest is its negative.
const TOP: f32 = 127.0;

/// Rows of codes, each padded with zeros to whole segments.
#[derive(Debug, Default)]
pub(in super::super) struct Activations {
    pub(super) rows: usize,
    pub(super) segments: usize,
    /// `[rows][segments][SEGMENT]`
    pub(super) codes: Vec<i8>,
    /// `[rows][segments]` value of code 1.
    pub(super) scales: Vec<f32>,
    /// `[rows][segments]` sum of the codes.
    pub(super) sums: Vec<i32>,
}

impl Activations {
    /// Codes between two rows.
    pub(super) fn stride(&self) -> usize {
        self.segments * SEGMENT
    }

    /// Takes rows of `k` values.
    pub(in super::super) fn quantize(&mut self, isa: Isa, pool: &mut Pool, x: &[f32], k: usize) {
        let coder = self.coder(isa, x.len() / k, k);
        for_rows(pool, coder.rows, k, &|first, rows| {
            // SAFETY: items are disjoint rows.
            unsafe { coder.code(first, &x[first * k..(first + rows) * k]) };
        });
    }

    /// Makes room for `rows` rows of `k` values, which are to be coded one and all.
    pub(in super::super) fn coder(&mut self, isa: Isa, rows: usize, k: usize) -> Coder<'_> {
        (self.rows, self.segments) = (rows, k.div_ceil(SEGMENT));
        let count = rows * self.segments;
        self.codes.resize(count * SEGMENT, 0);
        self.scales.resize(count, 0.0);
        self.sums.resize(count, 0);
        Coder {
            isa,
            rows,
            k,
            segments: self.segments,
            codes: Shared::new(&mut self.codes),
            scales: Shared::new(&mut self.scales),
            sums: Shared::new(&mut self.sums),
        }
    }
}

/// Rows of `k` values on their way into codes.
pub(in super::super) struct Coder<'a> {
    isa: Isa,
    rows: usize,
    k: usize,
    segments: usize,
    codes: Shared<'a, i8>,
    scales: Shared<'a, f32>,
    sums: Shared<'a, i32>,
}

impl Coder<'_> {
    /// Codes the whole rows `x`, which are those from `first`.
    ///
    /// # Safety
    /// Nobody else codes any of these rows meanwhile.
    pub(in super::super) unsafe fn code(&self, first: usize, x: &[f32]) {
        let (k, segments, rows) = (self.k, self.segments, x.len() / self.k);
        let stride = segments * SEGMENT;
        // SAFETY: the caller vouches for the rows.
        let rows = unsafe {
            Rows {
                x,
                k,
                codes: self.codes.part(first * stride, rows * stride),
                scales: self.scales.part(first * segments, rows * segments),
                sums: self.sums.part(first * segments, rows * segments),
            }
        };
        self.isa.run(rows);
    }
}

/// Some rows and where their codes go.
struct Rows<'a> {
    x: &'a [f32],
    k: usize,
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Kernel for Rows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let segments = self.k.div_ceil(SEGMENT);
        let rows = self.x.chunks_exact(self.k).zip(self.codes.chunks_exact_mut(segments * SEGMENT));
        let heads =
            self.scales.chunks_exact_mut(segments).zip(self.sums.chunks_exact_mut(segments));
        for ((x, codes), (scales, sums)) in rows.zip(heads) {
            let (whole, tail) = x.as_chunks::<SEGMENT>();
            let codes = codes.as_chunks_mut::<SEGMENT>().0;
            for (s, x) in whole.iter().enumerate() {
                (scales[s], sums[s]) = quantize(lanes, x, &mut codes[s]);
            }
            if !tail.is_empty() {
                let mut padded = [0.0; SEGMENT];
                padded[..tail.len()].copy_from_slice(tail);
                let s = segments - 1;
                (scales[s], sums[s]) = quantize(lanes, &padded, &mut codes[s]);
            }
        }
    }
}

/// Writes the codes of one segment; returns the value of code 1 and the sum of the codes.
#[inline(always)]
fn quantize<L: Lanes>(lanes: L, x: &[f32; SEGMENT], codes: &mut [i8; SEGMENT]) -> (f32, i32) {
    let (x, codes) = (x.as_chunks::<LANES>().0, codes.as_chunks_mut::<LANES>().0);
    let zero = lanes.splat(0.0);
    let mut top = zero;
    for x in x {
        let x = lanes.lift(x);
        top = lanes.max(top, lanes.max(x, lanes.sub(zero, x)));
    }
    let top = lanes.largest(top);
    // What is smaller has no reciprocal, and would vanish in any sum.
    let inverse = lanes.splat(if top < 1e-30 { 0.0 } else { TOP / top });
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits.
    let magic = lanes.splat(12_582_912.0);
    let mut sum = zero;
    for (x, codes) in x.iter().zip(codes) {
        let rounded = lanes.fma(lanes.lift(x), inverse, magic);
        // SAFETY: there is room for sixteen codes.
        unsafe { lanes.store_low_bytes(codes.as_mut_ptr().cast(), rounded) };
        sum = lanes.add(sum, lanes.sub(rounded, magic));
    }
    // Whole numbers, whose sum is exact.
    (top / TOP, lanes.sum(sum) as i32)
}
