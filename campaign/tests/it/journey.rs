//! A release is measured from its name to its records.

use std::collections::BTreeSet;
use std::fs;

use schema::alternation::OutputsCompared;
use schema::campaign::{CampaignRecord, CampaignStatus};
use schema::canonical::record_sha256;
use schema::correctness::ReferenceOutputs;
use schema::measurement::Measurement;
use schema::path::of_run;
use schema::run::{Correctness, FixedOutput, Status};
use schema::verdict::{Stage, Verdict, VerdictKind};

use crate::scratch::{Scratch, files_below};

#[test]
fn a_release_is_built_measured_and_recorded() {
    let scratch = Scratch::new();
    let ended = scratch.run(&["release-bench", "v0.9.2"]).expect(
        0,
        &[
            "Plan of campaign",
            "v0.9.2, commit",
            "tiny, to be downloaded",
            "Run 2 of 2: v0.9.2, talk-lite, repeat 2",
            "the table of",
            "commit   c0ffee",
        ],
    );
    assert!(ended.stdout.contains("site     target/site/index.html"), "{}", ended.stdout);
    let said = "verdict  not compared with another release; 2 runs: ";
    assert!(ended.stdout.contains(said), "{}", ended.stdout);
    assert_eq!(last_words(&ended.stdout, 5), ["verdict", "page", "site", "commit", "next"]);

    let staged = scratch.campaign().join("results");
    let records = scratch.records(&staged);
    assert_eq!(records.len(), 2);
    for (path, record) in &records {
        assert_eq!(path.strip_prefix(&staged).unwrap().to_str(), of_run(record).ok().as_deref());
        assert_eq!(record_sha256(record).unwrap(), record.record_sha256);
        let text = fs::read_to_string(path).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(value.get("absent").is_none(), "a null has no sentence");
        assert!(!text.contains(scratch.root().to_str().unwrap()), "a path entered the record");
        assert_eq!((record.status, record.engine.release.as_str()), (Status::Ok, "v0.9.2"));
        assert_eq!(record.engine.dirty, Some(false));
        let argv = record.server.as_ref().and_then(|server| server.argv.clone()).unwrap();
        assert_eq!(argv.join(" "), "redline serve {model} --tp 1 --port {port}");
        let probed = record.calibration.as_ref().unwrap();
        let fields: Vec<&str> = probed.keys().map(String::as_str).collect();
        let both = ["gflops_after", "gflops_before", "memory_gbps_after", "memory_gbps_before"];
        assert_eq!(fields, both);
        assert!(probed.values().all(|value| value.as_f64() > Some(0.0)), "{probed:?}");
        assert!(record.memory.as_ref().is_some_and(|memory| memory.rss_bytes_max > Some(0)));
    }
    let repeats: Vec<u32> =
        records.iter().filter_map(|(_, record)| Some(record.campaign.as_ref()?.repeat)).collect();
    assert_eq!(repeats, [1, 2]);
    let committed = files_below(&scratch.root().join("results"));
    assert_eq!(committed.len(), 4, "two runs, a campaign and a page: {committed:?}");
    assert!(!scratch.root().join("target/release-bench.lock").exists());
    assert_eq!(scratch.git(&["status", "--porcelain", "--", ":!results"]), "");
}

