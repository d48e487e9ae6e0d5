//! Exact bounds of a proportion: Clopper and Pearson, "The use of confidence or fiducial limits
//! illustrated in the case of the binomial" (Biometrika 26, 1934).

use statrs::distribution::{Beta, ContinuousCDF};

/// Returns the exact two-sided interval of a proportion, from `hits` among `trials` observations;
/// `None` without trials, or with more hits than trials.
pub fn exact_interval(hits: u64, trials: u64, confidence: f64) -> Option<(f64, f64)> {
    let misses = trials.checked_sub(hits).filter(|_| trials > 0)?;
    let one_sided = f64::midpoint(1.0, confidence);
    Some((lower_bound(hits, misses, one_sided), upper_bound(hits, misses, one_sided)))
}

/// Returns the exact lower bound of a proportion at a one-sided `confidence`, from the numbers of
/// hits and misses; 0 without hits.
pub fn lower_bound(hits: u64, misses: u64, confidence: f64) -> f64 {
    beta(hits, misses + 1, 1.0 - confidence).unwrap_or(0.0)
}

/// Returns the exact upper bound of a proportion at a one-sided `confidence`, from the numbers of
/// hits and misses; 1 without misses.
pub fn upper_bound(hits: u64, misses: u64, confidence: f64) -> f64 {
    beta(hits + 1, misses, confidence).unwrap_or(1.0)
}

/// Returns the quantile at `share` of a beta distribution with parameters `first` and `second`;
/// `None` if one of them is zero.
#[expect(clippy::cast_precision_loss, reason = "observations are far fewer than 2^53")]
fn beta(first: u64, second: u64, share: f64) -> Option<f64> {
    Beta::new(first as f64, second as f64).ok().map(|beta| beta.inverse_cdf(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_published_tables() {
        // R: binom.test(hits, trials)$conf.int
        for (hits, trials, low, high) in [
            (0, 40, 0.0, 0.088_097),
            (19, 20, 0.751_267, 0.998_735),
            (10, 10, 0.691_503, 1.0),
            (1, 10, 0.002_529, 0.445_016),
            (17, 20, 0.621_073, 0.967_931),
        ] {
            let found = exact_interval(hits, trials, 0.95).unwrap();
            let near = |found: f64, expected: f64| (found - expected).abs() < 2e-6;
            assert!(near(found.0, low) && near(found.1, high), "{hits} of {trials}: {found:?}");
        }
        assert_eq!(exact_interval(0, 0, 0.95), None);
        assert_eq!(exact_interval(2, 1, 0.95), None);
    }
}
