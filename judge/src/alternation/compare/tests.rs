//! Tests of alternating comparisons as comparisons of releases: decisions, rows and remarks.

use samples::alternation::InTurns;
use schema::comparison::DecisionKind;
use schema::exit::Exit;
use schema::run::BuildFacts;

use super::*;
use crate::diff::caveats::caveats;
use crate::diff::{junit, report, words};

/// Compares as the command `gate` does.
fn gate(comparisons: &[AlternatingComparison]) -> Diff {
    let command = ["cargo", "xtask", "gate"].map(str::to_owned);
    Gate { campaign: "01A", hardware: "cpu-x", command: &command, comparisons }.diff()
}

fn of(turns: &InTurns) -> Diff {
    gate(&[turns.comparison()])
}

fn row_of<'a>(diff: &'a Diff, metric: &str) -> &'a Row {
    diff.rows().find(|row| row.verdict.metric == metric).unwrap()
}

/// Returns the first line of the text for a terminal, where a line that is wrapped counts as one.
fn first_line(diff: &Diff) -> String {
    report::text(diff).replace("\n  ", " ").lines().next().unwrap().to_owned()
}

#[test]
fn a_slower_candidate_is_held_and_the_first_line_says_by_how_much() {
    let diff = of(&InTurns { speed: 0.95, ..InTurns::default() });
    assert_eq!((diff.decision.verdict, diff.exit()), (DecisionKind::Hold, Exit::Worse));
    let line = first_line(&diff);
    let said = "Hold: Output tokens of ladder-lite-c4@1 regressed, down 5.0 %; 2 release-blocking metrics \
                regressed or failed too.";
    assert_eq!(line, said);
    // The quickstart shows what such a hold looks like.
    let quickstart = include_str!("../../../../docs/quickstart/judge-a-release.md");
    let printed: Vec<String> = report::text(&diff).lines().take(2).map(str::to_owned).collect();
    assert!(quickstart.contains(&format!("```\n{}\n```\n", printed.join("\n"))), "{printed:?}");
    let output = row_of(&diff, "output_tokens_per_s");
    let verdict = &output.verdict;
    assert_eq!((verdict.verdict, verdict.stage), (VerdictKind::Regressed, Stage::Alternate));
    assert!((verdict.effect_pct.unwrap() + 5.0).abs() < 0.1, "{verdict:?}");
    // The comparison is judged first after a fifth of its budget: six starts of four pairs.
    let extent = verdict.alternation.unwrap();
    assert_eq!((extent.starts, extent.slices, verdict.pairs), (6, 48, 24));
    assert_eq!((extent.spent_us, extent.budget_us), (60_000_000, 300_000_000));
    // Figures are those of all starts.
    assert_eq!(output.baseline.map(|side| (side.n, side.mean.round())), Some((30, 1280.0)));
    let memory = &row_of(&diff, "rss_bytes_max").verdict;
    assert_eq!(memory.verdict, VerdictKind::Unchanged);
    let start = row_of(&diff, "startup_us");
    assert_eq!((start.gates, start.verdict.stage), (false, Stage::Estimate));
    let xml = junit::junit(&diff).unwrap();
    assert!(xml.contains("failures=\"3\"") && xml.contains("tests=\"5\""), "{xml}");
}

#[test]
fn the_99th_percentile_of_tpot_blocks_from_a_fifth_on() {
    for (speed, kind) in [(0.78, VerdictKind::Regressed), (0.96, VerdictKind::Unchanged)] {
        let diff = of(&InTurns { speed, ..InTurns::default() });
        let tail = row_of(&diff, "tpot_us_p99");
        assert_eq!((tail.gates, tail.verdict.verdict), (true, kind), "{speed}");
        assert_eq!(tail.verdict.floor_pct, 20.0);
    }
}

