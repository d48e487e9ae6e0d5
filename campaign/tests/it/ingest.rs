//! Ingest: a campaign is finished from the folders of its jobs alone, and only with files that its
//! nodes wrote.

use std::fs;
use std::path::{Path, PathBuf};

use crate::scratch::{Scratch, files_below};

/// Copies the job folders of a campaign whose records were never committed into a new folder.
fn collected(scratch: &Scratch) -> PathBuf {
    scratch
        .run_with(&["release-bench", "v0.9.2"], &[("RESULTS_FAKE", "unsound")])
        .expect(2, &["2 finished records lie in"]);
    let to = scratch.fixtures().join("collected");
    let from = scratch.campaign().join("jobs");
    for path in files_below(&from) {
        let to = to.join(path.strip_prefix(&from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(path, to).unwrap();
    }
    to
}

fn ingest(scratch: &Scratch, dir: &Path) -> crate::scratch::Ended {
    scratch.run(&["ingest", dir.to_str().unwrap()])
}

#[test]
fn a_campaign_is_finished_from_its_jobs_alone() {
    let from = Scratch::new();
    let dir = collected(&from);
    let to = Scratch::new();
    ingest(&to, &dir).expect(0, &["the table of v0.9.2", "commit   c0ffee"]);
    let results = to.root().join("results");
    assert_eq!(to.records(&results).len(), 2);
    assert_eq!(files_below(&results.join("campaigns")).len(), 1);
    assert!(to.pids("server.pids").is_empty() && to.pids("cargo.pids").is_empty());
    ingest(&to, &dir).expect(2, &["is finished already"]);
}

#[test]
fn the_campaign_of_this_clone_is_finished_too() {
    let scratch = Scratch::new();
    collected(&scratch);
    let launches = scratch.pids("server.pids").len();
    ingest(&scratch, &scratch.campaign()).expect(0, &["commit   c0ffee"]);
    assert_eq!(scratch.records(&scratch.root().join("results")).len(), 2);
    assert_eq!(scratch.pids("server.pids").len(), launches);
    scratch.run(&["release-bench", "v0.9.2", "--resume"]).expect(2, &["no unfinished campaign"]);
}

#[test]
fn a_file_that_its_node_did_not_write_is_refused_by_name() {
    let from = Scratch::new();
    let dir = collected(&from);
    let record = files_below(&dir).into_iter().find(|p| p.to_string_lossy().contains("/runs/"));
    let record = record.unwrap();
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("v0.9.2", "v0.9.1")).unwrap();
    let to = Scratch::new();
    let name = record.file_name().unwrap().to_str().unwrap();
    ingest(&to, &dir).expect(2, &["is not the file that its node wrote", name]);
    fs::remove_file(&record).unwrap();
    ingest(&to, &dir).expect(4, &["cannot read", name]);
    assert!(!to.root().join("results").exists());
}

#[test]
fn what_holds_no_job_is_refused() {
    let scratch = Scratch::new();
    ingest(&scratch, &scratch.fixtures()).expect(2, &["no job lies in"]);
    ingest(&scratch, Path::new("/nowhere")).expect(2, &["`/nowhere` is no folder"]);
}
