//! View of a comparison of two consecutive releases on one hardware. Verdicts and figures come
//! from `judge`; this module only formats them.

use std::collections::BTreeMap;

use judge::diff::{CellDiff, Diff, FlagChange, Row};
use judge::summary::Summary;
use schema::comparison::Broad;
use schema::verdict::{Cell, Stage, VerdictKind};
use serde::Serialize;

use super::badge::Tone;
use super::figure::Figure;
use super::pager::PartLink;
use super::release::Related;
use super::words;
use crate::chart::{Bar, BarGroup, Bars, Chart, Forest, ForestMark, ForestRow, Mark};
use crate::format::{self, Scale};
use crate::link::Target;
use crate::{order, outside};

/// Pair of releases that are compared, of one engine on one hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub engine: String,
    pub hardware: String,
    pub baseline: String,
    pub candidate: String,
}

/// View of the page that compares two releases on a hardware.
#[derive(Debug, Clone, Serialize)]
pub struct DiffView {
    pub engine: String,
    pub hardware: String,
    pub baseline: String,
    pub candidate: String,
    pub baseline_page: Target,
    pub candidate_page: Target,
    /// Number of verdicts of each kind, worst first: `2 regressed`, `14 inconclusive`.
    pub counts: Vec<Count>,
    /// Conclusion that a reader may draw, in one sentence.
    pub conclusion: String,
    /// Shift of each release-blocking metric over all cells, which is information and no verdict.
    pub broad: Vec<BroadRow>,
    pub models: Vec<DiffModel>,
    /// Cells in which only one of the releases ran.
    pub baseline_only: Vec<String>,
    pub candidate_only: Vec<String>,
    /// Note about policy and method of the comparison.
    pub note: String,
    pub command: String,
    pub pager: Vec<PartLink>,
}

/// Number of verdicts of one kind, as text.
#[derive(Debug, Clone, Serialize)]
pub struct Count {
    pub text: String,
    pub tone: Tone,
}

/// Shift of one metric over all cells that were measured side by side, each counted once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BroadRow {
    pub metric: String,
    pub cells: u32,
    pub effect: String,
    pub interval: String,
}

impl BroadRow {
    /// Formats a shift that `judge` found.
    pub fn of(found: &Broad) -> Self {
        Self {
            metric: found.title.clone(),
            cells: found.cells,
            effect: percent(Some(found.effect_pct)),
            interval: interval(found.interval_pct),
        }
    }
}

/// Cells of one model in one configuration.
#[derive(Debug, Clone, Serialize)]
pub struct DiffModel {
    pub model: String,
    pub config: String,
    pub charts: Vec<Chart>,
    /// Remarks by scenario that a reader has to know: scenario and sentence.
    pub remarks: Vec<(String, String)>,
    /// Flags that differ because a command sets them.
    pub changed: Vec<ChangedFlag>,
    /// Flags whose default the candidate moved, without any command naming them.
    pub moved: Vec<ChangedFlag>,
    /// Rows of release-blocking metrics; `informing` has those of other metrics.
    pub gating: Vec<DiffRow>,
    pub informing: Vec<DiffRow>,
}

/// A flag that both releases report with different values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangedFlag {
    pub flag: String,
    pub baseline: String,
    pub candidate: String,
}

impl ChangedFlag {
    /// Formats a change of a flag that `judge` found.
    pub fn of(found: &FlagChange) -> Self {
        let values = |values: &[String]| outside::message(&values.join(", "));
        Self {
            flag: outside::name(&found.flag),
            baseline: values(&found.baseline),
            candidate: values(&found.candidate),
        }
    }
}

/// Row of the comparison: one metric of one cell.
#[derive(Debug, Clone, Serialize)]
pub struct DiffRow {
    pub scenario: String,
    pub metric: String,
    pub unit: String,
    pub baseline: Figure,
    pub candidate: Figure,
    pub effect: String,
    pub interval: String,
    /// Cliff's delta over the runs of both releases.
    pub delta: String,
    pub pairs: u32,
    pub floor: String,
    /// Minimum detectable effect of these pairs.
    pub detectable: String,
    pub verdict: &'static str,
    /// Direction of the change, `better` or `worse`; empty where the verdict claims none.
    pub direction: &'static str,
    pub stage: &'static str,
    pub tone: Tone,
    pub waiver: String,
}