#[test]
fn runs_of_a_model_share_a_server_where_they_are_told_to() {
    let scratch = Scratch::new();
    let scenarios = ["--scenario", "talk-lite", "--scenario", "rung-lite"];
    let measure = ["release-bench", "v0.9.2", "--servers", "per-model", "--repeats", "3"];
    let both_ways =
        ["one for each model and repeat: 3 starts", "with `--servers per-run`: 6 starts"];
    scratch.run(&[&measure[..], &scenarios].concat()).expect(0, &both_ways);
    assert_eq!(scratch.pids("server.pids").len(), 3);
    let mut records: Vec<_> = scratch.records(&scratch.campaign().join("results"));
    // Ids sort in the order of the plan.
    records.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id));
    assert_eq!(records.len(), 6);
    for (index, (_, record)) in records.iter().enumerate() {
        let slot = record.campaign.as_ref().unwrap();
        let (server, before) = (index / 2 + 1, index % 2);
        assert_eq!((slot.repeat as usize, slot.block as usize), (server, index));
        assert_eq!(slot.server_runs_before, Some(u32::try_from(before).unwrap()));
        let memory = record.memory.as_ref().and_then(|memory| memory.rss_bytes_max);
        assert_eq!(memory.is_some(), before == 0, "the peak is of the runs before too");
        let startup = record.server.as_ref().and_then(|server| server.startup_us);
        assert_eq!(startup.is_some(), before == 0, "a start belongs to one run");
    }
    for pair in records.chunks(2) {
        assert_ne!(pair[0].1.scenario.id, pair[1].1.scenario.id);
    }
    let seed = committed(&scratch).random_order_seed;
    assert!(
        seed.is_some_and(|seed| seed < 1 << 53),
        "the record says that chance decided: {seed:?}"
    );
}

#[test]
fn a_shared_server_that_ends_fails_one_run() {
    let scratch = Scratch::new();
    let scenarios = ["--scenario", "talk-lite", "--scenario", "rung-lite"];
    let measure = ["release-bench", "v0.9.2", "--servers", "per-model", "--repeats", "1"];
    let ended = scratch.run_with(&[&measure[..], &scenarios].concat(), &[("BENCH_FAKE", "kills")]);
    ended.expect(1, &["the server ended with signal 9"]);
    let records = scratch.records(&scratch.campaign().join("results"));
    let failed = records.iter().filter(|(_, record)| record.status == Status::Failed).count();
    assert_eq!((records.len(), failed), (2, 1));
    assert_eq!(scratch.pids("server.pids").len(), 2, "the next run starts its own");
}

#[test]
fn a_server_whose_prefix_cache_cannot_be_emptied_is_not_shared() {
    let scratch = Scratch::new();
    let engine = fs::read_to_string(scratch.root().join("suite/engines/redline.toml")).unwrap();
    let without = engine.replace("reset_route = \"/reset_prefix_cache\"\n", "");
    scratch.write("suite/engines/redline.toml", &without);
    scratch.run(&["release-bench", "v0.9.2", "--servers", "per-model", "--dry-run"]).expect(
        2,
        &["engine `redline` has no route that empties its prefix cache", "`cache.reset_route`"],
    );
    scratch
        .run(&["release-bench", "v0.9.2", "--servers", "per-model", "--baseline", "v0.9.1"])
        .expect(2, &["cannot be used with"]);
}

#[test]
fn a_release_is_built_beside_the_users_programs_and_of_the_same_parts() {
    let scratch = Scratch::new();
    let elsewhere = scratch.fixtures().join("cargo");
    for (target, env) in
        [(scratch.root().join("target"), None), (elsewhere.clone(), Some(&elsewhere))]
    {
        let own = target.join("release/redline");
        fs::create_dir_all(own.parent().unwrap()).unwrap();
        fs::write(&own, "the user's own").unwrap();
        let env: Vec<(&str, &str)> =
            env.iter().map(|dir| ("CARGO_TARGET_DIR", dir.to_str().unwrap())).collect();
        scratch.run_with(&["release-bench", "v0.9.2", "--repeats", "1"], &env).expect(0, &[]);
        assert_eq!(fs::read_to_string(&own).unwrap(), "the user's own", "{env:?}");
        let parts = fs::read_dir(target.join("release/deps")).unwrap();
        let names = parts.map(|part| part.unwrap().file_name().into_string().unwrap());
        assert!(names.into_iter().any(|name| name.starts_with("redline-")), "{env:?}");
    }
}

#[test]
fn a_second_campaign_fetches_nothing_again() {
    let scratch = Scratch::new();
    scratch.run(&["release-bench", "v0.9.2"]).expect(0, &[]);
    let fetched = scratch.calls().matches("pip -m").count();
    assert_eq!(fetched, 2);
    scratch
        .run(&["release-bench", "v0.9.2", "--repeats", "1"])
        .expect(0, &["tiny, available", "talk, available", "Run 1 of 1"]);
    assert_eq!(scratch.calls().matches("pip -m").count(), fetched);
}

