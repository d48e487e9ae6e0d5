//! Comparison of Redline with another engine; both engines, CMake and pip are stand-ins.

use std::fs;
use std::process::Command;

use schema::canonical::sha256_hex;
use schema::measurement::Measurement;
use schema::probe::Probe;
use schema::run::{Metrics, ServerFacts};
use serde_json::Value;

use crate::scratch::{SERVED, Scratch, files_below, is_alive};

const ARCHIVE: &str = "tiny_peer-1.0.tar.gz";
const TEXTS: &str = "tiny_texts-1.0.tar.gz";
const TEXT: &str = "tiny-texts/a.txt";
const FIGURES: [&str; 8] = [
    "prefill_512_tokens_per_s",
    "decode_batch_1_tokens_per_s",
    "decode_batch_32_tokens_per_s",
    "sharegpt_lite_output_tokens_per_s",
    "first_answer_s",
    "resident_beyond_kv_files",
    "perplexity",
    "perplexity_f32",
];

/// Creates a scratch clone whose suite contains the rival engine `tiny`, and servers that can be
/// measured.
fn with_peer() -> Scratch {
    let scratch = Scratch::new();
    let sources = scratch.fixtures().join("tiny-peer");
    fs::create_dir_all(&sources).unwrap();
    fs::write(sources.join("CMakeLists.txt"), "project(tiny)\n").unwrap();
    pack(&scratch, ARCHIVE, "tiny-peer");
    let archive = fs::read(scratch.fixtures().join(ARCHIVE)).unwrap();
    write_engine(&scratch, &sha256_hex(&archive));
    write_text(&scratch);
    let talk = fs::read_to_string(scratch.root().join("suite/scenarios/talk-lite.toml")).unwrap();
    scratch.write("suite/scenarios/sharegpt-lite.toml", &talk);
    scratch.write_probe(&Probe {
        schema: "probe.v1".into(),
        server: ServerFacts { kv_bytes: Some(1000), ..ServerFacts::default() },
        metrics: [("kv_pages".into(), 10.0), ("kv_pages_touched".into(), 1.0)].into(),
        ..Probe::default()
    });
    let metrics = Metrics { output_tokens_per_s: Some(300.0), ..Metrics::default() };
    let measurement = Measurement {
        schema: "measurement.v1".into(),
        metrics: Some(metrics),
        ..Measurement::default()
    };
    let text = serde_json::to_string(&measurement).unwrap();
    fs::write(scratch.fixtures().join("measurement.json"), text).unwrap();
    scratch
}

fn pack(scratch: &Scratch, archive: &str, folder: &str) {
    let mut tar = Command::new("tar");
    tar.args(["-czf", archive, folder]).current_dir(scratch.fixtures());
    assert!(tar.status().unwrap().success());
}

/// Writes a source distribution that contains the text for perplexity.
fn write_text(scratch: &Scratch) {
    let path = scratch.fixtures().join(TEXT);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "Down, down, down.").unwrap();
    pack(scratch, TEXTS, "tiny-texts");
    let sha256 = sha256_hex(b"Down, down, down.");
    scratch.write(
        "suite/datasets/alice29.toml",
        &format!(
            "sources = [{{ sdist = \"tiny-texts==1.0\", file = \"{TEXTS}\", member = \"{TEXT}\" }}]\n\
             sha256 = \"{sha256}\"\nlicence = \"none\"\n"
        ),
    );
}

fn write_engine(scratch: &Scratch, sha256: &str) {
    let tool = r#"argv = ["{binaries}/peer-tool", "bench", "{model}", "{threads}"]"#;
    scratch.write(
        "suite/engines/tiny.toml",
        &format!(
            r#"
title = "tiny"
[launch]
argv = ["{{binary}}", "serve", "{{model}}", "--port", "{{port}}"]
threads = ["--threads={{threads}}"]
load = ["--slots=9"]
timeout_s = 3
{SERVED}[figures.prefill]
{tool}
pointer = "/prefill/0/tokens_per_s"
[figures.decode]
{tool}
pointer = "/decode/0/tokens_per_s"
[figures.decode-batch]
{tool}
pointer = "/decode/0/tokens_per_s"
[figures.perplexity]
argv = ["{{binaries}}/peer-tool", "perplexity", "{{model}}", "{{text}}"]
after = "PPL ="
[source]
package = "tiny-peer"
file = "{ARCHIVE}"
licence = "none"
folder = "tiny-peer"
cmake = ["CMAKE_BUILD_TYPE=Release"]
programs = ["peer-server", "peer-tool"]
newest = {{ version = "1.0", sha256 = "{sha256}" }}
"#
        ),
    );
}

