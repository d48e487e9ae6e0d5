//! Ranking of engines and releases that serve a model on a hardware: cells are ranked by a metric
//! among those that meet the requested limits.

use std::collections::{BTreeMap, BTreeSet};

use schema::metric::{self, Better, METRICS, Metric};
use schema::run::{Kind, RunRecord};
use schema::verdict::Cell;
use serde::Serialize;

use crate::diff::cells::cell_of;
use crate::diff::words::plural;
use crate::records::{QueryError, Registry};
use crate::summary::{Summary, of_metric};
use crate::table::columns;
use crate::{facts, order};

/// Limit on the median of a metric over repeats: an upper limit where lower values are better, a
/// lower limit where higher values are.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Metric whose median over repeats the limit bounds.
    pub metric: &'static Metric,
    /// Value of the limit on the median, in the metric's unit.
    pub value: f64,
}

impl Limit {
    /// Parses a limit from `METRIC=VALUE`, with the value in the metric's unit.
    ///
    /// # Errors
    ///
    /// The text has no `=`, the metric does not exist, or the value is not a finite number.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let refused = || {
            QueryError(format!(
                "`{text}` is not a limit\nhint: write METRIC=VALUE in the metric's unit, such as \
                 tpot_us_p50=50000"
            ))
        };
        let (name, value) = text.split_once('=').ok_or_else(refused)?;
        let value: f64 = value.parse().ok().filter(|v: &f64| v.is_finite()).ok_or_else(refused)?;
        Ok(Self { metric: named(name)?, value })
    }

    fn is_kept(&self, runs: &[&RunRecord]) -> bool {
        let median = of_metric(self.metric, runs.iter().copied()).map(|summary| summary.median);
        median.is_some_and(|median| match self.metric.better {
            Better::Higher => median >= self.value,
            Better::Lower => median <= self.value,
        })
    }
}

/// Returns the metric called `name`.
///
/// # Errors
///
/// No metric has this name; the error lists those that exist.
pub fn named(name: &str) -> Result<&'static Metric, QueryError> {
    metric::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        QueryError(format!("no metric `{name}`\nhint: one of {}", known.join(", ")))
    })
}

/// Ranking query: model, hardware and scenario to rank on, metric to rank by, limits, and whether
/// figures published elsewhere are ranked in place of measured ones.
#[derive(Debug, Clone)]
pub struct Question {
    /// Id of the model that is to be served.
    pub model: String,
    /// Id of the hardware to serve on.
    pub hardware: String,
    /// Scenario to rank in, as `id` or `id@rev`; `None` for all scenarios.
    pub scenario: Option<String>,
    /// Metric by which candidates are ranked.
    pub metric: &'static Metric,
    /// Limits on metrics that the medians of each candidate must meet.
    pub limits: Vec<Limit>,
    /// True to rank figures published elsewhere, among themselves, in place of measured ones.
    pub published: bool,
}

/// Service level: limits on TTFT and TPOT that a kind of use requires; batch use requires none.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Name of the service level on pages.
    pub name: &'static str,
    /// Explanation of the service level, as a sentence for pages.
    pub meaning: &'static str,
    /// Upper limits on medians that define the service level, as metric name and value in the
    /// metric's unit; empty for batch use.
    limits: &'static [(&'static str, f64)],
}

/// Service levels at which pages name the best engine, strictest first.
pub const LEVELS: [Level; 3] = [
    Level {
        name: "interactive",
        meaning: "half of the users see a first token within a second, and then 20 tokens a second",
        limits: &[("ttft_us_p50", 1e6), ("tpot_us_p50", 50e3)],
    },
    Level {
        name: "reading",
        meaning: "half of the users see a first token within ten seconds, and then 10 tokens a \
                  second, which is faster than people read",
        limits: &[("ttft_us_p50", 10e6), ("tpot_us_p50", 100e3)],
    },
    Level { name: "batch", meaning: "nobody waits: throughput alone counts", limits: &[] },
];

impl Level {
    /// Returns the limits of the service level, as limits of a ranking query.
    pub fn limits(&self) -> Vec<Limit> {
        let limit = |(name, value): &(&str, f64)| {
            Some(Limit { metric: metric::by_name(name)?, value: *value })
        };
        self.limits.iter().filter_map(limit).collect()
    }
}

