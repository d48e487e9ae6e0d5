//! Random lengths between a share of a bound and the bound, as the `random` samplers draw them.

use crate::workload::generators::NumpyRandom;

/// Smallest allowed lower end of a range of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowerBound {
    Zero,
    One,
}

/// Draws `count` lengths from `[ratio * bound, bound]`.
pub fn uniform(
    random: &mut NumpyRandom,
    bound: u64,
    ratio: f64,
    count: u64,
    lower: LowerBound,
) -> Vec<u64> {
    let low = scaled(bound, ratio);
    let low = if lower == LowerBound::One { low.max(1) } else { low };
    // `randint` excludes its upper end.
    (0..count).map(|_| random.randint(low, bound + 1)).collect()
}

/// Returns the tools' `int(bound * ratio)`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths are far below 2^53, the ratio is small and positive"
)]
pub fn scaled(bound: u64, ratio: f64) -> u64 {
    (bound as f64 * ratio) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn drawn_lengths_lie_within_their_bounds(
            bound in 1_u64..5000, ratio in 0.0_f64..=1.0, seed in 0_u32..100
        ) {
            let mut random = NumpyRandom::seed(seed);
            let lengths = uniform(&mut random, bound, ratio, 20, LowerBound::One);
            prop_assert_eq!(lengths.len(), 20);
            for length in lengths {
                prop_assert!((scaled(bound, ratio).max(1)..=bound).contains(&length));
            }
        }
    }
}
