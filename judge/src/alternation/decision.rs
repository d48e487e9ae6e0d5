//! Judgement of an alternating comparison: group-sequential decisions about each metric.
//!
//! The comparison is judged at five looks, when a fifth, two fifths and so on of its budget are
//! spent. Each look spends a share of the error probability (Bonferroni over the looks, which holds
//! however the looks depend on each other), so that looking early costs no error; the last look has
//! half of it. A metric that is decided at a look stays decided.

use std::fmt;

use schema::alternation::{AlternatingComparison, Start};
use schema::metric::{Better, METRICS, Metric};
use schema::scenario::Arrival;
use schema::verdict::Extent;
use serde::{Deserialize, Serialize};

use super::of_starts;
use crate::diff::estimate::{Fit, log_of, percent};

/// Share of the error probability that each look spends.
const SHARES: [f64; 5] = [0.03, 0.07, 0.15, 0.25, 0.5];
/// Error probability of calling a metric worse although it is not, over all tests and looks of a
/// campaign; the same for better.
const CHANGED: f64 = 0.025;
/// Error probability of calling one metric unchanged although it changed by its minimum effect.
const UNCHANGED: f64 = 0.05;
/// Error probability of each end of the interval of one metric, over all looks.
const INTERVAL: f64 = 0.025;
/// Minimum number of starts at a look: with fewer, a t interval is too wide to decide anything.
pub const STARTS_MIN: usize = 4;
/// Power for which the smallest detectable effect is stated.
const POWER: f64 = 0.8;
/// Minimum effect of the 99th percentile of TPOT in percent: one slow request in a hundred has to be
/// this much slower. Percentiles so far out scatter more than medians.
const TAIL_PCT: f64 = 20.0;
/// Name of the metric with that minimum effect, which is release-blocking in closed loops although
/// pairs of runs never block on it.
const TAIL: &str = "tpot_us_p99";

/// Call about one metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// Worse: an effect of zero is excluded, and the estimate is at least half of the minimum effect.
    Worse,
    /// Better, by the same rule.
    Better,
    /// Unchanged: effects as large as the minimum effect are excluded in both directions.
    Unchanged,
    /// Open: more starts may decide it.
    Open,
}

/// Judgement of one metric of an alternating comparison.
#[derive(Debug, Clone, Copy)]
pub struct Judged {
    /// Metric that is judged.
    pub metric: &'static Metric,
    /// True where the metric is release-blocking.
    pub gates: bool,
    /// Minimum effect of the metric in percent.
    pub min_effect_pct: f64,
    /// Call about the metric; open for a metric that is not release-blocking.
    pub call: Call,
    /// Effect in percent, candidate over baseline; positive where the figure is larger.
    pub effect_pct: f64,
    /// Two-sided interval of the effect in percent at a confidence of 95 %, valid at every look.
    pub interval_pct: (f64, f64),
    /// Interval of the effect in percent that excludes zero where the metric is called worse or better:
    /// its error probability is divided over all tests and looks of the campaign. `None` for a metric
    /// that is not release-blocking, and where the starts are too few.
    pub deciding_interval_pct: Option<(f64, f64)>,
    /// Largest effect for the worse, in percent and not negative, that the interval does not exclude.
    pub not_excluded_pct: f64,
    /// Smallest effect in percent that as many starts with the same scatter show with a power of
    /// 80 %.
    pub detectable_pct: f64,
    /// Starts and time behind the judgement.
    pub extent: Extent,
    /// Number of scenarios whose starts are judged together, in the order of time; 1 for a metric of
    /// one scenario.
    pub scenarios: usize,
}

/// Returns the metrics that an alternating comparison with this arrival process judges, each with
/// its minimum effect in percent and true where it is release-blocking, in the order of tables.
pub fn metrics(arrival: Option<&Arrival>) -> impl Iterator<Item = (&'static Metric, f64, bool)> {
    let closed = matches!(arrival, Some(Arrival::Closed { .. }));
    METRICS.iter().filter(|metric| super::measures(metric.name)).map(move |metric| {
        let is_tail = metric.name == TAIL;
        let min_effect_pct = if is_tail { TAIL_PCT } else { metric.floor_pct };
        (metric, min_effect_pct, metric.gates_under(arrival) || is_tail && closed)
    })
}

