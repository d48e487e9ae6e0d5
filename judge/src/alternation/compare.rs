//! Alternating comparisons as a comparison of releases: rows with verdicts, the decision, and what a
//! reader must know beside it.

use std::collections::{BTreeMap, BTreeSet};

use schema::alternation::{AlternatingComparison, Contender, OutputsCompared, Side};
use schema::comparison::{
    CellDiff, Decision, Diff, Outputs, OutputsChange, Row, RunShare, SCHEMA, SideCounts,
};
use schema::metric::{Metric, by_name};
use schema::verdict::{ALL_SCENARIOS, Cell, Stage, Together, Verdict, VerdictKind};

use super::{Call, Judged, failures, figures_of, judge, outputs, pooled};
use crate::diff::decision;
use crate::diff::estimate::Estimate;
use crate::diff::policy::standard;
use crate::diff::words::plural;
use crate::summary;

/// Name of the metric of peak memory.
const MEMORY: &str = "rss_bytes_max";

/// Alternating comparisons of one campaign.
#[derive(Debug, Clone, Copy)]
pub struct Gate<'a> {
    /// Id of the campaign.
    pub campaign: &'a str,
    /// Id of the hardware of the campaign.
    pub hardware: &'a str,
    /// Command line that makes the comparisons again.
    pub command: &'a [String],
    /// Comparisons of the campaign, one for each model and scenario.
    pub comparisons: &'a [AlternatingComparison],
}

impl Gate<'_> {
    /// Builds the comparison of the baseline with the candidate, with its decision.
    pub fn diff(&self) -> Diff {
        let one = self.comparisons.first();
        let titles = |of: fn(&AlternatingComparison) -> &Contender| {
            one.map_or_else(String::new, |one| title(of(one), self.is_of_two_engines()))
        };
        let cells: Vec<CellDiff> = self.comparisons.iter().map(|one| self.cell(one)).collect();
        let mut diff = Diff {
            schema: SCHEMA.to_owned(),
            baseline: titles(|one| &one.baseline),
            candidate: titles(|one| &one.candidate),
            note: note(),
            decision: Decision::default(),
            outputs: self.outputs(),
            waivers: Vec::new(),
            baseline_degraded: RunShare::default(),
            candidate_degraded: RunShare::default(),
            policy: standard().quoted,
            commits: None,
            noise_pct: Default::default(),
            broad: Vec::new(),
            pooled: self.pooled(),
            cells,
            baseline_only: Vec::new(),
            candidate_only: Vec::new(),
            retracted: 0,
        };
        diff.decision = decision::of(&diff);
        diff
    }

    fn is_of_two_engines(&self) -> bool {
        self.comparisons.iter().any(|one| one.baseline.engine.name != one.candidate.engine.name)
    }

    fn cell_of(&self, one: &AlternatingComparison) -> Cell {
        Cell {
            engine: one.candidate.engine.name.clone(),
            hardware: self.hardware.to_owned(),
            model: one.model.clone(),
            config: one.candidate.variant.clone().unwrap_or_else(|| "default".to_owned()),
            scenario: one.scenario.clone(),
        }
    }

    fn cell(&self, one: &AlternatingComparison) -> CellDiff {
        let cell = self.cell_of(one);
        let mut rows: Vec<Row> = judge(one).iter().map(|judged| row(&cell, one, judged)).collect();
        rows.extend(failed(&cell, one));
        let [baseline_runs, candidate_runs] = failures(one)
            .map(|requests_failed| SideCounts { requests_failed, ..SideCounts::default() });
        CellDiff {
            cell,
            campaigns: vec![self.campaign.to_owned()],
            judged: Some(self.campaign.to_owned()),
            baseline_runs,
            candidate_runs,
            changed: Vec::new(),
            moved: Vec::new(),
            drift: None,
            remarks: remarks(one),
            command: self.command.to_vec(),
            rows,
        }
    }

    /// Judges each model over its scenarios together.
    fn pooled(&self) -> Vec<Row> {
        let models = pooled::by_model(self.comparisons);
        let of_model = |own: &Vec<&AlternatingComparison>| {
            pooled_rows(&self.cell_of(own[0]), own, self.comparisons)
        };
        models.iter().flat_map(of_model).collect()
    }

    /// Compares the outputs of each model over all its scenarios.
    fn outputs(&self) -> Vec<Outputs> {
        let mut found: Vec<(Cell, OutputsCompared)> = Vec::new();
        for one in self.comparisons {
            let cell = Cell { scenario: String::new(), ..self.cell_of(one) };
            let new = outputs(one);
            match found.iter_mut().find(|(known, _)| *known == cell) {
                Some((_, all)) => *all = all.with(new),
                None => found.push((cell, new)),
            }
        }
        // Two engines round differently, and so do two configurations of one.
        let differs = |one: &AlternatingComparison| one.baseline.variant != one.candidate.variant;
        let alike = !self.is_of_two_engines() && !self.comparisons.iter().any(differs);
        found.into_iter().map(|(cell, found)| of_model(cell, found, alike)).collect()
    }
}

