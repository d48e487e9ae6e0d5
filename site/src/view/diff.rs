//! View of a comparison of two consecutive releases on one hardware. Verdicts and figures come
//! from `judge`; this module only formats them.

use std::collections::BTreeMap;

use judge::diff::caveats::caveats;
use judge::diff::grouped::{self, LargeChange, Remark};
use judge::diff::words::{WORST_FIRST, is_untested, until};
use judge::diff::{CellDiff, Diff, FlagChange, Row};
use judge::order;
use judge::summary::Summary;
use minijinja::{Value, context};
use schema::comparison::{AppliedWaiver, Broad, DecisionKind};
use schema::verdict::{Cell, Stage, VerdictKind};

use super::figure::{self, Figure};
use super::finding::Tone;
use super::words;
use crate::catalog::distinct;
use crate::chart::{Bar, BarGroup, Chart, ForestMark, ForestRow, Mark, bars, forest};
use crate::format::{self, Scale, or_dash};
use crate::judged::Pair;
use crate::link::Target;
use crate::outside;

/// Builds the view of the page that compares the two releases of `pair`, with the figures of
/// `diff`. The page's models are built by [`models`], because they are split into pages.
pub fn view(pair: &Pair, diff: &Diff) -> Value {
    let argv = ["cargo", "xtask", "release-bench", &pair.candidate, "--baseline", &pair.baseline];
    let names = |cells: &[Cell]| -> Value {
        let name = |cell: &Cell| format!("{} {} {}", cell.model, cell.config, cell.scenario);
        cells.iter().map(|cell| outside::name(&name(cell))).collect()
    };
    let shift = |found: &Broad| {
        context! {
            metric => &found.title,
            cells => found.cells,
            effect => format::change(found.effect_pct),
            interval => or_dash(found.interval_pct, format::interval),
        }
    };
    let [baseline_page, candidate_page] = pair.releases().map(Target::ReleaseOn);
    context! {
        engine => outside::name(&pair.engine),
        hardware => outside::name(&pair.hardware),
        baseline => outside::name(&pair.baseline),
        candidate => outside::name(&pair.candidate),
        baseline_page,
        candidate_page,
        counts => counts(diff),
        // Change of each release-blocking metric over all scenarios that were measured side by
        // side, each counted once; it is no verdict.
        broad => diff.broad.iter().map(shift).collect::<Value>(),
        // Cells in which only one of the releases ran.
        baseline_only => names(&diff.baseline_only),
        candidate_only => names(&diff.candidate_only),
        note => &diff.note,
        command => outside::command(&argv),
        ..decision(diff)
    }
}

/// Builds the decision of a comparison: verdict and its tone, the sentence, what a reader must know
/// beside it (outputs, moved defaults, DEGRADED runs), and the waivers.
pub fn decision(diff: &Diff) -> Value {
    let kind = diff.decision.verdict;
    let waiver = |waiver: &AppliedWaiver| {
        context! {
            title => &waiver.title,
            scenarios => outside::name(&waiver.scenarios.join(", ")),
            until => outside::name(&until(waiver.until.as_deref())),
            reason => outside::message(&waiver.reason),
            event => outside::name(&waiver.event),
        }
    };
    context! {
        verdict => kind.name(),
        verdict_tone => match kind {
            DecisionKind::Hold => Tone::Loud,
            DecisionKind::Ship => Tone::Firm,
            DecisionKind::Inconclusive => Tone::Soft,
        },
        // The reasons without the verdict, which stands beside them.
        sentence => outside::message(&reasons(&diff.decision.sentence)),
        caveats => caveats(diff).iter().map(|text| outside::message(text)).collect::<Value>(),
        waivers => diff.waivers.iter().map(waiver).collect::<Value>(),
    }
}

