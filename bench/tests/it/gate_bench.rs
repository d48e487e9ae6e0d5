//! Trials that a session of `gate-bench` left: their table, and what a further session asks for. No
//! trial is run, because one takes minutes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::PROGRAM;

/// Trial of identical code with four starts of one scenario, in which nothing changed.
const TRIAL: &str = r#"{"began_at":"2026-11-26T01:02:03Z","hardware":"cpu-x-2c","kind":"same","commit":"0123456789abcdef","budget_us":40000000,"whole":false,"scenarios":[{"scenario":"burst@1","arrival":null,"family":2,"budget_us":40000000,"ends_us":[10000000,20000000,30000000,40000000],"slices":[40,40,40,40],"log_ratios":{"output_tokens_per_s":[0.0001,null,-0.0001,0.0],"rss_bytes_max":[0.0,0.0,0.0001,0.0]},"judged":[{"metric":"output_tokens_per_s","call":"unchanged","effect_pct":0.0,"interval_pct":[-0.1,0.1],"spent_us":40000000,"starts":4,"slices":160}]}],"pooled":[],"decision":"ship","any_worse":false,"all_unchanged":true,"found_us":null,"spent_us":40000000,"wall_us":50000000}"#;

/// Creates a clone with the planted changes and the page of this tree, and one trial.
fn clone() -> TempDir {
    let dir = TempDir::new().unwrap();
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for folder in ["suite/targets", "engine", "docs/method", "tests/planted"] {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    for file in ["docs/method/gate.md", "tests/planted/planted.toml"] {
        fs::copy(tree.join(file), dir.path().join(file)).unwrap();
    }
    // The last line is of a session that was killed while it wrote.
    let trials = format!("{TRIAL}\n{{\"began_at\":");
    fs::write(dir.path().join("docs/method/gate-trials.jsonl"), trials).unwrap();
    dir
}

fn run(clone: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("--root").arg(clone).arg("gate-bench").args(flags);
    // Of a cache that is not there, nothing is read or written.
    command.env("REDLINE_CACHE", clone.join("no-cache")).output().unwrap()
}

#[test]
fn the_table_of_finished_trials_goes_into_the_page() {
    let clone = clone();
    let ended = run(clone.path(), &["--kept", "--document"]);
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    assert!(said.contains("called unchanged | 1 of 1 [3 to 100 %]"), "{said}");
    assert!(said.contains("| identical code | 0.0 % [0.0 to 0.4 %]"), "{said}");
    let page = fs::read_to_string(clone.path().join("docs/method/gate.md")).unwrap();
    assert!(page.contains(said.trim()) && page.contains("## To measure it again"), "{page}");
}

#[test]
fn the_page_has_the_tables_of_the_trials_that_are_kept() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let ended = run(tree, &["--kept"]);
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    let page = fs::read_to_string(tree.join("docs/method/gate.md")).unwrap();
    let begin = "<!-- The table below is written by `cargo xtask gate-bench --document`. -->";
    let (_, rest) = page.split_once(begin).unwrap();
    let (tables, _) = rest.split_once("<!-- End of the table. -->").unwrap();
    let hint = "run `cargo xtask gate-bench --kept --document`";
    assert_eq!(tables.trim(), said.trim(), "docs/method/gate.md is not of its trials: {hint}");
}

#[test]
fn trials_are_added_to_earlier_ones_only_when_asked() {
    let clone = clone();
    for (flags, wanted) in [
        (&["--trials", "1"][..], "has trials already: 1"),
        (&["--resume", "--kind", "beauty"], "no planted change `beauty`; known are step-5"),
    ] {
        let ended = run(clone.path(), flags);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}
