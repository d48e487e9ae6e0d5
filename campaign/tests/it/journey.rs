//! A release is measured from its name to its records.

use std::fs;

use schema::canonical::record_sha256;
use schema::path::of_run;
use schema::run::{Status, unexplained_nulls};

use crate::scratch::{Scratch, files_below};

#[test]
fn a_release_is_built_measured_and_recorded() {
    let scratch = Scratch::new();
    let ended = scratch.run(&["release-bench", "v0.9.2"]).expect(
        0,
        &[
            "Plan of campaign",
            "v0.9.2, commit",
            "tiny, to be fetched",
            "Run 2 of 2: v0.9.2, talk-lite, repeat 2",
            "the table of",
            "commit   c0ffee",
        ],
    );
    assert!(ended.stdout.contains("site     target/site/index.html"), "{}", ended.stdout);

    let overlay = scratch.campaign().join("results");
    let records = scratch.records(&overlay);
    assert_eq!(records.len(), 2);
    for (path, record) in &records {
        assert_eq!(path.strip_prefix(&overlay).unwrap().to_str(), of_run(record).ok().as_deref());
        assert_eq!(record_sha256(record).unwrap(), record.record_sha256);
        let text = fs::read_to_string(path).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(unexplained_nulls(&value), Vec::<String>::new());
        assert!(!text.contains(scratch.root().to_str().unwrap()), "a path entered the record");
        assert_eq!((record.status, record.engine.release.as_str()), (Status::Ok, "v0.9.2"));
        assert_eq!(record.engine.dirty, Some(false));
        let argv = record.server.as_ref().and_then(|server| server.argv.clone()).unwrap();
        assert_eq!(argv.join(" "), "redline serve {model} --tp 1 --port {port}");
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
fn a_second_campaign_fetches_nothing_again() {
    let scratch = Scratch::new();
    scratch.run(&["release-bench", "v0.9.2"]).expect(0, &[]);
    let fetched = scratch.calls().matches("pip -m").count();
    assert_eq!(fetched, 2);
    scratch
        .run(&["release-bench", "v0.9.2", "--repeats", "1"])
        .expect(0, &["tiny, at hand", "talk, at hand", "Run 1 of 1"]);
    assert_eq!(scratch.calls().matches("pip -m").count(), fetched);
}

#[test]
fn a_baseline_runs_interleaved_and_is_compared() {
    let scratch = Scratch::new();
    let ended =
        scratch.run(&["release-bench", "v0.9.2", "--baseline", "0.9.1", "--repeats", "3"]).expect(
            3,
            &[
                "v0.9.1, commit",
                "the table of v0.9.1",
                "the table of v0.9.2",
                "nothing can be said yet",
            ],
        );
    let order: Vec<&str> = ended
        .stderr
        .lines()
        .filter_map(|line| Some(line.split_once(" of 6: ")?.1.split_once(',')?.0))
        .collect();
    assert_eq!(order, ["v0.9.1", "v0.9.2", "v0.9.2", "v0.9.1", "v0.9.1", "v0.9.2"]);
    let calls = scratch.calls();
    assert!(calls.contains("results diff v0.9.1 v0.9.2 --registry "), "{calls}");
    let hashes: std::collections::BTreeSet<_> = scratch
        .records(&scratch.root().join("results"))
        .into_iter()
        .map(|(_, record)| (record.engine.release, record.engine.binary_sha256))
        .collect();
    assert_eq!(hashes.len(), 2, "each release has a binary of its own: {hashes:?}");
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
    scratch
        .run(&["release-bench", "v0.9.2", "--dry-run"])
        .expect(0, &["runs       2, about", "results, committed on the branch"]);
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
    assert_eq!(
        record.absent.get("server.argv").map(String::as_str),
        Some("the server was started by someone else")
    );
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
