//! Trials of the gate: a trial compares the baseline with a planted change as the gate does, and is
//! recorded as one line.

use std::collections::BTreeMap;
use std::time::Duration;

use campaign::node::alternation::{Alternating, Until};
use campaign::places::CampaignPlaces;
use campaign::plan::PlannedRun;
use campaign::process::micros;
use campaign::server_spec::{ReadyCell, ServerSpec};
use campaign::world::Ids;
use campaign::{Stop, World};
use judge::alternation::compare::Gate;
use judge::alternation::replay::{Noise, Outcome, RecordedStart};
use judge::alternation::{
    Call, Course, Judged, at_the_end, by_start, judge, pooled, share_us, text,
};
use schema::alternation::AlternatingComparison;
use schema::comparison::DecisionKind;
use schema::run::HardwareFacts;
use schema::scenario::Arrival;
use serde::{Deserialize, Serialize};

use super::SAME;
use super::planted::Kind;
use crate::local_bench;

/// Number by which log ratios are multiplied before they are rounded: 1e-5 is 0.001 %.
const LOG_STEPS: f64 = 1e5;
/// Number by which percentages are multiplied before they are rounded.
const PCT_STEPS: f64 = 1e3;

/// Finished trial, one line of `docs/method/gate-trials.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Begin of the trial, as RFC 3339 in UTC.
    pub began_at: String,
    /// Id of the hardware.
    pub hardware: String,
    /// Id of the planted change.
    pub kind: String,
    /// Commit of the baseline.
    pub commit: String,
    /// Time for the comparisons of all scenarios, in microseconds.
    pub budget_us: u64,
    /// True where each scenario used its whole time, for the half-widths of the intervals. Such a
    /// trial counts in no rate.
    pub whole: bool,
    /// Comparisons of the scenarios in the order of time.
    pub scenarios: Vec<ScenarioTrial>,
    /// Judgements of the release-blocking metrics over all scenarios together; empty where fewer than
    /// two scenarios were compared.
    pub pooled: Vec<JudgedMetric>,
    /// Decision of the gate.
    pub decision: DecisionKind,
    /// True where any release-blocking metric was called worse.
    pub any_worse: bool,
    /// True where every release-blocking metric was called unchanged: in its scenario, or over all
    /// scenarios together while its scenario left it open.
    pub all_unchanged: bool,
    /// Time from the first comparison's begin to the first call that a wanted metric became worse,
    /// in microseconds; null where there is none.
    pub found_us: Option<u64>,
    /// Time of all comparisons in microseconds.
    pub spent_us: u64,
    /// Time of the trial on the wall clock in microseconds.
    pub wall_us: u64,
}

/// Comparison of one scenario in a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenarioTrial {
    /// Scenario, as `id@rev`.
    pub scenario: String,
    /// Arrival process of the scenario; null where it is not known.
    pub arrival: Option<Arrival>,
    /// Number of equal parts of the error probability, of which each release-blocking metric has one.
    pub family: u32,
    /// Time that the comparison could take, in microseconds.
    pub budget_us: u64,
    /// End of each start in microseconds since the comparison began.
    pub ends_us: Vec<u64>,
    /// Number of slices of each start.
    pub slices: Vec<u32>,
    /// Log ratio, candidate over baseline, of each metric in each start, rounded to 1e-5; null where
    /// the start does not have the metric.
    pub log_ratios: BTreeMap<String, Vec<Option<f64>>>,
    /// Judgements of the release-blocking metrics.
    pub judged: Vec<JudgedMetric>,
}

/// Judgement of one metric in a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgedMetric {
    /// Name of the metric.
    pub metric: String,
    /// Call about the metric.
    pub call: Call,
    /// Effect in percent, candidate over baseline.
    pub effect_pct: f64,
    /// Interval of the effect in percent.
    pub interval_pct: (f64, f64),
    /// Time of the comparison before the call, in microseconds.
    pub spent_us: u64,
    /// Number of starts behind the judgement.
    pub starts: u32,
    /// Number of slices behind the judgement.
    pub slices: u32,
}

