//! Quantiles: the exact percentile of samples, bounds of a percentile from a stored histogram, and
//! the number of samples that a percentile needs to be meaningful.

use std::collections::BTreeMap;

use schema::histogram::{Bin, HdrHistogram, HistogramError};

/// Returns the percentile of `sorted` samples at `share` (0 to 1): the value at rank `share * (n -
/// 1)`, linear between its neighbors, as benchmark clients commonly define it (NumPy's default).
/// `None` without samples.
#[expect(clippy::cast_precision_loss, reason = "times and counts of a run are far below 2^53")]
pub fn quantile(sorted: &[u64], share: f64) -> Option<f64> {
    between(sorted.len(), share, |index| sorted[index] as f64)
}

/// Returns the percentile of rates, shares and other floating-point values in any order, by the
/// definition of [`quantile`]; `None` without values.
pub fn quantile_of_floats(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    between(sorted.len(), share, |index| sorted[index])
}

/// Returns the median of values in any order; the mean of the middle two where their number is
/// even. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile_of_floats(values, 0.5)
}

/// Interpolates linearly between the order statistics `at` the two neighbors of the rank.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the rank lies between zero and the last index"
)]
fn between(count: usize, share: f64, at: impl Fn(usize) -> f64) -> Option<f64> {
    let last = count.checked_sub(1)?;
    let rank = share * last as f64;
    let below = rank.floor() as usize;
    let above = (below + 1).min(last);
    Some(at(below) + (at(above) - at(below)) * rank.fract())
}

/// Bins of one HDR histogram or of several pooled ones, from low to high.
#[derive(Debug)]
pub struct Bins {
    /// Bins of the histogram that hold samples.
    bins: Vec<Bin>,
    /// Number of samples in the histogram.
    pub samples: u64,
}

/// Inclusive lower and upper bound, in microseconds, within which the exact quantile or mean of the
/// samples lies.
pub type Bounds = (f64, f64);

impl Bins {
    /// Decodes the histogram of a record.
    ///
    /// # Errors
    ///
    /// The histogram's text is not a complete and consistent encoding within the limits of a
    /// record.
    pub fn decode(histogram: &HdrHistogram) -> Result<Self, HistogramError> {
        Ok(Self::of(histogram.bins()?))
    }

    /// Counts the samples in `bins`. Counts come from a file, so their sum may exceed 64 bits.
    fn of(bins: Vec<Bin>) -> Self {
        let samples = bins.iter().fold(0, |sum: u64, bin| sum.saturating_add(bin.count));
        Self { bins, samples }
    }

    /// Pools histograms of one distribution; `None` where they have no samples. A histogram that
    /// cannot be read is left out, because a check reports it.
    pub fn pooled<'a>(histograms: impl Iterator<Item = &'a HdrHistogram>) -> Option<Self> {
        let mut pooled: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for bin in histograms.filter_map(|histogram| histogram.bins().ok()).flatten() {
            let count = pooled.entry((bin.low, bin.high)).or_default();
            *count = count.saturating_add(bin.count);
        }
        let bins = pooled.into_iter().map(|((low, high), count)| Bin { low, high, count });
        Some(Self::of(bins.collect())).filter(|pooled| pooled.samples > 0)
    }

    /// Returns for each of `shares` the upper end, in microseconds, of the bin up to which that
    /// share of all samples lies; 0 without bins. `shares` must ascend. It takes one pass over the
    /// bins for all shares.
    #[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^53 samples")]
    pub fn reached(&self, shares: &[f64]) -> Vec<f64> {
        let mut bins = self.bins.iter().peekable();
        let mut below: u64 = 0;
        let mut reached = |share: &f64| {
            let wanted = share * self.samples as f64;
            let until = |bin: &Bin, below: u64| below.saturating_add(bin.count);
            while let Some(bin) = bins.next_if(|bin| (until(bin, below) as f64) < wanted) {
                below = until(bin, below);
            }
            bins.peek().or(self.bins.last().as_ref()).map_or(0.0, |bin| bin.high as f64)
        };
        shares.iter().map(&mut reached).collect()
    }

    /// Returns bounds, in microseconds, of the exact `share` quantile, linear between order
    /// statistics (NumPy's default); `None` without samples.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a run has far fewer than 2^53 samples, and the rank is not negative"
    )]
    pub fn quantile(&self, share: f64) -> Option<Bounds> {
        let last = self.samples.checked_sub(1)?;
        let rank = share.clamp(0.0, 1.0) * last as f64;
        let below = self.bin_at(rank.floor() as u64)?;
        let above = self.bin_at((rank.ceil() as u64).min(last))?;
        Some((below.low as f64, above.high as f64))
    }

    /// Returns bounds of the exact mean of the samples, in microseconds; `None` without samples.
    #[expect(clippy::cast_precision_loss, reason = "times of a run are far below 2^53")]
    pub fn mean(&self) -> Option<Bounds> {
        let samples = (self.samples > 0).then_some(self.samples as f64)?;
        let sum = |end: fn(&Bin) -> u64| -> f64 {
            self.bins.iter().map(|bin| end(bin) as f64 * bin.count as f64).sum()
        };
        Some((sum(|bin| bin.low) / samples, sum(|bin| bin.high) / samples))
    }

    /// Returns bounds of the exact standard deviation of the samples (that of the population), in
    /// microseconds; `None` without samples.
    #[expect(clippy::cast_precision_loss, reason = "times of a run are far below 2^53")]
    pub fn deviation(&self) -> Option<Bounds> {
        let samples = (self.samples > 0).then_some(self.samples as f64)?;
        let average = |value: &dyn Fn(&Bin) -> f64| -> f64 {
            self.bins.iter().map(|bin| value(bin) * bin.count as f64).sum::<f64>() / samples
        };
        let middle = |bin: &Bin| (bin.low as f64 + bin.high as f64) / 2.0;
        let mean = average(&middle);
        let deviation = average(&|bin| (middle(bin) - mean).powi(2)).sqrt();
        // Each sample is at most half a bin from the middle of its bin (triangle inequality).
        let off = average(&|bin| ((bin.high - bin.low) as f64 / 2.0).powi(2)).sqrt();
        Some(((deviation - off).max(0.0), deviation + off))
    }

    /// Returns the bin of the sample with `rank` samples below it; `None` where there are too few
    /// samples.
    fn bin_at(&self, rank: u64) -> Option<&Bin> {
        let mut seen = 0_u64;
        self.bins.iter().find(|bin| {
            seen = seen.saturating_add(bin.count);
            seen > rank
        })
    }
}

