//! Covariates of a slice: what the machine did meanwhile, by which the ratio of a pair is corrected
//! with a slope that the pairs themselves show.
//!
//! The judgement corrects for steal alone: it is caused by neighbors and not by the server, so that
//! the correction hides no change of the server. Memory bandwidth and clock right before a slice are
//! recorded too; `gate-bench --estimators` shows what they explain beside steal.

use schema::alternation::Slice;

/// Value of a covariate in a slice; `None` where it is not known.
pub type Covariate = fn(&Slice) -> Option<f64>;

/// Log ratio of one pair of slices, with the difference of their covariate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Paired {
    /// Log ratio of the metric, candidate over baseline.
    pub log_ratio: f64,
    /// Covariate of the candidate's slice minus that of the baseline's; 0 where it is not known.
    pub covariate: f64,
}

/// Returns the steal of a slice per elapsed time, summed over cores; `None` where it is not known.
#[expect(clippy::cast_precision_loss, reason = "a slice has few microseconds")]
pub fn steal(slice: &Slice) -> Option<f64> {
    (slice.elapsed_us > 0).then_some(slice.steal_us? as f64 / slice.elapsed_us as f64)
}

/// Returns the logarithm of the memory bandwidth right before a slice; `None` where it is not known.
#[expect(clippy::cast_precision_loss, reason = "a bandwidth is far below 2^53 MB/s")]
pub fn bandwidth(slice: &Slice) -> Option<f64> {
    (slice.memory_mb_per_s > 0).then(|| (slice.memory_mb_per_s as f64).ln())
}

/// Returns the logarithm of the rate of multiplications right before a slice, which is proportional to
/// the clock; `None` where it is not known.
pub fn clock(slice: &Slice) -> Option<f64> {
    (slice.multiplications_per_us > 0.0).then(|| slice.multiplications_per_us.ln())
}

/// Returns the corrected log ratios of the pairs of each start. The slope is that of least squares
/// over the pairs of all starts, each start about its own mean.
pub fn corrected(starts: &[Vec<Paired>]) -> Vec<Vec<f64>> {
    let slope = slope(starts);
    let one = |pair: &Paired| pair.log_ratio - slope * pair.covariate;
    starts.iter().map(|pairs| pairs.iter().map(one).collect()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a start has few pairs")]
fn slope(starts: &[Vec<Paired>]) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    for pairs in starts {
        let count = pairs.len() as f64;
        let mean = |of: fn(&Paired) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|pair| pair.covariate), mean(|pair| pair.log_ratio));
        for pair in pairs {
            products += (pair.covariate - x) * (pair.log_ratio - y);
            squares += (pair.covariate - x).powi(2);
        }
    }
    if squares > 0.0 { products / squares } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(f64, f64)]) -> Vec<Paired> {
        of.iter()
            .map(|(log_ratio, covariate)| Paired { log_ratio: *log_ratio, covariate: *covariate })
            .collect()
    }

    #[test]
    fn a_ratio_is_corrected_for_the_time_that_neighbors_took() {
        // Half of the steal is lost throughput, in a start that is 1 % and one that is 3 % faster.
        let starts = [
            pairs(&[(0.01, 0.0), (0.01 - 0.05, 0.1), (0.01 + 0.05, -0.1)]),
            pairs(&[(0.03 - 0.1, 0.2), (0.03, 0.0)]),
        ];
        let found = corrected(&starts);
        for (start, expected) in found.iter().zip([0.01, 0.03]) {
            assert!(start.iter().all(|log| (log - expected).abs() < 1e-12), "{found:?}");
        }
    }

    #[test]
    fn without_steal_nothing_is_corrected() {
        let starts = [pairs(&[(0.01, 0.0), (0.02, 0.0)]), Vec::new()];
        assert_eq!(corrected(&starts), [vec![0.01, 0.02], vec![]]);
    }
}
