//! Two consecutive releases on one hardware. The verdicts come from `registry`; this module only
//! words them.

use std::collections::BTreeMap;

use schema::metric::by_name;
use schema::verdict::{Stage, Verdict, VerdictKind};
use serde::Serialize;

use super::badge::Tone;
use super::figure::Figure;
use super::words;
use crate::chart::{Bar, BarGroup, Bars, Chart, Forest, ForestMark, ForestRow};
use crate::format::{self, Scale};
use crate::link::Target;
use crate::{order, outside};

/// What is compared.
#[derive(Debug, Clone)]
pub struct Pair {
    pub engine: String,
    pub hardware: String,
    pub baseline: String,
    pub candidate: String,
}

/// A diff.
#[derive(Debug, Clone, Serialize)]
pub struct DiffView {
    pub engine: String,
    pub hardware: String,
    pub baseline: String,
    pub candidate: String,
    pub baseline_page: Target,
    pub candidate_page: Target,
    /// `2 regressed`, `14 inconclusive`: each verdict with its count, the worst first.
    pub counts: Vec<Count>,
    /// One sentence: what the reader may conclude.
    pub conclusion: String,
    pub models: Vec<DiffModel>,
    pub command: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Count {
    pub text: String,
    pub tone: Tone,
}

/// The cells of one model in one configuration.
#[derive(Debug, Clone, Serialize)]
pub struct DiffModel {
    pub model: String,
    pub config: String,
    pub charts: Vec<Chart>,
    /// Metrics that gate, then those that inform.
    pub gating: Vec<DiffRow>,
    pub informing: Vec<DiffRow>,
}

/// One metric of one cell.
#[derive(Debug, Clone, Serialize)]
pub struct DiffRow {
    pub scenario: String,
    pub metric: String,
    pub unit: String,
    pub baseline: Figure,
    pub candidate: Figure,
    pub effect: String,
    pub interval: String,
    pub pairs: u32,
    pub floor: String,
    /// The smallest effect that these pairs would have found.
    pub detectable: String,
    pub verdict: &'static str,
    /// `better` or `worse`, where the verdict says so.
    pub direction: &'static str,
    pub stage: &'static str,
    pub tone: Tone,
    pub waiver: String,
}

impl Pair {
    /// The page of this pair.
    #[must_use]
    pub fn target(&self) -> Target {
        Target::Diff {
            engine: self.engine.clone(),
            baseline: self.baseline.clone(),
            candidate: self.candidate.clone(),
            hardware: self.hardware.clone(),
        }
    }

    fn release(&self, release: &str) -> Target {
        Target::Release {
            engine: self.engine.clone(),
            release: release.to_owned(),
            hardware: self.hardware.clone(),
        }
    }
}

impl DiffView {
    /// The view of `verdicts` on `pair`.
    #[must_use]
    pub fn new(pair: &Pair, verdicts: &[Verdict]) -> Self {
        let mut models: BTreeMap<(&str, &str), Vec<&Verdict>> = BTreeMap::new();
        for verdict in verdicts {
            let cell = &verdict.cell;
            models.entry((&cell.model, &cell.config)).or_default().push(verdict);
        }
        let argv = ["cargo", "xtask", "release-bench", &pair.candidate, "--baseline", &pair.baseline];
        Self {
            engine: outside::name(&pair.engine),
            hardware: outside::name(&pair.hardware),
            baseline: outside::name(&pair.baseline),
            candidate: outside::name(&pair.candidate),
            baseline_page: pair.release(&pair.baseline),
            candidate_page: pair.release(&pair.candidate),
            counts: counts(verdicts),
            conclusion: conclusion(verdicts).to_owned(),
            models: models.into_values().map(|verdicts| model(pair, verdicts)).collect(),
            command: outside::command(&argv.map(str::to_owned)),
        }
    }
}

/// Verdicts in the order in which a reader wants them.
const WORST_FIRST: [VerdictKind; 7] = [
    VerdictKind::Regressed,
    VerdictKind::NewFailure,
    VerdictKind::ChangedConfig,
    VerdictKind::Inconclusive,
    VerdictKind::Unchanged,
    VerdictKind::Improved,
    VerdictKind::FixedFailure,
];

fn counts(verdicts: &[Verdict]) -> Vec<Count> {
    let count = |kind: &VerdictKind| {
        let count = verdicts.iter().filter(|verdict| verdict.verdict == *kind).count();
        let text = format!("{count} {}", words::verdict(*kind));
        (count > 0).then(|| Count { text, tone: tone(*kind) })
    };
    WORST_FIRST.iter().filter_map(count).collect()
}

fn conclusion(verdicts: &[Verdict]) -> &'static str {
    let any = |kind| verdicts.iter().any(|verdict| verdict.verdict == kind);
    let all = |kind| verdicts.iter().all(|verdict| verdict.verdict == kind);
    if verdicts.is_empty() {
        "The two releases share no cell."
    } else if any(VerdictKind::Regressed) || any(VerdictKind::NewFailure) {
        "Something got worse, and the screen and the confirmation agree on it."
    } else if all(VerdictKind::Inconclusive) {
        "Nothing can be concluded. The two releases were not measured interleaved on one machine, \
         or too few pairs were; the differences below are shown and mean nothing more."
    } else {
        "Nothing that gates got worse."
    }
}

