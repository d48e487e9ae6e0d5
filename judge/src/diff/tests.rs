//! Tests of comparisons of releases: verdicts that must be given, and verdicts that must never be.

use std::collections::BTreeMap;

use expect_test::expect;
use samples::{Sample, campaign_id, reseal};
use schema::campaign::{CampaignLab, CampaignRecord};
use schema::exit::Exit;
use schema::run::{FailureClass, Kind, PromptForm, RunRecord, ValidityVerdict};
use schema::scenario::Arrival;

use super::*;
use crate::records::{Retraction, Stored};

mod decisions;
mod in_turns;

fn registry(runs: Vec<RunRecord>) -> Registry {
    let stored =
        |record: RunRecord| Stored { path: format!("runs/{}", record.id), root: 0, record };
    Registry { runs: runs.into_iter().map(stored).collect(), ..Registry::default() }
}

/// Returns `pairs` blocks of one campaign, numbered from `first`; the candidate has `speed` times
/// the speed of the baseline.
fn blocks(first: u32, pairs: u32, speed: f64, stage: Option<Stage>) -> Vec<RunRecord> {
    let mut runs = Vec::new();
    for block in first..first + pairs {
        let mut releases = ["v0.9.1", "v0.9.2"];
        if block % 2 == 1 {
            releases.reverse();
        }
        for (position, release) in releases.into_iter().enumerate() {
            let serial = u64::from(block) * 2 + position as u64 + 1;
            // The machine's speed wanders by up to 2 %, in the same way for both runs of a pair.
            let drift = 1.0 + 0.01 * f64::from(block % 3);
            let own = 1.0 + 0.002 * ((serial * 7) % 5) as f64;
            let factor = if release == "v0.9.2" { speed } else { 1.0 };
            let sample = Sample {
                release: release.to_owned(),
                serial,
                seed: serial,
                campaign: (campaign_id(9), block, position as u32),
                stage,
                speed: drift * own * factor,
                ..Sample::default()
            };
            runs.push(sample.record());
        }
    }
    runs
}

fn interleaved(pairs: u32, speed: f64) -> Vec<RunRecord> {
    blocks(0, pairs, speed, None)
}

/// Returns the runs of a screen of 5 pairs and a confirmation of 8; each stage has its own speed of
/// the candidate relative to the baseline.
fn two_stages(screen: f64, confirm: f64) -> Vec<RunRecord> {
    let mut runs = interleaved(5, screen);
    runs.extend(blocks(5, 8, confirm, Some(Stage::Confirm)));
    runs
}

/// Returns the runs of `pairs` pairs, with each run in a campaign of its own, so that none are
/// interleaved.
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
fn a_screen_finds_and_does_not_judge() {
    for (speed, effect) in [(0.92, -8.0), (0.95, -5.0), (1.08, 8.0)] {
        let diff = compare_all(interleaved(5, speed));
        let verdict = &row_of(&diff, "output_tokens_per_s").verdict;
        let (low, high) = verdict.interval_pct.unwrap();
        assert_eq!((verdict.pairs, verdict.stage), (5, Stage::Screen));
        assert!((verdict.effect_pct.unwrap() - effect).abs() < 0.6, "{verdict:?}");
        assert!(low < verdict.effect_pct.unwrap() && verdict.effect_pct.unwrap() < high);
        assert!(verdict.mde_pct.unwrap() < 2.0, "pairing cancels the drift: {verdict:?}");
        assert_eq!((verdict.verdict, verdict.suspected), (VerdictKind::Inconclusive, true));
        assert_eq!(diff.exit(), Exit::Inconclusive);
    }
}

#[test]
fn two_stages_that_agree_make_a_verdict() {
    use VerdictKind::{Improved, Regressed, Unchanged};
    for (screen, confirm, kind, exit) in [
        (0.95, 0.95, Regressed, Exit::Worse),
        (1.08, 1.08, Improved, Exit::Well),
        (0.95, 1.0, Unchanged, Exit::Well),
        (1.0, 0.5, Unchanged, Exit::Well),
    ] {
        let diff = compare_all(two_stages(screen, confirm));
        let row = row_of(&diff, "output_tokens_per_s");
        assert_eq!(row.verdict.verdict, kind, "{screen} then {confirm}: {row:?}");
        assert_eq!(diff.exit(), exit, "{screen} then {confirm}");
        if row.verdict.suspected {
            // The confirmation estimates the effect again, without the bias of a candidate
            // selected for its size.
            assert_eq!((row.verdict.stage, row.verdict.pairs), (Stage::Confirm, 8));
            assert_eq!(row.baseline.unwrap().n, 8);
            assert!(row.verdict.p_adjusted.is_some());
        }
    }
}

