//! A committed run is measured again, and its figures compared with the campaign's prediction.

use samples::Sample;
use schema::run::{Kind, Printed, PrintedRow, RunRecord, Source};

use crate::scratch::{Scratch, files_below};

/// Measures v0.9.2 three times at 100 tokens/s and commits; returns the id of a run.
fn recorded(scratch: &Scratch) -> String {
    scratch.write_speed("0.9.2", 100.0);
    scratch.run(&["release-bench", "v0.9.2", "--repeats", "3"]).expect(0, &[]);
    let (_, record) = &scratch.records(&scratch.root().join("results"))[0];
    record.id.clone()
}

#[test]
fn a_run_is_measured_again_and_nothing_is_committed() {
    let scratch = Scratch::new();
    let id = recorded(&scratch);
    let before = files_below(&scratch.root().join("results"));
    let commits = scratch.git(&["rev-list", "--count", "HEAD"]);
    let ended = scratch.run(&["reproduce", &id.to_lowercase(), "--repeats", "2"]);
    let said = &ended.stdout;
    let line = |start: &str| said.lines().find(|line| line.starts_with(start)).unwrap_or(said);
    assert!(line("Output tokens/s").ends_with("100.00  within"), "{said}");
    assert!(line("binary").contains("equal "), "{said}");
    assert!(line("arguments").contains("equal "), "{said}");
    assert!(
        said.contains("Intervals come from 3 runs") && said.contains("never committed"),
        "{said}"
    );
    assert_eq!(files_below(&scratch.root().join("results")), before);
    assert_eq!(scratch.git(&["rev-list", "--count", "HEAD"]), commits);
    // The line with the next command repeats the arguments of this one, whose paths are long.
    let mut lines = said.lines().filter(|line| !line.starts_with("next"));
    assert!(lines.all(|line| line.chars().count() <= 100), "{said}");
}

#[test]
fn another_speed_is_no_reproduction() {
    let scratch = Scratch::new();
    let id = recorded(&scratch);
    scratch.write_speed("0.9.2", 80.0);
    let ended = scratch.run(&["reproduce", &id, "--repeats", "1"]);
    ended.expect(1, &["80.00  outside", "verdict  not reproduced"]);
}

#[test]
fn what_cannot_be_measured_again_is_said_before_anything_is_built() {
    let scratch = Scratch::new();
    let id = recorded(&scratch);
    scratch.run(&["reproduce", "01ZZZ"]).expect(2, &["no run in the registry has an id"]);
    scratch.run(&["reproduce", "01"]).expect(2, &["several runs have ids that begin"]);
    scratch.run(&["reproduce", &id, "--dry-run"]).expect(0, &["Plan of campaign"]);
}

/// Writes what an import makes of a page about the scratch clone's model: a throughput of 125 tokens/s.
fn imported(scratch: &Scratch, path: &str, scenario: &str) {
    let row = |label: &str, text: &str| PrintedRow {
        section: None,
        label: label.to_owned(),
        text: text.to_owned(),
    };
    let rows = vec![
        row("Backend", "redline"),
        row("Output token throughput (tok/s)", "125.00"),
        row("Mean TTFT (ms)", "20.5"),
    ];
    let printed = Some(Printed { rows, ..Printed::default() });
    let sample = Sample {
        release: "v0.9.2".to_owned(),
        hardware: "cpu".to_owned(),
        model: "tiny".to_owned(),
        scenario: scenario.to_owned(),
        ..Sample::default()
    };
    let mut record = RunRecord {
        kind: Kind::Imported,
        source: Some(Source { printed, ..Source::default() }),
        ..sample.record()
    };
    let server = record.server.as_mut().unwrap();
    (server.tp, server.argv) = (Some(1), Some(vec!["redline".to_owned(), "serve".to_owned()]));
    scratch.write(path, &serde_json::to_string(&record).unwrap());
}

#[test]
fn a_published_page_stands_beside_what_is_measured_here() {
    let scratch = Scratch::new();
    scratch.write_speed("0.9.2", 100.0);
    imported(&scratch, "page/001.json", "talk-lite");
    imported(&scratch, "page/002.json", "talk-full");
    let page = scratch.root().join("page");
    let page = page.to_str().unwrap();
    let planned = scratch.run(&["reproduce", page, "--dry-run"]);
    planned.expect(0, &["the suite has no scenario `talk-full`", "Plan of campaign"]);
    let slurm = ["--executor", "slurm", "--slurm-option=--partition=a100", "--servers=per-model"];
    let plan = [&["reproduce", page, "--dry-run"][..], &slurm].concat();
    let lines = ["executor   slurm, ", "partition a100", "one for each model and repeat"];
    scratch.run(&plan).expect(0, &lines);
    scratch.run(&["reproduce", page, slurm[2]]).expect(2, &["is for `--executor slurm`"]);
    let ended = scratch.run(&["reproduce", page, "--repeats", "1"]);
    let rows: Vec<&str> = ended.stdout.lines().filter(|line| !line.is_empty()).collect();
    let row = |start: &str| rows.iter().find(|row| row.starts_with(start)).copied();
    let cells = |start: &str| row(start).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let throughput = cells("Output token throughput (tok/s)").unwrap();
    assert_eq!(throughput[4..], ["125.00", "100.00", "-20.0", "%"], "{}", ended.stdout);
    assert_eq!(cells("Mean TTFT (ms)").unwrap()[3..], ["20.5"], "nothing was measured");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    scratch.run(&["reproduce", "page/none.json"]).expect(2, &["no run in the registry"]);
    scratch.write("page/003.json", "{}");
    scratch.run(&["reproduce", page]).expect(2, &["003.json` is not a record"]);
}