/// Returns the first words of the last lines that are not continued from the line before.
fn last_words(stdout: &str, count: usize) -> Vec<&str> {
    let lines = stdout.lines().filter(|line| !line.starts_with(' ') && !line.is_empty());
    let words: Vec<&str> = lines.filter_map(|line| line.split(' ').next()).collect();
    words[words.len().saturating_sub(count)..].to_vec()
}

/// Returns release and scenario of each run in the headings on standard error, such as `Run 1 of 6:
/// ...`.
fn launches(stderr: &str, verb: &str) -> Vec<String> {
    let heading = format!("] {verb} ");
    let of = |line: &str| {
        let (_, launch) = line.split_once(&heading)?.1.split_once(": ")?;
        Some(launch.rsplit_once(", repeat")?.0.to_owned())
    };
    stderr.lines().filter_map(of).collect()
}

const ONE_SCENARIO: [&str; 7] =
    ["release-bench", "v0.9.2", "--baseline", "0.9.1", "--scenario", "talk-lite", "--repeats"];

#[test]
fn a_baseline_runs_interleaved_and_is_compared() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    let ended = scratch.run(&[&ONE_SCENARIO[..], &["3"]].concat()).expect(
        3,
        &[
            "v0.9.1, commit",
            "both servers, in 1 scenario, at most 10 s together",
            "Compare in turns: tiny, talk-lite",
            "the table of v0.9.1",
            "the table of v0.9.2",
            "nothing can be said yet",
        ],
    );
    let order = launches(&ended.stderr, "Run").join(" ").replace(", talk-lite", "");
    assert_eq!(order, "v0.9.1 v0.9.2 v0.9.2 v0.9.1 v0.9.1 v0.9.2");
    assert_eq!(launches(&ended.stderr, "Confirm"), [""; 0], "nothing is confirmed in pairs");
    let calls = scratch.calls();
    assert!(calls.contains("results diff v0.9.1 v0.9.2 --registry "), "{calls}");
    let verdict = "verdict  Ship: no release-blocking metric changed.";
    assert!(ended.stdout.contains(verdict), "{}", ended.stdout);
    let next = ended.stdout.lines().last().unwrap();
    assert_eq!(next, "next     cargo xtask site --open");
    // The command to go on with is one line, however long its arguments are.
    let lines = ended.stdout.lines().filter(|line| !line.starts_with("next "));
    let long = lines.filter(|line| line.chars().count() > 100);
    assert_eq!(long.collect::<Vec<_>>(), [""; 0], "{}", ended.stdout);
    let hashes: BTreeSet<_> = scratch
        .records(&scratch.root().join("results"))
        .into_iter()
        .map(|(_, record)| (record.engine.release, record.engine.binary_sha256))
        .collect();
    assert_eq!(hashes.len(), 2, "each release has a binary of its own: {hashes:?}");
}

#[test]
fn a_comparison_runs_the_rungs_beside_the_rest_and_then_both_in_turns() {
    let scratch = Scratch::new();
    let flags = ["release-bench", "v0.9.2", "--baseline", "v0.9.1", "--dry-run"];
    let ended = scratch.run(&flags).expect(
        0,
        &[
            "talk-lite@1            4 runs",
            "rung-lite@1            4 runs",
            "both servers, in 2 scenarios, at most 20 s together",
        ],
    );
    assert!(!ended.stdout.contains("then 8 pairs"), "{}", ended.stdout);
    // Without a second stage, as many pairs as the statistics of pairs need.
    let ended = scratch
        .run(&[&flags[..], &["--no-confirm"]].concat())
        .expect(0, &["talk-lite@1            10 runs", "rung-lite@1            10 runs"]);
    assert!(!ended.stdout.contains("both servers"), "{}", ended.stdout);
    scratch
        .run(&["release-bench", "v0.9.2", "--dry-run"])
        .expect(0, &["runs       2, and how long"]);
}