/// Function that returns the log ratios of the metric with this name, one for each of the first so
/// many starts that has it.
pub type LogRatios<'a> = Box<dyn Fn(&str, usize) -> Vec<f64> + 'a>;

/// Course of an alternating comparison: what its judgement rests on.
pub struct Course<'a> {
    /// Arrival process of the scenario; `None` where it is not known.
    pub arrival: Option<&'a Arrival>,
    /// Number of equal parts of the error probability, of which each release-blocking metric has one.
    pub family: u32,
    /// Time that the comparison may take, in microseconds.
    pub budget_us: u64,
    /// End of each start in microseconds since the comparison began, in the order of time.
    pub ends_us: Vec<u64>,
    /// Number of slices of each start.
    pub slices: Vec<usize>,
    /// Log ratios of all metrics.
    pub log_ratios: LogRatios<'a>,
}

/// Judges every metric that the starts have, in the order of tables; none before two starts have
/// figures.
pub fn judge(comparison: &AlternatingComparison) -> Vec<Judged> {
    judge_course(&Course::of(comparison))
}

/// Judges the course of a comparison as [`judge`] judges the comparison.
pub fn judge_course(course: &Course<'_>) -> Vec<Judged> {
    let reached = course.looks();
    metrics(course.arrival).filter_map(|metric| course.judged(&reached, metric)).collect()
}

/// Estimates every metric of a course from all of its starts and calls none, so that an early call
/// does not end the series: the intervals are those of the look that the course has reached.
pub fn at_the_end(course: &Course<'_>) -> Vec<Judged> {
    let reached = course.looks();
    let uncalled = metrics(course.arrival).map(|(metric, effect, _)| (metric, effect, false));
    uncalled.filter_map(|metric| course.judged(&reached, metric)).collect()
}

/// True where no further start can change a call: every release-blocking metric is decided, or the
/// budget is spent.
pub fn is_over(comparison: &AlternatingComparison) -> bool {
    comparison.is_spent() || is_decided(&judge(comparison))
}

/// True where every release-blocking metric is decided; false without any.
pub fn is_decided(judged: &[Judged]) -> bool {
    let mut blocking = judged.iter().filter(|judged| judged.gates).peekable();
    blocking.peek().is_some() && blocking.all(|judged| judged.call != Call::Open)
}

/// Returns the time in microseconds that the next of `open` comparisons gets of a budget of which
/// `spent_us` are spent: an equal share of the rest, so that a fast one leaves time to the others.
pub fn share_us(budget_us: u64, spent_us: u64, open: usize) -> u64 {
    budget_us.saturating_sub(spent_us) / open.max(1) as u64
}

impl fmt::Debug for Course<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (starts, budget_us) = (self.ends_us.len(), self.budget_us);
        let mut course = f.debug_struct("Course");
        course.field("starts", &starts).field("budget_us", &budget_us).finish_non_exhaustive()
    }
}

impl<'a> Course<'a> {
    /// Returns the course of a recorded comparison.
    pub fn of(comparison: &'a AlternatingComparison) -> Self {
        let starts = &comparison.starts;
        let slices =
            |start: &Start| start.alternation.as_ref().map_or(0, |found| found.slices.len());
        Self {
            arrival: comparison.arrival.as_ref(),
            family: comparison.family,
            budget_us: comparison.budget_us,
            ends_us: starts.iter().map(|start| start.end_us).collect(),
            slices: starts.iter().map(slices).collect(),
            log_ratios: Box::new(|name, count| of_starts(&starts[..count], name)),
        }
    }

    /// Returns the course of the starts that ended within `spent_us` microseconds.
    #[must_use]
    pub fn until(mut self, spent_us: u64) -> Self {
        self.ends_us.retain(|end_us| *end_us <= spent_us);
        self.slices.truncate(self.ends_us.len());
        self
    }

    /// Returns the number of starts behind each look that the comparison has reached. A look is
    /// taken after the first start that ends when the look's share of the budget is spent.
    fn looks(&self) -> Vec<usize> {
        let budget_us = u128::from(self.budget_us);
        let due = |look: usize| {
            let at_us = budget_us * (look as u128 + 1) / SHARES.len() as u128;
            let ended = self.ends_us.iter().position(|end_us| u128::from(*end_us) >= at_us);
            ended.map(|index| index + 1)
        };
        (0..SHARES.len()).map_while(due).collect()
    }