#[test]
fn a_shift_that_no_cell_can_prove_shows_over_all_of_them() {
    let cells = |count: u32| -> Vec<RunRecord> {
        let cell = |index: u32| {
            let scenario = format!("ladder-lite-c{}", 1 << index);
            // Cells differ by a tenth of a percent, around a loss of 1.5 %.
            let runs = blocks(index * 10, 5, 0.985 + 0.001 * f64::from(index % 3), None);
            runs.into_iter().map(move |mut run| {
                run.scenario.id.clone_from(&scenario);
                reseal(run)
            })
        };
        (0..count).flat_map(cell).collect()
    };
    let diff = compare_all(cells(4));
    let output = |cell: &CellDiff| {
        let row = cell.rows.iter().find(|row| row.verdict.metric == "output_tokens_per_s");
        row.unwrap().verdict.clone()
    };
    for verdict in diff.cells.iter().map(output) {
        assert_ne!(verdict.verdict, VerdictKind::Regressed, "the floor is 2 %: {verdict:?}");
        assert!(!verdict.suspected, "{verdict:?}");
    }
    let shift = diff.broad.iter().find(|shift| shift.metric == "output_tokens_per_s").unwrap();
    assert_eq!((shift.cells, shift.engine.as_str()), (4, "redline"));
    let (low, high) = shift.interval_pct.unwrap();
    assert!(-2.0 < low && high < -1.0 && shift.p.unwrap() < 0.01, "{shift:?}");
    let said =
        format!("Overall change in 4 scenarios of redline on {}: Output tokens", shift.hardware);
    for text in [report::text(&diff), report::markdown(&diff)] {
        assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(&said), "{text}");
    }
    assert_ne!(diff.exit(), Exit::Worse, "it informs");
    assert_eq!(compare_all(cells(2)).broad, [], "two cells are no breadth");
}

#[test]
fn a_baseline_that_reads_otherwise_than_before_is_told_and_moves_no_verdict() {
    let earlier = |speed: f64| -> Vec<RunRecord> {
        let run = |serial: u64| Sample {
            serial,
            seed: serial,
            campaign: (campaign_id(3), 0, 0),
            speed,
            ..Sample::default()
        };
        (100..103).map(|serial| run(serial).record()).collect()
    };
    let drift = |speed: f64| {
        let diff = compare_all([interleaved(5, 1.0), earlier(speed)].concat());
        assert_eq!(row_of(&diff, "output_tokens_per_s").verdict.verdict, VerdictKind::Unchanged);
        grouped::remarks(&[&diff.cells[0]])
            .into_iter()
            .find(|remark| remark.text.contains("baseline ran"))
    };
    let said = drift(1.12).unwrap();
    assert!(said.text.contains("slower than in campaign"), "{said:?}");
    assert!(said.text.contains(&campaign_id(3)), "{said:?}");
    assert_eq!(said.scenarios, ["balanced-lite@1"]);
    assert_eq!(drift(1.01), None, "less than a change of release would have to be");
}

#[test]
fn what_only_informs_is_never_judged() {
    let diff = compare_all(two_stages(0.8, 0.8));
    for metric in ["ttft_us_p50", "tpot_us_p99", "e2e_us_mean"] {
        let row = row_of(&diff, metric);
        assert!(!row.gates, "all requests arrive at once: {metric}");
        assert_eq!(
            (row.verdict.verdict, row.verdict.stage),
            (VerdictKind::Inconclusive, Stage::Estimate)
        );
        assert!(row.verdict.interval_pct.is_some());
    }
    let mut runs = two_stages(0.8, 0.8);
    for run in &mut runs {
        run.scenario.arrival = Some(Arrival::Closed { concurrency: 4 });
    }
    let diff = compare_all(runs.into_iter().map(reseal).collect());
    assert_eq!(row_of(&diff, "ttft_us_p50").verdict.verdict, VerdictKind::Regressed);
    assert_eq!(row_of(&diff, "ttft_us_p99").verdict.verdict, VerdictKind::Inconclusive);
}

