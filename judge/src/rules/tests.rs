//! Tests of the quality rules: a sound record passes every rule, and for each rule there is a
//! smallest edit that breaks that rule and no other.

use expect_test::expect;
use schema::histogram::HdrHistogram;
use schema::run::{Kind, Level, RunRecord, Status, TokenSource};
use schema::scenario::Arrival;

use super::RULES;
use crate::{CHECKS_REV, findings, findings_at, findings_later, rule};
use records::{
    chunk_gaps, gpu, gpu_state, mean_tpot, points, probed, published, queued, reported, seen,
    server, shift, slice, sound, sound_on_gpu,
};
use samples::Sample;

mod fresh;
mod records;

/// Returns the ids of the quality rules that `record` breaks, with their details.
fn broken(record: &RunRecord) -> Vec<String> {
    broken_at(record, CHECKS_REV)
}

/// Returns the quality rules of revision `rev` that `record` breaks, with their details.
fn broken_at(record: &RunRecord, rev: u32) -> Vec<String> {
    let findings = findings_at(record, rev).into_iter().filter(|check| !check.ok);
    findings.map(|check| format!("{} {}", check.rule, check.detail.unwrap_or_default())).collect()
}

#[test]
fn a_sound_record_passes_every_rule() {
    let all = [
        (sound(), "cpu"),
        (reported(), "reported"),
        (seen(), "seen"),
        (probed(), "probed"),
        (sound_on_gpu(), "gpu"),
        (published(), "published"),
    ];
    for (record, kind) in all {
        assert_eq!(broken(&record), Vec::<String>::new(), "{kind}");
    }
    let judged: Vec<String> = findings(&sound()).into_iter().map(|check| check.rule).collect();
    expect!["E02 E04 E05 E06 E07 E10 E11 E12 E17 E18 E19 E20 E21 E22 E29 E36 W01 W02 W04 W10"]
        .assert_eq(&judged.join(" "));
}

#[test]
fn a_failed_run_is_judged_by_what_it_has() {
    let record = RunRecord { kind: Kind::Measured, ..Sample::default().failed_record() };
    let judged: Vec<String> = findings(&record).into_iter().map(|check| check.rule).collect();
    assert_eq!(judged, ["E02", "E10", "E11"]);
    assert_eq!(broken(&record), Vec::<String>::new());
}