/// Ranked candidate: one release in one cell with its repeats, or one published result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Cell of the candidate: its engine, hardware, model, configuration and scenario.
    pub cell: Cell,
    /// Release of the candidate: the version of its cell's engine.
    pub release: String,
    /// Name of the metric by which candidates are ranked.
    pub metric: &'static str,
    /// Summary of the ranking metric over the repeats, in the metric's unit.
    pub figure: Summary,
    /// Start of the newest run of the candidate, RFC 3339; `None` if no run states its start.
    pub measured_at: Option<String>,
    /// Ids of the runs that are the candidate's repeats.
    pub runs: Vec<String>,
    /// True when the candidate's scenario is a level of a concurrency sweep.
    #[serde(skip)]
    pub is_in_sweep: bool,
}

/// Result of a ranking query: candidates ordered by scenario, and the best first within each.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Answer {
    /// Candidates that meet all limits, ordered by scenario, and the best first within each.
    pub candidates: Vec<Candidate>,
    /// Number of candidates left out because they miss a limit or lack its metric. A candidate
    /// without the ranking metric is left out too, and not counted.
    pub beyond_limits: usize,
    /// Number of runs left out because they are retracted, INVALID, or of another status than `ok`.
    pub left_out: usize,
}

impl Answer {
    /// Returns the candidate that stands for the whole ranking; `None` without candidates. If there
    /// are levels of concurrency sweeps, it is the one among them with the highest median of the
    /// ranking metric. Otherwise it is the best of the scenario that most engines ran (the first in
    /// page order if several), because an engine that ran alone is best among nobody.
    pub fn foremost(&self) -> Option<&Candidate> {
        let in_sweep = self.candidates.iter().filter(|found| found.is_in_sweep);
        let best_of_sweep = in_sweep.max_by(|a, b| a.figure.median.total_cmp(&b.figure.median));
        let widest = || {
            let mut engines: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for Candidate { cell, .. } in &self.candidates {
                engines.entry(&cell.scenario).or_default().insert(&cell.engine);
            }
            // `min_by` returns the first of equal elements: within a scenario the best comes first.
            self.candidates.iter().min_by(|a, b| {
                let count = |found: &Candidate| engines[found.cell.scenario.as_str()].len();
                let in_order = || order::scenarios(&a.cell.scenario, &b.cell.scenario);
                count(b).cmp(&count(a)).then_with(in_order)
            })
        };
        best_of_sweep.or_else(widest)
    }

    /// Returns the best candidate of the scenario that comes first in page order; `None` without
    /// candidates.
    pub fn first(&self) -> Option<&Candidate> {
        self.candidates.iter().min_by(|a, b| order::scenarios(&a.cell.scenario, &b.cell.scenario))
    }
}

/// Key that all repeats of a candidate share: cell, whether prompts are sent as text, release, and,
/// for a published result, the id of its record.
type Repeats = (Cell, bool, String, Option<String>);

/// Ranks the releases in the cells of `registry` that match `question`. Figures published elsewhere
/// are never ranked beside measured ones, and each result in a published report is a candidate of
/// its own.
///
/// # Errors
///
/// The registry has no measured run (or, if the question asks for published results, no imported
/// one) of the question's model, hardware and scenario.
pub fn best(registry: &Registry, question: &Question) -> Result<Answer, QueryError> {
    let asked = registry.runs.iter().map(|stored| &stored.record);
    let mut asked = asked.filter(|record| question.covers(record)).peekable();
    if asked.peek().is_none() {
        return Err(QueryError(format!(
            "no run of `{}` on `{}`\nhint: `redline-results list` shows what there is",
            question.model, question.hardware
        )));
    }
    let mut groups: BTreeMap<Repeats, Vec<&RunRecord>> = BTreeMap::new();
    let mut answer = Answer::default();
    for record in asked {
        if !facts::is_believed(record) || registry.retracted.contains_key(&record.id) {
            // Left-out runs are counted and reported, so that a missing engine does not go
            // unnoticed.
            answer.left_out += 1;
            continue;
        }
        // Prompts sent as text cost the server tokenization, so such runs are a group of their
        // own.
        let text = record.scenario.prompt_form == Some(schema::run::PromptForm::Text);
        let block = question.published.then(|| record.id.clone());
        let key = (cell_of(record), text, record.engine.release.clone(), block);
        groups.entry(key).or_default().push(record);
    }
    for ((cell, _, release, _), runs) in groups {
        let Some(figure) = of_metric(question.metric, runs.iter().copied()) else { continue };
        if !question.limits.iter().all(|limit| limit.is_kept(&runs)) {
            answer.beyond_limits += 1;
            continue;
        }
        let started = |run: &&RunRecord| run.time.as_ref()?.started_at.clone();
        answer.candidates.push(Candidate {
            cell,
            release,
            metric: question.metric.name,
            figure,
            measured_at: runs.iter().filter_map(started).max(),
            runs: runs.iter().map(|run| run.id.clone()).collect(),
            is_in_sweep: runs.first().is_some_and(|run| facts::sweep(&run.scenario).is_some()),
        });
    }
    answer.candidates.sort_by(|a, b| {
        let better = match question.metric.better {
            Better::Higher => b.figure.median.total_cmp(&a.figure.median),
            Better::Lower => a.figure.median.total_cmp(&b.figure.median),
        };
        a.cell.scenario.cmp(&b.cell.scenario).then(better)
    });
    Ok(answer)
}

