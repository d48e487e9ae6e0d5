//! Ingest: a campaign is finished from the folders of its jobs alone, and only with files that its
//! nodes wrote.

use std::fs;
use std::path::{Path, PathBuf};

use schema::campaign::CampaignRecord;

use crate::scratch::{Scratch, files_below};

/// Copies the job folders of a campaign whose records were never committed into a new folder.
fn collected(scratch: &Scratch) -> PathBuf {
    scratch
        .run_with(&["release-bench", "v0.9.2"], &[("RESULTS_FAKE", "unsound")])
        .expect(2, &["2 finished records lie in"]);
    copied(scratch, "collected", |_| true)
}

/// Copies the folders of those jobs of a campaign whose `job.json` is `wanted` into a new folder.
fn copied(scratch: &Scratch, name: &str, wanted: impl Fn(&str) -> bool) -> PathBuf {
    let to = scratch.fixtures().join(name);
    let from = scratch.campaign().join("jobs");
    for job in fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read_to_string(job.join("job.json")).unwrap();
        for path in files_below(&job).into_iter().filter(|_| wanted(&text)) {
            let to = to.join(path.strip_prefix(&from).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(path, to).unwrap();
        }
    }
    to
}

fn campaign_record(dir: &Path) -> CampaignRecord {
    let path = files_below(&dir.join("campaigns")).remove(0);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_comparison_in_turns_comes_with_the_folder_of_its_job() {
    let from = Scratch::new();
    from.write_equal_slices();
    // The memory of a server of two processes is not known, and so no part of the verdict.
    let env = [("RESULTS_FAKE", "unsound"), ("REDLINE_FAKE", "family")];
    let flags = ["release-bench", "v0.9.2", "--baseline", "v0.9.1", "--repeats", "1"];
    from.run_with(&flags, &env).expect(2, &["4 finished records lie in"]);
    let measured = campaign_record(&from.campaign().join("results"));
    assert_eq!(measured.alternations.len(), 2, "one in each scenario");

    let to = Scratch::new();
    ingest(&to, &copied(&from, "all", |_| true)).expect(3, &["commit   c0ffee"]);
    let ingested = campaign_record(&to.root().join("results"));
    assert_eq!(ingested.alternations, measured.alternations);
    assert_eq!((ingested.plan, ingested.status), (measured.plan, measured.status));

    let to = Scratch::new();
    let only = copied(&from, "only", |job| job.contains("\"alternation\":"));
    ingest(&to, &only).expect(0, &["Ship: ", "commit   c0ffee"]);
    let ingested = campaign_record(&to.root().join("results"));
    assert_eq!(ingested.alternations, measured.alternations);
    assert_eq!(ingested.hardware, measured.hardware);
}

#[test]
fn a_gate_is_not_ingested() {
    let from = Scratch::new();
    from.write_equal_slices();
    let flags = ["gate", "v0.9.1", "--candidate", "v0.9.2", "--budget", "2s"];
    let ended = from.run(&flags);
    assert!(matches!(ended.code, Some(0 | 3)), "{}", ended.stderr);
    let to = Scratch::new();
    let dir = copied(&from, "gate", |_| true);
    ingest(&to, &dir).expect(2, &["is a gate, whose comparison is never recorded"]);
    assert!(!to.root().join("results").exists());
    assert!(!to.root().join("target/campaigns").exists(), "no campaign was begun");
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