#[test]
fn outputs_that_differ_hold_a_candidate_that_is_as_fast() {
    let diff = of(&InTurns { differ: 2, ..InTurns::default() });
    assert_eq!((diff.decision.verdict, diff.exit()), (DecisionKind::Hold, Exit::Worse));
    let line = first_line(&diff);
    assert_eq!(line, "Hold: outputs changed and nothing explains it.");
    let caveats = caveats(&diff);
    let said = "Outputs differ in 60 of 480 requests, and nothing explains it.";
    assert_eq!(caveats[0], said, "{caveats:?}");
}

#[test]
fn outputs_of_a_model_are_compared_over_all_its_scenarios() {
    let scenario = "ladder-lite-c1@1".to_owned();
    let other = InTurns { scenario, differ: 1, ..InTurns::default() };
    let diff = gate(&[InTurns::default().comparison(), other.comparison()]);
    let [outputs] = &diff.outputs[..] else { panic!("{:?}", diff.outputs) };
    let found = outputs.requests.map(|found| (found.compared, found.differ));
    assert_eq!((found, outputs.change), (Some((960, 30)), OutputsChange::Differ));
}

#[test]
fn nothing_that_changed_ships_and_says_how_long_it_took() {
    let diff = of(&InTurns::default());
    assert_eq!((diff.decision.verdict, diff.exit()), (DecisionKind::Ship, Exit::Well));
    assert_eq!(first_line(&diff), "Ship: no release-blocking metric changed.");
    assert_eq!(caveats(&diff)[0], "Outputs of all 480 requests are the same.");
    let said = "in turns: 30 starts of both servers, 120 pairs of slices of 4 requests, 5 min of a budget \
                of 5 min";
    assert_eq!(diff.cells[0].remarks, [said]);
    let text = report::text(&diff);
    assert!(text.contains("v0.9.1 -> v0.9.2") && !text.contains("pairs, interleaved"), "{text}");
}

#[test]
fn what_is_undecided_names_the_largest_regression_that_was_not_excluded() {
    let diff = of(&InTurns { scatter: 0.3, ..InTurns::default() });
    assert_eq!(
        (diff.decision.verdict, diff.exit()),
        (DecisionKind::Inconclusive, Exit::Inconclusive)
    );
    let open =
        diff.rows().filter(|row| row.gates && row.verdict.verdict == VerdictKind::Inconclusive);
    let worst = |row: &Row| {
        let (low, high) = row.verdict.interval_pct.unwrap();
        if row.better == schema::metric::Better::Higher { -low } else { high }
    };
    let bound = open.map(worst).fold(0.0, f64::max);
    let line = first_line(&diff);
    let start = format!("Inconclusive: a regression of up to {bound:.0} % of ");
    assert!(bound > 10.0 && line.starts_with(&start), "{bound}: {line}");
    assert!(line.contains("in ladder-lite-c4@1 could not be excluded"), "{line}");
    let verdict = &row_of(&diff, "output_tokens_per_s").verdict;
    assert_eq!(verdict.alternation.map(|extent| extent.starts), Some(30), "the budget is spent");
}

/// Compares in three scenarios.
fn in_three(turns: &InTurns) -> Diff {
    let of_scenario = |id: &str| InTurns { scenario: id.to_owned(), ..turns.clone() }.comparison();
    gate(&["ladder-lite-c1@1", "ladder-lite-c4@1", "ladder-lite-c16@1"].map(of_scenario))
}

/// Returns the calls about output tokens per second: over all scenarios together, and in each alone.
fn calls(diff: &Diff) -> Vec<VerdictKind> {
    let of_output = |row: &&Row| row.verdict.metric == "output_tokens_per_s";
    diff.rows().filter(of_output).map(|row| row.verdict.verdict).collect()
}

