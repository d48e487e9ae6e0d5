//! Engines side by side: the table of a campaign that measured several, interleaved. It shows what
//! each did in the same block, and judges nothing.

use std::fmt::Write;

use judge::quantile::{median, percentile_f64};
use schema::run::{Metrics, RunRecord, Status};
use serde::Serialize;

use crate::plan::Plan;

/// Values over the repeats, in their order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeats {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub values: Vec<f64>,
}

impl Repeats {
    /// `None` without values.
    #[must_use]
    pub fn of(values: Vec<f64>) -> Option<Self> {
        let (min, max) = (percentile_f64(&values, 0.0)?, percentile_f64(&values, 1.0)?);
        Some(Self { median: median(&values)?, min, max, values })
    }
}

/// A figure of a run, as people say it.
type Figure = (&'static str, fn(&Metrics) -> Option<f64>);

const FIGURES: [Figure; 4] = [
    ("output tokens/s", |metrics| metrics.output_tokens_per_s),
    ("requests/s", |metrics| metrics.requests_per_s),
    ("TTFT p50, ms", |metrics| metrics.ttft_us.as_ref()?.p50.map(ms)),
    ("TPOT p50, ms", |metrics| metrics.tpot_us.as_ref()?.p50.map(ms)),
];

#[expect(clippy::cast_precision_loss, reason = "microseconds of a request are far below 2^53")]
fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

/// The first engine's runs beside those of each other one; none where there is one engine.
#[must_use]
pub fn table(plan: &Plan, records: &[RunRecord]) -> Option<String> {
    let first = plan.variants.first()?;
    let others =
        (0..plan.variants.len()).filter(|variant| plan.variants[*variant].engine != first.engine);
    let mut text = String::new();
    for other in others {
        for cell in 0..plan.cells.len() {
            text += &of_cell(plan, records, cell, other);
        }
    }
    (!text.is_empty()).then_some(text)
}

/// One cell: every figure that both sides have in some block.
fn of_cell(plan: &Plan, records: &[RunRecord], cell: usize, other: usize) -> String {
    let (ours, theirs) = (&plan.variants[0], &plan.variants[other]);
    let (scenario, model) = (&plan.cells[cell].scenario, &plan.cells[cell].model);
    let heading = format!("{scenario}, {model}");
    let (left, right) = (
        format!("{} {}", ours.engine, ours.title()),
        format!("{} {}", theirs.engine, theirs.title()),
    );
    let mut text =
        format!("{heading:<44} {left:>22} {right:>22} {:>8}   over the pairs\n", "ratio");
    for (name, figure) in FIGURES {
        let pairs = pairs(plan, records, (cell, other), figure);
        let variant = |take: fn(&(f64, f64)) -> f64| Repeats::of(pairs.iter().map(take).collect());
        let ratio = variant(|(ours, theirs)| ours / theirs);
        // Writing to a string cannot fail.
        let _ = match (variant(|pair| pair.0), variant(|pair| pair.1), ratio) {
            (Some(ours), Some(theirs), Some(ratio)) => writeln!(
                text,
                "{name:<44} {:>22.2} {:>22.2} {:>7.2}x   {:.2} to {:.2}, {}",
                ours.median,
                theirs.median,
                ratio.median,
                ratio.min,
                ratio.max,
                pairs.len(),
            ),
            _ => writeln!(text, "{name:<44} {:>22} {:>22}", "no pair has it", ""),
        };
    }
    text
}

/// The figure of the first side and of `other`, block by block.
fn pairs(
    plan: &Plan,
    records: &[RunRecord],
    (cell, other): (usize, usize),
    figure: fn(&Metrics) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let measured = |block: u32, variant: usize| {
        let mut slots = plan.slots.iter();
        let slot = slots.find(|s| (s.cell, s.block, s.variant) == (cell, block, variant))?;
        let record = records.iter().find(|record| record.id == slot.run)?;
        let value = record.metrics.as_ref().and_then(figure)?;
        (record.status == Status::Ok && value > 0.0).then_some(value)
    };
    let mut blocks: Vec<u32> =
        plan.slots.iter().filter(|slot| slot.cell == cell).map(|slot| slot.block).collect();
    blocks.dedup();
    blocks
        .iter()
        .filter_map(|block| Some((measured(*block, 0)?, measured(*block, other)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Cell, Round, Variant, interleave};
    use expect_test::expect;

    fn campaign(engines: [&str; 2], repeats: u32) -> (Plan, Vec<RunRecord>) {
        let mut count = 0;
        let round = Round::first(1, 2, repeats);
        let slots = interleave(&round, || {
            count += 1;
            count.to_string()
        });
        let cell = Cell { model: "m".into(), tp: 1, scenario: "talk".into(), ..Cell::default() };
        let variants = engines.map(|engine| Variant::plain(engine, "v1.0.0")).to_vec();
        let plan = Plan { campaign: String::new(), variants, cells: vec![cell], slots };
        let record = |slot: &crate::plan::PlannedRun| {
            // The machine is twice as fast in the second block; the first side is 3 times as fast.
            let speed = f64::from(slot.repeat) * if slot.variant == 0 { 300.0 } else { 100.0 };
            let metrics = Metrics { output_tokens_per_s: Some(speed), ..Metrics::default() };
            RunRecord { id: slot.run.clone(), metrics: Some(metrics), ..RunRecord::default() }
        };
        let records = plan.slots.iter().map(record).collect();
        (plan, records)
    }

    #[test]
    fn two_engines_are_shown_pair_by_pair() {
        let (plan, records) = campaign(["fast", "slow"], 2);
        expect![[r#"
            talk, m                                                 fast v1.0.0            slow v1.0.0    ratio   over the pairs
            output tokens/s                                              450.00                 150.00    3.00x   3.00 to 3.00, 2
            requests/s                                           no pair has it                       
            TTFT p50, ms                                         no pair has it                       
            TPOT p50, ms                                         no pair has it                       
        "#]].assert_eq(&table(&plan, &records).unwrap());
    }

    #[test]
    fn an_even_number_of_repeats_has_its_median_in_between() {
        assert_eq!(Repeats::of(vec![4.0, 1.0, 2.0, 3.0]).map(|r| r.median), Some(2.5));
        assert_eq!(Repeats::of(Vec::new()), None);
    }

    #[test]
    fn a_failed_run_leaves_its_pair_out_and_one_engine_has_no_table() {
        let (plan, mut records) = campaign(["fast", "slow"], 2);
        records[0].status = Status::Partial;
        assert!(table(&plan, &records).unwrap().contains("3.00 to 3.00, 1\n"));
        let (plan, records) = campaign(["same", "same"], 1);
        assert_eq!(table(&plan, &records), None);
    }
}