/// Builds the comparison of one model's outputs; `alike` is true where both variants have to give the
/// same.
fn of_model(cell: Cell, found: OutputsCompared, alike: bool) -> Outputs {
    let change = match (found.compared, found.differ) {
        _ if !alike => OutputsChange::NotCompared,
        (0, _) => OutputsChange::NotCompared,
        (_, 0) => OutputsChange::Same,
        _ => OutputsChange::Differ,
    };
    Outputs {
        engine: cell.engine,
        hardware: cell.hardware,
        model: cell.model,
        config: cell.config,
        change,
        prompts: None,
        requests: Some(found),
        agreement: None,
        reference: None,
        explanation: None,
        perplexity: None,
        unstable: Vec::new(),
    }
}

/// Returns what a reader must know about an alternating comparison: its extent, candidates that are no
/// releases, packages that differ, servers that were not frozen, and failures.
pub fn remarks(one: &AlternatingComparison) -> Vec<String> {
    let found: Vec<_> = one.starts.iter().filter_map(|start| start.alternation.as_ref()).collect();
    let slices: usize = found.iter().map(|found| found.slices.len()).sum();
    let requests = found.first().map_or(0, |found| found.slice_requests);
    let spent_us = one.starts.last().map_or(0, |start| start.end_us);
    let mut remarks = vec![format!(
        "in turns: {} of both servers, {} of slices of {}, {} of a budget of {}",
        plural(one.starts.len(), "start"),
        plural(slices / 2, "pair"),
        plural(usize::try_from(requests).unwrap_or(usize::MAX), "request"),
        minutes(spent_us),
        minutes(one.budget_us),
    )];
    remarks.extend(Side::BOTH.iter().filter_map(|side| identity(one.contender(*side))));
    remarks.extend(packages_changed(one));
    let slices = || found.iter().flat_map(|found| &found.slices);
    let awake =
        slices().filter(|slice| slice.idle_cpu_us.is_none_or(|used_us| used_us > 0)).count();
    if awake > 0 {
        let share = 100 * awake / slices().count().max(1);
        remarks.push(format!("the idle server was awake in {share} % of the slices"));
    }
    for side in Side::BOTH {
        let mut failures =
            one.starts.iter().filter_map(|start| start.server(side).failure.as_ref());
        if let Some(said) = failures.next() {
            let first = said.lines().next().unwrap_or_default();
            remarks.push(format!("{} failed: {first}", title(one.contender(side), false)));
        }
    }
    remarks
}

/// Returns what identifies a variant that is no release: the hash of its wheel, or the digest of its
/// image with the package in it. `None` for others.
fn identity(contender: &Contender) -> Option<String> {
    let engine = &contender.engine;
    let build = engine.build.as_ref()?;
    let what = match (&build.wheel_sha256, &engine.image_digest) {
        (Some(sha256), _) => format!("the wheel with the SHA-256 {sha256}"),
        (None, Some(digest)) if engine.release.ends_with("-dev") => {
            let package = build.source_url.iter().map(|package| format!(", with {package}"));
            format!("the image with the digest {digest}{}", package.collect::<String>())
        }
        _ => return None,
    };
    Some(format!("{} is {what}", engine.release))
}

