//! What a comparison says, and what it must never say.

use std::collections::BTreeMap;

use audit::sample::{Sample, campaign_id, reseal};
use expect_test::expect;
use schema::run::{FailureClass, Kind, PromptForm, RunRecord, ValidityVerdict};

use super::*;
use crate::store::{Retraction, Stored};

fn registry(runs: Vec<RunRecord>) -> Registry {
    let stored =
        |record: RunRecord| Stored { path: format!("runs/{}", record.id), root: 0, record };
    Registry { runs: runs.into_iter().map(stored).collect(), ..Registry::default() }
}

/// `pairs` blocks of one campaign; the candidate has `speed` times the speed of the baseline.
fn interleaved(pairs: u32, speed: f64) -> Vec<RunRecord> {
    let mut runs = Vec::new();
    for block in 0..pairs {
        for (position, release) in ["v0.9.1", "v0.9.2"].into_iter().enumerate() {
            let serial = u64::from(block) * 2 + position as u64 + 1;
            // A machine whose speed wanders by up to 2 %, alike for both of a pair.
            let drift = 1.0 + 0.01 * f64::from(block % 3);
            let own = 1.0 + 0.002 * ((serial * 7) % 5) as f64;
            let factor = if position == 1 { speed } else { 1.0 };
            let sample = Sample {
                release: release.to_owned(),
                serial,
                seed: serial,
                campaign: (campaign_id(9), block, position as u32),
                speed: drift * own * factor,
                ..Sample::default()
            };
            runs.push(sample.record());
        }
    }
    runs
}

/// The same runs, each in a campaign of its own.
fn scattered(pairs: u32, speed: f64) -> Vec<RunRecord> {
    let mut runs = interleaved(pairs, speed);
    for (index, run) in runs.iter_mut().enumerate() {
        run.campaign.as_mut().unwrap().id = campaign_id(100 + index as u64);
    }
    runs.into_iter().map(reseal).collect()
}

fn compare_all(runs: Vec<RunRecord>) -> Diff {
    diff(&registry(runs), "v0.9.1", "v0.9.2", &Filter::default()).unwrap()
}

fn row_of<'a>(diff: &'a Diff, metric: &str) -> &'a Row {
    diff.cells[0].rows.iter().find(|row| row.verdict.metric == metric).unwrap()
}

#[test]
fn a_known_effect_is_estimated_and_not_judged() {
    for (speed, effect) in [(0.95, -5.0), (1.0, 0.0), (1.08, 8.0)] {
        let diff = compare_all(interleaved(5, speed));
        let verdict = &row_of(&diff, "output_tokens_per_s").verdict;
        let (low, high) = verdict.interval_pct.unwrap();
        assert_eq!((verdict.pairs, verdict.stage), (5, Stage::Estimate));
        assert!((verdict.effect_pct.unwrap() - effect).abs() < 0.6, "{verdict:?}");
        assert!(low < verdict.effect_pct.unwrap() && verdict.effect_pct.unwrap() < high);
        assert!(verdict.mde_pct.unwrap() < 2.0, "pairing cancels the drift: {verdict:?}");
        assert_eq!(verdict.verdict, VerdictKind::Inconclusive);
        assert_eq!(diff.exit(), Exit::Inconclusive);
    }
}

#[test]
fn stored_figures_of_another_day_are_shown_and_never_judged() {
    let diff = compare_all(scattered(5, 0.5));
    let verdict = &row_of(&diff, "output_tokens_per_s").verdict;
    assert!((verdict.effect_pct.unwrap() + 50.0).abs() < 1.0, "{verdict:?}");
    assert_eq!((verdict.pairs, verdict.interval_pct, verdict.p), (0, None, None));
    assert_eq!(verdict.verdict, VerdictKind::Inconclusive);
    assert_eq!(diff.cells[0].remarks, [NOT_INTERLEAVED]);
}

#[test]
fn no_comparison_ever_says_regressed_or_improved() {
    for speed in [0.2, 0.97, 1.0, 1.03, 5.0] {
        for runs in [interleaved(8, speed), scattered(8, speed)] {
            let diff = compare_all(runs);
            let kinds =
                diff.cells.iter().flat_map(|cell| &cell.rows).map(|row| row.verdict.verdict);
            let judged = [VerdictKind::Regressed, VerdictKind::Improved, VerdictKind::Unchanged];
            assert!(kinds.into_iter().all(|kind| !judged.contains(&kind)));
        }
    }
}

#[test]
fn pairs_leave_older_runs_out_of_the_means() {
    let mut runs = interleaved(3, 1.0);
    runs.push(Sample { serial: 90, speed: 10.0, ..Sample::default() }.record());
    let diff = compare_all(runs);
    let row = row_of(&diff, "output_tokens_per_s");
    assert_eq!((row.baseline.unwrap().n, row.candidate.unwrap().n), (3, 3));
}

