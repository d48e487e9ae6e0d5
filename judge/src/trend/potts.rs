//! Change points of a time series: fits a piecewise constant function with the least sum of
//! absolute deviations (the L1 Potts problem). Pure arithmetic.
//!
//! Sources: Friedrich, Kempe, Liebscher and Winkler, "Complexity penalized M-estimation: fast
//! computation" (2008), and Weinmann, Storath and Demaret, "The L1-Potts functional for robust
//! jump reconstruction" (2015). Absolute rather than squared deviations, because a single bad run
//! must not move a level. Dynamic programming finds the best fit for every number of segments, and
//! an information criterion then chooses that number.

/// Largest number of segments that one time series is cut into.
const PIECES_MAX: usize = 24;
/// Smallest number of points in a segment: a single outlier does not make a level.
const POINTS_MIN: usize = 2;
/// Weight of one more segment in the information criterion, multiplied by ln n. It is twice the
/// weight of Schwarz's criterion (BIC), because the position of the jump is searched for and not
/// given; asv (airspeed velocity) uses the same weight.
const PENALTY: f64 = 4.0;
/// Mean absolute deviation, in log units, that is added to every fit, so that the logarithm in the
/// criterion stays finite where a fit is exact.
const RESOLUTION: f64 = 5e-4;

/// Returns the index of the first point of each segment of `values`, which are log values in time
/// order. The first index is 0; there is at least one segment.
#[expect(clippy::cast_precision_loss, reason = "series have few points")]
pub fn pieces(values: &[f64]) -> Vec<usize> {
    let n = values.len();
    let most = (n / POINTS_MIN).clamp(1, PIECES_MAX);
    let fits = Fits::of(values, most);
    let score = |pieces: usize| {
        let deviation = fits.cost[pieces - 1][n] / n as f64 + RESOLUTION;
        n as f64 * deviation.ln() + PENALTY * pieces as f64 * (n as f64).ln()
    };
    let best = (1..=most).min_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap_or(1);
    fits.firsts(best)
}

/// Best fits of every prefix of a series by every number of segments, as dynamic-programming
/// tables.
struct Fits {
    /// `cost[k][r]`: least sum of absolute deviations of the first `r` values, fitted by `k + 1`
    /// segments.
    cost: Vec<Vec<f64>>,
    /// `first[k][r]`: index at which the last of the `k + 1` segments that fit the first `r` values
    /// begins.
    first: Vec<Vec<usize>>,
}

impl Fits {
    /// Computes the best fits by dynamic programming: O(n^2 log n) for the deviations, O(segments *
    /// n^2) for the fits.
    fn of(values: &[f64], pieces: usize) -> Self {
        let n = values.len();
        let mut cost = vec![vec![f64::INFINITY; n + 1]; pieces];
        let mut first = vec![vec![0; n + 1]; pieces];
        for row in &mut cost {
            row[0] = 0.0;
        }
        for end in 1..=n {
            let deviations = deviations_back(&values[..end]);
            cost[0][end] = deviations[0];
            for more in 1..pieces {
                // Earlier segments need POINTS_MIN points each, and so does this one.
                for begin in (more * POINTS_MIN)..=end.saturating_sub(POINTS_MIN) {
                    let candidate = cost[more - 1][begin] + deviations[begin];
                    if candidate < cost[more][end] {
                        cost[more][end] = candidate;
                        first[more][end] = begin;
                    }
                }
            }
        }
        Self { cost, first }
    }

    /// Returns the index of the first point of each segment of the best fit of the whole series by
    /// `pieces` segments, found by walking the table backwards.
    fn firsts(&self, pieces: usize) -> Vec<usize> {
        let mut end = self.cost[0].len() - 1;
        let mut firsts = Vec::with_capacity(pieces);
        for more in (0..pieces).rev() {
            end = self.first[more][end];
            firsts.push(end);
        }
        firsts.reverse();
        firsts
    }
}