impl Pair {
    /// Target of the page that compares the pair.
    pub fn target(&self) -> Target {
        Target::Diff {
            engine: self.engine.clone(),
            baseline: self.baseline.clone(),
            candidate: self.candidate.clone(),
            hardware: self.hardware.clone(),
        }
    }

    /// Link to the page that compares the pair.
    pub fn related(&self) -> Related {
        let text =
            format!("{} {} to {} on {}", self.engine, self.baseline, self.candidate, self.hardware);
        Related { text: outside::name(&text), target: self.target() }
    }

    fn release(&self, release: &str) -> Target {
        Target::ReleaseOn {
            engine: self.engine.clone(),
            release: release.to_owned(),
            hardware: self.hardware.clone(),
        }
    }
}

impl DiffView {
    /// Builds the view of `diff`, which compares the two releases of `pair`.
    pub fn new(pair: &Pair, diff: &Diff) -> Self {
        let mut models: BTreeMap<(&str, &str), Vec<&CellDiff>> = BTreeMap::new();
        for cell in &diff.cells {
            models.entry((&cell.cell.model, &cell.cell.config)).or_default().push(cell);
        }
        let argv =
            ["cargo", "xtask", "release-bench", &pair.candidate, "--baseline", &pair.baseline];
        let name = |cell: &Cell| {
            outside::name(&format!("{} {} {}", cell.model, cell.config, cell.scenario))
        };
        Self {
            engine: outside::name(&pair.engine),
            hardware: outside::name(&pair.hardware),
            baseline: outside::name(&pair.baseline),
            candidate: outside::name(&pair.candidate),
            baseline_page: pair.release(&pair.baseline),
            candidate_page: pair.release(&pair.candidate),
            counts: counts(diff),
            conclusion: conclusion(diff),
            broad: diff.broad.iter().map(BroadRow::of).collect(),
            models: models.into_values().map(|cells| model(pair, cells)).collect(),
            baseline_only: diff.baseline_only.iter().map(name).collect(),
            candidate_only: diff.candidate_only.iter().map(name).collect(),
            note: diff.note.clone(),
            command: outside::command(&argv.map(str::to_owned)),
            pager: Vec::new(),
        }
    }
}

fn rows(diff: &Diff) -> impl Iterator<Item = &Row> {
    diff.cells.iter().flat_map(|cell| &cell.rows)
}

/// Kinds of verdicts in the order in which a reader wants them.
const WORST_FIRST: [VerdictKind; 7] = [
    VerdictKind::Regressed,
    VerdictKind::NewFailure,
    VerdictKind::ChangedConfig,
    VerdictKind::Inconclusive,
    VerdictKind::Unchanged,
    VerdictKind::Improved,
    VerdictKind::FixedFailure,
];

/// Rank of a verdict, worst first.
pub fn rank(kind: VerdictKind) -> usize {
    WORST_FIRST.iter().position(|known| *known == kind).unwrap_or(WORST_FIRST.len())
}

/// True for a metric that is not release-blocking and was not tested, for which "inconclusive"
/// means nothing.
fn untested(row: &Row) -> bool {
    !row.gates && row.verdict.verdict == VerdictKind::Inconclusive
}

/// Counts the verdicts of each kind, worst first.
pub fn counts(diff: &Diff) -> Vec<Count> {
    let count = |kind: &VerdictKind| {
        let of_kind = |row: &&Row| row.verdict.verdict == *kind && !untested(row);
        let count = rows(diff).filter(of_kind).count();
        let text = format!("{count} {}", words::verdict(*kind));
        (count > 0).then(|| Count { text, tone: tone(*kind) })
    };
    WORST_FIRST.iter().filter_map(count).collect()
}

