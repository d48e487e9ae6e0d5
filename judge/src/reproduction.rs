//! Reproduction of a committed run: facts that must be equal by hash, and figures that must fall into
//! the prediction interval which the runs of its campaign fix.

use std::fmt;

use schema::canonical::sha256_of;
use schema::metric::{METRICS, Metric, Unit};
use schema::run::RunRecord;

use crate::diff::cells::cell_of;
use crate::diff::estimate::Fit;
use crate::validity;

/// Probability, in percent, that all figures of an unchanged engine on an unchanged machine fall into
/// their intervals. It is shared among the figures (Bonferroni).
pub const CONFIDENCE_PCT: f64 = 95.0;

/// Comparison of a committed run with new runs of the same release, model and scenario.
#[derive(Debug, Clone)]
pub struct Reproduction {
    /// Facts that are compared by hash, in the order binary, arguments, plan, outputs.
    pub facts: Vec<Fact>,
    /// Release-blocking metrics of the run's scenario that its campaign measured.
    pub figures: Vec<Prediction>,
    /// Verdict on the reproduction.
    pub verdict: Verdict,
}

/// Fact of a run that its reproduction must share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Name of the fact: binary, arguments, plan or outputs.
    pub name: &'static str,
    /// SHA-256 of the committed run's fact, lower-case hex; `None` where its record has none.
    pub recorded: Option<String>,
    /// SHA-256 of the fact in each new run, lower-case hex; `None` where its record has none.
    pub found: Vec<Option<String>>,
}

impl Fact {
    /// True where every new run has the committed run's hash, or the committed run has none.
    pub fn is_equal(&self) -> bool {
        self.recorded.is_none() || self.found.iter().all(|found| *found == self.recorded)
    }
}

/// Prediction of a metric from the runs of a campaign, and the value of the new runs.
#[derive(Debug, Clone)]
pub struct Prediction {
    /// Metric that is predicted.
    pub metric: &'static Metric,
    /// Number of runs of the campaign that the prediction rests on, without INVALID and retracted
    /// ones.
    pub runs: usize,
    /// Smallest and largest value that the prediction allows for the mean of the new runs, in the
    /// metric's unit; `None` where a single run fixes no interval.
    pub interval: Option<(f64, f64)>,
    /// Geometric mean of the new runs, for a count their largest, in the metric's unit; `None` where
    /// a new run did not measure it.
    pub found: Option<f64>,
}

impl Prediction {
    /// True where the value of the new runs lies in the interval; `None` without an interval.
    pub fn is_met(&self) -> Option<bool> {
        let (low, high) = self.interval?;
        Some(self.found.is_some_and(|found| (low..=high).contains(&found)))
    }

    /// Returns half of the interval's width in percent of its middle; `None` without an interval, and
    /// for an interval around zero.
    pub fn half_width_pct(&self) -> Option<f64> {
        let (low, high) = self.interval?;
        (low + high > 0.0).then(|| (high - low) / (high + low) * 100.0)
    }
}

/// Verdict on a reproduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Reproduced: all facts are equal, and all figures fall into their intervals.
    Reproduced,
    /// Not reproduced: a fact differs or a figure lies outside of its interval.
    NotReproduced,
    /// Other machine: the new runs were made on another kind of machine, so that no figure is
    /// comparable.
    OtherMachine,
    /// No interval: the campaign has a single run of the cell, from which nothing can be predicted.
    NoInterval,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::OtherMachine => "not reproduced: this is another kind of machine",
            Self::NoInterval => {
                "undecided: its campaign ran this once, which fixes no interval for a figure"
            }
        })
    }
}

/// Compares the committed run `record` with `new` runs. `all` are the runs of the registry that are
/// not retracted, among which are those of the record's campaign.
pub fn judge(record: &RunRecord, all: &[&RunRecord], new: &[RunRecord]) -> Reproduction {
    let facts: Vec<Fact> = FACTS
        .iter()
        .map(|(name, of)| Fact { name, recorded: of(record), found: new.iter().map(of).collect() })
        .collect();
    let siblings: Vec<&RunRecord> =
        all.iter().copied().filter(|other| is_sibling(record, other)).collect();
    let arrival = record.scenario.arrival.as_ref();
    let gates: Vec<&'static Metric> = METRICS
        .iter()
        .filter(|metric| metric.gates_under(arrival) && metric.value(record).is_some())
        .collect();
    let share = (1.0 - CONFIDENCE_PCT / 100.0) / count(gates.len().max(1));
    let figures: Vec<Prediction> =
        gates.into_iter().map(|metric| predict(metric, share, &siblings, new)).collect();
    let verdict = verdict(record, new, &facts, &figures);
    Reproduction { facts, figures, verdict }
}

fn verdict(
    record: &RunRecord,
    new: &[RunRecord],
    facts: &[Fact],
    figures: &[Prediction],
) -> Verdict {
    if new.iter().any(|run| run.hardware.id != record.hardware.id) {
        return Verdict::OtherMachine;
    }
    let differs = facts.iter().any(|fact| !fact.is_equal());
    if new.is_empty() || differs || figures.iter().any(|figure| figure.is_met() == Some(false)) {
        return Verdict::NotReproduced;
    }
    match figures.iter().any(|figure| figure.is_met().is_none()) {
        true => Verdict::NoInterval,
        false => Verdict::Reproduced,
    }
}

/// Function that returns the hash of a fact in a run.
type HashOf = fn(&RunRecord) -> Option<String>;