fn model(pair: &Pair, mut verdicts: Vec<&Verdict>) -> DiffModel {
    verdicts.sort_by(|a, b| {
        order::scenarios(&a.cell.scenario, &b.cell.scenario)
            .then_with(|| position(&a.metric).cmp(&position(&b.metric)))
    });
    let gates = |verdict: &&&Verdict| by_name(&verdict.metric).is_some_and(|metric| metric.gates);
    let (gating, informing): (Vec<&Verdict>, Vec<&Verdict>) =
        verdicts.iter().partition(|verdict| gates(&verdict));
    let cell = verdicts.first().map(|verdict| verdict.cell.clone()).unwrap_or_default();
    DiffModel {
        model: outside::name(&cell.model),
        config: outside::name(&cell.config),
        charts: [throughput(pair, &verdicts), forest(&gating)].into_iter().flatten().collect(),
        gating: gating.into_iter().map(row).collect(),
        informing: informing.into_iter().map(row).collect(),
    }
}

fn position(metric: &str) -> usize {
    let known = schema::metric::METRICS.iter().position(|known| known.name == metric);
    known.unwrap_or(usize::MAX)
}

fn row(verdict: &Verdict) -> DiffRow {
    let metric = by_name(&verdict.metric);
    let largest = verdict.baseline.into_iter().chain(verdict.candidate).fold(0.0, f64::max);
    let scale = metric.map_or(Scale { unit: "", divisor: 1.0 }, |m| Scale::fit(m.unit, largest));
    let side = |value: Option<f64>| match value {
        Some(value) => Figure::single(value, scale),
        None => Figure::missing("no run of this side knows it"),
    };
    let percent = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{} %", format::percent(v)));
    let (interval, detectable) = (verdict.interval_pct, verdict.mde_pct);
    DiffRow {
        scenario: outside::name(&verdict.cell.scenario),
        metric: metric.map_or_else(|| outside::name(&verdict.metric), |m| m.title.to_owned()),
        unit: scale.unit.to_owned(),
        baseline: side(verdict.baseline),
        candidate: side(verdict.candidate),
        effect: percent(verdict.effect_pct),
        interval: interval.map_or_else(|| "-".to_owned(), |(low, high)| {
            format!("{} to {} %", format::percent(low), format::percent(high))
        }),
        pairs: verdict.pairs,
        floor: format!("{} %", verdict.floor_pct),
        detectable: detectable.map_or_else(|| "-".to_owned(), |pct| format!("{} %", format::half_width(pct))),
        verdict: words::verdict(verdict.verdict),
        direction: direction(verdict.verdict),
        stage: match verdict.stage {
            Stage::Estimate => "estimate",
            Stage::Screen => "screen",
            Stage::Confirm => "confirmed",
        },
        tone: tone(verdict.verdict),
        waiver: outside::message(verdict.waiver.as_deref().unwrap_or_default()),
    }
}

