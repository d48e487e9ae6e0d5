//! Records that were edited, moved or deleted by hand are found by `check`.

use fixtures::files_under;
use tests::clone::Clone;

/// Clone with committed records, and the path of one of them.
fn clone_with_a_record() -> (Clone, std::path::PathBuf) {
    let clone = Clone::of_this_repository(&[]);
    let runs = files_under(&clone.root().join("results/runs"));
    let record = runs.into_iter().next().expect("the registry holds runs");
    (clone, record)
}

#[test]
fn the_committed_registry_is_sound() {
    let clone = Clone::of_this_repository(&[]);
    clone.run("redline-results", &["check"]).expect_code(0);
}

#[test]
fn an_edited_record_is_named() {
    let (clone, record) = clone_with_a_record();
    let text = std::fs::read_to_string(&record).expect("readable");
    // Changes a number, so that the file is still a valid record.
    let edited = text.replacen("\"requests_ok\": ", "\"requests_ok\": 1", 1);
    assert_ne!(text, edited);
    std::fs::write(&record, edited).expect("writable");
    let name = record.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    for committed in [false, true] {
        if committed {
            clone.git(&["commit", "--quiet", "--all", "--message", "edit a record"]);
        }
        let ended = clone.run("redline-results", &["check"]).expect_code(2);
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert!(said.contains(&name), "`{name}` is not named:\n{said}");
    }
}

#[test]
fn a_deleted_record_is_named() {
    let (clone, record) = clone_with_a_record();
    std::fs::remove_file(&record).expect("removable");
    clone.git(&["commit", "--quiet", "--all", "--message", "delete a record"]);
    let ended = clone.run("redline-results", &["check"]).expect_code(2);
    let name = record.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(format!("{}{}", ended.stdout, ended.stderr).contains(name));
}

#[test]
fn a_moved_record_is_named() {
    let (clone, record) = clone_with_a_record();
    let elsewhere = record.with_file_name("01ARZ3NDEKTSV4RRFFQ69G5FAV.json");
    std::fs::rename(&record, &elsewhere).expect("movable");
    let ended = clone.run("redline-results", &["check"]).expect_code(2);
    assert!(format!("{}{}", ended.stdout, ended.stderr).contains("01ARZ3NDEKTSV4RRFFQ69G5FAV"));
}