/// Confidence with which [`samples_needed`] requires a quantile to be stated, from 0 to 1.
pub const CONFIDENCE: f64 = 0.99;

/// Returns the smallest number of samples from which the `share` quantile can be stated with
/// [`CONFIDENCE`], with one sample beyond it allowed: 64 for p90, 662 for p99; at most 100,000.
///
/// It is the smallest n with `P(at most one of n samples lies beyond) <= 1 - CONFIDENCE`, the
/// early-stopping bound of MLPerf Inference (`loadgen/early_stopping.cc`).
pub fn samples_needed(share: f64) -> u64 {
    let beyond = 1.0 - share;
    let chance = |n: u64| {
        #[expect(clippy::cast_precision_loss, reason = "n stays below a few thousand")]
        let n = n as f64;
        share.powf(n) + n * beyond * share.powf(n - 1.0)
    };
    (2..100_000).find(|n| chance(*n) <= 1.0 - CONFIDENCE).unwrap_or(100_000)
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use schema::histogram::VALUE_MAX;

    use super::*;

    #[test]
    fn percentiles_equal_numpys() {
        // numpy.percentile([15, 20, 35, 40, 50], q) = 20.0 (25), 35.0 (50), 46.0 (90), 49.6 (99).
        let samples = [15, 20, 35, 40, 50];
        for (share, expected) in [(0.25, 20.0), (0.5, 35.0), (0.9, 46.0), (0.99, 49.6), (1.0, 50.0)]
        {
            let found = quantile(&samples, share).expect("samples");
            assert!((found - expected).abs() < 1e-9, "{share}");
        }
        assert_eq!(quantile_of_floats(&[0.75, 0.25], 0.5), Some(0.5));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!((quantile(&[], 0.5), quantile_of_floats(&[], 0.5)), (None, None));
    }

    #[test]
    fn sample_floors_are_those_of_the_early_stopping_table() {
        assert_eq!([0.9, 0.95, 0.99].map(samples_needed), [64, 130, 662]);
    }

    #[test]
    fn bounds_hold_the_exact_figures_and_little_more() {
        let samples: Vec<u64> = (0..1000).map(|i| 10_000 + i * i).collect();
        let stored = HdrHistogram::from_samples(samples.iter().copied()).expect("in range");
        let bins = Bins::decode(&stored).expect("readable");
        assert_eq!(bins.samples, 1000);
        let exact = 10_000.0 + 0.5 * (499.0 * 499.0 + 500.0 * 500.0);
        let (low, high) = bins.quantile(0.5).expect("samples");
        assert!(low <= exact && exact <= high && (high - low) / exact < 0.005, "{low} {high}");
        let mean = samples.iter().sum::<u64>() as f64 / 1000.0;
        let (low, high) = bins.mean().expect("samples");
        assert!(low <= mean && mean <= high && (high - low) / mean < 0.002, "{low} {high}");
    }

    #[test]
    fn quantiles_of_one_pass_are_those_of_the_histogram() {
        let samples = || (1_u64..=1000).map(|step| step * step);
        let stored = HdrHistogram::from_samples(samples()).expect("in range");
        let mut exact = Histogram::<u64>::new_with_bounds(1, VALUE_MAX, 3).expect("bounds");
        samples().for_each(|sample| exact.record(sample).expect("in range"));
        let twice = Bins::pooled([&stored, &stored].into_iter()).expect("samples");
        assert_eq!(twice.samples, 2000);
        let shares = [0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0];
        let expected = shares.map(|share| exact.value_at_quantile(share) as f64);
        assert_eq!(twice.reached(&shares), expected);
    }

    #[test]
    fn an_empty_histogram_bounds_nothing() {
        let stored = HdrHistogram::from_samples([]).expect("empty");
        let bins = Bins::decode(&stored).expect("readable");
        assert_eq!((bins.quantile(0.5), bins.mean()), (None, None));
        assert!(Bins::pooled(std::iter::once(&stored)).is_none());
    }
}
