//! Exact interval of a proportion.

use statrs::distribution::{Beta, ContinuousCDF};

/// Returns the exact two-sided interval of a proportion of which `hits` of `trials` are observed
/// (Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the
/// binomial", 1934); `None` without trials, or with more hits than trials.
#[expect(clippy::cast_precision_loss, reason = "trials are few")]
pub fn exact_interval(hits: u64, trials: u64, confidence: f64) -> Option<(f64, f64)> {
    let misses = trials.checked_sub(hits).filter(|_| trials > 0)? as f64;
    let (hits, tail) = (hits as f64, (1.0 - confidence) / 2.0);
    // The beta distribution has no density where one of its shapes is zero: the bound is exact then.
    let low = if hits > 0.0 { Beta::new(hits, misses + 1.0).ok()?.inverse_cdf(tail) } else { 0.0 };
    let high = match misses > 0.0 {
        true => Beta::new(hits + 1.0, misses).ok()?.inverse_cdf(1.0 - tail),
        false => 1.0,
    };
    Some((low, high))
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
