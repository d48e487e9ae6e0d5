//! What serves a model best on a hardware: cells of every engine and release, ranked by a metric
//! among those that keep the limits asked for.

use std::collections::BTreeMap;

use schema::metric::{self, Better, METRICS, Metric};
use schema::run::{Kind, RunRecord, Status, ValidityVerdict};
use schema::verdict::Cell;
use serde::Serialize;

use crate::diff::cells::cell_of;
use crate::records::Registry;
use crate::summary::{Summary, of_metric};
use crate::table::columns;

/// A question that cannot be asked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BestError {
    /// No metric is called so.
    #[error("no metric `{name}`\nhint: one of {known}")]
    NoMetric {
        /// Backend as given by the flag, or the tool's default.
        name: String,
        /// Names that are, with commas between them.
        known: String,
    },
    /// A text is no `METRIC=VALUE`.
    #[error(
        "`{0}` is not a limit\nhint: write METRIC=VALUE in the metric's unit, such as tpot_us_p50=50000"
    )]
    NotALimit(String),
    /// There is no run to answer it with.
    #[error(
        "no run of `{model}` on `{hardware}`\nhint: `redline-results list` shows what there is"
    )]
    Nothing {
        /// As it was asked for.
        model: String,
        /// As it was asked for.
        hardware: String,
    },
}

/// A limit that the median over repeats has to keep: at most the value where lower is better, at
/// least it where higher is.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// What is limited.
    pub metric: &'static Metric,
    /// In the metric's unit.
    pub value: f64,
}

impl Limit {
    /// Reads `METRIC=VALUE`.
    ///
    /// # Errors
    /// No such metric, or no number.
    pub fn parse(text: &str) -> Result<Self, BestError> {
        let refused = || BestError::NotALimit(text.to_owned());
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

/// Finds a metric, or says which there are.
///
/// # Errors
/// No metric has this name.
pub fn named(name: &str) -> Result<&'static Metric, BestError> {
    metric::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        BestError::NoMetric { name: name.to_owned(), known: known.join(", ") }
    })
}

/// Workload: the requests and how they are drawn.
#[derive(Debug, Clone)]
pub struct Question {
    /// The model's id.
    pub model: String,
    /// Id of the hardware.
    pub hardware: String,
    /// `id`, or `id@rev`; all of them where it is not given.
    pub scenario: Option<String>,
    /// What the best is best in.
    pub metric: &'static Metric,
    /// What the median of each candidate has to keep.
    pub limits: Vec<Limit>,
    /// Published figures of others, which are ranked among themselves, in place of measured ones.
    pub published: bool,
}

/// What a service promises its users, as limits.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// What pages call it.
    pub name: &'static str,
    /// A sentence for pages.
    pub meaning: &'static str,
    /// Name of a metric and the most that its median may be, in its unit.
    limits: &'static [(&'static str, f64)],
}

/// The levels at which pages name the best engine, the strictest first.
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
    /// The level's limits.
    #[must_use]
    pub fn limits(&self) -> Vec<Limit> {
        let limit = |(name, value): &(&str, f64)| {
            Some(Limit { metric: metric::by_name(name)?, value: *value })
        };
        self.limits.iter().filter_map(limit).collect()
    }
}

/// A release in a cell, with its repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The cell.
    pub cell: Cell,
    /// The version of the cell's engine.
    pub release: String,
    /// Name of the metric that was asked for.
    pub metric: &'static str,
    /// Median over the runs, in the metric's unit.
    pub figure: Summary,
    /// Start of the last of its runs, RFC 3339.
    pub measured_at: Option<String>,
    /// Ids of the repeats.
    pub runs: Vec<String>,
}

/// The answer: candidates by scenario, the best of each first.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Answer {
    /// Those that keep the limits.
    pub candidates: Vec<Candidate>,
    /// Releases in cells that do not keep the limits.
    pub beyond_limits: usize,
    /// Runs that were left out: retracted, failed, or not to be believed.
    pub left_out: usize,
}

/// What repeats share: cell, prompts as text, release, published block.
type Repeats = (Cell, bool, String, Option<String>);

/// Ranks the cells of `registry` that answer `question`. Figures of others are never ranked beside
/// measured ones, and each of their blocks stands for itself.
///
/// # Errors
/// No run is of that model on that hardware.
pub fn best(registry: &Registry, question: &Question) -> Result<Answer, BestError> {
    let asked = registry.runs.iter().filter(|stored| question.covers(&stored.record));
    let asked: Vec<_> = asked.collect();
    if asked.is_empty() {
        let (model, hardware) = (question.model.clone(), question.hardware.clone());
        return Err(BestError::Nothing { model, hardware });
    }
    let mut groups: BTreeMap<Repeats, Vec<&RunRecord>> = BTreeMap::new();
    let mut answer = Answer::default();
    for run in asked {
        let record = &run.record;
        if !is_usable(record) || registry.retracted.contains_key(&record.id) {
            answer.left_out += 1;
            continue;
        }
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

fn is_usable(run: &RunRecord) -> bool {
    run.status == Status::Ok && run.validity.verdict != ValidityVerdict::Invalid
}

/// The answer as text.
#[must_use]
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
        let runs = if answer.left_out == 1 { "run" } else { "runs" };
        text.push_str(&format!(
            "\n{} {runs} left out: retracted, failed, or not to be believed",
            answer.left_out
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
