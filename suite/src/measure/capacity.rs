//! Search for the highest request rate at which a server meets latency limits, with a stated
//! confidence. The caller performs the runs; nothing here does I/O.
//!
//! A rate is judged by the share of its runs' requests that meet all limits; a failed request meets
//! none. The share is bounded by the exact interval of Clopper and Pearson (Biometrika 26, 1934),
//! one-sided at the target's confidence. Requests of one run share its queue and are not
//! independent, which is why a rate takes several runs, and no single run may fall short.

use judge::binomial::{lower_bound, upper_bound};

use super::summary::whole;

/// Target that a request rate must reach to pass: the share of requests that meet the latency
/// limits, the confidence in that share, and the number of runs that test it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Share of the requests that must meet all latency limits, from 0 to 1.
    pub attainment: f64,
    /// Confidence, from 0 to 1, with which the runs must show that the share of requests is
    /// reached.
    pub confidence: f64,
    /// Number of runs at each request rate.
    pub repeats: u32,
}

/// Range of request rates to search, in requests per second, and the precision of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    pub from: f64,
    pub to: f64,
    /// Precision at which the search ends: the ratio of the lowest rate that did not pass to the
    /// highest that did, less one, is at most this number.
    pub precision: f64,
}

/// Function that performs one run at a request rate; its arguments are the rate in requests per
/// second and the run's number, from 1.
pub type Run<'a> = dyn FnMut(f64, u32) -> anyhow::Result<Repeat> + 'a;

/// Result of one run: number of requests that met all latency limits, and number of requests
/// planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    pub met: u64,
    pub planned: u64,
}

/// Verdict on a request rate: whether its runs show that the target is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Met,
    Missed,
    /// The runs at the rate show neither that the target is met nor that it is missed.
    Undecided,
}

/// Request rate that was tried, in requests per second, with its runs and the verdict on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    pub rate: f64,
    pub repeats: Vec<Repeat>,
    pub standing: Standing,
}

impl Repeat {
    fn pooled(repeats: &[Self]) -> Self {
        let sum = |count: fn(&Self) -> u64| repeats.iter().map(count).sum();
        Self { met: sum(|repeat| repeat.met), planned: sum(|repeat| repeat.planned) }
    }

    /// Returns the lower confidence bound (one-sided, Clopper-Pearson) of the share of requests
    /// that meet the latency limits, at `confidence` from 0 to 1.
    pub fn share_min(&self, confidence: f64) -> f64 {
        lower_bound(self.met, self.planned.saturating_sub(self.met), confidence)
    }

    /// Returns the upper confidence bound (one-sided, Clopper-Pearson) of the share of requests
    /// that meet the latency limits, at `confidence` from 0 to 1.
    pub fn share_max(&self, confidence: f64) -> f64 {
        upper_bound(self.met, self.planned.saturating_sub(self.met), confidence)
    }
}

impl Target {
    /// Returns the smallest number of requests, over all runs at one rate, that suffices to reach
    /// the target if every one of them meets the latency limits.
    pub fn requests_min(&self) -> u64 {
        whole(((1.0 - self.confidence).ln() / self.attainment.ln()).ceil())
    }

    fn judge(&self, repeats: &[Repeat]) -> Standing {
        let short = |repeat: &Repeat| repeat.share_max(self.confidence) < self.attainment;
        let all = Repeat::pooled(repeats);
        if repeats.iter().any(short) || short(&all) {
            return Standing::Missed;
        }
        let enough = all.share_min(self.confidence) >= self.attainment;
        if enough { Standing::Met } else { Standing::Undecided }
    }

    fn trial(&self, rate: f64, run: &mut Run<'_>) -> anyhow::Result<Trial> {
        let mut repeats = Vec::new();
        for number in 1..=self.repeats {
            repeats.push(run(rate, number)?);
            // More runs cannot make up for one that falls short.
            if self.judge(&repeats) == Standing::Missed {
                break;
            }
        }
        Ok(Trial { rate, standing: self.judge(&repeats), repeats })
    }
}

/// Searches for the highest request rate that passes: doubles the rate, up to the end of `range`,
/// until one does not pass, then bisects the interval, at the geometric mean of its ends, to the
/// precision of `range`. Returns the trials in the order in which they were made.
///
/// # Errors
/// The error of `run`.
pub fn search(range: Range, target: &Target, run: &mut Run<'_>) -> anyhow::Result<Vec<Trial>> {
    let mut trials = Vec::new();
    let (mut kept, mut lost) = (None, None);
    let mut next = Some(range.from);
    while let Some(rate) = next {
        let trial = target.trial(rate, run)?;
        match trial.standing {
            Standing::Met => kept = Some(rate),
            Standing::Missed | Standing::Undecided => lost = Some(rate),
        }
        trials.push(trial);
        next = match (kept, lost) {
            (None, _) => None,
            (Some(kept), None) => Some((kept * 2.0).min(range.to)).filter(|rate| *rate > kept),
            (Some(kept), Some(lost)) => {
                let between = thousandths((kept * lost).sqrt());
                let apart = lost / kept > 1.0 + range.precision;
                Some(between).filter(|rate| apart && *rate > kept && *rate < lost)
            }
        };
    }
    Ok(trials)
}