/// Reads the record of the one campaign that was committed.
fn committed(scratch: &Scratch) -> CampaignRecord {
    let path = files_below(&scratch.root().join("results/campaigns")).remove(0);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn two_releases_are_compared_in_turns_and_their_record_says_so() {
    let scratch = Scratch::new();
    // The runs differ much more, and do not decide.
    scratch.write_speed("0.9.1", 100.0);
    scratch.write_speed("0.9.2", 50.0);
    scratch.write_slices("0.9.1-0.9.2", 125, OutputsCompared { compared: 6, differ: 0 });
    let policy = scratch.root().join("suite/policies/release.toml");
    let text = fs::read_to_string(&policy).unwrap();
    fs::write(&policy, text.replace("alternate_s = 10", "alternate_s = 20")).unwrap();
    let flags = ["release-bench", "v0.9.2", "--baseline", "v0.9.1", "--repeats", "1"];
    let ended = scratch.run_with(&flags, &[("REDLINE_FAKE", "family")]).expect(3, &[]);
    let said = "verdict  Hold: Output tokens of ";
    assert!(ended.stdout.contains(said), "{}", ended.stdout);
    assert_eq!(launches(&ended.stderr, "Run").len(), 4);
    assert_eq!(launches(&ended.stderr, "Confirm"), [""; 0]);

    let campaign = committed(&scratch);
    assert_eq!(campaign.plan.len(), 4, "comparisons in turns plan no records of runs");
    assert_eq!(campaign.status, CampaignStatus::Complete);
    assert_eq!(campaign.policy.map(|policy| policy.rev), Some(2));
    let cells = campaign.alternations.iter().map(|one| one.scenario.as_str());
    assert_eq!(cells.collect::<Vec<_>>(), ["talk-lite@1", "rung-lite@1"]);
    for one in &campaign.alternations {
        assert_eq!(one.baseline.engine.release, "v0.9.1");
        assert_eq!(
            (one.candidate.engine.release.as_str(), one.starts.len() >= 4),
            ("v0.9.2", true)
        );
    }
    let found = |verdict: &Verdict| (verdict.metric.clone(), verdict.verdict, verdict.stage);
    let in_turns = campaign.verdicts.iter().filter(|verdict| verdict.alternation.is_some());
    let in_turns: Vec<_> = in_turns.map(found).collect();
    let regressed = ("output_tokens_per_s".to_owned(), VerdictKind::Regressed, Stage::Alternate);
    assert!(in_turns.contains(&regressed), "{in_turns:?}");
    let of_runs = campaign.verdicts.iter().filter(|verdict| verdict.alternation.is_none());
    assert!(of_runs.map(found).all(|of| of.0 != "output_tokens_per_s"), "in turns alone");
}

#[test]
fn where_two_servers_do_not_fit_what_differs_is_launched_again_and_confirmed() {
    let scratch = Scratch::new();
    scratch.write_large_model();
    scratch.write_speed("0.9.1", 100.0);
    scratch.write_speed("0.9.2", 50.0);
    let flags = ["release-bench", "v0.9.2", "--baseline", "v0.9.1", "--repeats", "3"];
    let ended = scratch.run(&flags).expect(
        3,
        &[
            "in pairs of runs, because two servers need",
            "Select cells to confirm",
            "Confirm 16 of 16",
        ],
    );
    assert!(!ended.stderr.contains("Compare in turns"), "{}", ended.stderr);
    let said = "verdict  Hold: Output tokens of talk-lite@1 regressed, down 50 %";
    assert!(ended.stdout.contains(said), "{}", ended.stdout);
    assert!(ended.stdout.contains("next     cargo xtask diff v0.9.1 v0.9.2"), "{}", ended.stdout);
    assert_eq!(launches(&ended.stderr, "Run").len(), 12);
    let confirmed = launches(&ended.stderr, "Confirm");
    assert!(confirmed.iter().all(|launch| launch.ends_with("talk-lite")), "{confirmed:?}");
    assert!(confirmed[0].starts_with("v0.9.1") && confirmed[2].starts_with("v0.9.2"));

    let results = scratch.root().join("results");
    let campaign = committed(&scratch);
    assert!(campaign.alternations.is_empty());
    let (screen, confirm): (Vec<_>, Vec<_>) =
        campaign.plan.iter().partition(|planned| planned.stage.is_none());
    assert_eq!((screen.len(), confirm.len()), (12, 16));
    assert!(confirm.iter().all(|planned| planned.stage == Some(Stage::Confirm)));
    assert_eq!(screen.iter().map(|planned| planned.block).max(), Some(5));
    assert_eq!(confirm.iter().map(|planned| planned.block).min(), Some(6));
    let ids: BTreeSet<_> = campaign.plan.iter().map(|p| &p.run).collect();
    assert_eq!(ids.len(), 28, "each launch has an id of its own");
    let stages = scratch.records(&results).into_iter().filter_map(|(_, run)| run.campaign?.stage);
    assert_eq!(stages.count(), 16);

    assert_eq!(campaign.policy.map(|policy| (policy.id, policy.rev)), Some(("release".into(), 2)));
    assert_eq!(campaign.noise_floor.unwrap()["output_tokens_per_s"], 0.0);
    let found = |verdict: &Verdict| (verdict.metric.clone(), verdict.verdict, verdict.stage);
    let found: Vec<_> = campaign.verdicts.iter().map(found).collect();
    let regressed = ("output_tokens_per_s".to_owned(), VerdictKind::Regressed, Stage::Confirm);
    // The memory of the stand-in's process is really measured, and so no part of the claim.
    let confirmed = found.iter().filter(|found| found.2 == Stage::Confirm);
    let confirmed: Vec<_> = confirmed.filter(|found| found.0 != "rss_bytes_max").collect();
    assert_eq!(confirmed, [&regressed]);
}

#[test]
fn a_model_that_turns_out_too_large_after_its_download_gets_the_pairs_of_the_policy() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    scratch.write_large_model();
    let files = files_below(&scratch.cache());
    let model = files.iter().find(|path| path.ends_with("model.gguf")).unwrap();
    // The plan does not know the model yet: it comes into the cache while the releases are built.
    let (folder, away) = (model.parent().unwrap(), scratch.fixtures().join("away"));
    fs::rename(folder, &away).unwrap();
    let script = scratch.fixtures().join("cargo-and-model");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let (from, to) = (away.display(), folder.display());
    let text =
        format!("#!/bin/sh\n[ ! -e '{from}' ] || mv '{from}' '{to}'\nexec '{cargo}' \"$@\"\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let flags = ["release-bench", "v0.9.2", "--baseline", "v0.9.1"];
    let ended = scratch.run_with(&flags, &[("REAL_CARGO", script.to_str().unwrap())]);
    let said = &ended.stderr;
    assert!(!said.contains("in pairs of runs, because"), "the plan knew it: {said}");
    let note = "pairs of runs decide instead, 5 in each cell; they show changes of 10 to 20 %";
    assert!(said.contains(note), "{said}");
    // Five pairs of runs in each of two cells, where the target has two runs of each release.
    assert_eq!(launches(said, "Run").len(), 20, "{said}");
    let campaign = committed(&scratch);
    let screen: Vec<_> = campaign.plan.iter().filter(|run| run.stage.is_none()).collect();
    let ids: BTreeSet<_> = campaign.plan.iter().map(|run| &run.run).collect();
    assert_eq!((screen.len(), ids.len()), (20, campaign.plan.len()));
}

#[test]
fn without_confirmation_a_comparison_stops_at_what_the_screen_found() {
    let scratch = Scratch::new();
    scratch.write_speed("0.9.1", 100.0);
    scratch.write_speed("0.9.2", 50.0);
    let ended = scratch.run(&[&ONE_SCENARIO[..], &["3", "--no-confirm"]].concat()).expect(3, &[]);
    assert_eq!(launches(&ended.stderr, "Run").len(), 6);
    assert_eq!(launches(&ended.stderr, "Confirm"), [""; 0]);
}

#[test]
fn the_working_tree_is_measured_but_never_committed() {
    let scratch = Scratch::new();
    scratch.write("engine/notes.txt", "not committed");
    scratch.run(&["release-bench", "--worktree", "--repeats", "1"]).expect(
        0,
        &["v0.9.3-dev, the working tree with changes", "(not committed)", "never committed"],
    );
    assert!(!scratch.root().join("results").exists());
    let calls = scratch.calls();
    assert!(!calls.contains("results record") && !calls.contains("results preflight"), "{calls}");
    let records = scratch.records(&scratch.campaign().join("results"));
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].1.engine.dirty, Some(true));
    assert_eq!(records[0].1.engine.release, "v0.9.3-dev");
}