/// A direction is named only where the verdict claims one: an inconclusive plus is not a gain.
fn direction(kind: VerdictKind) -> &'static str {
    match kind {
        VerdictKind::Regressed | VerdictKind::NewFailure => "worse",
        VerdictKind::Improved | VerdictKind::FixedFailure => "better",
        VerdictKind::Unchanged | VerdictKind::Inconclusive | VerdictKind::ChangedConfig => "",
    }
}

fn tone(kind: VerdictKind) -> Tone {
    match kind {
        VerdictKind::Regressed | VerdictKind::NewFailure => Tone::Loud,
        VerdictKind::ChangedConfig | VerdictKind::Improved | VerdictKind::FixedFailure => Tone::Firm,
        VerdictKind::Unchanged | VerdictKind::Inconclusive => Tone::Soft,
    }
}

fn throughput(pair: &Pair, verdicts: &[&Verdict]) -> Option<Chart> {
    let shown: Vec<&&Verdict> =
        verdicts.iter().filter(|verdict| verdict.metric == "output_tokens_per_s").collect();
    let bar = |release: &str, value: Option<f64>, accent| Bar {
        series: outside::name(release),
        value,
        range: None,
        text: value.map_or_else(|| "no figure".to_owned(), |value| format::rounded(value, None)),
        accent,
    };
    let group = |verdict: &&&Verdict| BarGroup {
        label: outside::name(&verdict.cell.scenario),
        bars: vec![
            bar(&pair.baseline, verdict.baseline, false),
            // Only a claim is colored; a single launch never makes one.
            bar(&pair.candidate, verdict.candidate, verdict.stage != Stage::Estimate),
        ],
    };
    let groups: Vec<BarGroup> = shown.iter().map(group).collect();
    if groups.is_empty() {
        return None;
    }
    let rows = groups.iter().map(|group| {
        let texts = group.bars.iter().map(|bar| bar.text.clone());
        std::iter::once(group.label.clone()).chain(texts).collect()
    });
    let rows = rows.collect();
    let title = "Output tokens per second".to_owned();
    let caption = "Mean over launches. In color once the two were compared on one machine.".to_owned();
    let bars = Bars { title: title.clone(), description: caption.clone(), unit: "tokens/s".into(), groups };
    let heads = vec!["Scenario".into(), outside::name(&pair.baseline), outside::name(&pair.candidate)];
    Some(Chart { title, caption, svg: bars.draw(), heads, rows })
}

fn forest(gating: &[&Verdict]) -> Option<Chart> {
    let mut rows = Vec::new();
    let mut table = Vec::new();
    for verdict in gating {
        let Some(effect_pct) = verdict.effect_pct else { continue };
        let shown = row(verdict);
        let label = format!("{} {}", shown.metric, shown.scenario);
        table.push(vec![label.clone(), shown.effect.clone(), shown.interval.clone(), shown.verdict.to_owned()]);
        rows.push(ForestRow {
            label,
            text: format!("{} {}", shown.effect, shown.verdict),
            effect_pct,
            interval_pct: verdict.interval_pct,
            floor_pct: verdict.floor_pct,
            mark: match (verdict.verdict, verdict.stage) {
                (VerdictKind::Regressed, _) => ForestMark::Worse,
                (VerdictKind::Improved, Stage::Confirm) => ForestMark::Solid,
                _ => ForestMark::Hollow,
            },
        });
    }
    if rows.is_empty() {
        return None;
    }
    let title = "Change of what gates".to_owned();
    let caption = "Effect with its 95 % interval. Inside the shaded floor nothing is called a change. \
                   Filled: confirmed. In color: worse."
        .to_owned();
    let forest = Forest { title: title.clone(), description: caption.clone(), rows };
    let heads = ["Metric", "Effect", "95 % interval", "Verdict"].map(str::to_owned).to_vec();
    Some(Chart { title, caption, svg: forest.draw(), heads, rows: table })
}