impl Trial {
    /// Returns the effects of a metric in percent, candidate over baseline, over all starts of each
    /// scenario that has it.
    pub fn effects_pct(&self, metric: &str) -> Vec<f64> {
        let of = |scenario: &ScenarioTrial| {
            let found = scenario.estimates().into_iter().find(|one| one.metric.name == metric);
            found.map(|one| one.effect_pct)
        };
        self.scenarios.iter().filter_map(of).collect()
    }
}

impl ScenarioTrial {
    fn of(comparison: &AlternatingComparison, judged: &[Judged]) -> Self {
        let starts = &comparison.starts;
        let slices = starts.iter().map(|start| {
            let count = start.alternation.as_ref().map_or(0, |found| found.slices.len());
            u32::try_from(count).unwrap_or(u32::MAX)
        });
        let of_metric = |name: &'static str| {
            let logs = by_start(starts, name).into_iter();
            (name.to_owned(), logs.map(|log| Some(rounded(log?, LOG_STEPS))).collect())
        };
        let names = judge::alternation::metrics(comparison.arrival.as_ref());
        Self {
            scenario: comparison.scenario.clone(),
            arrival: comparison.arrival.clone(),
            family: comparison.family,
            budget_us: comparison.budget_us,
            ends_us: starts.iter().map(|start| start.end_us).collect(),
            slices: slices.collect(),
            log_ratios: names.map(|(metric, ..)| of_metric(metric.name)).collect(),
            judged: judged.iter().filter(|one| one.gates).map(JudgedMetric::of).collect(),
        }
    }

    /// Returns the starts as noise from which replays draw.
    pub fn noise(&self) -> Noise {
        let before = std::iter::once(&0).chain(&self.ends_us);
        let took = self.ends_us.iter().zip(before).map(|(end, begin)| end.saturating_sub(*begin));
        let of_start = |(index, (took_us, slices)): (usize, (u64, &u32))| RecordedStart {
            took_us,
            slices: *slices as usize,
            log_ratios: (self.log_ratios.iter())
                .filter_map(|(name, logs)| Some((name.clone(), (*logs.get(index)?)?)))
                .collect(),
        };
        let starts = took.zip(&self.slices).enumerate().map(of_start).collect();
        Noise { arrival: self.arrival.clone(), family: self.family, starts }
    }

    /// Estimates every metric from all starts of the comparison.
    pub fn estimates(&self) -> Vec<Judged> {
        let log_ratios = |name: &str, count: usize| -> Vec<f64> {
            let logs = self.log_ratios.get(name).map_or(&[][..], |logs| &logs[..count]);
            logs.iter().copied().flatten().collect()
        };
        at_the_end(&Course {
            arrival: self.arrival.as_ref(),
            family: self.family,
            budget_us: self.budget_us,
            ends_us: self.ends_us.clone(),
            slices: self.slices.iter().map(|count| *count as usize).collect(),
            log_ratios: Box::new(log_ratios),
        })
    }
}

impl JudgedMetric {
    fn of(judged: &Judged) -> Self {
        let (low, high) = judged.interval_pct;
        Self {
            metric: judged.metric.name.to_owned(),
            call: judged.call,
            effect_pct: rounded(judged.effect_pct, PCT_STEPS),
            interval_pct: (rounded(low, PCT_STEPS), rounded(high, PCT_STEPS)),
            spent_us: judged.extent.spent_us,
            starts: judged.extent.starts,
            slices: judged.extent.slices,
        }
    }
}

fn rounded(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

/// Inputs that are the same for all trials of one start of `gate-bench`: machine, baseline and
/// settings.
#[derive(Debug)]
pub struct Bench<'a> {
    pub world: &'a World,
    pub hardware: &'a HardwareFacts,
    pub commit: &'a str,
    pub baseline: &'a ServerSpec,
    /// Cells with their inputs, one for each scenario.
    pub cells: &'a [ReadyCell],
    /// Time for the comparisons of all cells, in microseconds.
    pub budget_us: u64,
    /// True to use the whole time in each cell.
    pub whole: bool,
}

