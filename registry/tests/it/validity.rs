//! Verdicts on the metrics of the committed runs, by today's rules.

use std::fs;
use std::path::{Path, PathBuf};

use judge::validity::{headline, verdicts};
use schema::run::{Level, RunRecord, ValidityVerdict};

/// Returns the names of the metrics of `run` whose verdict is not VALID.
fn doubts(run: &RunRecord) -> Vec<String> {
    let all = verdicts(run).into_iter();
    all.filter(|(_, verdict)| *verdict != ValidityVerdict::Valid).map(|(name, _)| name).collect()
}

/// Returns the records of runs below `folder`.
fn records(folder: &Path) -> Vec<RunRecord> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    let read = |path: &PathBuf| serde_json::from_slice(&fs::read(path).unwrap()).ok();
    let own: Vec<RunRecord> = files.iter().filter_map(read).collect();
    own.into_iter().chain(folders.iter().flat_map(|folder| records(folder))).collect()
}

#[test]
fn the_committed_runs_are_judged_no_harder_than_they_were_stored() {
    let all = records(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../results/runs")));
    assert!(all.len() > 500);
    let waited =
        |run: &&RunRecord| run.validity.reasons.iter().any(|one| one.starts_with("kernel"));
    let degraded: Vec<&RunRecord> = all.iter().filter(waited).collect();
    let valid = |run: &&&RunRecord| headline(run) == ValidityVerdict::Valid;
    // Those that stay DEGRADED read chunks together, and latencies block in their scenarios.
    let (kept, freed) = (degraded.len(), degraded.iter().filter(valid).count());
    assert!(freed * 10 >= kept * 7, "{freed} of {kept}");
    for run in all.iter().filter(|run| run.validity.reasons.is_empty()) {
        let is_broken = run.checks.iter().any(|check| !check.ok && check.level == Level::Error);
        assert!(is_broken || doubts(run).is_empty(), "{}: {:?}", run.id, doubts(run));
    }
}