#[test]
fn a_change_that_each_scenario_is_too_short_for_holds_by_all_of_them() {
    use VerdictKind::{Inconclusive, Regressed};
    let diff = in_three(&InTurns { speed: 0.98, scatter: 0.06, ..InTurns::default() });
    assert_eq!(calls(&diff), [Regressed, Inconclusive, Inconclusive, Inconclusive]);
    let line = first_line(&diff);
    let said = "Hold: Output tokens of 2 of 3 scenarios together regressed, down 2.1 %";
    assert!(line.starts_with(said), "{line}");
    let row = diff.pooled.iter().find(|row| row.verdict.metric == "output_tokens_per_s").unwrap();
    let extent = row.verdict.alternation.unwrap();
    assert_eq!((extent.starts, extent.budget_us), (60, 600_000_000));
    for text in [report::text(&diff), report::markdown(&diff), junit::junit(&diff).unwrap()] {
        assert!(text.contains("2 of 3 scenarios together"), "{text}");
    }
    let said = "Output tokens over scenarios together: decided when 2 of 3 had ended \
                (ladder-lite-c1@1, ladder-lite-c4@1).";
    let caveats = caveats(&diff);
    assert!(caveats.contains(&said.to_owned()), "{caveats:?}");
}

#[test]
fn metrics_of_scenarios_are_counted_and_those_that_are_decided_together_only_are_named() {
    let diff = in_three(&InTurns { scatter: 0.08, ..InTurns::default() });
    let mut open = diff.clone();
    // Memory is undecided in one scenario and together.
    let memory = |row: &&mut Row| row.verdict.metric == "rss_bytes_max";
    let rows = open.pooled.iter_mut().chain(&mut open.cells[0].rows);
    rows.filter(memory).for_each(|row| {
        row.verdict.verdict = VerdictKind::Inconclusive;
        row.verdict.interval_pct = Some((-1.0, 2.5));
    });
    let sentence = decision::of(&open).sentence;
    let alone = diff.cells.iter().flat_map(|cell| &cell.rows);
    let only = alone.filter(|row| row.gates && row.verdict.verdict == VerdictKind::Inconclusive);
    let only = only.count();
    assert!(only > 0, "{:?}", diff.decision);
    let said = [
        "1 of 15 release-blocking metrics is undecided; ".to_owned(),
        format!("{only} more are decided over scenarios together only; "),
        "1 release-blocking metric is undecided over scenarios together".to_owned(),
    ];
    assert!(said.iter().all(|said| sentence.contains(said)), "{sentence}");
}

#[test]
fn metrics_that_are_undecided_between_unchanged_and_better_are_shipped() {
    let diff = of(&InTurns { speed: 1.015, scatter: 0.07, ..InTurns::default() });
    assert_eq!((diff.decision.verdict, diff.exit()), (DecisionKind::Ship, Exit::Well));
    let line = first_line(&diff);
    let said =
        "; 2 of 5 release-blocking metrics are undecided between unchanged and better (a loss of ";
    assert!(line.starts_with("Ship: ") && line.contains(said), "{line}");
    assert!(line.ends_with(" in ladder-lite-c4@1)."), "{line}");
    let row = row_of(&diff, "output_tokens_per_s");
    assert_eq!(
        (row.verdict.verdict, words::word(row).as_str()),
        (VerdictKind::Inconclusive, "not worse")
    );
    let (low, high) = row.verdict.interval_pct.unwrap();
    assert!(-row.verdict.floor_pct < low && high > row.verdict.floor_pct, "{low} to {high}");
    assert!(!junit::junit(&diff).unwrap().contains("<skipped"), "it fails no test, and skips none");
}

#[test]
fn a_metric_whose_interval_reaches_the_minimum_effect_keeps_a_release_from_being_shipped() {
    let mut diff = of(&InTurns { speed: 1.015, scatter: 0.07, ..InTurns::default() });
    let of_output = |row: &&mut Row| row.verdict.metric == "output_tokens_per_s";
    let row = diff.cells[0].rows.iter_mut().find(of_output).unwrap();
    row.verdict.interval_pct = Some((-row.verdict.floor_pct - 0.1, 5.0));
    assert_eq!(decision::of(&diff).verdict, DecisionKind::Inconclusive);
}