const FACTS: [(&str, HashOf); 4] = [
    ("binary", |run| run.engine.binary_sha256.clone()),
    ("arguments", |run| sha256_of(run.server.as_ref()?.argv.as_ref()?).ok()),
    ("plan", |run| run.scenario.manifest_sha256.clone()),
    ("outputs", |run| run.correctness.as_ref()?.tokens_sha256.clone()),
];

/// True for a run of the record's own campaign, cell and release.
fn is_sibling(record: &RunRecord, other: &RunRecord) -> bool {
    let campaign = |run: &RunRecord| run.campaign.as_ref().map(|place| place.id.clone());
    other.engine.release == record.engine.release
        && campaign(other) == campaign(record)
        && cell_of(other) == cell_of(record)
}

/// Predicts the mean of the new runs from the campaign's: a Student interval of the logarithms,
/// whose width counts the scatter of both means, at least the metric's minimum effect. `share` is the
/// probability outside.
fn predict(
    metric: &'static Metric,
    share: f64,
    siblings: &[&RunRecord],
    new: &[RunRecord],
) -> Prediction {
    let of = |run: &RunRecord| validity::value(metric, run);
    let values: Vec<f64> = siblings.iter().filter_map(|run| of(run)).collect();
    let found: Option<Vec<f64>> = new.iter().map(of).collect();
    let found = found.filter(|found| !found.is_empty());
    let runs = values.len();
    if metric.unit == Unit::Count {
        let largest = |values: &[f64]| values.iter().copied().reduce(f64::max);
        let interval = largest(&values).map(|most| (0.0, most));
        return Prediction { metric, runs, interval, found: found.and_then(|one| largest(&one)) };
    }
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let interval = interval(&logs, share, new.len()).map(|(middle, reach)| {
        // A difference below the minimum effect is none, however small the campaign's scatter was.
        let reach = reach.max((metric.floor_pct / 100.0).ln_1p());
        ((middle - reach).exp(), (middle + reach).exp())
    });
    let found = found.map(|found| mean(&found.iter().map(|value| value.ln()).collect::<Vec<_>>()));
    Prediction { metric, runs, interval, found: found.map(f64::exp) }
}

/// Returns the middle of the interval and its reach to each side, in log units; `None` for fewer than
/// two recorded runs, a value of zero among them, or no new run.
fn interval(logs: &[f64], share: f64, new: usize) -> Option<(f64, f64)> {
    let fit = Fit::of(logs).filter(|_| new > 0)?;
    Some((fit.mean, fit.prediction(1.0 - share, count(new))))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / count(values.len())
}

#[expect(clippy::cast_precision_loss, reason = "a campaign has few runs")]
fn count(values: usize) -> f64 {
    values as f64
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id};

    use super::*;

    /// Run of one campaign with a speed, as a factor.
    fn run(serial: u64, campaign: u64, speed: f64) -> RunRecord {
        let place = (campaign_id(campaign), 0, 0);
        Sample { campaign: place, serial, seed: 7, speed, ..Sample::default() }.record()
    }

    fn judged(recorded: &[f64], new: &[f64]) -> Reproduction {
        let old: Vec<RunRecord> =
            (0..).zip(recorded).map(|(serial, speed)| run(serial, 1, *speed)).collect();
        // A run of another campaign is not part of the prediction.
        let other = run(50, 2, 100.0);
        let all: Vec<&RunRecord> = old.iter().chain([&other]).collect();
        let new: Vec<RunRecord> =
            (100..).zip(new).map(|(serial, speed)| run(serial, 3, *speed)).collect();
        judge(&old[0], &all, &new)
    }

    #[test]
    fn figures_within_the_scatter_of_the_campaign_are_reproduced() {
        let found = judged(&[1.0, 1.02, 0.98], &[1.01]);
        assert_eq!(found.verdict, Verdict::Reproduced, "{found:?}");
        let rate = &found.figures[0];
        assert_eq!((rate.metric.name, rate.runs), ("output_tokens_per_s", 3));
        assert!(rate.half_width_pct().is_some_and(|width| width > 5.0 && width < 40.0));
    }

    #[test]
    fn a_figure_outside_of_its_interval_is_not() {
        let found = judged(&[1.0, 1.001, 0.999], &[0.9]);
        assert_eq!(found.verdict, Verdict::NotReproduced);
        let outside = found.figures.iter().filter(|figure| figure.is_met() == Some(false));
        assert!(outside.count() >= 1);
        assert_eq!(judged(&[1.0, 1.001, 0.999], &[]).verdict, Verdict::NotReproduced);
    }

    #[test]
    fn more_new_runs_narrow_the_interval() {
        let width = |new: &[f64]| judged(&[1.0, 1.02, 0.98], new).figures[0].half_width_pct();
        assert!(width(&[1.0, 1.0, 1.0]) < width(&[1.0]));
    }

    #[test]
    fn one_run_predicts_nothing() {
        assert_eq!(judged(&[1.0], &[1.0]).verdict, Verdict::NoInterval);
    }

    #[test]
    fn another_binary_or_machine_is_no_reproduction() {
        let old = [run(1, 1, 1.0), run(2, 1, 1.01)];
        let all: Vec<&RunRecord> = old.iter().collect();
        let mut new = run(3, 3, 1.0);
        new.engine.binary_sha256 = Some("another".into());
        let found = judge(&old[0], &all, &[new.clone()]);
        assert_eq!(found.verdict, Verdict::NotReproduced);
        assert!(!found.facts[0].is_equal() && found.facts[2].is_equal(), "{:?}", found.facts);
        new.hardware.id = "another".into();
        assert_eq!(judge(&old[0], &all, &[new]).verdict, Verdict::OtherMachine);
    }
}