/// Largest number of packages that the remark about them names.
const PACKAGES_MAX: usize = 4;

/// Returns the remark on Python packages that differ between two variants of one engine, without the
/// package of the engine; `None` where there are none, or the packages of a variant are not known.
fn packages_changed(one: &AlternatingComparison) -> Option<String> {
    if one.baseline.engine.name != one.candidate.engine.name {
        return None;
    }
    let (baseline, candidate) = (packages(&one.baseline)?, packages(&one.candidate)?);
    let names: BTreeSet<&str> = baseline.keys().chain(candidate.keys()).copied().collect();
    let version =
        |of: &BTreeMap<&str, &str>, name: &str| of.get(name).copied().unwrap_or("none").to_owned();
    let mut changed: Vec<String> = names
        .into_iter()
        .filter(|name| baseline.get(name) != candidate.get(name))
        .map(|name| format!("{name} {} -> {}", version(&baseline, name), version(&candidate, name)))
        .collect();
    if changed.len() > PACKAGES_MAX {
        let others = changed.len() - (PACKAGES_MAX - 1);
        changed.truncate(PACKAGES_MAX - 1);
        changed.push(format!("{others} others"));
    }
    (!changed.is_empty()).then(|| format!("packages differ: {}", changed.join(", ")))
}

/// Returns versions by name of the Python packages beside the engine's own; `None` where they are not
/// known.
fn packages(contender: &Contender) -> Option<BTreeMap<&str, &str>> {
    let build = contender.engine.build.as_ref()?;
    let own = build.source_url.as_deref();
    let others = build.packages.as_ref()?.iter().filter(|line| Some(line.as_str()) != own);
    Some(others.filter_map(|line| line.split_once("==")).collect())
}