#[test]
fn a_scenario_with_too_few_starts_says_so_and_bounds_nothing() {
    let mut few = InTurns::default().comparison();
    few.starts.truncate(2);
    few.budget_us = 15_000_000;
    let diff = gate(&[few]);
    let memory = row_of(&diff, "rss_bytes_max");
    assert_eq!(words::word(memory), "too few starts: 2 of 4");
    assert_eq!(memory.verdict.deciding_interval_pct, None);
    let line = first_line(&diff);
    let said = "Inconclusive: Output tokens in ladder-lite-c4@1 had too few starts: 2 of 4; 5 of 5 \
                release-blocking metrics are undecided.";
    assert_eq!(line, said);
    let caveats = caveats(&diff);
    let said = "Too few starts to judge a metric alone: ladder-lite-c4@1.".to_owned();
    assert!(caveats.contains(&said), "{caveats:?}");
    let seen = caveats.iter().any(|text| text.starts_with("Smallest changes"));
    assert!(!seen, "two starts show no change: {caveats:?}");
}

#[test]
fn a_change_passes_a_wider_interval_than_that_of_one_metric() {
    let mut undecided = 0;
    for speed in [0.95, 0.96, 0.97, 0.98, 0.99, 1.01, 1.02, 1.03] {
        let diff = of(&InTurns { speed, scatter: 0.06, ..InTurns::default() });
        for row in diff.rows().filter(|row| row.gates) {
            let verdict = &row.verdict;
            let (low, high) = verdict.interval_pct.unwrap();
            let (wide_low, wide_high) = verdict.deciding_interval_pct.unwrap();
            assert!(wide_low <= low && high <= wide_high, "{verdict:?}");
            let excludes_zero = wide_low > 0.0 || wide_high < 0.0;
            let is_change = [VerdictKind::Regressed, VerdictKind::Improved];
            if is_change.contains(&verdict.verdict) {
                assert!(excludes_zero, "{verdict:?}");
            }
            undecided += usize::from(words::deciding_interval(row).is_some());
        }
    }
    assert!(undecided > 0, "a 95 % interval that excludes zero stands beside inconclusive");
}

#[test]
fn what_all_scenarios_together_exclude_may_be_open_in_one_of_them() {
    use VerdictKind::{Inconclusive, Unchanged};
    let diff = in_three(&InTurns { scatter: 0.08, ..InTurns::default() });
    assert_eq!(calls(&diff), [Unchanged, Inconclusive, Inconclusive, Inconclusive]);
    let said = "Ship: no release-blocking metric changed; 3 of 15 release-blocking metrics are decided \
                over scenarios together only.";
    assert_eq!(first_line(&diff), said);
    let alone = of(&InTurns { scatter: 0.08, ..InTurns::default() });
    assert_eq!((alone.pooled.len(), alone.exit()), (0, Exit::Inconclusive));
}

#[test]
fn a_candidate_that_does_not_start_is_a_new_failure() {
    let diff = of(&InTurns { fails: true, ..InTurns::default() });
    assert_eq!((diff.decision.verdict, diff.exit()), (DecisionKind::Hold, Exit::Worse));
    let line = first_line(&diff);
    let said = "Hold: runs or requests of ladder-lite-c4@1 fail that did not fail before.";
    assert_eq!(line, said);
    let row = row_of(&diff, "requests_failed");
    assert_eq!(row.verdict.verdict, VerdictKind::NewFailure);
    assert_eq!(diff.cells[0].candidate_runs.requests_failed, 2);
    let remarks = &diff.cells[0].remarks;
    let said = "v0.9.2 failed: the server ended before it was ready";
    assert!(remarks.iter().any(|remark| remark == said), "{remarks:?}");
}

#[test]
fn two_engines_are_named_and_their_outputs_are_not_compared() {
    let engine = |name: &str, release: &str| (name.to_owned(), release.to_owned());
    let engines = [engine("llama.cpp", "b6000"), engine("redline", "v0.9.2")];
    let diff = of(&InTurns { engines, differ: 16, speed: 1.2, ..InTurns::default() });
    assert_eq!((&*diff.baseline, &*diff.candidate), ("llama.cpp b6000", "redline v0.9.2"));
    assert_eq!(diff.outputs[0].change, OutputsChange::NotCompared);
    assert_eq!(diff.decision.verdict, DecisionKind::Ship, "{:?}", diff.decision);
    assert!(first_line(&diff).starts_with("Ship: Output tokens up 20 %"), "{}", first_line(&diff));
}

