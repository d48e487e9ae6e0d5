//! Tests of the decision, the outputs, the waivers and the grouped remarks of a comparison.

use schema::comparison::OutputsChange;
use schema::event::{Event, EventKind, OUTPUTS};

use super::*;

/// Changes the candidate's runs and seals them again.
fn with_candidate(runs: Vec<RunRecord>, change: impl Fn(&mut RunRecord)) -> Vec<RunRecord> {
    let changed = runs.into_iter().map(|mut run| {
        if run.engine.release == "v0.9.2" {
            change(&mut run);
        }
        reseal(run)
    });
    changed.collect()
}

fn other_outputs(run: &mut RunRecord) {
    run.correctness.as_mut().unwrap().tokens_sha256 = Some("other".to_owned());
}

fn waiver(serial: u64, metric: &str, cell: &str) -> Stored<Event> {
    let record = Event {
        id: campaign_id(serial),
        at: "2026-02-01T00:00:00Z".into(),
        cell: Some(cell.to_owned()),
        metric: Some(metric.to_owned()),
        expires: Some("2027-03-31T23:59:59Z".into()),
        ..Event::draft(EventKind::Waive, "It was intended.", &[])
    };
    Stored { path: format!("events/{serial}"), root: 0, record }
}

#[test]
fn a_confirmed_regression_holds_a_release_and_the_sentence_names_the_worst() {
    let diff = compare_all(two_stages(0.9, 0.9));
    let Decision { verdict, sentence } = &diff.decision;
    assert_eq!((*verdict, diff.exit()), (DecisionKind::Hold, Exit::Worse));
    assert!(
        sentence.starts_with("Hold: Output tokens of balanced-lite@1 regressed, down 9.9 %"),
        "{sentence}"
    );
}

#[test]
fn improvements_ship_and_are_named_with_their_size() {
    let diff = compare_all(two_stages(2.0, 2.0));
    let Decision { verdict, sentence } = &diff.decision;
    assert_eq!((*verdict, diff.exit()), (DecisionKind::Ship, Exit::Well), "{sentence}");
    let size = sentence.strip_prefix("Ship: Output tokens up ").unwrap_or_default();
    let size: f64 = size.split(' ').next().unwrap().parse().unwrap();
    assert!((95.0..105.0).contains(&size), "{sentence}");
}

#[test]
fn an_undecided_metric_is_inconclusive_with_the_regression_that_was_not_excluded() {
    let diff = compare_all(interleaved(5, 0.95));
    let sentence = &diff.decision.sentence;
    let bound = -row_of(&diff, "output_tokens_per_s").verdict.interval_pct.unwrap().0;
    let said = format!(
        "Inconclusive: a regression of up to {bound:.1} % of Output tokens in balanced-lite@1 could \
         not be excluded; 1 of "
    );
    assert!(sentence.starts_with(&said), "{sentence}");
    let scattered = compare_all(scattered(5, 0.95)).decision.sentence;
    assert!(scattered.contains("too few pairs of runs have valid figures"), "{scattered}");
}

#[test]
fn changed_outputs_hold_a_release_unless_something_explains_them() {
    let same = compare_all(two_stages(1.0, 1.0));
    assert_eq!(
        (same.outputs[0].change, same.decision.verdict),
        (OutputsChange::Same, DecisionKind::Ship)
    );
    let changed = compare_all(with_candidate(two_stages(1.0, 1.0), other_outputs));
    assert_eq!(changed.outputs[0].change, OutputsChange::Differ);
    assert_eq!(changed.decision.verdict, DecisionKind::Hold);
    assert_eq!(changed.exit(), Exit::Worse);
    assert_eq!(changed.decision.sentence, "Hold: outputs changed and nothing explains it.");
    let text = outputs::sentence(&changed.outputs[0]);
    assert!(text.contains("nothing explains it; by how much was not measured"), "{text}");
    // A moved default of a number format explains them; one of the batch size does not.
    for (flag, before, after, verdict) in [
        ("kv-dtype", "f32", "f16", DecisionKind::Ship),
        ("max-batch-size", "128", "256", DecisionKind::Hold),
    ] {
        let mut runs = with_candidate(two_stages(1.0, 1.0), other_outputs);
        for run in &mut runs {
            let value = if run.engine.release == "v0.9.2" { after } else { before };
            let config = run.server.as_mut().unwrap().config.as_mut().unwrap();
            config.insert(flag.to_owned(), value.into());
        }
        let diff = compare_all(runs.into_iter().map(reseal).collect());
        assert_eq!(diff.decision.verdict, verdict, "{flag}: {}", diff.decision.sentence);
        if verdict == DecisionKind::Ship {
            let said = "outputs changed (the default of kv-dtype changed from f32 to f16)";
            assert!(diff.decision.sentence.contains(said), "{}", diff.decision.sentence);
        }
    }
}