/// Formats a time as `4 min 10 s`.
pub fn minutes(us: u64) -> String {
    let seconds = us / 1_000_000;
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// Returns the row of one metric.
pub fn row(cell: &Cell, one: &AlternatingComparison, judged: &Judged) -> Row {
    let [baseline, candidate] =
        Side::BOTH.map(|side| summary::of(&figures_of(one, side, judged.metric.name)));
    let alone = Estimate::alone(judged.extent.slices / 2, judged.effect_pct);
    let estimate = Estimate { interval_pct: Some(judged.interval_pct), ..alone };
    Row {
        title: row_title(judged.metric),
        unit: judged.metric.unit,
        better: judged.metric.better,
        gates: judged.gates,
        large: !judged.gates && estimate.is_large(judged.min_effect_pct),
        baseline,
        candidate,
        verdict: verdict(cell, judged, [baseline, candidate].map(|side| Some(side?.mean))),
    }
}

/// Returns the title of the row of a metric that is judged in turns. A server in turns answers a part
/// of the scenario again and again, so that its peak memory is another quantity than that of a run.
fn row_title(metric: &Metric) -> String {
    if is_other_quantity(metric) {
        format!("{} in turns", metric.title)
    } else {
        metric.title.to_owned()
    }
}

/// True for a metric whose figures in turns cannot stand beside those of whole runs.
pub fn is_other_quantity(metric: &Metric) -> bool {
    metric.name == MEMORY
}

/// Judges the metrics of the model of `cell` over the comparisons `own` of its scenarios together and
/// returns their rows; `all` are the comparisons of the campaign. The rows have no figures: those of
/// different scenarios have no common mean.
pub fn pooled_rows(
    cell: &Cell,
    own: &[&AlternatingComparison],
    all: &[AlternatingComparison],
) -> Vec<Row> {
    let cell = Cell { scenario: ALL_SCENARIOS.to_owned(), ..cell.clone() };
    let row = |judged: &Judged| {
        let judged_in = own[..judged.scenarios].iter();
        let together = Together {
            scenarios: judged_in.map(|one| one.scenario.clone()).collect(),
            of: own.len(),
        };
        Row {
            title: row_title(judged.metric),
            unit: judged.metric.unit,
            better: judged.metric.better,
            gates: true,
            large: false,
            baseline: None,
            candidate: None,
            verdict: Verdict { together: Some(together), ..verdict(&cell, judged, [None, None]) },
        }
    };
    pooled::judge(own, all).iter().map(row).collect()
}

/// Returns the verdict on one metric, with the figures of baseline and candidate that are shown
/// beside it.
pub fn verdict(cell: &Cell, judged: &Judged, [baseline, candidate]: [Option<f64>; 2]) -> Verdict {
    let kind = match judged.call {
        Call::Worse => VerdictKind::Regressed,
        Call::Better => VerdictKind::Improved,
        Call::Unchanged => VerdictKind::Unchanged,
        Call::Open => VerdictKind::Inconclusive,
    };
    Verdict {
        pairs: judged.extent.slices / 2,
        effect_pct: Some(judged.effect_pct),
        interval_pct: Some(judged.interval_pct),
        deciding_interval_pct: judged.deciding_interval_pct,
        floor_pct: judged.min_effect_pct,
        mde_pct: Some(judged.detectable_pct),
        stage: if judged.gates { Stage::Alternate } else { Stage::Estimate },
        alternation: Some(judged.extent),
        ..without_statistics(cell, judged.metric, kind, [baseline, candidate])
    }
}

/// Returns a verdict that rests on no statistics.
fn without_statistics(
    cell: &Cell,
    metric: &Metric,
    verdict: VerdictKind,
    [baseline, candidate]: [Option<f64>; 2],
) -> Verdict {
    Verdict {
        cell: cell.clone(),
        metric: metric.name.to_owned(),
        baseline,
        candidate,
        pairs: 0,
        effect_pct: None,
        interval_pct: None,
        deciding_interval_pct: None,
        p: None,
        p_adjusted: None,
        cliffs_delta: None,
        floor_pct: metric.floor_pct,
        noise_pct: None,
        mde_pct: None,
        verdict,
        stage: Stage::Estimate,
        alternation: None,
        together: None,
        suspected: false,
        waiver: None,
    }
}

/// Returns the row of failed requests; `None` where nothing failed.
fn failed(cell: &Cell, one: &AlternatingComparison) -> Option<Row> {
    let metric = by_name("requests_failed")?;
    let [before, after] = failures(one);
    let kind = match (before, after) {
        (0, 0) => return None,
        (0, _) => VerdictKind::NewFailure,
        (_, 0) => VerdictKind::FixedFailure,
        _ => VerdictKind::Inconclusive,
    };
    #[expect(clippy::cast_precision_loss, reason = "a comparison has few requests")]
    let [baseline, candidate] = [before, after].map(|count| summary::of(&[count as f64]));
    let figures = [baseline, candidate].map(|side| Some(side?.mean));
    Some(Row {
        title: metric.title.to_owned(),
        unit: metric.unit,
        better: metric.better,
        gates: true,
        large: false,
        baseline,
        candidate,
        verdict: without_statistics(cell, metric, kind, figures),
    })
}

/// Returns the title of a variant: its release, with the name of its configuration, and with its
/// engine where two are compared.
fn title(contender: &Contender, with_engine: bool) -> String {
    let engine = if with_engine { format!("{} ", contender.engine.name) } else { String::new() };
    let variant = contender.variant.iter().map(|name| format!(" ({name})"));
    format!("{engine}{}{}", contender.engine.release, variant.collect::<String>())
}

/// Returns the note on the method that every output of an alternating comparison prints.
fn note() -> String {
    "Both servers of a start answer slices of the same requests in turns, while the other one is \
     frozen. A metric is judged by the starts, when a fifth, two fifths and so on of the time are \
     spent: regressed or improved where zero is excluded and the change is at least half of the \
     minimum effect, unchanged where the minimum effect is excluded. Intervals hold at every look of \
     one metric; a change is called by a wider one, which holds for all metrics of the campaign. \
     Metrics are judged over the scenarios together too, when the second and each later one has ended: \
     what is decided there may be undecided in a scenario alone."
        .to_owned()
}

#[cfg(test)]
mod tests;
