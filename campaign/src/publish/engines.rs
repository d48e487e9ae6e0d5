//! Table of a campaign that measured several engines, interleaved: the medians of both engines, and
//! their ratio over the pairs as `judge` finds it. It judges nothing.

use std::fmt::Write;

use judge::diff::policy::standard;
use judge::side_by_side::InTurns;
use judge::summary;
use schema::metric::{Unit, by_name};
use schema::run::RunRecord;

use crate::plan::Plan;

/// Title and metric of each row.
const ROWS: [(&str, &str); 4] = [
    ("output tokens/s", "output_tokens_per_s"),
    ("requests/s", "requests_per_s"),
    ("TTFT p50, ms", "ttft_us_p50"),
    ("TPOT p50, ms", "tpot_us_p50"),
];

/// Compares the first engine with each other one; none where there is one engine.
pub fn table(plan: &Plan, records: &[RunRecord]) -> Option<String> {
    let first = plan.variants.first()?;
    let others = (0..plan.variants.len()).filter(|at| plan.variants[*at].engine != first.engine);
    let mut text = String::new();
    for other in others {
        for cell in 0..plan.cells.len() {
            cell_table(plan, records, cell, other, &mut text);
        }
    }
    (!text.is_empty()).then_some(text)
}

fn cell_table(plan: &Plan, records: &[RunRecord], cell: usize, other: usize, text: &mut String) {
    let runs = |variant: usize| -> Vec<&RunRecord> {
        let planned = plan.slots.iter().filter(|run| (run.cell, run.variant) == (cell, variant));
        planned.filter_map(|run| records.iter().find(|record| record.id == run.run)).collect()
    };
    let (ours, theirs) = (runs(0), runs(other));
    let title = |at: usize| format!("{} {}", plan.variants[at].engine, plan.variants[at].title());
    let heading = format!("{}, {}", plan.cells[cell].scenario, plan.cells[cell].model);
    let (left, right) = (title(0), title(other));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{heading:<44} {left:>22} {right:>22} {:>8}   interval", "ratio");
    let pairs = InTurns::newest(&ours, &theirs);
    for (title, name) in ROWS {
        let row = pairs.as_ref().zip(by_name(name)).and_then(|(pairs, metric)| {
            let scale = if metric.unit == Unit::Microseconds { 1e-3 } else { 1.0 };
            let median = |runs: &[&RunRecord]| {
                let paired = runs.iter().copied().filter(|run| pairs.holds(run));
                summary::of_metric(metric, paired).map(|found| found.median * scale)
            };
            Some((median(&ours)?, median(&theirs)?, pairs.ratio(metric, &standard().file)?))
        });
        let _ = match row {
            Some((ours, theirs, ratio)) => {
                let interval = ratio.interval.map(|(low, high)| format!("{low:.2} to {high:.2}, "));
                let (interval, pairs) = (interval.unwrap_or_default(), ratio.pairs);
                let mean = ratio.mean;
                writeln!(
                    text,
                    "{title:<44} {ours:>22.2} {theirs:>22.2} {mean:>7.2}x   {interval}n={pairs}"
                )
            }
            None => writeln!(text, "{title:<44} {:>22}", "no pair has it"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Cell, PlannedRun, Round, Variant, interleave};
    use expect_test::expect;
    use samples::{Sample, campaign_id};

    /// A machine that is twice as fast in the second block; the first engine is 3 times as fast.
    fn campaign(engines: [&str; 2], repeats: u32) -> (Plan, Vec<RunRecord>) {
        let mut serial = 0;
        let slots = interleave(&Round::first(1, 2, repeats), || {
            serial += 1;
            campaign_id(serial)
        });
        let cell = Cell { model: "m".into(), tp: 1, scenario: "talk".into(), ..Cell::default() };
        let variants = engines.map(|engine| Variant::plain(engine, "v1.0.0")).to_vec();
        let record = |(serial, run): (u64, &PlannedRun)| {
            let speed = f64::from(run.repeat) * if run.variant == 0 { 3.0 } else { 1.0 };
            let place = (campaign_id(1), run.block, run.position);
            let engine = engines[run.variant].to_owned();
            let sample =
                Sample { engine, campaign: place, serial, seed: 7, speed, ..Sample::default() };
            RunRecord { id: run.run.clone(), ..sample.record() }
        };
        let records = (1..).zip(&slots).map(record).collect();
        (Plan { campaign: String::new(), variants, cells: vec![cell], slots }, records)
    }

    #[test]
    fn two_engines_are_shown_pair_by_pair() {
        let (plan, records) = campaign(["fast", "slow"], 2);
        expect![[r#"
            talk, m                                                 fast v1.0.0            slow v1.0.0    ratio   interval
            output tokens/s                                             5905.53                1968.51    3.00x   3.00 to 3.00, n=2
            requests/s                                                    46.14                  15.38    3.00x   3.00 to 3.00, n=2
            TTFT p50, ms                                                  96.66                 289.98    0.33x   0.33 to 0.33, n=2
            TPOT p50, ms                                                   5.00                  15.00    0.33x   0.33 to 0.33, n=2
        "#]].assert_eq(&table(&plan, &records).unwrap());
    }

    #[test]
    fn one_engine_has_no_table() {
        let (plan, records) = campaign(["same", "same"], 1);
        assert_eq!(table(&plan, &records), None);
    }
}
