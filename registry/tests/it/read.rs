//! `list`, `show` and `diff` as a user runs them.

use crate::scratch::{Scratch, repeats, write};
use audit::sample::{Sample, campaign_id};
use expect_test::expect;
use schema::run::RunRecord;

fn pair(block: u32, speed: f64, failed: u64) -> [RunRecord; 2] {
    let sample = |release: &str, position: u32, speed: f64, failed: u64| Sample {
        release: release.into(),
        serial: u64::from(2 * block + position + 1),
        seed: u64::from(2 * block + position + 1),
        campaign: (campaign_id(9), block, position),
        speed,
        failed,
        ..Sample::default()
    };
    [sample("v0.9.1", 0, 1.0, 0).record(), sample("v0.9.2", 1, speed, failed).record()]
}

#[test]
fn runs_are_listed_and_shown() {
    let scratch = Scratch::new();
    let mut records = repeats("v0.9.1", 1, 3);
    records.push(
        Sample { release: "v0.10.0".into(), serial: 40, ..Sample::default() }.failed_record(),
    );
    scratch.record(&scratch.overlay("o", &records));
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

#[test]
fn a_comparison_ends_with_what_it_found() {
    let scratch = Scratch::new();
    let recorded: Vec<RunRecord> = (0..5).flat_map(|block| pair(block, 0.97, 0)).collect();
    scratch.record(&scratch.overlay("o", &recorded));
    let answer = scratch.results(&["diff", "v0.9.1", "v0.9.2"]);
    assert_eq!(answer.code, 3, "{answer:?}");
    assert!(answer.out.contains("5 pairs, interleaved in 1 campaign"), "{}", answer.out);
    assert!(answer.out.contains("are not judged"), "{}", answer.out);

    let json = scratch.results(&["diff", "v0.9.1", "v0.9.2", "--format", "json"]);
    let diff: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(diff["cells"][0]["rows"][0]["verdict"]["stage"], "estimate");
    let md = scratch.results(&["diff", "v0.9.1", "v0.9.2", "--format", "md"]);
    assert!(md.out.contains("| metric | v0.9.1 | v0.9.2 | effect |"), "{}", md.out);

    // An overlay that is not committed yet counts as well.
    let overlay = scratch.overlay("new", &pair(7, 1.0, 2));
    let arguments = ["diff", "v0.9.1", "v0.9.2", "--overlay", overlay.to_str().unwrap()];
    let answer = scratch.results(&arguments);
    assert_eq!((answer.code, answer.out.contains("new-failure")), (1, true), "{answer:?}");
    assert_eq!(scratch.results(&["diff", "v0.9.1", "v0.9.9"]).code, 2);
    assert_eq!(scratch.results(&["diff", "v0.9.1", "v0.9.2", "--hardware", "h200-141g"]).code, 2);
}

#[test]
fn a_retracted_run_is_listed_and_not_compared() {
    let scratch = Scratch::new();
    let records = repeats("v0.9.1", 1, 2);
    let overlay = scratch.overlay("o", &records);
    let event = campaign_id(500);
    write(
        &overlay.join(format!("events/2026/{event}.toml")),
        &format!(
            "schema = \"event.v1\"\nid = \"{event}\"\nkind = \"retract\"\n\
             at = \"2026-01-02T00:00:00Z\"\ntargets = [\"{}\"]\nreason = \"Wrong clocks.\"\n",
            records[0].id
        ),
    );
    let answer = scratch.record(&overlay);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(scratch.results(&["list"]).out.contains("retracted 1"));
    assert_eq!(scratch.results(&["check"]).code, 0);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let scratch = Scratch::new();
    scratch.record(&scratch.overlay("o", &repeats("v0.9.1", 1, 1)));
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
