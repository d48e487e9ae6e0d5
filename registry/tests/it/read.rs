//! Tests of `list`, `show` and `diff` as a user runs them.

use crate::scratch::{Scratch, repeats, write};
use expect_test::expect;
use samples::{Sample, campaign_id, reseal};
use schema::comparison::Diff;
use schema::run::RunRecord;
use schema::trend::Trend;
use schema::verdict::{Stage, VerdictKind};

fn pair(block: u32, speed: f64, failed: u64) -> [RunRecord; 2] {
    let sample = |release: &str, position: u32, speed: f64, failed: u64| Sample {
        release: release.into(),
        serial: u64::from(2 * block + position + 1),
        seed: u64::from(2 * block + position + 1),
        campaign: (campaign_id(9), block, position),
        stage: (block >= SCREEN).then_some(Stage::Confirm),
        speed,
        failed,
        ..Sample::default()
    };
    [sample("v0.9.1", 0, 1.0, 0).record(), sample("v0.9.2", 1, speed, failed).record()]
}

/// Number of pairs in a screen; later blocks are the confirmation.
const SCREEN: u32 = 5;

fn pairs(blocks: std::ops::Range<u32>, speed: f64) -> Vec<RunRecord> {
    blocks.flat_map(|block| pair(block, speed, 0)).collect()
}

