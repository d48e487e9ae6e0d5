//! A committed run is measured again, and its figures compared with the campaign's prediction.

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
