//! Softmax weights of a row of logits, computed block by block. The loops compile to vector
//! instructions of whatever instruction set the calling code is compiled for, and give the same
//! bits on all of them.

/// Number of logits of a block, the unit in which weights are computed and their sums kept.
pub(super) const BLOCK: usize = 256;

/// Number of partial results that a loop keeps side by side, so that it compiles to vector
/// instructions.
const LANES: usize = 16;

/// Largest exponent whose weight is taken as 0. All such weights of a vocabulary together are less
/// than one part in 10^32 of the total.
const LEAST: f32 = -87.0;

/// Softmax of a row of logits, not normalized: the likeliest token has weight 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Softmax {
    /// Largest logit of the row.
    pub largest: f32,
    /// Temperature that divides the logits, above 0.
    pub temperature: f32,
    /// Smallest weight that is kept; smaller ones become 0.
    pub min_p: f32,
}

impl Softmax {
    /// Returns the weight of a logit, `e^((logit - largest) / temperature)`; 0 for a NaN and for a
    /// weight that is too small.
    #[inline(always)]
    pub fn weight(self, logit: f32) -> f32 {
        let x = (logit - self.largest) / self.temperature;
        // A NaN loses the comparison.
        let is_kept = x > LEAST;
        let weight = exp(if is_kept { x } else { LEAST });
        if is_kept & (weight >= self.min_p) { weight } else { 0.0 }
    }

    /// Writes the weights of up to [`BLOCK`] logits to the beginning of `weights` and returns them.
    #[inline(always)]
    pub fn weights<'w>(self, logits: &[f32], weights: &'w mut [f32; BLOCK]) -> &'w [f32] {
        let weights = &mut weights[..logits.len()];
        for (weight, logit) in weights.iter_mut().zip(logits) {
            *weight = self.weight(*logit);
        }
        weights
    }

    /// Fills `sums` with the sum of the weights of each block of a row of logits, and returns the
    /// sum of all.
    #[inline(always)]
    pub fn sums(self, logits: &[f32], sums: &mut Vec<f64>) -> f64 {
        sums.clear();
        let (mut weights, mut total) = ([0.0; BLOCK], 0.0);
        for block in logits.chunks(BLOCK) {
            let sum = sum(self.weights(block, &mut weights));
            sums.push(sum);
            total += sum;
        }
        total
    }
}

/// Returns the sum of the weights of a block, in f64 across its lanes, because a vocabulary of
/// small weights adds up inaccurately in f32.
#[inline(always)]
fn sum(weights: &[f32]) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = weights.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, weight) in lanes.iter_mut().zip(chunk) {
            *lane += weight;
        }
    }
    lanes.iter().chain(rest).map(|weight| f64::from(*weight)).sum()
}

/// Fills `largest` with the largest logit of each block of a row, and returns the largest of all.
/// NaNs are ignored; a block without another value has minus infinity.
#[inline(always)]
pub(super) fn block_maxima(logits: &[f32], largest: &mut Vec<f32>) -> f32 {
    largest.clear();
    for block in logits.chunks(BLOCK) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, logit) in lanes.iter_mut().zip(chunk) {
                *lane = if *logit > *lane { *logit } else { *lane };
            }
        }
        largest.push(lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max));
    }
    largest.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Returns `e^x` to about one unit in the last place, for `x` from [`LEAST`] to 0. Without fused
/// multiply-add, whose rounding differs, and without branches.
///
/// Range reduction and polynomial are those of Cephes' `expf` (Moshier).
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves a whole number in the low bits: rounding by one addition.
    const MAGIC: f32 = 12_582_912.0;
    let scaled = x * std::f32::consts::LOG2_E + MAGIC;
    let n = scaled - MAGIC;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let p = p * (r * r) + (r + 1.0);
    // The low bits of `scaled` are the whole number n: shifted into the exponent, they make 2^n.
    p * f32::from_bits((scaled.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_exponentials() {
        let softmax = Softmax { largest: 0.0, temperature: 1.0, min_p: 0.0 };
        for i in 0..87_000 {
            let logit = i as f32 / -1000.0;
            let error = f64::from(softmax.weight(logit)) / f64::from(logit).exp() - 1.0;
            assert!(error.abs() < 3e-7, "{logit}: {error}");
        }
        assert_eq!(softmax.weight(0.0), 1.0);
        for none in [f32::NAN, f32::NEG_INFINITY, -87.5, f32::MIN] {
            assert_eq!(softmax.weight(none), 0.0, "{none}");
        }
        let kept = Softmax { largest: 3.0, temperature: 0.5, min_p: 0.1 };
        assert_eq!(kept.weight(1.5), 0.0, "e^-3 is below 0.1");
        assert!(kept.weight(2.0) > 0.13, "e^-2 is not");
    }

    #[test]
    fn blocks_have_their_largest_logit_and_their_sum() {
        let mut logits = vec![f32::NAN; 2 * BLOCK + 3];
        logits[BLOCK..BLOCK + 40].fill(1.0);
        logits[2 * BLOCK + 1] = 2.0;
        let (mut maxima, mut sums) = (Vec::new(), Vec::new());
        let largest = block_maxima(&logits, &mut maxima);
        assert_eq!((largest, &maxima[..]), (2.0, &[f32::NEG_INFINITY, 1.0, 2.0][..]));
        let softmax = Softmax { largest, temperature: 1.0, min_p: 0.0 };
        let total = softmax.sums(&logits, &mut sums);
        let expected = [0.0, 40.0 * (-1.0f64).exp(), 1.0];
        assert!(sums.iter().zip(expected).all(|(sum, wanted)| (sum - wanted).abs() < 1e-5));
        assert_eq!(total, sums.iter().sum::<f64>());
    }
}