#[test]
fn outputs_of_two_configurations_are_not_compared_and_the_candidate_is_named_by_its_own() {
    let variant = Some("f16".to_owned());
    let diff = of(&InTurns { variant, differ: 16, ..InTurns::default() });
    assert_eq!((&*diff.baseline, &*diff.candidate), ("v0.9.1", "v0.9.2 (f16)"));
    assert_eq!(diff.outputs[0].change, OutputsChange::NotCompared);
    assert_eq!(diff.cells[0].cell.config, "f16");
}

#[test]
fn a_comparison_that_measured_nothing_is_inconclusive() {
    let diff = gate(&[]);
    assert_eq!(diff.exit(), Exit::Inconclusive);
    assert!(diff.decision.sentence.contains("no scenario was measured"), "{:?}", diff.decision);
}

#[test]
fn an_idle_server_that_was_awake_is_remarked() {
    let mut found = InTurns::default().comparison();
    for slice in found.starts.iter_mut().filter_map(|start| start.alternation.as_mut()) {
        slice.slices[0].idle_cpu_us = Some(10);
    }
    assert!(
        remarks(&found).contains(&"the idle server was awake in 12 % of the slices".to_owned())
    );
}

#[test]
fn a_candidate_that_is_no_release_is_identified_with_the_packages_that_differ() {
    let build = |own: &str, torch: &str| BuildFacts {
        source_url: Some(own.to_owned()),
        packages: Some(vec!["fire==0.7".to_owned(), format!("torch=={torch}"), own.to_owned()]),
        ..BuildFacts::default()
    };
    let mut found = InTurns::default().comparison();
    found.baseline.engine.build = Some(build("vllm==0.11.0", "2.8.0"));
    found.candidate.engine.build = Some(build("vllm==0.11.1.dev3", "2.8.0"));
    found.candidate.engine.release = "v0.11.1.dev3-dev".to_owned();
    assert_eq!(remarks(&found).len(), 1, "neither a hash nor a digest is known");
    found.candidate.engine.image_digest = Some("sha256:1a2b".to_owned());
    let image = "v0.11.1.dev3-dev is the image with the digest sha256:1a2b, with vllm==0.11.1.dev3";
    assert_eq!(remarks(&found)[1..], [image]);
    let wheel =
        BuildFacts { wheel_sha256: Some("3c4d".to_owned()), ..build("vllm==0.11.1.dev3", "2.9.0") };
    found.candidate.engine.build = Some(wheel);
    let wheel = "v0.11.1.dev3-dev is the wheel with the SHA-256 3c4d";
    assert_eq!(remarks(&found)[1..], [wheel, "packages differ: torch 2.8.0 -> 2.9.0"]);
}

#[test]
fn a_few_of_many_packages_that_differ_are_named() {
    let build = |version: &str, names: &[&str]| BuildFacts {
        packages: Some(names.iter().map(|name| format!("{name}=={version}")).collect()),
        ..BuildFacts::default()
    };
    let mut found = InTurns::default().comparison();
    found.baseline.engine.build = Some(build("1", &["a", "b", "c", "d"]));
    found.candidate.engine.build = Some(build("2", &["b", "c", "d", "e"]));
    let said = "packages differ: a 1 -> none, b 1 -> 2, c 1 -> 2, 2 others";
    assert_eq!(remarks(&found)[1..], [said]);
}

#[test]
fn times_are_formatted_in_minutes_and_seconds() {
    let cases = [(9_999_999, "9 s"), (60_000_000, "1 min"), (250_000_000, "4 min 10 s")];
    for (us, text) in cases {
        assert_eq!(minutes(us), text);
    }
}