/// Returns the trial of the highest request rate that passed; `None` if none did.
pub fn highest(trials: &[Trial]) -> Option<&Trial> {
    let kept = trials.iter().filter(|trial| trial.standing == Standing::Met);
    kept.max_by(|left, right| left.rate.total_cmp(&right.rate))
}

/// Returns the trial of the lowest request rate that did not pass, whether it missed the target or
/// was undecided; `None` if all passed.
pub fn lowest_lost(trials: &[Trial]) -> Option<&Trial> {
    let lost = trials.iter().filter(|trial| trial.standing != Standing::Met);
    lost.min_by(|left, right| left.rate.total_cmp(&right.rate))
}

impl Trial {
    /// Returns the numbers of planned requests and of those that met all latency limits, each
    /// summed over the trial's runs.
    pub fn pooled(&self) -> Repeat {
        Repeat::pooled(&self.repeats)
    }
}

/// Rounds a request rate to three decimals, so that file names and scenario ids that contain it are
/// short and state it exactly.
fn thousandths(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { attainment: 0.99, confidence: 0.95, repeats: 3 };

    #[test]
    fn bounds_are_clopper_and_pearsons() {
        // Where the binomial tails themselves are 5 %, by bisection: 95 or more of 100 at the
        // first, 95 or fewer at the second.
        let repeat = Repeat { met: 95, planned: 100 };
        assert!(
            (repeat.share_min(0.95) - 0.897_746_622).abs() < 1e-8,
            "{}",
            repeat.share_min(0.95)
        );
        assert!(
            (repeat.share_max(0.95) - 0.980_094_436).abs() < 1e-8,
            "{}",
            repeat.share_max(0.95)
        );
        let all = Repeat { met: 299, planned: 299 };
        assert!((all.share_min(0.95) - 0.05_f64.powf(1.0 / 299.0)).abs() < 1e-9);
        assert!((all.share_max(0.95) - 1.0).abs() < 1e-12);
        assert!(Repeat { met: 0, planned: 9 }.share_min(0.95).abs() < 1e-12);
        assert_eq!(TARGET.requests_min(), 299);
    }

    /// Test helper: searches the highest rate of a simulated server that meets its latency limits
    /// for all requests up to the rate `capacity`, and for `share` percent of them above, and
    /// returns all rates tried.
    fn searched(capacity: f64, share: u64, range: Range) -> Vec<Trial> {
        let mut run = |rate: f64, _: u32| {
            let met = if rate <= capacity { 200 } else { 2 * share };
            Ok(Repeat { met, planned: 200 })
        };
        search(range, &TARGET, &mut run).unwrap()
    }

    #[test]
    fn the_search_closes_in_on_the_capacity() {
        for capacity in [1.0, 3.3, 17.0, 90.0] {
            let found = searched(capacity, 50, Range { from: 1.0, to: 1000.0, precision: 0.05 });
            let (kept, lost) = (highest(&found).unwrap().rate, lowest_lost(&found).unwrap().rate);
            assert!(kept <= capacity && capacity < lost, "{kept} {capacity} {lost}");
            assert!(lost / kept <= 1.05 + 1e-9, "{kept} {lost}");
            let lost = lowest_lost(&found).unwrap();
            assert_eq!((lost.standing, lost.repeats.len()), (Standing::Missed, 1), "one run tells");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_answers_too() {
        let range = Range { from: 4.0, to: 20.0, precision: 0.05 };
        let never = searched(3.0, 50, range);
        assert_eq!((highest(&never), never.len()), (None, 1));
        let always = searched(1e9, 50, range);
        assert_eq!(highest(&always).map(|trial| trial.rate), Some(20.0));
        assert_eq!(lowest_lost(&always), None);
    }

    #[test]
    fn what_is_not_sure_is_not_met() {
        // 98.5 % of 600: neither surely above 99 % nor surely below.
        let found = searched(1.0, 99, Range { from: 1.0, to: 1.5, precision: 0.05 });
        assert!(found.iter().any(|trial| trial.standing == Standing::Undecided));
        assert_eq!(highest(&found).map(|trial| trial.rate), Some(1.0));
    }

    #[test]
    fn one_bad_run_is_not_outweighed() {
        let good = Repeat { met: 5000, planned: 5000 };
        let bad = Repeat { met: 180, planned: 200 };
        assert_eq!(TARGET.judge(&[good, good]), Standing::Met);
        assert_eq!(TARGET.judge(&[good, good, bad]), Standing::Missed);
    }
}