#[test]
fn noise_is_what_a_release_shows_against_itself() {
    let diff = compare_all(interleaved(5, 0.9));
    let noise = &diff.noise_pct[&campaign_id(9)];
    // Neighboring runs differ by drift and by up to 0.8 % of noise, never by the change itself.
    let width = noise["output_tokens_per_s"];
    assert!((0.5..3.0).contains(&width), "{noise:?}");
    assert_eq!(noise["rss_bytes_max"], 0.0);
    let own = row_of(&diff, "output_tokens_per_s").verdict.noise_pct.unwrap();
    assert!((own - width).abs() < 1e-9, "one cell is all cells: {own} and {width}");
}

#[test]
fn the_newest_campaign_is_judged_and_older_ones_are_named() {
    let mut runs = two_stages(0.9, 0.9);
    for (index, mut run) in interleaved(5, 1.0).into_iter().enumerate() {
        run.campaign.as_mut().unwrap().id = campaign_id(20);
        run.id = schema::id::ulid(1_767_225_700_000, index as u128);
        runs.push(reseal(run));
    }
    let diff = compare_all(runs);
    let cell = &diff.cells[0];
    assert_eq!(cell.judged, Some(campaign_id(20)));
    assert_eq!(row_of(&diff, "output_tokens_per_s").verdict.verdict, VerdictKind::Unchanged);
    let older = format!("older campaigns compared it too: `{}`", campaign_id(9));
    assert!(cell.remarks[0].starts_with(&older), "{:?}", cell.remarks);
}