/// Test case: a quality rule's id, the sound record to start from, and the edit that breaks the
/// rule.
type Breaking = (&'static str, fn() -> RunRecord, fn(&mut RunRecord));

const BREAKING: &[Breaking] = &[
    ("E02", sound, |r| r.server.as_mut().unwrap().kv_bytes = None),
    ("E04", sound, |r| r.scenario.requests = Some(320)),
    ("E05", sound, |r| r.counts.as_mut().unwrap().requests_failed = Some(1)),
    ("E06", sound, |r| {
        let metrics = r.metrics.as_mut().unwrap();
        metrics.output_tokens_per_s = metrics.output_tokens_per_s.map(|rate| rate * 1.002);
    }),
    ("E07", sound, |r| {
        let ttft = r.metrics.as_mut().unwrap().ttft_us.as_mut().unwrap();
        ttft.mean = ttft.mean.map(|mean| mean * 101 / 100);
    }),
    ("E08", sound, |r| r.metrics.as_mut().unwrap().output_tokens_per_s_peak = Some(36e6)),
    ("E10", sound, |r| r.engine.dirty = Some(true)),
    ("E11", sound, |r| r.hardware.kernel = Some(String::new())),
    ("E11", sound_on_gpu, |r| r.hardware.gpu.as_mut().unwrap()[0].name.clear()),
    ("E12", sound, |r| r.cache.as_mut().unwrap().hit_tokens = Some(60)),
    ("E13", sound_on_gpu, |r| {
        r.hardware.platform.as_mut().unwrap().other_gpu_processes = Some(1);
    }),
    ("E13", sound_on_gpu, |r| gpu_state(r).mig = Some(true)),
    ("E14", seen, |r| gpu(r).ecc_uncorrected = Some(2)),
    ("E14", seen, |r| gpu(r).throttled.as_mut().unwrap().hardware_share = 0.004),
    ("E15", sound, |r| r.client.as_mut().unwrap().cpu_share_p95 = Some(0.81)),
    ("E16", sound_on_gpu, |r| r.time.as_mut().unwrap().window_us = Some(299_000_000)),
    ("E17", sound, |r| r.correctness.as_mut().unwrap().prompts = Some(0)),
    ("E37", sound_on_gpu, |r| {
        r.scenario.arrival = Some(Arrival::Closed { concurrency: 64 });
        r.time.as_mut().unwrap().window_us = None;
    }),
    ("E18", sound, |r| {
        r.time.as_mut().unwrap().started_at = Some("2025-12-31T23:59:59Z".into());
    }),
    ("E18", sound, |r| {
        r.time.as_mut().unwrap().finished_at = Some("2025-12-31T23:59:59Z".into());
    }),
    ("E19", sound, |r| {
        // Counting the first token's wait into TPOT adds TTFT / n to the time per token.
        shift(r, |histograms, metrics| {
            histograms.tpot_us = None;
            let tpot = metrics.tpot_us.as_mut().unwrap();
            tpot.mean = tpot.mean.map(|mean| mean + 3_000);
        });
        r.absent.insert("histograms.tpot_us".into(), "test".into());
    }),
    ("E20", sound, |r| {
        let dropped = HdrHistogram::from_samples([20_000; 3_000]).unwrap();
        r.histograms.as_mut().unwrap().itl_token_us = Some(dropped);
        let gaps = r.metrics.as_mut().unwrap().itl_token_us.as_mut().unwrap();
        for figure in [&mut gaps.mean, &mut gaps.p50, &mut gaps.p90, &mut gaps.p95] {
            *figure = Some(20_000);
        }
        (gaps.p99, gaps.max) = (Some(20_000), Some(20_000));
    }),
    ("E21", sound, |r| {
        r.scenario.arrival = Some(Arrival::Closed { concurrency: 8 });
        r.client.as_mut().unwrap().streams_max = Some(8);
    }),
    ("E22", sound, |r| {
        let metrics = r.metrics.as_mut().unwrap();
        let past = metrics.e2e_us.as_ref().unwrap().max.map(|max| max + 1);
        metrics.ttft_us.as_mut().unwrap().max = past;
        r.histograms.as_mut().unwrap().ttft_us = None;
        r.absent.insert("histograms.ttft_us".into(), "test".into());
    }),
    ("E23", published, |r| mean_tpot(r, 14_000 * 100 / 101)),
    ("E23", published, |r| mean_tpot(r, 3_960)),
    ("E23", published, |r| mean_tpot(r, 7_000)),
    ("E24", published, |r| chunk_gaps(r, 0)),
    ("E24", published, |r| chunk_gaps(r, 8_900)),
    ("E25", published, |r| {
        r.counts.as_mut().unwrap().requests_planned = Some(1_010);
        r.scenario.requests = Some(1_010);
    }),
    ("E26", reported, |r| {
        let parts = r.metrics.as_mut().unwrap().ttft_parts_us.as_mut().unwrap();
        parts.server.mean = parts.server.mean.map(|mean| mean - 10);
    }),
    ("E27", reported, |r| {
        let scheduled = r.metrics.as_mut().unwrap().e2e_scheduled_us.as_mut().unwrap();
        scheduled.p50 = scheduled.p50.map(|p50| p50 - 2);
    }),
    ("E28", reported, |r| slice(r).output_tokens -= 5),
    ("E28", reported, |r| slice(r).requests_ended -= 1),
    ("E28", reported, |r| slice(r).length_us -= 2),
    ("E29", sound, |r| {
        let dropped = HdrHistogram::from_samples([1_000; 31]).unwrap();
        r.histograms.as_mut().unwrap().e2e_scheduled_us = Some(dropped);
    }),
    ("E30", sound, |r| r.status = Status::Partial),
    ("E31", reported, more_chunks_than_tokens),
    ("E38", reported, |r| {
        r.counts.as_mut().unwrap().chunk_token_source = Some(TokenSource::Usage);
    }),
    ("E38", reported, |r| {
        more_chunks_than_tokens(r);
        r.counts.as_mut().unwrap().output_tokens_retokenized = None;
        r.absent.insert("counts.output_tokens_retokenized".into(), "test".into());
    }),
    ("E32", sound, |r| r.scenario.arrival = Some(Arrival::Closed { concurrency: 31 })),
    ("E33", seen, |r| {
        server(r, |server| {
            server.output_tokens = Some(4_200);
            points(server)[0] += 104;
        });
    }),
    ("E34", seen, |r| server(r, |server| points(server)[0] += 1)),
    ("E34", seen, |r| server(r, |server| server.kv_pages = Some(89))),
    ("E34", seen, |r| {
        server(r, |server| server.requests_running.as_mut().unwrap().p95 = 3);
    }),
    ("E34", seen, |r| {
        let host = r.telemetry.as_mut().unwrap().host.as_mut().unwrap();
        host.cpu_user_share = Some(0.95);
    }),
    ("E35", seen, |r| r.metrics.as_mut().unwrap().joules_per_output_token = Some(1.01)),
    ("E35", seen, |r| gpu(r).energy_mj = None),
    ("W01", sound, |r| r.counts.as_mut().unwrap().output_tokens_retokenized = Some(4_000)),
    ("W02", sound, |r| {
        let gaps = r.metrics.as_mut().unwrap().itl_chunk_us.as_mut().unwrap();
        gaps.p50 = Some(0);
        r.histograms.as_mut().unwrap().itl_chunk_us = None;
        r.absent.insert("histograms.itl_chunk_us".into(), "test".into());
    }),
    ("W03", sound, |r| {
        let (requests_per_s, concurrency_max) = (10.0, None);
        r.scenario.arrival = Some(Arrival::Constant { requests_per_s, concurrency_max });
    }),
    ("W04", || RunRecord { kind: Kind::Measured, ..queued() }, |_| {}),
    ("W05", seen, |r| gpu(r).throttled.as_mut().unwrap().thermal_share = 0.02),
    ("W06", sound_on_gpu, |r| gpu_state(r).power_limit_default_mw = Some(699_000)),
    ("W07", probed, |r| {
        r.calibration.as_mut().unwrap().insert("memory_gbps_after".into(), 30.68.into());
    }),
    ("E36", published, |r| {
        let metrics = r.metrics.as_mut().unwrap();
        metrics.output_tokens_per_s_peak = metrics.output_tokens_per_s.map(|mean| mean * 20.1);
    }),
    ("W19", probed, |r| {
        r.calibration.as_mut().unwrap().insert("memory_gbps_after".into(), 27.8.into());
    }),
    ("W10", sound, |r| r.counts.as_mut().unwrap().output_tokens_requested = Some(4_101)),
    ("W11", sound_on_gpu, |r| {
        r.metrics.as_mut().unwrap().e2e_us.as_mut().unwrap().p99 =
            r.metrics.as_ref().unwrap().e2e_us.as_ref().unwrap().max.map(|max| max - 1_000);
    }),
    ("W12", published, |r| chunk_gaps(r, 11_600)),
    ("W13", published, |r| r.scenario.dataset = Some("sharegpt".into())),
    ("W14", sound, |r| r.client.as_mut().unwrap().kernel_to_user_us_p99 = Some(2_100)),
    ("W14", reported, |r| r.client.as_mut().unwrap().late_read_share = Some(0.03)),
    ("W15", sound, |r| r.client.as_mut().unwrap().schedule_lag_us_p99 = Some(9_000)),
    ("W18", sound, |r| {
        let bounds = [("ttft_us_p50".to_owned(), 5.01), ("ttft_us_p99".to_owned(), 4.99)];
        r.client.as_mut().unwrap().error_pct = Some(bounds.into());
    }),
    ("W16", seen, |r| {
        r.telemetry.as_mut().unwrap().host.as_mut().unwrap().cpu_steal_share = Some(0.03);
    }),
];

/// States that each chunk of the run is a token, though there is a chunk more than tokens.
fn more_chunks_than_tokens(record: &mut RunRecord) {
    let counts = record.counts.as_mut().unwrap();
    counts.chunk_token_source = Some(TokenSource::Chunks);
    counts.output_chunks = counts.output_tokens_reported.map(|tokens| tokens + 1);
    // The gaps between chunks would be one more, too.
    record.histograms.as_mut().unwrap().itl_chunk_us = None;
    record.absent.insert("histograms.itl_chunk_us".into(), "test".into());
}

/// Returns the last revision of the list of rules that contains the rule `id`.
fn last_rev(id: &str) -> u32 {
    rule(id).and_then(|rule| rule.until).unwrap_or(CHECKS_REV)
}

#[test]
fn a_retired_rule_judges_only_the_records_of_its_time() {
    let retired: Vec<&str> =
        RULES.iter().filter(|rule| rule.until.is_some()).map(|rule| rule.id).collect();
    assert_eq!(
        retired,
        ["E08", "E15", "E16", "E31", "W07", "W14", "W15", "W19", "coalesced-reads"]
    );
    let mut record = sound();
    record.client.as_mut().unwrap().kernel_to_user_us_p99 = Some(2_100);
    assert_eq!(broken_at(&record, 7), ["W14 arrived bytes waited 2100 us for the client"]);
    assert_eq!(broken(&record), Vec::<String>::new());
    record.checks_rev = 2;
    let later: Vec<String> = findings_later(&record).into_iter().map(|check| check.rule).collect();
    assert!(!later.contains(&"W14".to_owned()), "{later:?}");
}

#[test]
fn the_whole_run_counts_where_all_requests_are_sent_at_once() {
    // 25 of 26 s steady, as on a GPU that answers a scenario quickly.
    let mut record = sound_on_gpu();
    let time = record.time.as_mut().unwrap();
    (time.window_us, time.wall_us) = (Some(25_000_000), Some(26_000_000));
    let short = |record: &RunRecord, rev| {
        let failed = findings_at(record, rev).into_iter().filter(|check| !check.ok);
        failed
            .map(|check| check.rule)
            .filter(|id| ["E16", "E37"].contains(&&**id))
            .collect::<Vec<String>>()
    };
    let none: Vec<String> = vec![];
    assert_eq!(short(&record, 9), ["E16"]);
    assert_eq!(short(&record, 10), none);
    record.time.as_mut().unwrap().window_us = None;
    assert_eq!(short(&record, 10), none, "conversations of different lengths have no steady state");
    record.scenario.arrival = Some(Arrival::Closed { concurrency: 64 });
    assert_eq!(short(&record, 10), ["E37"]);
    for window_us in [21_000_000, 25_000_000] {
        record.time.as_mut().unwrap().window_us = Some(window_us);
        assert_eq!(short(&record, 10), none, "{window_us}");
    }
}

#[test]
fn ids_that_make_the_text_confirm_a_count_that_its_tokenizer_does_not() {
    let mut record = sound();
    let counts = record.counts.as_mut().unwrap();
    counts.output_tokens_retokenized = counts.output_tokens_reported.map(|tokens| tokens * 21 / 20);
    counts.output_tokens_decoded = counts.output_tokens_reported.map(|tokens| tokens / 2);
    assert_eq!(broken(&record).len(), 1, "ids of half of the tokens");
    let counts = record.counts.as_mut().unwrap();
    counts.output_tokens_decoded = counts.output_tokens_reported;
    assert_eq!(broken(&record), Vec::<String>::new());
}

#[test]
fn a_measured_run_of_few_answers_after_long_prompts_has_any_peak() {
    // 25 s of prompts, and then nearly all tokens within one second.
    let burst = |kind| {
        let mut record = RunRecord { kind, ..sound() };
        let metrics = record.metrics.as_mut().unwrap();
        metrics.output_tokens_per_s_peak = metrics.output_tokens_per_s.map(|mean| mean * 22.0);
        record
    };
    let broken_by = |record: &RunRecord| {
        let failed = crate::failed(record).into_iter().map(|check| check.rule);
        failed.collect::<Vec<_>>()
    };
    let mut measured = burst(Kind::Measured);
    // The revision that had E08 stored its finding, which no longer counts.
    measured.checks = findings_at(&measured, 8);
    measured.checks_rev = 8;
    assert!(measured.checks.iter().any(|check| check.rule == "E08" && !check.ok));
    assert_eq!(broken_by(&measured), Vec::<String>::new());
    measured.metrics.as_mut().unwrap().output_tokens_per_s_peak = Some(1.0);
    assert_eq!(broken_by(&measured), ["E36"]);
}

#[test]
fn an_answer_with_as_many_chunks_as_tokens_does_not_speak_for_those_counted_again() {
    // As a suite before v0.12 recorded a run of llama.cpp.
    let mut record = reported();
    more_chunks_than_tokens(&mut record);
    (record.checks, record.checks_rev) = (findings_at(&record, 5), 5);
    assert!(record.checks.iter().any(|check| check.rule == "E31" && !check.ok));
    let failed = |record: &RunRecord| {
        let failed = crate::failed(record).into_iter().map(|check| check.rule);
        failed.collect::<Vec<_>>()
    };
    assert_eq!(failed(&record), Vec::<String>::new());
    record.counts.as_mut().unwrap().output_tokens_retokenized = None;
    assert_eq!(failed(&record), ["E38"]);
}

#[test]
fn each_rule_is_broken_by_a_smallest_edit_and_alone() {
    for (id, start, edit) in BREAKING {
        let mut record = start();
        edit(&mut record);
        let broken = broken_at(&record, last_rev(id));
        let alone = broken.len() == 1 && broken[0].starts_with(id);
        assert!(alone, "the edit for {id} broke {broken:#?}");
    }
}

#[test]
fn every_rule_has_a_breaking_edit() {
    for rule in RULES.iter().filter(|rule| rule.since.is_some()) {
        assert!(BREAKING.iter().any(|(id, _, _)| *id == rule.id), "no edit breaks {}", rule.id);
    }
}

#[test]
fn ids_are_unique_sorted_and_tell_the_level() {
    assert!(RULES.windows(2).all(|pair| pair[0].id < pair[1].id), "ids are not in order");
    for one in RULES.iter() {
        if let Some(since) = one.since {
            let level = if one.id.starts_with('E') { Level::Error } else { Level::Warning };
            assert_eq!(one.level, level, "{}", one.id);
            assert!((1..=CHECKS_REV).contains(&since), "{}", one.id);
        } else {
            assert!(one.conditions.iter().all(|one| one.reason.is_some()), "{}", one.id);
        }
        assert!(one.why.ends_with('.') && !one.title.ends_with('.'), "{}", one.id);
        assert_eq!(rule(one.id).map(|found| found.title), Some(one.title));
    }
}

#[test]
fn a_busy_client_is_an_error_on_a_gpu_and_a_warning_on_a_cpu() {
    for (mut record, level) in [(sound(), Level::Warning), (sound_on_gpu(), Level::Error)] {
        record.client.as_mut().unwrap().loop_lag_us_p99 = Some(6_000);
        let busy = findings_at(&record, 7).into_iter().find(|check| check.rule == "E15").unwrap();
        assert!(!busy.ok && busy.level == level, "{busy:?}");
    }
}

#[test]
fn loop_lag_against_tpot_minds_only_where_the_kernel_does_not_stamp() {
    for (stamped, ok) in [(true, true), (false, false)] {
        let mut record = sound();
        let client = record.client.as_mut().unwrap();
        (client.loop_lag_us_p99, client.kernel_timestamps) = (Some(450), Some(stamped));
        let busy = findings_at(&record, 7).into_iter().find(|check| check.rule == "E15").unwrap();
        assert_eq!(busy.ok, ok, "{busy:?}");
    }
}

#[test]
fn an_imported_rate_may_be_rounded_coarsely() {
    let mut record = sound();
    record.kind = Kind::Imported;
    let metrics = record.metrics.as_mut().unwrap();
    metrics.requests_per_s = metrics.requests_per_s.map(|rate| rate * 1.015);
    assert_eq!(broken(&record), Vec::<String>::new());
    record.kind = Kind::Measured;
    assert!(broken(&record)[0].starts_with("E06"));
}

#[test]
fn throughput_may_be_credited_from_another_count_where_none_is_reported() {
    let mut record = sound();
    let counts = record.counts.as_mut().unwrap();
    counts.output_tokens_reported = None;
    counts.token_source = Some(TokenSource::Requested);
    counts.output_tokens_requested = Some(8_192);
    record.absent.insert("counts.output_tokens_reported".into(), "not printed".into());
    assert!(broken(&record)[0].starts_with("E06"), "{:?}", broken(&record));
    record.counts.as_mut().unwrap().output_tokens_requested = Some(4_096);
    assert_eq!(broken(&record), Vec::<String>::new());
}

#[test]
fn a_status_that_hides_failures_is_found() {
    let mut record =
        RunRecord { kind: Kind::Measured, ..Sample { failed: 2, ..Sample::default() }.record() };
    assert_eq!(broken(&record), Vec::<String>::new());
    record.status = Status::Ok;
    let first = broken(&record).into_iter().find(|text| text.starts_with("E05"));
    expect!["E05 status is `ok` with 2 failed requests"].assert_eq(&first.unwrap());
}

#[test]
fn hostile_histograms_are_findings_and_no_panics() {
    for text in ["", "%%", "AAAA", "HISTFAAAAB"] {
        let mut record = sound();
        record.histograms.as_mut().unwrap().queue_us =
            Some(HdrHistogram { hdr_v2: text.into(), significant_digits: 3 });
        let found = broken(&record);
        assert!(found.iter().any(|text| text.starts_with("E07 `queue_us`")), "{found:?}");
    }
}

#[test]
fn absurd_figures_are_findings_and_no_panics() {
    let mut record = sound();
    let counts = record.counts.as_mut().unwrap();
    counts.requests_ok = Some(u64::MAX);
    counts.requests_failed = Some(u64::MAX);
    counts.failures = Some([("a".to_owned(), u64::MAX), ("b".to_owned(), u64::MAX)].into());
    record.metrics.as_mut().unwrap().requests_per_s = Some(f64::NAN);
    record.time.as_mut().unwrap().wall_us = Some(0);
    assert!(broken(&record).iter().any(|text| text.starts_with("E05")));
}

#[test]
fn rules_that_came_later_are_shown_and_not_stored() {
    let mut record = sound();
    assert!(findings_later(&RunRecord { checks_rev: CHECKS_REV, ..record.clone() }).is_empty());
    record.checks_rev = 0;
    assert_eq!(findings_later(&record), findings(&record));
}

/// Returns a line for each breaking edit: the rules that it breaks, with their details.
fn broken_lines() -> String {
    let line = |(id, start, edit): &Breaking| {
        let mut record = start();
        edit(&mut record);
        broken_at(&record, last_rev(id)).join(" | ")
    };
    BREAKING.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_the_rules_say_reads_well() {
    expect![[r#"
        E02 null without a reason: `server.kv_bytes`
        E04 32 planned, the scenario asks for 320
        E05 32 ok and 1 failed of 32 planned; status is `ok` with 1 failed requests
        E06 `output_tokens_per_s` is 1319.41, its counts give 1316.78
        E07 `ttft_us` mean is 392184 us, its histogram says 388172 to 388447
        E08 the best second has 36000000.0 tokens, the mean is 1316.8
        E10 built from a working tree with changes
        E11 unknown: `kernel`
        E11 unknown: `gpu.name`
        E12 60 prompt tokens came from the prefix cache, 0 could
        E13 1 other processes were on the GPUs
        E13 GPU 0 is divided (MIG)
        E14 GPU 0 had 2 errors of memory that stayed
        E14 the hardware slowed GPU 0 at 0.4 % of the looks
        E15 the client used 81 % of a core (p95)
        E16 299.0 s of steady state, 300 s are asked for
        E17 the outputs of this run were not checked
        E37 0.0 s of steady state are 0 % of the run
        E18 it was started 1 s before its campaign
        E18 it ended 1 s before it was started
        E19 mean TPOT is 22985 us, E2E and TTFT give 19985 us
        E20 3000 gaps of 20000 us make 60.000 s, E2E - TTFT make 81.220 s
        E21 mean concurrency is 30.11 under a cap of 8
        E22 TTFT max is 3110627 us, E2E max is 3110626 us
        E23 TPOT includes TTFT (it is E2E / 101.0 tokens): mean TPOT is 13.86 ms, E2E and TTFT give 10.00 ms
        E23 only the first chunk was counted (TPOT is TTFT / 101.0 tokens): mean TPOT is 3.96 ms, E2E and TTFT give 10.00 ms
        E23 not all chunks were counted: mean TPOT is 7.00 ms, E2E and TTFT give 10.00 ms
        E24 no gap was seen: only the first chunk was counted; mean ITL is 0.00 ms, E2E and TTFT give 10.00 ms
        E24 not all gaps were seen; mean ITL is 8.90 ms, E2E and TTFT give 10.00 ms
        E25 survivorship: 1000 of 1010 requests succeeded, and all figures are theirs, with 100 prompt tokens each
        E26 mean TTFT is 388301 us, its parts make 388291
        E27 E2E p50 is 2928186 us from the schedule and 2928188 us from the send
        E28 4096 output tokens were reported, the slices have 4091
        E28 32 requests were answered, the slices have 32 and 31
        E28 the slices end at 3110624 us, the run at 3110626
        E29 `e2e_scheduled_us` has 31 samples, 32 are due
        E30 status is `partial`, with no failure and no failed request
        E31 chunks are tokens, and there are more of them
        E38 the count of a whole answer says nothing of its chunks
        E38 chunks are tokens, and there are more of them
        E32 32 requests ran at once under a cap of 31
        E33 the server counted 4200 output tokens, and its answers hold 4096
        E34 `output_tokens` grew by 4096, its series by 4097
        E34 90 KV pages were in use, and there are 89
        E34 the percentiles of `requests_running` do not rise
        E34 the cores' time adds up to 1.040 of itself
        E35 1.010 J a token, and the GPUs took 0.500 J for each
        E35 0.5 J a token, and no GPU tells what it took
        W01 4096 output tokens were reported, and their text makes 4000
        W02 the median gap between chunks is zero
        W03 10.29 requests a second were answered, 10.00 arrived
        W04 TTFT is 57 % of E2E: read it as queue time
        W05 heat or the hardware slowed a GPU at 2 % of the looks
        W06 GPU 0 has 700.000 W, its default is 699.000 W
        W07 31.0 GB/s before, 30.7 after
        E36 the best second has 20301.0 tokens, the mean is 1010.0
        W19 31.0 GB/s before, 27.8 after
        W10 4101 output tokens were requested and 4096 reported
        W11 32 answers: p99 needs 662
        W12 mean ITL is 1.160 times the time per token: so many tokens a chunk
        W13 a different workload: 1000 requests of ShareGPT, `sharegpt` has 10000
        W14 arrived bytes waited 2100 us for the client
        W14 the client came late to 3 % of reads, which brought several chunks
        W15 requests were sent 9000 us late (p99)
        W18 the client may have moved a metric by its minimum effect: TTFT p50 ±5.0 % (minimum effect 5 %)
        W16 the hypervisor gave others 3.0 % of the cores' time"#]]
    .assert_eq(&broken_lines());
}

#[test]
fn a_sample_is_the_same_every_time() {
    let record = Sample::default().record();
    assert_eq!(record, Sample::default().record());
    expect!["8a5a31a0eb0b486fe86599334534f38fa1d4dae73ef50c48e4ff3d7400d6f9e6"]
        .assert_eq(&record.record_sha256);
}