fn builds(scratch: &Scratch) -> usize {
    scratch.calls().lines().filter(|line| *line == "cmake --build").count()
}

#[test]
fn both_sides_take_turns_and_every_figure_has_its_ratio() {
    let scratch = with_peer();
    let ended = scratch.run(&["peer-bench", "tiny", "--repeats", "2", "--threads", "2", "--json"]);
    let ended = ended.expect(0, &[]);
    let order: Vec<&str> = ended
        .stderr
        .lines()
        .filter_map(|line| line.split_once("of 22: "))
        .map(|(_, t)| t)
        .collect();
    assert_eq!(
        order[..4],
        [
            "redline, prefill, repeat 1",
            "tiny, prefill, repeat 1",
            "tiny, prefill, repeat 2",
            "redline, prefill, repeat 2"
        ]
    );
    assert_eq!(order.len(), 22, "perplexity is measured once");
    let report: Value = serde_json::from_str(&ended.stdout).expect("one document");
    let figures = report["figures"].as_array().expect("rows");
    let ids: Vec<&str> = figures.iter().filter_map(|row| row["figure"].as_str()).collect();
    assert_eq!(ids, FIGURES);
    for row in &figures[..3] {
        assert_eq!(row["redline"]["values"], serde_json::json!([200.0, 200.0]));
        let near = |value: &Value| (value.as_f64().expect("a ratio") - 2.0).abs() < 1e-9;
        let ratio = &row["ratio"];
        assert!(
            ratio["pairs"] == 2 && near(&ratio["mean"]) && near(&ratio["interval"][0]),
            "{row}"
        );
    }
    assert_eq!(figures[3]["peer"]["median"], 300.0);
    assert_eq!(figures[6]["redline"]["values"], serde_json::json!([20.08]));
    assert_eq!(figures[7]["redline"]["values"], serde_json::json!([19.0]));
    let holds: Vec<_> = report["perplexity_limits"].as_array().expect("limits").iter().collect();
    assert_eq!(holds.iter().map(|limit| &limit["holds"]).collect::<Vec<_>>(), [true, false]);
    for resident in report["memory"].as_array().expect("readings") {
        assert_eq!(resident["kv_bytes"], 100, "a tenth of the pages was touched");
        assert!(resident["rss_bytes"].as_u64() > Some(100_000), "{resident}");
    }
    assert_eq!(report["peer"]["serve"][0], "tiny");
    let started = |how: &str| {
        let argv = report["peer"][how].as_array().expect("words").iter().skip(5);
        argv.filter_map(Value::as_str).collect::<Vec<_>>()
    };
    assert_eq!(started("serve"), ["--threads=2", "--slots=9"]);
    assert_eq!(started("start"), ["--threads=2"], "as it is by itself");
    assert_eq!(report["peer"]["build"]["settings"][0], "CMAKE_BUILD_TYPE=Release");
    assert_eq!(report["redline"]["release"], "v0.9.3-dev");
    assert!(scratch.pids("server.pids").into_iter().all(|pid| !is_alive(pid)));
}

#[test]
fn the_table_names_both_versions_and_how_the_peer_was_built() {
    let scratch = with_peer();
    let ended = scratch.run(&["peer-bench", "tiny", "--repeats", "1", "--figure", "decode"]);
    ended.expect(
        0,
        &[
            "redline v0.9.3-dev (commit ",
            "beside tiny v1.0",
            "decode one stream, tok/s                      200        100    2.00x   one pair",
            "tiny built: tiny-peer==1.0",
            "CMAKE_BUILD_TYPE=Release",
        ],
    );
}