/// Returns for each index `begin` the sum of absolute deviations of `values[begin..]` from their
/// median. The values are kept sorted, with the sums of their lower and upper halves, so that one
/// more value costs O(n) moves of memory and no sorting.
fn deviations_back(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = Vec::with_capacity(values.len());
    // Sums of the lower half (the median included where it is one value) and of the rest.
    let (mut lower, mut upper) = (0.0, 0.0);
    let mut deviations = vec![0.0; values.len()];
    for (begin, &value) in values.iter().enumerate().rev() {
        let half = sorted.len().div_ceil(2);
        let place = sorted.partition_point(|other| *other < value);
        sorted.insert(place, value);
        if place < half {
            lower += value
        } else {
            upper += value
        }
        let now = sorted.len().div_ceil(2);
        // An insertion makes the halves differ by one at most, so at most one value crosses over.
        match (place < half, now > half) {
            (true, false) => {
                lower -= sorted[half];
                upper += sorted[half];
            }
            (false, true) => {
                lower += sorted[half];
                upper -= sorted[half];
            }
            _ => {}
        }
        // With an odd count the median counts in both halves, because its deviation is zero.
        let odd = if sorted.len() % 2 == 1 { sorted[now - 1] } else { 0.0 };
        deviations[begin] = (upper - (lower - odd)).max(0.0);
    }
    deviations
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generator of test noise: uniform numbers from -1 to 1 from a 64-bit linear congruential
    /// generator (Knuth, MMIX).
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.0 = self.0.wrapping_add(1_442_695_040_888_963_406);
            (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
        }

        /// Returns approximately normal noise with a standard deviation of one: half the sum of
        /// twelve uniform numbers from -1 to 1.
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.next() / 2.0).sum()
        }
    }

    fn series(levels: &[(usize, f64)], noise: f64, seed: u64) -> Vec<f64> {
        let mut source = Noise(seed);
        let level = |(count, level): &(usize, f64)| vec![*level; *count];
        let exact: Vec<f64> = levels.iter().flat_map(level).collect();
        exact.into_iter().map(|value| value + noise * source.normal()).collect()
    }

    #[test]
    fn deviations_are_those_of_sorted_values() {
        let values = series(&[(7, 1.0), (6, 0.5)], 0.4, 3);
        for end in 1..=values.len() {
            let found = deviations_back(&values[..end]);
            for begin in 0..end {
                let mut sorted = values[begin..end].to_vec();
                sorted.sort_by(f64::total_cmp);
                let median =
                    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
                let expected: f64 = sorted.iter().map(|value| (value - median).abs()).sum();
                assert!((found[begin] - expected).abs() < 1e-9, "{begin}..{end}");
            }
        }
    }

    #[test]
    fn known_steps_are_found_where_they_are() {
        for (levels, noise, expected) in [
            (&[(20, 0.0)][..], 0.0, &[0][..]),
            (&[(10, 0.0), (10, -0.05)], 0.0, &[0, 10]),
            (&[(10, 0.0), (10, -0.05)], 0.01, &[0, 10]),
            (&[(8, 0.0), (2, 0.2), (8, 0.0)], 0.01, &[0, 8, 10]),
            (&[(30, 0.0), (30, 0.05), (40, -0.04)], 0.01, &[0, 30, 60]),
            (&[(100, 0.0), (150, 0.03), (50, 0.0), (100, 0.03)], 0.01, &[0, 100, 250, 300]),
            (&[(1, 0.0)], 0.0, &[0]),
            (&[(3, 0.0)], 0.01, &[0]),
        ] {
            let found = pieces(&series(levels, noise, 17));
            let near = |(a, b): (&usize, &usize)| a.abs_diff(*b) <= 1;
            let same = found.len() == expected.len() && found.iter().zip(expected).all(near);
            assert!(same, "{levels:?} gave {found:?}");
        }
    }

    #[test]
    fn noise_alone_is_rarely_cut() {
        for points in [4, 6, 12, 40] {
            let cut = |seed: &u64| pieces(&series(&[(points, 0.0)], 0.02, *seed)).len() > 1;
            let count = (0..400).filter(cut).count();
            assert!(count <= 20, "{count} of 400 series of {points} points were cut");
        }
    }

    #[test]
    fn one_outlier_is_no_level() {
        let mut values = series(&[(20, 0.0)], 0.005, 5);
        values[9] = 0.5;
        assert_eq!(pieces(&values), [0]);
    }

    #[test]
    fn a_step_of_four_deviations_is_found_in_nine_of_ten_series() {
        let found = |seed: &u64| {
            let firsts = pieces(&series(&[(15, 0.0), (15, -0.04)], 0.01, *seed));
            firsts.len() == 2 && firsts[1].abs_diff(15) <= 1
        };
        let count = (0..200).filter(found).count();
        assert!(count >= 180, "{count} of 200");
    }
}