/// Returns the sentence of a decision without the verdict that it begins with.
fn reasons(sentence: &str) -> String {
    let (_, reasons) = sentence.split_once(": ").unwrap_or(("", sentence));
    let mut letters = reasons.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Formats a server flag whose values differ between two releases: the flag, and its values in
/// baseline and candidate.
pub fn changed_flag(found: &FlagChange) -> Value {
    let values = |values: &[String]| outside::message(&values.join(", "));
    context! {
        flag => outside::name(&found.flag),
        baseline => values(&found.baseline),
        candidate => values(&found.candidate),
    }
}

/// Builds the parts of a comparison's page, one for each model in one configuration.
pub fn models(pair: &Pair, diff: &Diff) -> Vec<Value> {
    let mut models: BTreeMap<(&str, &str), Vec<&CellDiff>> = BTreeMap::new();
    for cell in &diff.cells {
        models.entry((&cell.cell.model, &cell.cell.config)).or_default().push(cell);
    }
    models.into_values().map(|cells| model(pair, cells)).collect()
}

/// Counts the verdicts of each kind, worst first. Kinds that do not occur are left out, and so are
/// verdicts on metrics that are neither release-blocking nor tested.
pub fn counts(diff: &Diff) -> Value {
    let count = |kind: &VerdictKind| {
        let of_kind = |row: &&Row| row.verdict.verdict == *kind && !is_untested(row);
        let count = diff.rows().filter(of_kind).count();
        let text = format!("{count} {}", words::verdict(*kind));
        (count > 0).then(|| context! { text, tone => tone(*kind) })
    };
    WORST_FIRST.iter().filter_map(count).collect()
}

/// Builds the part of a comparison about `cells`, which share model and configuration.
fn model(pair: &Pair, mut cells: Vec<&CellDiff>) -> Value {
    cells.sort_by(|a, b| order::scenarios(&a.cell.scenario, &b.cell.scenario));
    let first = cells.first().map(|cell| cell.cell.clone()).unwrap_or_default();
    let rows = cells.iter().flat_map(|cell| &cell.rows);
    let (blocking, others): (Vec<&Row>, Vec<&Row>) = rows.partition(|row| row.gates);
    let named = |scenarios: &[String]| outside::name(&grouped::scenarios(scenarios, cells.len()));
    let remark = |remark: &Remark| (named(&remark.scenarios), outside::message(&remark.text));
    let large = |change: &LargeChange| {
        context! {
            metric => &change.title,
            change => range(change.range_pct),
            scenarios => named(&change.scenarios),
        }
    };
    let large_changes = grouped::large(&cells);
    let (worse, better): (Vec<&LargeChange>, Vec<&LargeChange>) =
        large_changes.iter().partition(|change| change.worse);
    let charts = [throughput(pair, &cells), forest_plot(&blocking)];
    context! {
        model => outside::name(&first.model),
        config => outside::name(&first.config),
        charts => charts.into_iter().flatten().collect::<Value>(),
        // Remarks on the comparison: scenarios and sentence, each sentence once.
        remarks => grouped::remarks(&cells).iter().map(remark).collect::<Value>(),
        // Flags that differ because a command sets them.
        changed => distinct(cells.iter().flat_map(|cell| &cell.changed).map(changed_flag)),
        // Flags whose value differs without any command naming them: the candidate moved their
        // default.
        moved => distinct(cells.iter().flat_map(|cell| &cell.moved).map(changed_flag)),
        // Large changes of metrics that are not release-blocking, for the worse and for the better.
        worse => worse.into_iter().map(large).collect::<Value>(),
        better => better.into_iter().map(large).collect::<Value>(),
        blocking => table(blocking),
        others => table(others),
    }
}

/// Builds a table of rows, with the columns that say something about them: the detectable effect
/// where a release-blocking metric is undecided, Cliff's delta where the runs of both releases
/// overlap.
pub fn table(rows: Vec<&Row>) -> Value {
    let overlaps = |row: &&Row| row.verdict.cliffs_delta.is_some_and(|delta| delta.abs() < 1.0);
    context! {
        has_detectable => rows.iter().any(|row| detectable(row).is_some()),
        has_delta => rows.iter().any(overlaps),
        rows => rows.into_iter().map(line).collect::<Value>(),
    }
}

/// Returns the smallest effect, in percent, that as many pairs would have shown, for a
/// release-blocking metric that is undecided: beside a verdict it would say nothing.
fn detectable(row: &Row) -> Option<f64> {
    let undecided = row.gates && row.verdict.verdict == VerdictKind::Inconclusive;
    row.verdict.mde_pct.filter(|_| undecided)
}

/// Formats the smallest and the largest of several effects: `+615 to +987 %`.
fn range((low, high): (f64, f64)) -> String {
    if low == high { format::change(low) } else { format::interval((low, high)) }
}

/// Returns effect, interval and verdict of a row as texts; `-` for a missing effect or interval.
pub fn shown(row: &Row) -> (String, String, &'static str) {
    let verdict = &row.verdict;
    let effect = or_dash(verdict.effect_pct, format::change);
    let interval = or_dash(verdict.interval_pct, format::interval);
    let word = if is_untested(row) { "not judged" } else { words::verdict(verdict.verdict) };
    (effect, interval, word)
}

/// Formats `row` (one metric of one cell) as a row of a table of verdicts.
pub fn line(row: &Row) -> Value {
    let verdict = &row.verdict;
    let means = row.baseline.iter().chain(&row.candidate).map(|summary| summary.mean);
    let scale = Scale::fit(row.unit, means.fold(0.0, f64::max));
    let (effect, interval, word) = shown(row);
    let suspected = verdict.suspected && verdict.verdict == VerdictKind::Inconclusive;
    context! {
        scenario => outside::name(&verdict.cell.scenario),
        metric => &row.title,
        unit => scale.unit,
        baseline => mean(row.baseline.as_ref(), scale),
        candidate => mean(row.candidate.as_ref(), scale),
        effect,
        interval,
        // Cliff's delta over the runs of both releases, with its sign.
        delta => or_dash(verdict.cliffs_delta, format::signed_share),
        pairs => verdict.pairs,
        floor => format!("{} %", verdict.floor_pct),
        detectable => or_dash(detectable(row), |pct| format!("{} %", format::half_width(pct))),
        verdict => word,
        // Qualification of the verdict in a word; the waiver itself stands above the tables.
        stage => match verdict.stage {
            Stage::Confirm if verdict.waiver.is_some() => "confirmed, waived",
            _ if verdict.waiver.is_some() => "waived",
            Stage::Estimate => "",
            Stage::Screen if suspected => "suspected, not confirmed",
            Stage::Confirm if suspected => "not reproduced",
            Stage::Screen => "",
            Stage::Confirm => "confirmed",
        },
        tone => tone(verdict.verdict),
    }
}

fn mean(summary: Option<&Summary>, scale: Scale) -> Figure {
    let missing = || Figure::missing("no run of this side knows it");
    summary.map_or_else(missing, |summary| Figure::mean(summary, scale))
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
        let output = figure::output().name;
        let Some(row) = cell.rows.iter().find(|row| row.verdict.metric == output) else { continue };
        // Only compared figures are colored; stored figures of different days are not.
        let compared = if row.verdict.pairs > 1 { Mark::Color } else { Mark::Gray };
        let bar = |release: &str, summary: Option<&Summary>, mark| Bar {
            series: outside::name(release),
            value: summary.map(|summary| summary.mean),
            range: summary.filter(|summary| summary.n > 1).map(|s| (s.min, s.max)),
            text: mean(summary, Scale::PER_SECOND).text,
            mark,
        };
        let bars = vec![
            bar(&pair.baseline, row.baseline.as_ref(), Mark::Gray),
            bar(&pair.candidate, row.candidate.as_ref(), compared),
        ];
        let label = outside::name(&cell.cell.scenario);
        table.push(vec![label.clone(), bars[0].text.clone(), bars[1].text.clone()]);
        groups.push(BarGroup { label, bars });
    }
    if groups.is_empty() {
        return None;
    }
    let caption = "Mean over runs, whiskers span them. In color: measured side by side.";
    let heads =
        ["Scenario".to_owned(), outside::name(&pair.baseline), outside::name(&pair.candidate)];
    let drawing = bars("tokens/s", &groups);
    Some(Chart::new("Output tokens per second", caption, drawing, heads, table))
}