#[test]
fn runs_of_different_machines_are_no_pair() {
    let mut runs = two_stages(0.9, 0.9);
    for run in runs.iter_mut().filter(|run| run.engine.release == "v0.9.2") {
        run.hardware.kernel = Some("6.2.0".into());
    }
    let diff = compare_all(runs.into_iter().map(reseal).collect());
    let row = row_of(&diff, "output_tokens_per_s");
    assert_eq!((row.verdict.pairs, row.verdict.verdict), (0, VerdictKind::Inconclusive));
    let remarks = &diff.cells[0].remarks;
    assert_eq!(remarks[0], NOT_INTERLEAVED);
    assert_eq!(remarks[1], "13 blocks left out: their runs are of different machines");
    assert_eq!(diff.exit(), Exit::Inconclusive);
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
fn nothing_is_called_a_change_without_a_confirmation() {
    for speed in [0.2, 0.97, 1.0, 1.03, 5.0] {
        for runs in [interleaved(8, speed), scattered(8, speed)] {
            let diff = compare_all(runs);
            let judged = [VerdictKind::Regressed, VerdictKind::Improved];
            assert!(diff.rows().all(|row| !judged.contains(&row.verdict.verdict)));
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
fn a_flag_that_was_asked_for_is_named_and_nothing_is_credited_to_the_engine() {
    let new = Sample {
        release: "v0.9.2".into(),
        serial: 2,
        speed: 2.0,
        flags: BTreeMap::from([("max-batch-size".to_owned(), serde_json::Value::from(256))]),
        argv: vec!["--max_batch_size=256".into()],
        ..Sample::default()
    };
    let diff = compare_all(vec![Sample::default().record(), new.record()]);
    let cell = &diff.cells[0];
    assert_eq!((cell.changed[0].flag.as_str(), cell.moved.len()), ("max-batch-size", 0));
    assert!(cell.rows.iter().all(|row| row.verdict.verdict == VerdictKind::ChangedConfig));
    assert_eq!(diff.exit(), Exit::Inconclusive);
}

/// Tests a release that moved two defaults, one of which is part of the configuration's name.
#[test]
fn a_default_that_the_release_moved_is_named_and_judged() {
    for (speed, kind, exit) in
        [(1.5, VerdictKind::Improved, Exit::Well), (0.8, VerdictKind::Regressed, Exit::Worse)]
    {
        let mut runs = two_stages(speed, speed);
        for run in runs.iter_mut().filter(|run| run.engine.release == "v0.9.2") {
            run.model.dtype = Some("int8".into());
            let server = run.server.as_mut().unwrap();
            server.config.as_mut().unwrap().insert("max-batch-size".into(), 256.into());
        }
        let diff = compare_all(runs.into_iter().map(reseal).collect());
        assert_eq!((diff.baseline_only.len(), diff.candidate_only.len()), (0, 0));
        let [cell] = &diff.cells[..] else { panic!("{} cells", diff.cells.len()) };
        assert_eq!(cell.cell.config, "cpu-int8-tp1", "the newer release names the cell");
        assert_eq!((cell.moved[0].flag.as_str(), cell.changed.len()), ("max-batch-size", 0));
        assert_eq!(row_of(&diff, "output_tokens_per_s").verdict.verdict, kind);
        assert_eq!(diff.exit(), exit);
        let caveats = caveats::caveats(&diff).join("\n");
        let moved =
            "The default of max-batch-size changed from 128 to 256; it belongs to the release.";
        assert!(caveats.contains(moved), "{caveats}");
    }
}

#[test]
fn another_command_that_names_another_configuration_is_another_cell() {
    let new = Sample {
        release: "v0.9.2".into(),
        serial: 2,
        dtype: "bf16".into(),
        argv: vec!["--dtype".into(), "bf16".into()],
        ..Sample::default()
    };
    let diff = compare_all(vec![Sample::default().record(), new.record()]);
    assert_eq!((diff.cells.len(), diff.baseline_only.len(), diff.candidate_only.len()), (0, 1, 1));
}

#[test]
fn what_a_lab_tried_is_part_of_no_comparison() {
    let mut registry = registry(interleaved(2, 1.0));
    let tried = Sample {
        serial: 100,
        campaign: (campaign_id(50), 0, 0),
        argv: vec!["--kv-dtype".into(), "f16".into()],
        dtype: "f16".into(),
        ..Sample::default()
    };
    let path = "runs/lab".to_owned();
    registry.runs.push(Stored { path, root: 0, record: tried.record() });
    let compare = |registry: &Registry| {
        diff(registry, "v0.9.1", "v0.9.2", &Filter::default()).unwrap().baseline_only.len()
    };
    assert_eq!(compare(&registry), 1, "runs of a campaign of releases are");
    let lab = CampaignLab {
        id: "kv".into(),
        sha256: String::new(),
        file: schema::lab::parse(samples::LAB).unwrap(),
        runs_max: 9,
    };
    let record = CampaignRecord {
        id: campaign_id(50),
        lab: Some(Box::new(lab)),
        ..CampaignRecord::default()
    };
    registry.campaigns.push(Stored { path: "campaigns/lab".into(), root: 0, record });
    assert_eq!(compare(&registry), 0);
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
    let mut chat = new.clone();
    chat.scenario.route = Some("/v1/chat/completions".to_owned());
    let diff = compare_all(vec![old.clone(), chat]);
    assert_eq!(effect(&diff), None, "chat is another workload");

    // Another file of conversations is another revision of the scenario.
    let mut redrawn = new.clone();
    redrawn.scenario.rev += 1;
    assert_eq!(compare_all(vec![old.clone(), redrawn]).cells, []);

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
fn a_changed_configuration_is_not_counted_as_undecided() {
    let run = |scenario: &str, serial: u64, configured: bool| {
        let is_candidate = serial % 2 == 1;
        let mut sample = Sample {
            release: if is_candidate { "v0.9.2" } else { "v0.9.1" }.to_owned(),
            scenario: scenario.to_owned(),
            serial: serial + 100 * u64::from(configured),
            seed: serial,
            campaign: (campaign_id(1), (serial / 2) as u32, (serial % 2) as u32),
            speed: if is_candidate { 0.9 } else { 1.0 },
            ..Sample::default()
        };
        if is_candidate && configured {
            sample.flags.insert("max-batch-size".into(), 256.into());
            sample.argv = vec!["--max-batch-size".into()];
        }
        reseal(sample.record())
    };
    let conclusion = |scenarios: &[(&str, bool)]| {
        let of = |(scenario, configured): &(&str, bool)| {
            (0..6).map(|serial| run(scenario, serial, *configured)).collect::<Vec<_>>()
        };
        compare_all(scenarios.iter().flat_map(of).collect()).decision.sentence
    };
    let some = conclusion(&[("sharegpt-lite", true), ("balanced-lite", false)]);
    assert!(some.contains("measured with a changed configuration"), "{some}");
    let all = conclusion(&[("sharegpt-lite", true)]);
    assert!(all.contains("changed configuration") && !all.contains("undecided"), "{all}");
    let none = conclusion(&[("sharegpt-lite", false)]);
    assert!(!none.contains("configuration"), "{none}");
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
    assert_eq!(
        diff(&registry, "0.9.1", "v0.9.1", &filter),
        Err(QueryError("`v0.9.1` is compared with itself".into()))
    );
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
        Inconclusive: a regression of up to 5.8 % of Output tokens in balanced-lite@1 could not be excluded;
          1 of 2 release-blocking metrics is undecided.
        v0.9.1 -> v0.9.2
        Outputs are the same for 8 fixed prompts.
        Degraded runs: 0 of 5 with v0.9.1 and 0 of 5 with v0.9.2.
        Smallest changes that this comparison shows four times in five, by scenario: Output tokens 1.0 %.

        redline on cpu-example-simulated-f6m1s1-2c: smollm2-135m-instruct-q4_1, cpu-f32-tp1
        - balanced-lite@1: 5 pairs, interleaved in campaign 01KDVDNJS80000000000000009

        Release-blocking metrics
          metric         v0.9.1    v0.9.2    change  95 % interval   verdict
        balanced-lite@1
          Output tokens  1330.6/s  1262.8/s  -5.1 %  -5.8 to -4.4 %  suspected, not confirmed

        Policy release@2: figures are those of whole runs, in which the releases alternate. What changed is
          decided in turns: both servers of a start answer slices of the same requests while the other one
          is frozen. Where a campaign compared no slices, a screen of 5 pairs of runs and a confirmation of
          8 more, on fresh server starts, have to agree. Figures of different campaigns are shown and not
          judged.
    "#]].assert_eq(&report::text(&diff));
    expect![[r#"
        <!-- redline diff -->
        ## v0.9.1 -> v0.9.2

        **Inconclusive: a regression of up to 5.8 % of Output tokens in balanced-lite@1 could not be excluded; 1 of 2 release-blocking metrics is undecided.**

        - Outputs are the same for 8 fixed prompts.
        - Degraded runs: 0 of 5 with v0.9.1 and 0 of 5 with v0.9.2.
        - Smallest changes that this comparison shows four times in five, by scenario: Output tokens 1.0 %.

        | scenario | metric | v0.9.1 | v0.9.2 | change | 95 % interval | verdict |
        | --- | ---: | ---: | ---: | ---: | ---: | --- |
        | smollm2-135m-instruct-q4_1 balanced-lite@1 | Output tokens | 1330.6/s | 1262.8/s | -5.1 % | -5.8 to -4.4 % | suspected, not confirmed |

        <details><summary>redline on cpu-example-simulated-f6m1s1-2c: smollm2-135m-instruct-q4_1, cpu-f32-tp1, balanced-lite@1</summary>

        - 5 pairs, interleaved in campaign 01KDVDNJS80000000000000009

        | metric | v0.9.1 | v0.9.2 | change | 95 % interval | verdict |
        | --- | ---: | ---: | ---: | ---: | --- |
        | Output tokens | 1330.6/s | 1262.8/s | -5.1 % | -5.8 to -4.4 % | suspected, not confirmed |
        | TPOT p50 | 19.77 ms | 20.79 ms | +5.2 % | +4.4 to +5.9 % | not judged |

        Measure again: `cargo xtask release-bench v0.9.2 --baseline v0.9.1 --model smollm2-135m-instruct-q4_1 --scenario balanced-lite`

        </details>

        Policy release@2: figures are those of whole runs, in which the releases alternate. What changed is decided in turns: both servers of a start answer slices of the same requests while the other one is frozen. Where a campaign compared no slices, a screen of 5 pairs of runs and a confirmation of 8 more, on fresh server starts, have to agree. Figures of different campaigns are shown and not judged.
    "#]].assert_eq(&report::markdown(&diff));
}