#[test]
fn a_changed_default_is_named_and_nothing_is_credited_to_the_engine() {
    let flags = BTreeMap::from([("max-batch-size".to_owned(), serde_json::Value::from(256))]);
    let new =
        Sample { release: "v0.9.2".into(), serial: 2, speed: 2.0, flags, ..Sample::default() };
    let diff = compare_all(vec![Sample::default().record(), new.record()]);
    let cell = &diff.cells[0];
    assert_eq!(cell.changed[0].flag, "max-batch-size");
    assert!(cell.rows.iter().all(|row| row.verdict.verdict == VerdictKind::ChangedConfig));
    assert_eq!(diff.exit(), Exit::Inconclusive);
}

#[test]
fn a_flag_that_only_the_candidate_knows_is_no_changed_configuration() {
    let flags = BTreeMap::from([("new-flag".to_owned(), serde_json::Value::from(1))]);
    let new = Sample { release: "v0.9.2".into(), serial: 2, flags, ..Sample::default() };
    let diff = compare_all(vec![Sample::default().record(), new.record()]);
    assert_eq!((diff.cells.len(), diff.cells[0].changed.len()), (1, 0));
}

#[test]
fn failures_are_judged_by_policy() {
    let sound = |release: &str, serial| {
        Sample { release: release.into(), serial, ..Sample::default() }.record()
    };
    let broken = |release: &str, serial| {
        Sample { release: release.into(), serial, failed: 3, ..Sample::default() }.record()
    };
    let dead = |release: &str, serial| {
        Sample { release: release.into(), serial, ..Sample::default() }.failed_record()
    };
    for (what, runs, kind, exit) in [
        (
            "some requests fail",
            vec![sound("v0.9.1", 1), broken("v0.9.2", 2)],
            Some(VerdictKind::NewFailure),
            Exit::Worse,
        ),
        (
            "the server dies",
            vec![sound("v0.9.1", 1), dead("v0.9.2", 2)],
            Some(VerdictKind::NewFailure),
            Exit::Worse,
        ),
        (
            "one repeat of two dies",
            vec![sound("v0.9.1", 1), sound("v0.9.2", 2), dead("v0.9.2", 3)],
            Some(VerdictKind::NewFailure),
            Exit::Worse,
        ),
        (
            "it was mended",
            vec![broken("v0.9.1", 1), sound("v0.9.2", 2)],
            Some(VerdictKind::FixedFailure),
            Exit::Inconclusive,
        ),
        (
            "it fails as before",
            vec![broken("v0.9.1", 1), broken("v0.9.2", 2)],
            Some(VerdictKind::Inconclusive),
            Exit::Inconclusive,
        ),
        ("nothing fails", vec![sound("v0.9.1", 1), sound("v0.9.2", 2)], None, Exit::Inconclusive),
    ] {
        let diff = compare_all(runs);
        let row = diff.cells[0].rows.iter().find(|row| row.verdict.metric == FAILURES);
        assert_eq!(row.map(|row| row.verdict.verdict), kind, "{what}");
        assert_eq!(diff.exit(), exit, "{what}");
    }
}

#[test]
fn figures_of_a_run_with_failures_are_not_summarized() {
    let new = Sample { release: "v0.9.2".into(), serial: 2, failed: 3, ..Sample::default() };
    let diff = compare_all(vec![Sample::default().record(), new.record()]);
    let row = row_of(&diff, "output_tokens_per_s");
    assert_eq!((row.candidate, row.verdict.effect_pct), (None, None));
}

#[test]
fn a_run_that_the_machine_lost_is_no_failure_of_the_engine() {
    let mut lost =
        Sample { release: "v0.9.2".into(), serial: 3, ..Sample::default() }.failed_record();
    lost.failure.as_mut().unwrap().class = FailureClass::Infrastructure;
    let new = Sample { release: "v0.9.2".into(), serial: 2, ..Sample::default() };
    let diff = compare_all(vec![Sample::default().record(), new.record(), reseal(lost)]);
    assert_eq!(diff.exit(), Exit::Inconclusive);
    assert_eq!(diff.cells[0].candidate_runs.lost, 1);
}

#[test]
fn a_server_that_died_unread_counts_in_its_cell() {
    let mut dead =
        Sample { release: "v0.9.2".into(), serial: 2, ..Sample::default() }.failed_record();
    dead.server = None;
    let diff = compare_all(vec![Sample::default().record(), reseal(dead)]);
    assert_eq!((diff.cells.len(), diff.exit()), (1, Exit::Worse));
}