#[test]
fn outputs_without_a_hash_or_of_other_prompts_are_not_compared() {
    let without = with_candidate(two_stages(1.0, 1.0), |run| run.correctness = None);
    let others = with_candidate(two_stages(1.0, 1.0), |run| {
        other_outputs(run);
        run.correctness.as_mut().unwrap().prompts = Some(99);
    });
    for runs in [without, others] {
        let diff = compare_all(runs);
        assert_eq!(diff.outputs[0].change, OutputsChange::NotCompared);
        assert_ne!(diff.decision.verdict, DecisionKind::Hold, "{}", diff.decision.sentence);
        let said = outputs::sentence(&diff.outputs[0]);
        assert_eq!(said, "Outputs were not compared.");
    }
}

#[test]
fn repeats_of_one_release_that_differ_are_reported() {
    let mut runs = two_stages(1.0, 1.0);
    let last = runs.iter_mut().rfind(|run| run.engine.release == "v0.9.1").unwrap();
    other_outputs(last);
    let diff = compare_all(runs.into_iter().map(reseal).collect());
    assert_eq!(diff.outputs[0].unstable, ["v0.9.1"]);
    assert_eq!(diff.outputs[0].change, OutputsChange::Same, "the candidate gave no new output");
    let said = outputs::sentence(&diff.outputs[0]);
    assert!(said.contains("runs of v0.9.1 gave different outputs"), "{said}");
}

#[test]
fn a_measured_agreement_is_part_of_the_sentence() {
    let runs = with_candidate(two_stages(1.0, 1.0), |run| {
        other_outputs(run);
        let found = run.correctness.as_mut().unwrap();
        (found.agreement, found.reference) = (Some(0.981), Some("v0.9.1".into()));
    });
    let said = outputs::sentence(&compare_all(runs).outputs[0]);
    assert!(said.contains("98.1 % of the tokens of v0.9.1"), "{said}");
    assert!(!said.contains("not measured"), "{said}");
}

#[test]
fn a_release_that_is_compared_with_itself_says_nothing_and_perplexity_does() {
    let runs = with_candidate(two_stages(1.0, 1.0), |run| {
        other_outputs(run);
        let found = run.correctness.as_mut().unwrap();
        (found.agreement, found.reference) = (Some(1.0), Some("redline v0.9.2".into()));
    });
    let measured = |mut run: RunRecord| {
        let is_new = run.engine.release == "v0.9.2";
        let found = run.correctness.as_mut().unwrap();
        found.perplexity = Some(if is_new { 20.2 } else { 20.0 });
        if !is_new {
            (found.agreement, found.reference) = (Some(0.5), Some("redline v0.9.2".into()));
        }
        reseal(run)
    };
    let said = outputs::sentence(&compare_all(runs.into_iter().map(measured).collect()).outputs[0]);
    assert!(said.contains("50.0 % of the tokens of redline v0.9.2"), "{said}");
    assert!(said.contains("perplexity of a fixed text 20.000, then 20.200 (+1.00 %)"), "{said}");
}

#[test]
fn a_waiver_accepts_a_regression_or_changed_outputs_and_is_named_with_its_day() {
    let unix_s = 0;
    let mut registry = registry(two_stages(0.9, 0.9));
    registry.events.push(waiver(900, "output_tokens_per_s", "redline/*/*/*/*"));
    let mut found = diff(&registry, "v0.9.1", "v0.9.2", &Filter::default()).unwrap();
    waivers::apply(&mut found, &registry, unix_s);
    let sentence = &found.decision.sentence;
    let said = "Output tokens of balanced-lite@1 regressed, down 9.9 %, waived until 2027-03-31";
    assert!(sentence.contains(said), "{sentence}");
    assert_eq!(found.waivers.len(), 1);
    assert_eq!(found.waivers[0].reason, "It was intended.");

    let changed = with_candidate(two_stages(1.0, 1.0), other_outputs);
    for (cell, verdict) in
        [("redline/*/*/*/*", DecisionKind::Ship), ("other/*/*/*/*", DecisionKind::Hold)]
    {
        let mut registry = super::registry(changed.clone());
        registry.events.push(waiver(900, OUTPUTS, cell));
        assert_eq!(registry.events[0].record.problems(), [""; 0]);
        let mut found = diff(&registry, "v0.9.1", "v0.9.2", &Filter::default()).unwrap();
        waivers::apply(&mut found, &registry, unix_s);
        assert_eq!(found.decision.verdict, verdict, "{}", found.decision.sentence);
    }
}

