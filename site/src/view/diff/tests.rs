//! Tests of the view of a comparison, over made-up records.

use judge::alternation::compare::Gate;
use samples::alternation::InTurns;
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

fn pair() -> Pair {
    Pair {
        engine: "redline".into(),
        hardware: Sample::default().hardware,
        baseline: "v0.9.1".into(),
        candidate: "v0.9.2".into(),
    }
}

fn models_of(diff: &Diff) -> Vec<Value> {
    models(&pair(), diff)
}

fn attribute(view: &Value, key: &str) -> Value {
    view.get_attr(key).unwrap()
}

/// Compares two scenarios in turns, of which the second one ended after two starts; output tokens are
/// undecided in both.
fn in_turns() -> Diff {
    let turns = InTurns { speed: 0.98, scatter: 0.06, ..InTurns::default() };
    let scenario = "ladder-lite-c1@1".to_owned();
    let mut few = InTurns { scenario, ..turns.clone() }.comparison();
    few.starts.truncate(2);
    few.budget_us = 15_000_000;
    let comparisons = [turns.comparison(), few];
    Gate { campaign: "01A", hardware: "cpu-x", command: &[], comparisons: &comparisons }.diff()
}

#[test]
fn a_row_in_turns_says_which_scenarios_it_judges_and_what_keeps_it_undecided() {
    let diff = in_turns();
    let rows = diff.rows().filter(|row| row.verdict.metric == "output_tokens_per_s");
    let lines: Vec<Value> = rows.map(line).collect();
    let texts = |key| -> Vec<String> {
        lines.iter().map(|line| attribute(line, key).to_string()).collect()
    };
    let scenarios = texts("scenario");
    assert_eq!(scenarios, ["all 2 scenarios together", "ladder-lite-c4@1", "ladder-lite-c1@1"]);
    let stages = texts("stage");
    assert!(stages[1].starts_with("in turns, decided by \u{2212}"), "{stages:?}");
    assert!(stages[1].contains(" to +"), "zero is in the interval that decides: {stages:?}");
    assert_eq!(stages[2], "in turns, too few starts: 2 of 4");
    assert_eq!(texts("detectable")[2], "-", "two starts show no change");
    // Rows about scenarios together are in no count.
    let kinds = counts(&diff).try_iter().unwrap();
    let counted: usize = kinds
        .map(|kind| attribute(&kind, "text").to_string())
        .map(|text| text.split(' ').next().unwrap().parse::<usize>().unwrap())
        .sum();
    assert_eq!(counted, 10, "five metrics in each of two scenarios");
}

#[test]
fn the_shift_over_all_cells_and_how_far_two_sets_of_launches_lie_apart_are_shown() {
    let diff = compared(&["sharegpt-lite", "balanced-lite", "thinking-lite"], &Changed::default());
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
fn the_forest_plot_of_a_release_leads_to_the_verdicts_and_is_red_for_regressions_only() {
    let mut diff = compared(&["sharegpt-lite", "balanced-lite"], &Changed::default());
    let pair = pair();
    let regressed = diff.cells[0].rows.iter_mut().find(|row| row.title == "Output tokens");
    regressed.unwrap().verdict.verdict = VerdictKind::Regressed;
    let plots = effects(&pair, &diff);
    let rows = &plots[0].rows;
    let tested = diff.rows().filter(|row| row.gates && row.verdict.effect_pct.is_some());
    assert_eq!((plots.len(), rows.len()), (1, tested.count()));
    let red = rows.iter().filter(|row| row.mark == ForestMark::Worse).count();
    assert_eq!((red, rows[0].group.as_str()), (1, "Output tokens"));
    let groups = rows.iter().filter(|row| row.group == "Output tokens").count();
    assert_eq!(groups, 1, "a metric is a heading above its scenarios");
    let lines: Vec<String> =
        diff.rows().map(|row| attribute(&line(row), "anchor").to_string()).collect();
    for row in rows {
        assert!(lines.contains(&row.anchor) && row.page == Some(pair.target()), "{row:?}");
    }
    // A throughput that fell by a tenth is drawn left of zero, as its text says.
    assert!(rows[0].text.starts_with('\u{2212}'), "{}", rows[0].text);
    let at = rows[0].svg.split("class=\"dot").nth(1).and_then(|dot| dot.split("cx=\"").nth(1));
    let at: f64 = at.and_then(|x| x.split('%').next()?.parse().ok()).unwrap();
    assert!(at < 50.0, "{}", rows[0].svg);
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
        accepted_by: Some("the maintainers".into()),
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