/// Conclusion that a reader may draw, in one sentence.
pub fn conclusion(diff: &Diff) -> String {
    let any = |kind| rows(diff).any(|row| row.verdict.verdict == kind);
    let unwaived =
        |row: &Row| row.verdict.verdict == VerdictKind::Regressed && row.verdict.waiver.is_none();
    let gating = rows(diff).filter(|row| row.gates).count();
    let of_kind = |kind| rows(diff).filter(|row| row.gates && row.verdict.verdict == kind).count();
    let undecided = of_kind(VerdictKind::Inconclusive);
    let changed = of_kind(VerdictKind::ChangedConfig);
    let open = undecided + changed;
    let known = if diff.cells.is_empty() {
        "The two releases share no cell."
    } else if rows(diff).any(unwaived) {
        "Something got worse, and screen and confirmation agree on it."
    } else if any(VerdictKind::NewFailure) {
        "Something that ran before fails now."
    } else if any(VerdictKind::Regressed) {
        "What got worse is waived, for the reason and until the day that stand beside it."
    } else if open == gating {
        "No figure is judged better or worse: the differences below are estimates."
    } else {
        "Nothing that gates is known to be worse."
    };
    if open == 0 || undecided == gating {
        return known.to_owned();
    }
    let counts = [(undecided, "undecided"), (changed, "of a changed configuration")];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let words = |(count, what): &(usize, &str)| {
        format!("{count} {} {what}", if *count == 1 { "is" } else { "are" })
    };
    let counts: Vec<String> = counts.map(words).collect();
    format!("{known} Of {gating} figures that gate, {}.", counts.join(" and "))
}

fn model(pair: &Pair, mut cells: Vec<&CellDiff>) -> DiffModel {
    cells.sort_by(|a, b| order::scenarios(&a.cell.scenario, &b.cell.scenario));
    let first = cells.first().map(|cell| cell.cell.clone()).unwrap_or_default();
    let mut gating = Vec::new();
    let mut informing = Vec::new();
    let mut remarks = Vec::new();
    for cell in &cells {
        for row in &cell.rows {
            if row.gates { gating.push(row) } else { informing.push(row) }
        }
        let scenario = outside::name(&cell.cell.scenario);
        let remark = |remark: &String| (scenario.clone(), outside::message(remark));
        remarks.extend(cell.remarks.iter().map(remark));
    }
    DiffModel {
        model: outside::name(&first.model),
        config: outside::name(&first.config),
        charts: [throughput(pair, &cells), forest(&gating)].into_iter().flatten().collect(),
        remarks,
        changed: flags(cells.iter().flat_map(|cell| &cell.changed)),
        moved: flags(cells.iter().flat_map(|cell| &cell.moved)),
        gating: gating.into_iter().map(line).collect(),
        informing: informing.into_iter().map(line).collect(),
    }
}

/// Returns each distinct change of `found` once.
fn flags<'a>(found: impl Iterator<Item = &'a FlagChange>) -> Vec<ChangedFlag> {
    let mut flags: Vec<ChangedFlag> = Vec::new();
    for flag in found.map(ChangedFlag::of) {
        if !flags.contains(&flag) {
            flags.push(flag);
        }
    }
    flags
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{} %", format::percent(value)))
}

fn interval(bounds: Option<(f64, f64)>) -> String {
    let words = |(low, high)| format!("{} to {} %", format::percent(low), format::percent(high));
    bounds.map_or_else(|| "-".to_owned(), words)
}

