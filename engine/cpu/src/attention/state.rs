//! Partial result of attention over some positions (online softmax state), which can be merged with
//! that of later positions.

use super::LANES;
use crate::lanes::Lanes;

/// Online softmax state of R query rows over some positions: weighted values, largest score and sum
/// of probabilities.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Accumulators of the values weighted by their probabilities, `[R][D]` for R query rows, D
    /// rounded up to whole vectors.
    pub sums: Vec<f32>,
    /// Largest attention score of each of R query rows times log2(e), `[R]`; minus infinity before any position.
    pub largest: Vec<f32>,
    /// Accumulators of the probabilities of each of R query rows, `[R][16]`, one per vector lane;
    /// the sum of a row's 16 is the softmax denominator.
    pub totals: Vec<f32>,
}

impl State {
    /// Resets the softmax state to `rows` query rows of `width` columns that have not attended to
    /// any position yet.
    pub(super) fn clear(&mut self, rows: usize, width: usize) {
        for (values, count, fill) in [
            (&mut self.sums, rows * width, 0.0),
            (&mut self.largest, rows, f32::NEG_INFINITY),
            (&mut self.totals, rows * LANES, 0.0),
        ] {
            values.clear();
            values.resize(count, fill);
        }
    }

    /// Merges the softmax state of later positions into this one. Rows that attend to none of the
    /// later positions keep every bit. Algorithm: Milakov and Gimelshein 2018.
    #[inline(always)]
    pub(super) fn merge<L: Lanes>(&mut self, lanes: L, later: &Self) {
        let rows = self.largest.len();
        if rows == 0 {
            return;
        }
        let width = self.sums.len() / rows;
        for row in 0..rows {
            let (before, new) = (self.largest[row], later.largest[row]);
            if new == f32::NEG_INFINITY {
                continue;
            }
            let largest = before.max(new);
            self.largest[row] = largest;
            let shrink = lanes.exp2(lanes.splat(before - largest));
            let weight = lanes.exp2(lanes.splat(new - largest));
            for (sums, later, width) in
                [(&mut self.sums, &later.sums, width), (&mut self.totals, &later.totals, LANES)]
            {
                let (sums, _) = sums[row * width..(row + 1) * width].as_chunks_mut::<LANES>();
                let (later, _) = later[row * width..(row + 1) * width].as_chunks::<LANES>();
                for (sum, later) in sums.iter_mut().zip(later) {
                    let kept = lanes.mul(lanes.lift(sum), shrink);
                    *sum = lanes.lower(lanes.fma(lanes.lift(later), weight, kept));
                }
            }
        }
    }
}