impl<'a> Bench<'a> {
    /// Carries out one trial.
    ///
    /// # Errors
    /// The command is interrupted, or the machine, a tool or a file operation fails.
    pub fn trial(&self, kind: &Kind, candidate: &ServerSpec, ids: &mut Ids) -> Result<Trial, Stop> {
        let (world, id) = (self.world, ids.next_id());
        let (began_at, began) = (world.clock.rfc3339(), world.clock.elapsed());
        let of_cell =
            |cell: &'a ReadyCell| (&*cell.cell.model, Some(&cell.scenario.scenario.arrival));
        let planned_cells: Vec<pooled::Planned<'_>> = self.cells.iter().map(of_cell).collect();
        let family = pooled::family(&planned_cells);
        let places = CampaignPlaces::at(&world.places.target("gate-bench/trials").join(&id));
        let mut comparisons: Vec<AlternatingComparison> = Vec::new();
        let mut scenarios: Vec<(u64, Vec<Judged>)> = Vec::new();
        let mut together: Vec<Judged> = Vec::new();
        // A planted change is found by its first call; what follows would not change the rate.
        let until = match (self.whole, kind.worse.is_empty()) {
            (true, _) => Until::Spent,
            (false, true) => Until::Decided,
            (false, false) => Until::Worse(&kind.worse),
        };
        for (index, cell) in self.cells.iter().enumerate() {
            let found = Outcome::of(&scenarios, &together, &kind.worse).found_us.is_some();
            // The size of a change that no gate blocks is known after one scenario.
            let is_shown = kind.worse.is_empty() && kind.id != SAME && index > 0;
            if !self.whole && (found || is_shown) {
                break;
            }
            let spent_us = scenarios.iter().map(|(us, _)| us).sum();
            let left = share_us(self.budget_us, spent_us, self.cells.len() - index);
            let planned = [0, 1].map(|variant| planned(ids.next_id(), variant, index));
            let bench = local_bench(world, &id, &places, self.hardware);
            let alternating = Alternating {
                bench: &bench,
                cell,
                specs: [self.baseline, candidate],
                planned: [&planned[0], &planned[1]],
                family,
                budget: Duration::from_micros(left),
                until,
            };
            let comparison = alternating.carry_out(Vec::new(), &mut |comparison| {
                world.console.passing(&text::passing(comparison));
                Ok(())
            })?;
            world.console.note(&format!("{}: {}", cell.scenario.id, text::passing(&comparison)));
            let took_us = comparison.starts.last().map_or(0, |start| start.end_us);
            scenarios.push((took_us, judge(&comparison)));
            comparisons.push(comparison);
            let courses: Vec<Course<'_>> = comparisons.iter().map(Course::of).collect();
            together = pooled::judge_courses(&courses, self.cells.len(), &planned_cells);
        }
        let outcome = Outcome::of(&scenarios, &together, &kind.worse);
        let gate = Gate {
            campaign: &id,
            hardware: &self.hardware.id,
            command: &world.command,
            comparisons: &comparisons,
        };
        let pairs = comparisons.iter().zip(&scenarios);
        Ok(Trial {
            began_at,
            hardware: self.hardware.id.clone(),
            kind: kind.id.clone(),
            commit: self.commit.to_owned(),
            budget_us: self.budget_us,
            whole: self.whole,
            scenarios: pairs.map(|(one, (_, judged))| ScenarioTrial::of(one, judged)).collect(),
            pooled: together.iter().map(JudgedMetric::of).collect(),
            decision: gate.diff().decision.verdict,
            any_worse: outcome.any_worse,
            all_unchanged: outcome.all_unchanged,
            found_us: outcome.found_us,
            spent_us: outcome.spent_us,
            wall_us: micros(world.clock.elapsed().saturating_sub(began)),
        })
    }
}

fn planned(run: String, variant: usize, cell: usize) -> PlannedRun {
    PlannedRun { run, variant, cell, block: 0, position: 0, repeat: 1, stage: None, server: None }
}
