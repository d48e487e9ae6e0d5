//! Cost of tool calls and of structured output: a scenario that asks for them beside the plain one of
//! the same load and route, by runs of one campaign.

use std::collections::BTreeSet;

use schema::metric::by_name;
use schema::run::{RunRecord, ValidityVerdict};

use crate::summary::of_metric;
use crate::validity;

/// Scenarios whose answers must have a form, each with the plain scenario of the same load and route.
const PLAIN: [(&str, &str); 2] =
    [("tools-lite", "chat-lite-c4"), ("structured-lite", "ladder-lite-c4")];

/// Names of the metrics that are compared: output throughput and TPOT.
pub const METRICS: [&str; 2] = ["output_tokens_per_s", "tpot_us_p50"];

/// Returns the id of the plain scenario beside which the scenario with the id `form` is set; `None` for
/// a scenario whose answers need no form.
pub fn plain_of(form: &str) -> Option<&'static str> {
    PLAIN.iter().find(|(known, _)| *known == form).map(|(_, plain)| *plain)
}

/// Selects, of the runs `form` and `plain`, those of the newest campaign that has runs of both; `None`
/// where none has.
pub fn of_one_campaign<'r>(
    form: &[&'r RunRecord],
    plain: &[&'r RunRecord],
) -> Option<[Vec<&'r RunRecord>; 2]> {
    let both: BTreeSet<&str> = campaigns(form).intersection(&campaigns(plain)).copied().collect();
    let newest = both.into_iter().next_back()?;
    Some([form, plain].map(|runs| {
        let own = |run: &&RunRecord| run.campaign.as_ref().is_some_and(|slot| slot.id == newest);
        runs.iter().copied().filter(own).collect()
    }))
}

fn campaigns<'r>(runs: &[&'r RunRecord]) -> BTreeSet<&'r str> {
    runs.iter().filter_map(|run| Some(run.campaign.as_ref()?.id.as_str())).collect()
}

/// Returns the ratio of the median of each of [`METRICS`] over the runs `form` to that over the runs
/// `plain`. The runs did not alternate, so a ratio is a hint.
///
/// `None` unless `plain` are runs of the plain scenario to that of `form`, all are of one campaign and
/// under the same load, and every run is VALID in both metrics.
pub fn ratios(form: &[&RunRecord], plain: &[&RunRecord]) -> Option<[f64; 2]> {
    let (first, other) = (form.first()?, plain.first()?);
    let is_known = PLAIN.contains(&(first.scenario.id.as_str(), other.scenario.id.as_str()));
    let is_same = |run: &&RunRecord| {
        let campaign = |run: &RunRecord| run.campaign.as_ref().map(|slot| slot.id.clone());
        let tokens = |run: &RunRecord| run.counts.as_ref().and_then(|c| c.output_tokens_requested);
        campaign(run).is_some_and(|own| Some(own) == campaign(first))
            && run.scenario.arrival == first.scenario.arrival
            && tokens(run) == tokens(first)
    };
    let mut all = form.iter().chain(plain);
    if !is_known || !all.all(is_same) {
        return None;
    }
    let ratio = |name: &str| {
        let metric = by_name(name)?;
        let is_valid =
            |run: &&RunRecord| validity::of_metric(metric, run).verdict == ValidityVerdict::Valid;
        let median = |runs: &[&RunRecord]| Some(of_metric(metric, runs.iter().copied())?.median);
        let are_valid = form.iter().chain(plain).all(is_valid);
        let base = median(plain).filter(|base| are_valid && *base > 0.0)?;
        Some(median(form)? / base)
    };
    let [output, tpot] = METRICS;
    Some([ratio(output)?, ratio(tpot)?])
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id};
    use schema::scenario::Arrival;

    use super::*;

    /// Returns, for tests, three runs of a scenario for four users in campaign number `campaign`.
    fn runs(scenario: &str, campaign: u64, speed: f64) -> Vec<RunRecord> {
        let run = |serial: u64| {
            let mut record = Sample {
                scenario: scenario.to_owned(),
                campaign: (campaign_id(campaign), 0, 0),
                serial,
                seed: serial,
                speed,
                ..Sample::default()
            }
            .record();
            record.scenario.arrival = Some(Arrival::Closed { concurrency: 4 });
            record
        };
        (1..=3).map(run).collect()
    }

    fn of(form: &[RunRecord], plain: &[RunRecord]) -> Option<[f64; 2]> {
        ratios(&form.iter().collect::<Vec<_>>(), &plain.iter().collect::<Vec<_>>())
    }

    #[test]
    fn tool_calls_are_set_beside_chat_of_the_same_campaign_and_load() {
        let (tools, chat) = (runs("tools-lite", 1, 0.5), runs("chat-lite-c4", 1, 1.0));
        let [output, tpot] = of(&tools, &chat).expect("ratios");
        assert!((output - 0.5).abs() < 0.01 && (tpot - 2.0).abs() < 0.04, "{output} {tpot}");
        assert_eq!(of(&tools, &runs("ladder-lite-c4", 1, 1.0)), None, "another route");
        assert_eq!(of(&tools, &runs("chat-lite-c4", 2, 1.0)), None, "another campaign");
        assert_eq!((of(&chat, &tools), of(&tools, &[])), (None, None));
        let mut more = chat.clone();
        more[1].scenario.arrival = Some(Arrival::Closed { concurrency: 8 });
        assert_eq!(of(&tools, &more), None, "another load");
    }

    #[test]
    fn the_newest_campaign_that_has_both_gives_the_runs() {
        let plain: Vec<RunRecord> =
            [1, 2].iter().flat_map(|campaign| runs("ladder-lite-c4", *campaign, 1.0)).collect();
        let form = runs("structured-lite", 1, 0.5);
        let [form, plain] = [&form, &plain].map(|runs| runs.iter().collect::<Vec<_>>());
        let [own, other] = of_one_campaign(&form, &plain).expect("a campaign");
        let all = own.iter().chain(&other);
        let ids: Vec<&str> = all.map(|run| &*run.campaign.as_ref().unwrap().id).collect();
        assert_eq!(ids, [&*campaign_id(1); 6]);
        assert!(ratios(&own, &other).is_some());
        assert_eq!(of_one_campaign(&form, &[]), None);
        assert_eq!(plain_of("tools-lite"), Some("chat-lite-c4"));
        assert_eq!(plain_of("chat-lite-c4"), None);
    }

    #[test]
    fn a_degraded_run_gives_no_ratio() {
        let (mut tools, chat) = (runs("tools-lite", 1, 0.5), runs("chat-lite-c4", 1, 1.0));
        tools[2].validity.verdict = ValidityVerdict::Degraded;
        tools[2].validity.reasons = vec!["a reason of another program".to_owned()];
        assert_eq!(of(&tools, &chat), None);
    }
}
