//! Ranking of engines and releases that serve a model on a hardware: cells are ranked by a metric
//! among those that meet the requested limits.

use std::collections::BTreeMap;

use schema::metric::{self, Better, METRICS, Metric};
use schema::run::{Kind, PromptForm, RunRecord};
use schema::verdict::Cell;
use serde::Serialize;

use crate::diff::cells::cell_of;
use crate::diff::words::plural;
use crate::newest::newest;
use crate::records::{QueryError, Registry};
use crate::summary::{Summary, of_metric};
use crate::table::columns;
use crate::{facts, validity};

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

    /// True when the median of the limit's metric over `runs` meets the limit; false where no run
    /// has the metric.
    pub fn is_met(&self, runs: &[&RunRecord]) -> bool {
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

/// Ranking query over measured runs: model, hardware and scenario to rank on, metric to rank by, and
/// limits.
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
}

/// Ranked candidate: one release in one cell with its repeats.
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
}

/// Result of a ranking query: candidates ordered by scenario, and the best first within each.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Answer {
    /// Candidates that meet all limits, ordered by scenario, and the best first within each.
    pub candidates: Vec<Candidate>,
    /// Number of candidates left out because they miss a limit or lack its metric.
    pub beyond_limits: usize,
    /// Number of runs left out because they are retracted, or because the ranking metric does not
    /// pass [`validity::value`].
    pub left_out: usize,
}

/// Release in one cell with the runs from which its figures come, or one published result.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// Cell of the setup: its engine, hardware, model, configuration and scenario.
    pub cell: Cell,
    /// Release of the setup's engine.
    pub release: String,
    /// True when prompts were sent as text, which costs the server tokenization.
    pub is_text: bool,
    /// Runs of the newest campaign that measured the setup ([`newest()`]); never empty.
    pub runs: Vec<&'a RunRecord>,
}

impl Setup<'_> {
    /// True for a run of the setup, of whichever campaign.
    pub fn covers(&self, run: &RunRecord) -> bool {
        let Cell { engine, hardware, model, .. } = &self.cell;
        // Names are compared first, because most runs differ in one and a cell costs text.
        let is_near = (&run.engine.name, &run.hardware.id, &run.model.id)
            == (engine, hardware, model)
            && run.engine.release == self.release;
        let is_text = run.scenario.prompt_form == Some(PromptForm::Text);
        is_near && is_text == self.is_text && cell_of(run) == self.cell
    }
}

/// Key that all repeats of a setup share: cell, whether prompts are sent as text, release, and, for
/// a published result, the id of its record.
type Repeats = (Cell, bool, String, Option<String>);

/// Groups those of `records` that have figures into setups, in the order of their cells. Each
/// published result is a setup of its own, and of setups that were measured in several campaigns
/// only the newest campaign counts.
pub fn setups<'a>(records: impl Iterator<Item = &'a RunRecord>) -> Vec<Setup<'a>> {
    let mut groups: BTreeMap<Repeats, Vec<&RunRecord>> = BTreeMap::new();
    for record in records {
        let is_text = record.scenario.prompt_form == Some(PromptForm::Text);
        let block = (record.kind == Kind::Imported).then(|| record.id.clone());
        let key = (cell_of(record), is_text, record.engine.release.clone(), block);
        groups.entry(key).or_default().push(record);
    }
    let setup = |((cell, is_text, release, _), runs): (Repeats, Vec<&'a RunRecord>)| {
        let runs = newest(&runs, |run| (*run, facts::figures(run, false)));
        (!runs.is_empty()).then_some(Setup { cell, release, is_text, runs })
    };
    groups.into_iter().filter_map(setup).collect()
}

/// Builds the error of a question without a measured run, which says where others published results.
fn nothing_measured(registry: &Registry, question: &Question) -> QueryError {
    let Question { model, hardware, .. } = question;
    let published = registry.standing().filter(|stored| {
        let run = &stored.record;
        run.kind == Kind::Imported && run.model.id == *model && run.hardware.id == *hardware
    });
    QueryError(match published.count() {
        0 => format!(
            "no run of `{model}` on `{hardware}`\nhint: `redline-results list` shows what there is"
        ),
        count => format!(
            "no run of `{model}` on `{hardware}` was measured; {} published elsewhere\nhint: \
             `results/pages/picks/{model}/{hardware}.md` shows them, and `redline-results list --model \
             {model} --hardware {hardware}` lists them",
            match count {
                1 => "1 result is".to_owned(),
                count => format!("{count} results are"),
            }
        ),
    })
}

/// Ranks the measured releases in the cells of `registry` that match `question`.
///
/// # Errors
///
/// The registry has no measured run of the question's model, hardware and scenario.
pub fn best(registry: &Registry, question: &Question) -> Result<Answer, QueryError> {
    let asked = registry.runs.iter().map(|stored| &stored.record);
    let asked: Vec<&RunRecord> = asked.filter(|record| question.covers(record)).collect();
    if asked.is_empty() {
        return Err(nothing_measured(registry, question));
    }
    let stands = |run: &RunRecord| !registry.retracted.contains_key(&run.id);
    let has_figure = |run: &RunRecord| validity::value(question.metric, run).is_some();
    // Left-out runs are counted and reported, so that a missing engine does not go unnoticed.
    let used = asked.iter().filter(|run| stands(run) && has_figure(run)).count();
    let mut answer = Answer { left_out: asked.len() - used, ..Answer::default() };
    for setup in setups(asked.into_iter().filter(|run| stands(run))) {
        let Some(figure) = of_metric(question.metric, setup.runs.iter().copied()) else { continue };
        if !question.limits.iter().all(|limit| limit.is_met(&setup.runs)) {
            answer.beyond_limits += 1;
            continue;
        }
        answer.candidates.push(Candidate {
            metric: question.metric.name,
            figure,
            measured_at: setup.measured_at(),
            runs: setup.runs.iter().map(|run| run.id.clone()).collect(),
            cell: setup.cell,
            release: setup.release,
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

impl Setup<'_> {
    /// Returns the start of the newest run of the setup, RFC 3339; `None` if no run states its
    /// start.
    pub fn measured_at(&self) -> Option<String> {
        self.runs.iter().filter_map(|run| run.time.as_ref()?.started_at.clone()).max()
    }
}

impl Question {
    fn covers(&self, run: &RunRecord) -> bool {
        let scenario = format!("{}@{}", run.scenario.id, run.scenario.rev);
        let asked = self.scenario.as_ref();
        run.kind != Kind::Imported
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
        None => "no tested configuration meets the limits".to_owned(),
    };
    if answer.beyond_limits > 0 {
        text.push_str(&format!("\n{} beyond the limits", answer.beyond_limits));
    }
    if answer.left_out > 0 {
        let runs = plural(answer.left_out, "run");
        text.push_str(&format!(
            "\n{runs} left out: retracted, failed, INVALID, or without a sound figure"
        ));
    }
    text
}