#[test]
fn a_variant_is_a_side_of_its_own() {
    let scratch = Scratch::new();
    scratch
        .run(&["release-bench", "v0.9.1", "--repeats", "1", "--variant", "slow=--threads 1"])
        .expect(0, &["v0.9.1 (slow)"]);
    let records = scratch.records(&scratch.root().join("results"));
    let mut variants: Vec<_> = records
        .iter()
        .map(|(_, record)| record.server.as_ref().and_then(|server| server.variant.clone()))
        .collect();
    variants.sort();
    assert_eq!(variants, [None, Some("slow".to_owned())]);
}

#[test]
fn a_dry_run_only_prints_the_plan() {
    let scratch = Scratch::new();
    scratch.run(&["release-bench", "v0.9.2", "--dry-run"]).expect(
        0,
        &[
            "commands   redline v0.9.2: redline serve {model} --tp 1 --port {port}",
            "runs       2, and how long they take is unknown",
            "results, committed on the branch",
        ],
    );
    let slurm = ["--executor", "slurm", "--slurm-option=--partition=a100", "--dry-run"];
    let line = "executor   slurm, 1 job, each on a whole node, partition a100";
    scratch.run(&[&["release-bench", "v0.9.2"][..], &slurm].concat()).expect(0, &[line]);
    assert!(!scratch.root().join("target").exists(), "a dry run writes nothing");
    assert_eq!(scratch.calls(), "");
}

