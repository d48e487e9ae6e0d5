//! Runs the fuzz targets of records, reports and settings over files of the repository and over
//! mutations of them.

use std::path::{Path, PathBuf};

#[path = "../../../tests/fuzz/mutation.rs"]
mod mutation;
#[path = "../../../tests/fuzz/records.rs"]
mod targets;

/// Files in folders of the repository.
fn files(folders: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    folders.iter().flat_map(|folder| mutation::files(&root.join(folder))).collect()
}

#[test]
fn mutated_records_are_sound_or_have_findings() {
    mutation::run_mutated(&files(&["schema/tests/records"]), targets::record, 200);
}

#[test]
fn mutated_reports_are_read_or_named_by_their_line() {
    mutation::run_mutated(&files(&["tests/fuzz/corpus/report"]), targets::report, 2000);
}

#[test]
fn mutated_settings_are_taken_or_refused() {
    let folders = [
        "results/events/2026",
        "suite/datasets",
        "suite/engines",
        "suite/labs",
        "suite/models",
        "suite/policies",
        "suite/scenarios",
        "suite/targets",
        "suite/validations",
    ];
    mutation::run_mutated(&files(&folders), targets::settings, 50);
}