#[test]
fn other_workloads_invalid_clients_imports_and_retracted_runs_are_left_out() {
    let new = Sample { release: "v0.9.2".into(), serial: 2, ..Sample::default() }.record();
    let old = Sample::default().record();
    let effect = |diff: &Diff| row_of(diff, "output_tokens_per_s").verdict.effect_pct;

    let mut other = new.clone();
    other.scenario.prompt_form = Some(PromptForm::Text);
    let diff = compare_all(vec![old.clone(), other]);
    assert_eq!(effect(&diff), None);
    assert!(diff.cells[0].remarks[0].starts_with("the workloads differ"));

    let mut invalid = new.clone();
    invalid.validity.verdict = ValidityVerdict::Invalid;
    let diff = compare_all(vec![old.clone(), invalid]);
    assert_eq!((effect(&diff), diff.cells[0].candidate_runs.invalid), (None, 1));

    let imported = RunRecord { kind: Kind::Imported, ..new.clone() };
    assert_eq!(compare_all(vec![old.clone(), imported]).cells, []);

    let mut registry = registry(vec![old, new.clone()]);
    let why = Retraction { event: "E".into(), reason: "R".into(), replaced_by: None };
    registry.retracted.insert(new.id, why);
    let diff = super::diff(&registry, "v0.9.1", "v0.9.2", &Filter::default()).unwrap();
    assert_eq!((diff.cells.len(), diff.baseline_only.len(), diff.retracted), (0, 1, 1));
}

#[test]
fn an_unknown_release_is_answered_with_the_known_ones() {
    let registry = registry(interleaved(1, 1.0));
    let filter = Filter { engine: Some("redline".into()), hardware: None };
    let error = diff(&registry, "v0.9.1", "v0.9.9", &filter).unwrap_err();
    expect![[r#"
        no run of release `v0.9.9` of `redline`
        hint: the registry has `v0.9.1`, `v0.9.2`"#]]
    .assert_eq(&error.to_string());
    assert_eq!(diff(&registry, "0.9.1", "v0.9.1", &filter), Err(DiffError::Same("v0.9.1".into())));
    assert!(diff(&registry, "0.9.1", "0.9.2", &filter).is_ok());
}

#[test]
fn the_text_says_what_it_knows_and_what_it_does_not() {
    let mut diff = compare_all(interleaved(5, 0.95));
    for cell in &mut diff.cells {
        cell.rows
            .retain(|row| ["output_tokens_per_s", "tpot_us_p50"].contains(&&*row.verdict.metric));
    }
    expect![[r#"
        v0.9.1 -> v0.9.2

        redline on cpu-example-simulated-f6m1s1-2c: smollm2-135m-instruct-q4_1, cpu-f32-tp1, balanced-lite@1
          5 pairs, interleaved in 1 campaign
          metric         v0.9.1                    v0.9.2                    effect  95 % interval   sees   verdict
          Output tokens  1331.6/s (CV 0.7 %, n 5)  1261.9/s (CV 0.9 %, n 5)  -5.2 %  -5.9 to -4.6 %  0.9 %  inconclusive
          TPOT p50       19.76 ms (CV 0.6 %, n 5)  20.80 ms (CV 0.8 %, n 5)  +5.3 %  +4.6 to +6.1 %  1.0 %  inconclusive

        Figures are estimates and are not judged: `regressed` and `improved` need a screen and a confirmation on fresh launches, which this version does not run yet. Failures and changed configurations are judged.
    "#]].assert_eq(&print::text(&diff));
    expect![[r#"
        ## v0.9.1 -> v0.9.2

        ### redline on cpu-example-simulated-f6m1s1-2c: smollm2-135m-instruct-q4_1, cpu-f32-tp1, balanced-lite@1

        - 5 pairs, interleaved in 1 campaign

        | metric | v0.9.1 | v0.9.2 | effect | 95 % interval | sees | verdict |
        | --- | ---: | ---: | ---: | ---: | ---: | --- |
        | Output tokens | 1331.6/s (CV 0.7 %, n 5) | 1261.9/s (CV 0.9 %, n 5) | -5.2 % | -5.9 to -4.6 % | 0.9 % | inconclusive |
        | TPOT p50 | 19.76 ms (CV 0.6 %, n 5) | 20.80 ms (CV 0.8 %, n 5) | +5.3 % | +4.6 to +6.1 % | 1.0 % | inconclusive |

        Figures are estimates and are not judged: `regressed` and `improved` need a screen and a confirmation on fresh launches, which this version does not run yet. Failures and changed configurations are judged.
    "#]].assert_eq(&print::markdown(&diff));
}