impl Question {
    fn covers(&self, run: &RunRecord) -> bool {
        let scenario = format!("{}@{}", run.scenario.id, run.scenario.rev);
        let asked = self.scenario.as_ref();
        (run.kind == Kind::Imported) == self.published
            && run.model.id == self.model
            && run.hardware.id == self.hardware
            && asked.is_none_or(|asked| *asked == scenario || *asked == run.scenario.id)
    }
}

/// Formats the result of a ranking query as a text table.
pub fn table(answer: &Answer) -> String {
    let head = ["SCENARIO", "RELEASE", "CONFIG", "MEDIAN", "LEAST", "MOST", "N", "MEASURED"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(answer.candidates.iter().map(|candidate| {
        let Candidate { cell, release, figure, measured_at, .. } = candidate;
        let number = |value: f64| format!("{value:.1}");
        vec![
            cell.scenario.clone(),
            format!("{} {release}", cell.engine),
            cell.config.clone(),
            number(figure.median),
            number(figure.min),
            number(figure.max),
            figure.n.to_string(),
            measured_at.as_deref().and_then(|at| at.get(..10)).unwrap_or("unknown").to_owned(),
        ]
    }));
    let mut text = match answer.candidates.first() {
        Some(first) => {
            format!("{}, best first in each scenario\n{}", first.metric, columns(&lines))
        }
        None => "no release keeps the limits".to_owned(),
    };
    if answer.beyond_limits > 0 {
        text.push_str(&format!("\n{} beyond the limits", answer.beyond_limits));
    }
    if answer.left_out > 0 {
        let runs = plural(answer.left_out, "run");
        text.push_str(&format!("\n{runs} left out: retracted, failed, or not to be believed"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary;

    #[test]
    fn a_sweep_stands_for_a_ranking_and_else_the_scenario_of_most_engines() {
        let candidate = |engine: &str, scenario: &str, rate: f64, is_in_sweep: bool| Candidate {
            cell: Cell { engine: engine.into(), scenario: scenario.into(), ..Cell::default() },
            release: "v1".into(),
            metric: "output_tokens_per_s",
            figure: summary::of(&[rate]).unwrap(),
            measured_at: None,
            runs: Vec::new(),
            is_in_sweep,
        };
        let wide = [
            candidate("a", "balanced@1", 9.0, false),
            candidate("b", "sharegpt@1", 3.0, false),
            candidate("a", "sharegpt@1", 2.0, false),
        ];
        let mut answer = Answer { candidates: wide.to_vec(), ..Answer::default() };
        assert_eq!(answer.foremost(), Some(&wide[1]));
        assert_eq!(answer.first(), Some(&wide[1]));
        answer.candidates.push(candidate("a", "x-c1@1", 1.0, true));
        answer.candidates.push(candidate("a", "x-c4@1", 1.5, true));
        assert_eq!(answer.foremost(), answer.candidates.last());
    }

    #[test]
    fn levels_grow_laxer_and_name_metrics_that_exist() {
        for level in &LEVELS {
            assert_eq!(level.limits().len(), level.limits.len(), "`{}`", level.name);
        }
        for two in LEVELS.windows(2) {
            for lax in two[1].limits() {
                let strict = two[0].limits().into_iter().find(|l| l.metric.name == lax.metric.name);
                assert!(strict.is_some_and(|strict| strict.value <= lax.value), "{}", two[1].name);
            }
        }
    }
}