/// Formats `row` as a line in a table of verdicts.
pub fn line(row: &Row) -> DiffRow {
    let verdict = &row.verdict;
    let means = row.baseline.iter().chain(&row.candidate).map(|summary| summary.mean);
    let scale = Scale::fit(row.unit, means.fold(0.0, f64::max));
    let detectable = |pct: f64| format!("{} %", format::half_width(pct));
    DiffRow {
        scenario: outside::name(&verdict.cell.scenario),
        metric: row.title.clone(),
        unit: scale.unit.to_owned(),
        baseline: side(row.baseline.as_ref(), scale),
        candidate: side(row.candidate.as_ref(), scale),
        effect: percent(verdict.effect_pct),
        interval: interval(verdict.interval_pct),
        delta: verdict.cliffs_delta.map_or_else(|| "-".to_owned(), format::signed_share),
        pairs: verdict.pairs,
        floor: format!("{} %", verdict.floor_pct),
        detectable: verdict.mde_pct.map_or_else(|| "-".to_owned(), detectable),
        verdict: if untested(row) { "informs" } else { words::verdict(verdict.verdict) },
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

fn side(summary: Option<&Summary>, scale: Scale) -> Figure {
    match summary {
        Some(summary) => Figure::mean(summary, scale),
        None => Figure::missing("no run of this side knows it"),
    }
}

/// Direction of a verdict, named only where the verdict claims one: an inconclusive plus is not a
/// gain.
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
        VerdictKind::ChangedConfig | VerdictKind::Improved | VerdictKind::FixedFailure => {
            Tone::Firm
        }
        VerdictKind::Unchanged | VerdictKind::Inconclusive => Tone::Soft,
    }
}

fn throughput(pair: &Pair, cells: &[&CellDiff]) -> Option<Chart> {
    let mut groups = Vec::new();
    let mut table = Vec::new();
    for cell in cells {
        let Some(row) = cell.rows.iter().find(|row| row.verdict.metric == "output_tokens_per_s")
        else {
            continue;
        };
        // Only compared figures are colored; stored figures of different days are not.
        let compared = row.verdict.pairs > 1;
        let bar = |release: &str, summary: Option<&Summary>, mark| Bar {
            series: outside::name(release),
            value: summary.map(|summary| summary.mean),
            range: summary.filter(|summary| summary.n > 1).map(|s| (s.min, s.max)),
            text: side(summary, Scale { unit: "/s", divisor: 1.0 }).text,
            mark,
        };
        let bars = vec![
            bar(&pair.baseline, row.baseline.as_ref(), Mark::Gray),
            bar(
                &pair.candidate,
                row.candidate.as_ref(),
                if compared { Mark::Color } else { Mark::Gray },
            ),
        ];
        let label = outside::name(&cell.cell.scenario);
        table.push(vec![label.clone(), bars[0].text.clone(), bars[1].text.clone()]);
        groups.push(BarGroup { label, bars });
    }
    if groups.is_empty() {
        return None;
    }
    let title = "Output tokens per second".to_owned();
    let caption =
        "Mean over launches, whiskers span them. In color: measured side by side.".to_owned();
    let unit = "tokens/s".to_owned();
    let bars = Bars { title: title.clone(), description: caption.clone(), unit, groups };
    let heads =
        vec!["Scenario".into(), outside::name(&pair.baseline), outside::name(&pair.candidate)];
    Some(Chart { title, caption, svg: bars.draw(), heads, rows: table })
}