#[test]
fn perplexity_is_judged_and_can_be_left_out() {
    let scratch = with_peer();
    let args = ["peer-bench", "tiny", "--repeats", "3", "--figure", "perplexity"];
    scratch.run(&args).expect(
        0,
        &[
            "Run 2 of 2: tiny, perplexity",
            "perplexity                                  20.08      20.00",
            "perplexity is 1.0040 times that of tiny, at most 1.005: passes",
            "perplexity is 1.0568 times redline's in f32, at most 1.01: FAILS",
        ],
    );
    let more = ["--figure", "prefill", "--skip", "perplexity"];
    let ended = scratch.run(&[&args[..], &more].concat()).expect(0, &["prefill 512"]);
    assert!(!ended.stdout.contains("perplexity"), "{}", ended.stdout);
}

#[test]
fn a_build_is_kept_in_the_cache_and_made_anew_when_it_was_touched() {
    let scratch = with_peer();
    let args = ["peer-bench", "tiny", "--repeats", "1", "--figure", "prefill"];
    let before = scratch.git(&["status", "--porcelain"]);
    for _ in 0..2 {
        scratch.run(&args).expect(0, &["prefill 512"]);
    }
    assert_eq!(builds(&scratch), 1);
    let kept = files_below(&scratch.cache().join("builds"));
    let names: Vec<_> = kept.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    assert_eq!(names, ["build.json", "peer-server", "peer-tool"], "and no sources");
    fs::write(&kept[2], "not what was built").unwrap();
    scratch.run(&args).expect(0, &["prefill 512"]);
    assert_eq!(builds(&scratch), 2);
    assert_eq!(scratch.git(&["status", "--porcelain"]), before, "nothing entered the clone");
}

#[test]
fn a_source_with_another_hash_is_refused_and_removed() {
    let scratch = with_peer();
    write_engine(&scratch, &sha256_hex(b"another archive"));
    scratch
        .run(&["peer-bench", "tiny"])
        .expect(2, &["input `tiny`: what was fetched has the SHA-256", "it was removed"]);
    assert_eq!(files_below(&scratch.cache()), Vec::<std::path::PathBuf>::new());
    assert_eq!(builds(&scratch), 0);
}

#[test]
fn a_missing_cmake_is_fetched_and_otherwise_named_with_what_to_do() {
    let scratch = with_peer();
    let args = ["peer-bench", "tiny", "--repeats", "1", "--figure", "prefill"];
    scratch.run_with(&args, &[("CMAKE_FAKE", "missing"), ("PIP_FAKE", "no-tools")]).expect(
        4,
        &[
            "`cmake` and `ninja` are not both installed, and pip could not fetch them",
            "No matching distribution found for cmake",
            "hint: install them, such as by `python3 -m pip install cmake ninja`",
        ],
    );
    scratch.run_with(&args, &[("CMAKE_FAKE", "missing")]).expect(0, &["prefill 512"]);
}

#[test]
fn a_build_that_fails_leaves_nothing_behind() {
    let scratch = with_peer();
    scratch
        .run_with(&["peer-bench", "tiny"], &[("CMAKE_FAKE", "broken")])
        .expect(4, &["`cmake` ended with exit code 1 while it built tiny-peer==1.0", "hint: "]);
    assert_eq!(files_below(&scratch.cache().join("builds")), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_peer_that_fails_is_named_with_its_last_words() {
    let scratch = with_peer();
    for (figure, env, message) in [
        ("served", &[("PEER_FAKE", "dies"), ("BENCH_FAKE", "patient")][..], "page table is torn"),
        ("served", &[("PEER_FAKE", "crash")], "tiny: the server ended with exit code 101"),
        ("first-answer", &[("PEER_FAKE", "crash"), ("BENCH_FAKE", "deaf")], "cannot read"),
        ("decode", &[("PEER_FAKE", "mute")], "`peer-tool` printed no figure at `/decode/0/"),
        ("decode", &[("PEER_FAKE", "no-bench")], "ended with exit code 9: error: cannot map"),
    ] {
        let args = ["peer-bench", "tiny", "--repeats", "1", "--figure", figure];
        scratch.run_with(&args, env).expect(1, &["error: tiny: ", message]);
        for pid in scratch.pids("server.pids") {
            assert!(!is_alive(pid), "a process is left after {env:?}");
        }
    }
}

#[test]
fn an_engine_that_is_no_peer_lists_those_that_are() {
    let scratch = with_peer();
    let known = "known are tiny";
    scratch.run(&["peer-bench", "vllm"]).expect(2, &["engine `vllm` is unknown", known]);
    scratch.run(&["peer-bench", "redline"]).expect(2, &["has no `[source]`; peers are tiny"]);
}
