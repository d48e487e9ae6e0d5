//! Activations rounded to bf16, the left operand of the bf16 GEMM.

#![expect(unsafe_code, reason = "threads write disjoint rows")]

use super::{PAIR, Pairs};
use crate::elementwise::for_rows;
use crate::isa::{Isa, PairKernel};
use crate::lanes::LANES;
use crate::pool::Pool;
use crate::shared::Shared;

/// Rows of activations rounded to bf16, each padded with zeros to whole pairs.
#[derive(Debug, Default)]
pub(in super::super) struct Activations {
    pub(super) rows: usize,
    /// Number of elements of a row, padding included.
    pub(super) stride: usize,
    /// bf16 bits, `[rows][stride]` or longer: memory of a larger earlier step is kept.
    values: Vec<u16>,
}

impl Activations {
    /// Rounds `x`, rows of `k` values, to bf16 on the threads of `pool`.
    pub(in super::super) fn round(&mut self, isa: Isa, pool: &mut Pool, x: &[f32], k: usize) {
        let (rows, stride) = (x.len() / k, k.next_multiple_of(PAIR));
        (self.rows, self.stride) = (rows, stride);
        if self.values.len() < rows * stride {
            self.values = vec![0; rows * stride];
        }
        let values = Shared::new(&mut self.values);
        for_rows(pool, rows, k, &|first, rows| {
            // SAFETY: items are disjoint rows.
            let out = unsafe { values.part(first * stride, rows * stride) };
            isa.run_pairs(Rows { x: &x[first * k..(first + rows) * k], k, out, stride });
        });
    }

    /// Returns the elements of row `row` from index `k` on.
    pub(super) fn row_from(&self, row: usize, k: usize) -> &[u16] {
        &self.values[row * self.stride + k..]
    }
}

/// Kernel arguments: some rows to round to bf16.
struct Rows<'a> {
    x: &'a [f32],
    k: usize,
    out: &'a mut [u16],
    stride: usize,
}

impl PairKernel for Rows<'_> {
    #[inline(always)]
    fn run<P: Pairs>(self, pairs: P) {
        for (x, out) in self.x.chunks_exact(self.k).zip(self.out.chunks_exact_mut(self.stride)) {
            let (x, x_tail) = x.as_chunks::<LANES>();
            let (whole, out_tail) = out.split_at_mut(x.len() * LANES);
            for (x, out) in x.iter().zip(whole.as_chunks_mut::<LANES>().0) {
                *out = pairs.round(x);
            }
            let mut padded = [0.0; LANES];
            padded[..x_tail.len()].copy_from_slice(x_tail);
            out_tail.copy_from_slice(&pairs.round(&padded)[..out_tail.len()]);
        }
    }
}