#[test]
fn runs_are_listed_and_shown() {
    let scratch = Scratch::new();
    let mut records = repeats("v0.9.1", 1, 3);
    records.push(
        Sample { release: "v0.10.0".into(), serial: 40, ..Sample::default() }.failed_record(),
    );
    scratch.record(&scratch.staged("o", &records));
    let answer = scratch.results(&["list"]);
    expect![[r#"
        RELEASE          HARDWARE                         MODEL                       CONFIG       SCENARIO         N  STATUS    VALIDITY
        redline v0.9.1   cpu-example-simulated-f6m1s1-2c  smollm2-135m-instruct-q4_1  cpu-f32-tp1  balanced-lite@1  3  ok 3      valid
        redline v0.10.0  cpu-example-simulated-f6m1s1-2c  smollm2-135m-instruct-q4_1  cpu-f32-tp1  balanced-lite@1  1  failed 1  valid
    "#]].assert_eq(&answer.out);
    let shown = scratch.results(&["show", &records[1].id]);
    let read: RunRecord = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(read, records[1]);
    let answer = scratch.results(&["show", "01KDV"]);
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.err.contains("4 runs have an id that begins with"), "{answer:?}");
    assert_eq!(scratch.results(&["show", "ZZ"]).code, 2);
}

const DIFF: [&str; 3] = ["diff", "v0.9.1", "v0.9.2"];

#[test]
fn a_comparison_ends_with_what_it_found() {
    let scratch = Scratch::new();
    scratch.record(&scratch.staged("o", &pairs(0..SCREEN, 0.97)));
    let answer = scratch.results(&DIFF);
    assert_eq!(answer.code, 3, "{answer:?}");
    let said =
        ["Inconclusive: a regression of up to ", "5 pairs, interleaved in campaign", SUSPECTED];
    assert!(said.iter().all(|words| answer.out.contains(words)), "{}", answer.out);

    let json = scratch.results(&[&DIFF[..], &["--format", "json"]].concat());
    let diff: Diff = serde_json::from_str(&json.out).unwrap();
    let suspected: Vec<&str> = diff
        .rows()
        .filter(|row| row.verdict.suspected)
        .map(|row| row.verdict.metric.as_str())
        .collect();
    assert_eq!((diff.schema.as_str(), suspected), ("diff.v1", vec!["output_tokens_per_s"]));
    let md = scratch.results(&[&DIFF[..], &["--format", "md"]].concat());
    assert!(md.out.starts_with("<!-- redline diff -->\n## v0.9.1 -> v0.9.2\n"), "{}", md.out);

    // A staged record that is not committed yet is read as well.
    let staged = scratch.staged("new", &pair(7, 1.0, 2));
    let answer = scratch.results(&[&DIFF[..], &["--overlay", staged.to_str().unwrap()]].concat());
    assert_eq!((answer.code, answer.out.contains("new-failure")), (1, true), "{answer:?}");
    assert_eq!(scratch.results(&["diff", "v0.9.1", "v0.9.9"]).code, 2);
    assert_eq!(scratch.results(&[&DIFF[..], &["--hardware", "h200-141g"]].concat()).code, 2);
}

/// A candidate at half the speed that was measured on another day is shown, and never gated on.
#[test]
fn without_a_common_campaign_nothing_is_judged() {
    let scratch = Scratch::new();
    let mut records = repeats("v0.9.1", 1, 5);
    records.extend((0..5).map(|index| {
        Sample {
            release: "v0.9.2".into(),
            serial: 100 + index,
            seed: 100 + index,
            campaign: (campaign_id(50), 0, 0),
            speed: 0.5,
            ..Sample::default()
        }
        .record()
    }));
    assert_eq!(scratch.record(&scratch.staged("o", &records)).code, 0);
    let answer = scratch.results(&DIFF);
    assert_eq!(answer.code, 3, "{answer:?}");
    let json = scratch.results(&[&DIFF[..], &["--format", "json"]].concat());
    let diff: Diff = serde_json::from_str(&json.out).unwrap();
    let judged: Vec<_> = diff.rows().filter(|row| row.gates).collect();
    assert!(!judged.is_empty());
    for row in diff.rows() {
        assert_eq!(row.verdict.verdict, VerdictKind::Inconclusive, "{}", row.verdict.metric);
        assert_eq!((row.verdict.pairs, row.verdict.p), (0, None), "{}", row.verdict.metric);
    }
}

const SUSPECTED: &str = "suspected, not confirmed";

/// Records both stages of a release that got 10 % slower.
fn slower() -> Scratch {
    let scratch = Scratch::new();
    scratch.record(&scratch.staged("o", &pairs(0..13, 0.9)));
    scratch
}

#[test]
fn a_confirmed_regression_fails_the_gate_in_every_format() {
    let scratch = slower();
    for (format, words) in [
        ("text", "Hold: Output tokens of balanced-lite@1 regressed"),
        ("md", "**Hold: Output tokens of balanced-lite@1 regressed"),
        ("json", "\"verdict\": \"regressed\""),
        ("junit", "<failure message=\"regressed: "),
    ] {
        let answer = scratch.results(&[&DIFF[..], &["--format", format]].concat());
        assert_eq!(answer.code, 1, "{format}: {answer:?}");
        assert!(answer.out.contains(words), "{format}: {}", answer.out);
    }
    let junit = scratch.results(&[&DIFF[..], &["--format", "junit"]].concat()).out;
    assert!(junit.starts_with("<?xml version=\"1.0\""), "{junit}");
    let head = "<testsuites name=\"v0.9.1 to v0.9.2\" tests=\"2\" skipped=\"0\" failures=\"1\" errors=\"0\">";
    assert!(junit.contains(head), "{junit}");
}

#[test]
fn a_waiver_accepts_a_regression_until_it_expires() {
    for (until, code) in [("2999-01-01T00:00:00Z", 0), ("2026-01-02T00:00:00Z", 1)] {
        let scratch = slower();
        let staged = scratch.path("../waivers");
        let event = campaign_id(500);
        write(
            &staged.join(format!("events/2026/{event}.toml")),
            &format!(
                "schema = \"event.v1\"\nid = \"{event}\"\nkind = \"waive\"\n\
                 at = \"2026-01-01T00:00:00Z\"\nexpires = \"{until}\"\n\
                 cell = \"redline/*/*/*/balanced-lite@1\"\nmetric = \"output_tokens_per_s\"\n\
                 reason = \"Outputs are right again.\"\n"
            ),
        );
        let answer = scratch.record(&staged);
        assert_eq!(answer.code, 0, "{answer:?}");
        let answer = scratch.results(&DIFF);
        assert_eq!(answer.code, code, "{answer:?}");
        let text = answer.out.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = format!("waived until 2999-01-01 (event {event}): Outputs are right again.");
        for shown in [shown.as_str(), "regressed (waived)", "Ship: Output tokens of"] {
            assert_eq!(text.contains(shown), code == 0, "{}", answer.out);
        }
        assert!(answer.out.lines().all(|line| line.chars().count() <= 100), "{}", answer.out);
    }
}

#[test]
fn the_commits_between_are_those_that_touch_the_engine() {
    let scratch = Scratch::new();
    let commit = |path: &str, message: &str| {
        scratch.write(path, message);
        scratch.git(&["add", "."]);
        scratch.git(&["commit", "--quiet", "--message", message]);
        scratch.git(&["rev-parse", "HEAD"]).trim().to_owned()
    };
    let before = commit("engine/src/main.rs", "engine: the baseline");
    commit("docs/notes.md", "docs: a note");
    commit("engine/src/main.rs", "engine: slower `loop`");
    let after = commit("engine/src/main.rs", "engine: the candidate");
    let records = pairs(0..SCREEN, 1.0).into_iter().map(|mut run| {
        let commit = if run.engine.release == "v0.9.1" { &before } else { &after };
        run.engine.commit = Some(commit.clone());
        reseal(run)
    });
    scratch.record(&scratch.staged("o", &records.collect::<Vec<_>>()));
    let text = scratch.results(&DIFF).out;
    let range = format!("2 commits to the engine in {}..{}:", &before[..10], &after[..10]);
    assert!(text.contains(&range) && text.contains("engine: slower `loop`"), "{text}");
    assert!(!text.contains("docs: a note") && !text.contains("engine: the baseline"), "{text}");
}

#[test]
fn trends_are_text_and_plain_data() {
    let scratch = Scratch::new();
    let release = |index: u64, speed: f64| Sample {
        release: format!("v0.{index}.0"),
        serial: index + 1,
        campaign: (campaign_id(index), 0, 0),
        speed,
        ..Sample::default()
    };
    let runs = (0..8).map(|index| release(index, if index < 4 { 1.0 } else { 0.8 }).record());
    scratch.record(&scratch.staged("o", &runs.collect::<Vec<_>>()));
    let text = scratch.results(&["trend", "--scenario", "balanced-lite"]);
    assert_eq!(text.code, 0, "{text:?}");
    assert!(text.out.contains("a new level, -20.") && text.out.contains(", worse"), "{text:?}");
    let arguments = ["trend", "--metric", "output_tokens_per_s", "--format", "json"];
    let trends: Vec<Trend> = serde_json::from_str(&scratch.results(&arguments).out).unwrap();
    assert_eq!((trends.len(), trends[0].changes[0].release.as_str()), (1, "v0.4.0"));
    let unknown = scratch.results(&["trend", "--metric", "speed"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.err.contains("error: no metric is called `speed`\nhint: there are "));
}

#[test]
fn a_retracted_run_is_listed_and_not_compared() {
    let scratch = Scratch::new();
    let records = repeats("v0.9.1", 1, 2);
    let staged = scratch.staged("o", &records);
    let event = campaign_id(500);
    write(
        &staged.join(format!("events/2026/{event}.toml")),
        &format!(
            "schema = \"event.v1\"\nid = \"{event}\"\nkind = \"retract\"\n\
             at = \"2026-01-02T00:00:00Z\"\ntargets = [\"{}\"]\nreason = \"Wrong clocks.\"\n",
            records[0].id
        ),
    );
    let answer = scratch.record(&staged);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(scratch.results(&["list"]).out.contains("retracted 1"));
    assert_eq!(scratch.results(&["check"]).code, 0);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let scratch = Scratch::new();
    scratch.record(&scratch.staged("o", &repeats("v0.9.1", 1, 1)));
    let mut child = scratch
        .command(&["show", "01"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