#[test]
fn a_running_server_is_measured_without_launching_one() {
    let scratch = Scratch::new();
    scratch
        .run(&["release-bench", "--url", "http://127.0.0.1:1", "--repeats", "1"])
        .expect(0, &["unknown, already running", "(not committed)"]);
    let (_, record) = scratch.records(&scratch.campaign().join("results")).remove(0);
    let server = record.server.unwrap();
    assert_eq!((server.argv, server.env), (None, None), "somebody else started it");
    assert_eq!(record.calibration, None);
    assert!(scratch.pids("server.pids").is_empty());
}

#[test]
fn fetch_prints_where_each_input_lies() {
    let scratch = Scratch::new();
    let ended = scratch.run(&["fetch"]).expect(0, &[]);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let path = lines[1].split_once("  ").unwrap().1;
    let mended: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(mended.as_array().map(Vec::len), Some(2));
    scratch
        .run(&["fetch", "nothing"])
        .expect(2, &["input `nothing` is unknown; known are talk, tiny"]);
}

#[test]
fn outputs_are_compared_with_those_of_the_first_run() {
    let scratch = Scratch::new();
    let output = FixedOutput { prompt: vec![1, 2], output: vec![3, 4, 5] };
    let measurement = Measurement {
        schema: "measurement.v1".into(),
        correctness: Some(Correctness { outputs: vec![output], ..Correctness::default() }),
        ..Measurement::default()
    };
    let file = scratch.fixtures().join("measurement-0.9.1.json");
    fs::write(file, serde_json::to_string(&measurement).unwrap()).unwrap();
    let reference = scratch.fixtures().join("reference.json");
    scratch.run(&["release-bench", "v0.9.2", "--repeats", "1"]).expect(0, &[]);
    assert!(!reference.exists(), "the first run has nothing to be compared with");
    let line = [&ONE_SCENARIO[..], &["1", "--no-confirm"]].concat();
    scratch.run(&line).expect(3, &[]);
    let kept: ReferenceOutputs =
        serde_json::from_str(&fs::read_to_string(reference).unwrap()).unwrap();
    assert_eq!(kept.reference, "redline v0.9.1");
    assert_eq!(
        (&kept.cases[0].prompt[..], &kept.cases[0].greedy[..]),
        (&[1, 2][..], &[3, 4, 5][..])
    );
}