#[test]
fn degraded_runs_are_counted_on_each_side() {
    let mut left = 3;
    let runs: Vec<RunRecord> = two_stages(1.0, 1.0)
        .into_iter()
        .map(|mut run| {
            if run.engine.release == "v0.9.2" && left > 0 {
                left -= 1;
                run.validity.verdict = ValidityVerdict::Degraded;
                run.validity.reasons = vec!["another-program: it says so".to_owned()];
            }
            run
        })
        .collect();
    let diff = compare_all(runs);
    assert_eq!(diff.baseline_degraded, RunShare { count: 0, of: 13 });
    assert_eq!(diff.candidate_degraded, RunShare { count: 3, of: 13 });
    let said = "Degraded runs: 0 of 13 with v0.9.1 and 3 of 13 with v0.9.2.";
    assert!(caveats::caveats(&diff).contains(&said.to_owned()), "{:?}", caveats::caveats(&diff));
}

#[test]
fn a_large_change_of_another_metric_is_shown_and_a_small_one_is_not() {
    let slower_start = |factor: u64| {
        compare_all(with_candidate(interleaved(5, 1.0), |run| {
            let server = run.server.as_mut().unwrap();
            server.startup_us = server.startup_us.map(|us| us * factor / 100);
        }))
    };
    let diff = slower_start(715);
    let cells: Vec<_> = diff.cells.iter().collect();
    let visible = grouped::visible(&cells);
    let titles: Vec<&str> = visible.iter().map(|visible| visible.title.as_str()).collect();
    assert!(titles.contains(&"Output tokens") && !titles.contains(&"Start-up"), "{titles:?}");
    // The made-up peaks of memory have no scatter.
    let [low, high] = [visible[0].range_pct.0, visible[0].range_pct.1];
    assert!(low > 0.0 && low <= high, "{visible:?}");
    let large = grouped::large(&diff.cells.iter().collect::<Vec<_>>());
    assert_eq!(large.len(), 1, "{large:?}");
    assert!(large[0].worse && large[0].title == "Start-up", "{large:?}");
    for text in [report::text(&diff), report::markdown(&diff)] {
        assert!(text.contains("Start-up up 6"), "{text}");
    }
    // Ten times the minimum effect of 10 % is 100 %.
    assert!(grouped::large(&slower_start(180).cells.iter().collect::<Vec<_>>()).is_empty());
}

#[test]
fn the_same_remark_of_several_scenarios_is_said_once() {
    let cells: Vec<CellDiff> = ["a@1", "b@1", "c@1"]
        .iter()
        .map(|scenario| {
            let mut cell = compare_all(interleaved(2, 1.0)).cells.remove(0);
            cell.cell.scenario = (*scenario).to_owned();
            cell.remarks = vec!["the same remark".to_owned()];
            cell
        })
        .collect();
    let found = grouped::remarks(&cells.iter().collect::<Vec<_>>());
    let texts: Vec<&str> = found.iter().map(|remark| remark.text.as_str()).collect();
    let pairs = format!("2 pairs, interleaved in campaign {}", campaign_id(9));
    assert_eq!(texts, [pairs.as_str(), "the same remark"]);
    for remark in &found {
        assert_eq!(grouped::scenarios(&remark.scenarios, 3), "all 3 scenarios");
        assert_eq!(grouped::scenarios(&remark.scenarios[..2], 3), "a@1, b@1");
    }
}

#[test]
fn the_text_fits_a_terminal() {
    let mut registry = registry(with_candidate(two_stages(0.9, 0.9), other_outputs));
    let mut long = waiver(900, "output_tokens_per_s", "redline/*/*/*/*");
    long.record.reason = "This is a long reason of a waiver. ".repeat(8);
    registry.events.push(long);
    let mut found = diff(&registry, "v0.9.1", "v0.9.2", &Filter::default()).unwrap();
    waivers::apply(&mut found, &registry, 0);
    let text = report::text(&found);
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
    assert_eq!(long, [""; 0], "{text}");
}

#[test]
fn a_command_in_a_comment_stays_in_its_quotes_and_in_its_code() {
    let mut diff = compare_all(interleaved(5, 0.95));
    diff.cells[0].command = ["cargo", "xtask", "v1`;>x;`"].map(str::to_owned).to_vec();
    let text = report::markdown(&diff);
    assert!(text.contains("Measure again: ``cargo xtask 'v1`;>x;`'``"), "{text}");
}