fn forest(gating: &[&Row]) -> Option<Chart> {
    let mut rows = Vec::new();
    let mut table = Vec::new();
    for row in gating {
        let verdict = &row.verdict;
        let Some(effect_pct) = verdict.effect_pct else { continue };
        let shown = line(row);
        let label = format!("{} {}", shown.metric, shown.scenario);
        table.push(vec![
            label.clone(),
            shown.effect.clone(),
            shown.interval.clone(),
            shown.verdict.to_owned(),
        ]);
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
    let caption =
        "Effect with its 95 % interval. Inside the shaded floor nothing is called a change. \
                   Filled: confirmed. In color: worse."
            .to_owned();
    let forest = Forest { title: title.clone(), description: caption.clone(), rows };
    let heads = ["Metric", "Effect", "95 % interval", "Verdict"].map(str::to_owned).to_vec();
    Some(Chart { title, caption, svg: forest.draw(), heads, rows: table })
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id, reseal};
    use schema::run::RunRecord;
    use serde_json::Value;

    use super::*;
    use samples::registry as sample;

    /// Configuration of the candidate in the first scenario, and the command words that ask for
    /// it.
    #[derive(Default)]
    struct Changed {
        flags: BTreeMap<String, Value>,
        argv: Vec<String>,
    }

    /// Compares three pairs in each of these scenarios.
    fn compared(scenarios: &[&str], changed: &Changed) -> DiffView {
        let mut records: Vec<RunRecord> = Vec::new();
        for (place, scenario) in scenarios.iter().enumerate() {
            for block in 0..3_u32 {
                for (position, release) in ["v0.9.1", "v0.9.2"].into_iter().enumerate() {
                    let candidate = position == 1;
                    let configured = candidate && place == 0;
                    let serial = records.len() as u64 + 1;
                    let sample = Sample {
                        release: release.to_owned(),
                        scenario: (*scenario).to_owned(),
                        serial,
                        seed: serial,
                        campaign: (campaign_id(1), block, u32::try_from(position).unwrap()),
                        speed: (1.0 + 0.001 * f64::from(block)) * if candidate { 0.9 } else { 1.0 },
                        flags: if configured { changed.flags.clone() } else { BTreeMap::new() },
                        argv: if configured { changed.argv.clone() } else { Vec::new() },
                        ..Sample::default()
                    };
                    records.push(reseal(sample.record()));
                }
            }
        }
        let pair = Pair {
            engine: "redline".into(),
            hardware: Sample::default().hardware,
            baseline: "v0.9.1".into(),
            candidate: "v0.9.2".into(),
        };
        let registry = sample::registry(records);
        let filter = judge::diff::Filter::default();
        let diff = judge::diff::diff(&registry, "v0.9.1", "v0.9.2", &filter).unwrap();
        DiffView::new(&pair, &diff)
    }

    #[test]
    fn the_shift_over_all_cells_and_how_far_two_sets_of_launches_lie_apart_are_shown() {
        let view =
            compared(&["sharegpt-lite", "balanced-lite", "thinking-lite"], &Changed::default());
        let output = view.broad.iter().find(|row| row.metric == "Output tokens").unwrap();
        assert_eq!(output.cells, 3);
        assert!(output.effect.starts_with("\u{2212}10."), "{output:?}");
        assert!(output.interval.contains(" to "), "{output:?}");
        let row = view.models[0].gating.iter().find(|row| row.metric == "Output tokens").unwrap();
        assert_eq!(row.delta, "\u{2212}1.00", "no launch of one is as fast as any of the other");
        assert!(compared(&["sharegpt-lite"], &Changed::default()).broad.is_empty());
    }

    #[test]
    fn a_changed_configuration_is_not_counted_as_undecided() {
        let flags = BTreeMap::from([("max-batch-size".to_owned(), Value::from(256))]);
        let asked = Changed { flags: flags.clone(), argv: vec!["--max-batch-size".into()] };
        let some = compared(&["sharegpt-lite", "balanced-lite"], &asked).conclusion;
        assert!(some.contains(" are of a changed configuration"), "{some}");
        let all = compared(&["sharegpt-lite"], &asked).conclusion;
        assert!(
            all.contains(" are of a changed configuration") && !all.contains("undecided"),
            "{all}"
        );
        let none = compared(&["sharegpt-lite"], &Changed::default()).conclusion;
        assert!(!none.contains("configuration"), "{none}");
    }

    #[test]
    fn a_default_that_moved_stands_apart_from_a_flag_that_was_asked_for() {
        let flags = BTreeMap::from([("max-batch-size".to_owned(), Value::from(256))]);
        let moved = compared(&["balanced-lite"], &Changed { flags: flags.clone(), argv: vec![] });
        let names =
            |flags: &[ChangedFlag]| flags.iter().map(|f| f.flag.clone()).collect::<Vec<_>>();
        let model = &moved.models[0];
        assert_eq!(
            (names(&model.moved), names(&model.changed)),
            (vec!["max-batch-size".into()], vec![])
        );
        assert!(!moved.conclusion.contains("changed configuration"), "{}", moved.conclusion);
        let asked = Changed { flags, argv: vec!["--max-batch-size".into()] };
        let model = &compared(&["balanced-lite"], &asked).models[0];
        assert_eq!(
            (names(&model.moved), names(&model.changed)),
            (vec![], vec!["max-batch-size".into()])
        );
    }
}
