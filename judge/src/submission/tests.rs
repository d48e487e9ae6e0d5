//! Tests of the submission rules: a sound submission passes, and each rule finds its own contradiction.

use samples::reseal;
use samples::submission::{Machine, campaign};
use schema::canonical::record_sha256;
use schema::path::{of_campaign, of_run};
use schema::run::{Kind, ValidityVerdict};

use super::*;
use crate::Stored;

/// 2026-02-01, a month after the made-up campaign.
const NOW: i64 = 1_769_904_000;

/// A change that a test makes to a sound record or submission.
type Change<T> = fn(&mut T);

fn submission(machine: Machine) -> Submission {
    let (runs, record) = campaign(machine, 1);
    let runs = runs.into_iter().map(stored).collect();
    let path = of_campaign(&record).unwrap();
    let campaigns = vec![Stored { path, root: 0, record }];
    Submission { runs, campaigns, unix_s: NOW, ..Submission::default() }
}

fn stored(record: RunRecord) -> Stored<RunRecord> {
    Stored { path: of_run(&record).unwrap(), root: 0, record }
}

/// Ids of the rules that the submission breaks after `change` of its second run.
fn broken(machine: Machine, change: Change<RunRecord>) -> Vec<&'static str> {
    let mut submission = submission(machine);
    let run = &mut submission.runs[1];
    change(&mut run.record);
    *run = stored(reseal(run.record.clone()));
    rules(&submission)
}

fn rules(submission: &Submission) -> Vec<&'static str> {
    let mut rules: Vec<_> = findings(submission).iter().map(|finding| finding.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

#[test]
fn a_sound_submission_has_no_findings() {
    for machine in [Machine::Cpu, Machine::Gpu] {
        assert_eq!(findings(&submission(machine)), []);
    }
}

#[test]
fn each_contradiction_within_a_run_is_found_by_its_rule() {
    let cpu: [(&str, Change<RunRecord>); 8] = [
        (MEASURED.id, |run| run.kind = Kind::Simulated),
        (UNBROKEN.id, |run| run.metrics.as_mut().unwrap().requests_per_s = Some(9.0)),
        (VERDICTS.id, |run| {
            run.telemetry.as_mut().unwrap().server.as_mut().unwrap().output_tokens = Some(1);
        }),
        (CLOCK.id, |run| {
            run.time.as_mut().unwrap().finished_at = Some("2026-01-01T12:00:00Z".to_owned());
        }),
        (CLOCK.id, |run| {
            run.time.as_mut().unwrap().finished_at = Some("2026-03-01T12:00:00Z".to_owned());
        }),
        (DERIVED.id, |run| {
            run.metrics.as_mut().unwrap().ttft_us.as_mut().unwrap().std = Some(1);
        }),
        (DERIVED.id, |run| {
            run.metrics.as_mut().unwrap().output_tokens_per_s_peak = Some(900.0);
        }),
        (ROOFLINE.id, |run| run.model.parameters = Some(100_000_000_000)),
    ];
    for (rule, change) in cpu {
        let found = broken(Machine::Cpu, change);
        assert!(found.contains(&rule), "{rule}: {found:?}");
    }
    let watts: Change<RunRecord> = |run| {
        run.hardware.gpu.as_mut().unwrap()[0].power_limit_mw = Some(300_000);
    };
    assert_eq!(broken(Machine::Gpu, watts), [POWER.id]);
    let large: Change<RunRecord> = |run| run.model.parameters = Some(9_000_000_000_000);
    assert_eq!(broken(Machine::Gpu, large), [ROOFLINE.id]);
}

#[test]
fn a_reservation_that_was_removed_is_missed() {
    let mut submission = submission(Machine::Cpu);
    let record = &mut submission.runs[0].record;
    let host = schema::telemetry::HostTelemetry {
        cpu_steal_share: Some(0.2),
        ..schema::telemetry::HostTelemetry::default()
    };
    record.telemetry.as_mut().unwrap().host = Some(host);
    let evidence = crate::rule::Evidence::default();
    record.validity = crate::validity::of_fresh(record, &evidence);
    assert_eq!(record.validity.verdict, ValidityVerdict::Degraded);
    *record = reseal(record.clone());
    assert_eq!(findings(&submission), []);
    let record = &mut submission.runs[0].record;
    record.validity.reasons.clear();
    *record = reseal(record.clone());
    assert_eq!(rules(&submission), [VERDICTS.id]);
}

#[test]
fn runs_that_contradict_their_campaign_are_found() {
    let cases: [(&[&str], Change<Submission>); 7] = [
        (&[PLANNED.id], |it| it.campaigns.clear()),
        (&[PLANNED.id], |it| it.campaigns[0].record.hardware = "h200-141g".to_owned()),
        (&[PLANNED.id], |it| it.campaigns[0].record.plan[3].block = 7),
        (&[WHOLE.id], |it| drop(it.runs.remove(4))),
        (&[OVERLAP.id, ORDER.id], |it| {
            let last = it.runs[11].record.time.clone();
            it.runs[3].record.time.as_mut().unwrap().started_at = last.clone().unwrap().started_at;
            it.runs[3].record.time.as_mut().unwrap().finished_at = last.unwrap().finished_at;
        }),
        (&[IDENTITY.id], |it| {
            it.runs[2].record.scenario.file_sha256 = Some("0".repeat(64));
        }),
        (&[COPY.id], |it| it.runs[5].record.histograms = it.runs[1].record.histograms.clone()),
    ];
    for (due, change) in cases {
        let mut submission = submission(Machine::Cpu);
        change(&mut submission);
        let found = rules(&submission);
        assert!(due.iter().all(|rule| found.contains(rule)), "{due:?}: {found:?}");
    }
}

#[test]
fn only_the_stages_of_a_gpu_validation_run_in_any_order() {
    let mut submission = submission(Machine::Cpu);
    let times = [3, 11].map(|at| submission.runs[at].record.time.clone());
    for (at, time) in [11, 3].into_iter().zip(times) {
        submission.runs[at].record.time = time;
    }
    let is_ordered = |it: &Submission| !rules(it).contains(&ORDER.id);
    assert!(!is_ordered(&submission));
    submission.campaigns[0].record.command = vec!["gpu-validation".to_owned()];
    assert!(is_ordered(&submission));
}

#[test]
fn a_retracted_run_is_a_remark_and_a_run_that_the_maintainer_has_is_not_missing() {
    let mut submission = submission(Machine::Cpu);
    let taken = submission.runs.remove(4);
    submission.withheld.insert(taken.record.id.clone());
    let found = findings(&submission);
    assert!(found.len() == 1 && found[0].rule == WHOLE.id && !found[0].breach, "{found:?}");
    submission.known_runs.push(taken);
    assert_eq!(findings(&submission), []);
}

#[test]
fn a_campaign_record_keeps_its_hash() {
    let (_, record) = campaign(Machine::Gpu, 1);
    assert_eq!(record.record_sha256, record_sha256(&record).unwrap());
}
