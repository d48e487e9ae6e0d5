//! Newest campaign of a cell: the runs from which its figure, spread and number of runs come. Runs
//! of older campaigns are history, with their drift, and are never pooled with newer ones.

use std::collections::BTreeMap;

use schema::metric::Metric;
use schema::run::RunRecord;

use crate::facts::{Figures, counted};
use crate::summary::{Summary, difference_pct, of_metric};

/// Returns the id of the campaign that a run belongs to. A run without a campaign has the empty id,
/// which sorts before all others. Ids are ULIDs, so they sort by time.
fn campaign(run: &RunRecord) -> &str {
    run.campaign.as_ref().map_or("", |slot| slot.id.as_str())
}

/// Selects, among `runs` of one cell, those from which its figures come: the runs of the newest
/// campaign that has figures of the cell, whole ones or, if it has none, partial ones. `of` gives
/// the record of a run and the use of its figures.
pub fn newest<'r, T: Copy>(runs: &[T], of: impl Fn(&T) -> (&'r RunRecord, Figures)) -> Vec<T> {
    let Some(newest) = measured_last(runs, &of) else { return Vec::new() };
    let own: Vec<T> = runs.iter().copied().filter(|run| campaign(of(run).0) == newest).collect();
    counted(&own, |run| of(run).1).collect()
}

/// Selects, among `runs` of one cell, those of the campaign that [`newest`] takes the figures from,
/// and of later campaigns, in which no run has figures. These are the runs that a reader must know
/// of beside the figure; all runs where none has figures.
pub fn current<'r, T: Copy>(runs: &[T], of: impl Fn(&T) -> (&'r RunRecord, Figures)) -> Vec<T> {
    let newest = measured_last(runs, &of).unwrap_or_default();
    runs.iter().copied().filter(|run| campaign(of(run).0) >= newest).collect()
}

fn measured_last<'r, T>(
    runs: &[T],
    of: &impl Fn(&T) -> (&'r RunRecord, Figures),
) -> Option<&'r str> {
    let with_figures = runs.iter().map(of).filter(|(_, figures)| *figures != Figures::None);
    with_figures.map(|(run, _)| campaign(run)).max()
}

/// Figure of a cell in a campaign before the newest one.
#[derive(Debug, Clone, PartialEq)]
pub struct Earlier {
    /// Id of the earlier campaign.
    pub campaign: String,
    /// Summary of the metric over the campaign's runs, in the metric's unit.
    pub figure: Summary,
    /// Drift: difference of the newest campaign's median from this one, in percent of this one;
    /// `None` where this one is zero.
    pub drift_pct: Option<f64>,
}

/// Returns the figures of `metric` in the campaigns before the newest, newest first. `runs` are the
/// usable runs of one cell; nothing is returned where fewer than two campaigns have the metric.
pub fn history(metric: &Metric, runs: &[&RunRecord]) -> Vec<Earlier> {
    let mut campaigns: BTreeMap<&str, Vec<&RunRecord>> = BTreeMap::new();
    for run in runs {
        campaigns.entry(campaign(run)).or_default().push(run);
    }
    let figure = |runs: Vec<&RunRecord>| of_metric(metric, runs);
    let mut figures =
        campaigns.into_iter().rev().filter_map(|(id, runs)| Some((id, figure(runs)?)));
    let Some((_, newest)) = figures.next() else { return Vec::new() };
    let earlier = |(id, figure): (&str, Summary)| Earlier {
        campaign: id.to_owned(),
        drift_pct: difference_pct(newest.median, figure.median),
        figure,
    };
    figures.map(earlier).collect()
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id};
    use schema::metric::by_name;

    use super::*;
    use crate::facts::figures;

    /// Returns, for tests, a run of the campaign with the number `campaign`, of which `failed`
    /// requests failed.
    fn run(campaign: u64, serial: u64, speed: f64, failed: u64) -> RunRecord {
        let campaign = (campaign_id(campaign), 0, 0);
        Sample { campaign, serial, speed, failed, ..Sample::default() }.record()
    }

    fn of<'r>(run: &&'r RunRecord) -> (&'r RunRecord, Figures) {
        (run, figures(run, false))
    }

    #[test]
    fn older_campaigns_are_not_pooled_with_the_newest() {
        let runs = [run(1, 1, 1.0, 0), run(2, 2, 3.0, 0), run(1, 3, 1.0, 0), run(2, 4, 3.0, 0)];
        let runs = runs.each_ref();
        assert_eq!(newest(&runs, of), [runs[1], runs[3]]);
        let metric = by_name("output_tokens_per_s").expect("a metric");
        let history = history(metric, &runs);
        assert_eq!((history.len(), history[0].figure.n), (1, 2));
        assert_eq!(history[0].campaign, campaign_id(1));
        let drift = history[0].drift_pct.expect("a drift");
        assert!((drift - 200.0).abs() < 1.0, "three times as fast: {drift}");
    }

    #[test]
    fn a_campaign_without_figures_does_not_hide_the_one_before_but_is_told_of() {
        let mut failed =
            Sample { campaign: (campaign_id(2), 0, 0), serial: 9, ..Sample::default() }
                .failed_record();
        failed.metrics = None;
        let runs = [run(1, 1, 1.0, 0), failed, run(1, 2, 1.0, 3)];
        let runs = runs.each_ref();
        assert_eq!(newest(&runs, of), [runs[0]], "a partial run is not mixed with whole ones");
        assert_eq!(current(&runs, of).len(), 3);
        assert_eq!(newest(&runs[1..2], of), [] as [&RunRecord; 0]);
        assert_eq!(current(&runs[1..2], of), [runs[1]]);
    }

    #[test]
    fn runs_without_a_campaign_are_older_than_any() {
        let mut alone = run(1, 1, 1.0, 0);
        alone.campaign = None;
        let runs = [run(1, 2, 1.0, 0), alone];
        let runs = runs.each_ref();
        assert_eq!(newest(&runs, of), [runs[0]]);
        assert_eq!(newest(&runs[1..], of), [runs[1]]);
    }
}
