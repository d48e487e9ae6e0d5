//! Steal time as a covariate: a slice from which the hypervisor took more time is slower by a slope
//! that the pairs themselves show, and the ratio of a pair is corrected for the difference.
//!
//! Steal is caused by neighbors and not by the server, so that a correction hides no change of the
//! server. Memory bandwidth and clock right before a slice are recorded too; on recorded noise they
//! explain nothing beyond steal (`docs/method/gate.md`).

use schema::alternation::Slice;

/// Log ratio of one pair of slices, with the difference of their steal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Paired {
    /// Log ratio of the metric, candidate over baseline.
    pub log_ratio: f64,
    /// Steal per elapsed time, candidate minus baseline, summed over cores; 0 where it is not known.
    pub steal: f64,
}

/// Returns the steal of a slice per elapsed time, summed over cores; `None` where it is not known.
#[expect(clippy::cast_precision_loss, reason = "a slice has few microseconds")]
pub fn steal(slice: &Slice) -> Option<f64> {
    (slice.elapsed_us > 0).then_some(slice.steal_us? as f64 / slice.elapsed_us as f64)
}

/// Returns the corrected log ratios of the pairs of each start. The slope is that of least squares
/// over the pairs of all starts, each start about its own mean.
pub fn corrected(starts: &[Vec<Paired>]) -> Vec<Vec<f64>> {
    let slope = slope(starts);
    let one = |pair: &Paired| pair.log_ratio - slope * pair.steal;
    starts.iter().map(|pairs| pairs.iter().map(one).collect()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a start has few pairs")]
fn slope(starts: &[Vec<Paired>]) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    for pairs in starts {
        let count = pairs.len() as f64;
        let mean = |of: fn(&Paired) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|pair| pair.steal), mean(|pair| pair.log_ratio));
        for pair in pairs {
            products += (pair.steal - x) * (pair.log_ratio - y);
            squares += (pair.steal - x).powi(2);
        }
    }
    if squares > 0.0 { products / squares } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(f64, f64)]) -> Vec<Paired> {
        of.iter()
            .map(|(log_ratio, steal)| Paired { log_ratio: *log_ratio, steal: *steal })
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