    /// Judges one metric at the looks that are reached, in their order, until one decides it.
    fn judged(
        &self,
        reached: &[usize],
        (metric, min_effect_pct, gates): (&'static Metric, f64, bool),
    ) -> Option<Judged> {
        let at = |starts: usize, look: usize| {
            let logs = (self.log_ratios)(metric.name, starts);
            let enough = gates && logs.len() >= STARTS_MIN;
            let standing = Standing { metric, min_effect_pct, fit: Fit::of(&logs)? };
            let call = if enough { standing.call(SHARES[look], self.family) } else { Call::Open };
            let judged = standing.judged(call, SHARES[look], self.family, self.extent(starts));
            let deciding_interval_pct = judged.deciding_interval_pct.filter(|_| enough);
            Some(Judged { gates, deciding_interval_pct, ..judged })
        };
        let decided = reached.iter().enumerate().filter_map(|(look, starts)| at(*starts, look));
        let mut decided = decided.filter(|judged| judged.call != Call::Open);
        decided.next().or_else(|| {
            // Between two looks nothing is decided, and the interval is that of the look to come.
            let look = reached.len().min(SHARES.len() - 1);
            let open = at(self.ends_us.len(), look)?;
            let call = if reached.len() == SHARES.len() { open.call } else { Call::Open };
            Some(Judged { call, ..open })
        })
    }

    /// Returns the extent of the first `starts` starts.
    pub(super) fn extent(&self, starts: usize) -> Extent {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Extent {
            starts: count(starts),
            slices: count(self.slices[..starts].iter().sum()),
            spent_us: self.ends_us[..starts].last().copied().unwrap_or(0),
            budget_us: self.budget_us,
        }
    }
}

/// Returns the error probability of calling one metric worse although it is not, at a look that spends
/// `share` of it, where the metric has one of `family` equal parts.
fn error(share: f64, family: u32) -> f64 {
    CHANGED * share / f64::from(family.max(1))
}

/// Fit of one metric's log ratios, one for each start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) metric: &'static Metric,
    pub(super) min_effect_pct: f64,
    pub(super) fit: Fit,
}

impl Standing {
    /// Returns the fit with the sign turned so that values above zero are worse.
    fn worse(&self) -> Fit {
        if self.metric.better == Better::Higher { self.fit.turned() } else { self.fit }
    }

    /// Calls the metric at a look that spends `share` of the error probabilities, of which the metric
    /// has one of `family` equal parts.
    pub(super) fn call(&self, share: f64, family: u32) -> Call {
        let bar = log_of(self.min_effect_pct);
        let error = error(share, family);
        let is_worse = |fit: Fit| fit.mean >= bar / 2.0 && fit.p_above(0.0) < error;
        if self.fit.is_within(bar, UNCHANGED * share) {
            Call::Unchanged
        } else if is_worse(self.worse()) {
            Call::Worse
        } else if is_worse(self.worse().turned()) {
            Call::Better
        } else {
            Call::Open
        }
    }

    /// Returns the judgement of a release-blocking metric of one scenario, with the shares of the
    /// error probabilities that [`Self::call`] takes.
    pub(super) fn judged(&self, call: Call, share: f64, family: u32, extent: Extent) -> Judged {
        let confidence = 1.0 - 2.0 * INTERVAL * share;
        let interval_pct = |confidence: f64| {
            let (low, high) = self.fit.interval(confidence);
            (percent(low), percent(high))
        };
        Judged {
            metric: self.metric,
            gates: true,
            min_effect_pct: self.min_effect_pct,
            call,
            effect_pct: percent(self.fit.mean),
            interval_pct: interval_pct(confidence),
            // Few starts that scatter give an interval beyond the range of numbers.
            deciding_interval_pct: Some(interval_pct(1.0 - 2.0 * error(share, family)))
                .filter(|(low, high)| low.is_finite() && high.is_finite()),
            not_excluded_pct: percent(self.worse().interval(confidence).1.max(0.0)),
            detectable_pct: percent(self.fit.detectable(confidence, POWER)),
            extent,
            scenarios: 1,
        }
    }
}