fn forest_plot(blocking: &[&Row]) -> Option<Chart> {
    let mut rows = Vec::new();
    let mut table = Vec::new();
    for row in blocking {
        let verdict = &row.verdict;
        let Some(effect_pct) = verdict.effect_pct else { continue };
        let (effect, interval, word) = shown(row);
        let label = format!("{} {}", row.title, outside::name(&verdict.cell.scenario));
        let text = format!("{effect} {word}");
        table.push(vec![label.clone(), effect, interval, word.to_owned()]);
        rows.push(ForestRow {
            label,
            text,
            effect_pct,
            interval_pct: verdict.interval_pct,
            min_effect_pct: verdict.floor_pct,
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
    let caption = "Change with its 95 % interval. Inside the shaded minimum effect nothing is called \
                   a change. Filled: confirmed. Red: regressed.";
    let heads = ["Metric", "Change", "95 % interval", "Verdict"];
    Some(Chart::new("Change of release-blocking metrics", caption, forest(&rows), heads, table))
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id, reseal};
    use schema::run::RunRecord;
    use serde_json::Value as Json;

    use super::*;
    use samples::registry as sample;

    /// Flags that a test sets on the candidate's server in the first scenario of a comparison, and
    /// the words of the server's command that set them.
    #[derive(Default)]
    struct Changed {
        flags: BTreeMap<String, Json>,
        argv: Vec<String>,
    }

    /// Builds, for tests, a comparison from three pairs of runs in each of `scenarios`; the
    /// candidate is slower by a tenth in all of them.
    fn compared(scenarios: &[&str], changed: &Changed) -> Diff {
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
        let registry = sample::registry(records);
        let filter = judge::diff::Filter::default();
        judge::diff::diff(&registry, "v0.9.1", "v0.9.2", &filter).unwrap()
    }

    fn models_of(diff: &Diff) -> Vec<Value> {
        let pair = Pair {
            engine: "redline".into(),
            hardware: Sample::default().hardware,
            baseline: "v0.9.1".into(),
            candidate: "v0.9.2".into(),
        };
        models(&pair, diff)
    }

    fn attribute(view: &Value, key: &str) -> Value {
        view.get_attr(key).unwrap()
    }

    #[test]
    fn the_shift_over_all_cells_and_how_far_two_sets_of_launches_lie_apart_are_shown() {
        let diff =
            compared(&["sharegpt-lite", "balanced-lite", "thinking-lite"], &Changed::default());
        let output = diff.broad.iter().find(|found| found.title == "Output tokens").unwrap();
        assert_eq!(output.cells, 3);
        assert!(format::change(output.effect_pct).starts_with("\u{2212}10."), "{output:?}");
        assert!(or_dash(output.interval_pct, format::interval).contains(" to "), "{output:?}");
        let models = models_of(&diff);
        let blocking = attribute(&models[0], "blocking");
        let mut rows = attribute(&blocking, "rows").try_iter().unwrap();
        let output = Value::from("Output tokens");
        let row = rows.find(|row| attribute(row, "metric") == output).unwrap();
        let delta = attribute(&row, "delta").to_string();
        assert_eq!(delta, "\u{2212}1.00", "no run of one is as fast as any of the other");
        let rows: Vec<&Row> =
            diff.rows().filter(|row| row.verdict.metric == "output_tokens_per_s").collect();
        let has_delta = attribute(&table(rows), "has_delta");
        assert!(!has_delta.is_true(), "a column of ±1.00 says nothing");
        assert!(compared(&["sharegpt-lite"], &Changed::default()).broad.is_empty());
    }

    #[test]
    fn a_detectable_effect_is_shown_for_undecided_metrics_only() {
        let diff = compared(&["balanced-lite"], &Changed::default());
        let mut rows: Vec<Row> = diff.rows().filter(|row| row.gates).cloned().collect();
        let undecided = attribute(&table(rows.iter().collect()), "has_detectable");
        assert!(undecided.is_true());
        for row in &mut rows {
            row.verdict.verdict = VerdictKind::Improved;
        }
        let table = table(rows.iter().collect());
        assert!(!attribute(&table, "has_detectable").is_true());
        let mut lines = attribute(&table, "rows").try_iter().unwrap();
        assert!(lines.all(|line| attribute(&line, "detectable").to_string() == "-"));
    }

    #[test]
    fn a_waiver_stands_above_the_tables_and_not_in_a_cell() {
        let mut diff = compared(&["balanced-lite"], &Changed::default());
        let reason = "A reason that would stretch a table. ".repeat(10);
        diff.cells[0].rows[0].verdict.waiver = Some(reason.clone());
        diff.waivers = vec![AppliedWaiver {
            event: campaign_id(5),
            title: "Peak memory".into(),
            scenarios: vec!["balanced-lite@1".into()],
            reason: reason.trim().to_owned(),
            until: Some("2027-03-31T23:59:59Z".into()),
        }];
        let shown = decision(&diff);
        let waiver = attribute(&shown, "waivers").get_item_by_index(0).unwrap();
        assert_eq!(attribute(&waiver, "until").to_string(), "until 2027-03-31");
        assert_eq!(attribute(&waiver, "reason").to_string(), reason.trim());
        let line = line(&diff.cells[0].rows[0]);
        assert_eq!(attribute(&line, "stage").to_string(), "waived");
        assert!(!line.to_string().contains("stretch"), "{line}");
    }

    #[test]
    fn a_default_that_moved_stands_apart_from_a_flag_that_was_asked_for() {
        let flags = BTreeMap::from([("max-batch-size".to_owned(), Json::from(256))]);
        let moved = compared(&["balanced-lite"], &Changed { flags: flags.clone(), argv: vec![] });
        let names = |model: &Value, kind: &str| -> Vec<String> {
            let flags = attribute(model, kind).try_iter().unwrap();
            flags.map(|flag| attribute(&flag, "flag").to_string()).collect()
        };
        let model = &models_of(&moved)[0];
        assert_eq!(
            (names(model, "moved"), names(model, "changed")),
            (vec!["max-batch-size".into()], vec![])
        );
        let sentence = &moved.decision.sentence;
        assert!(!sentence.contains("changed configuration"), "{sentence}");
        let asked = Changed { flags, argv: vec!["--max-batch-size".into()] };
        let model = &models_of(&compared(&["balanced-lite"], &asked))[0];
        assert_eq!(
            (names(model, "moved"), names(model, "changed")),
            (vec![], vec!["max-batch-size".into()])
        );
    }
}
