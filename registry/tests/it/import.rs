//! Tests of `redline-results import`: results published elsewhere, as a user records them.

use std::fs;

use crate::scratch::Scratch;
use schema::run::{Kind, RunRecord};

const PAGE: &str = "# vLLM v0.10.1\n\n```shell\nvllm serve org/M-1B\n```\n\n\
    ============ Serving Benchmark Result ============\n\
    Successful requests:                     100       \n\
    Benchmark duration (s):                  10.00     \n\
    Total generated tokens:                  1000      \n\
    ==================================================\n\n\
    ============ Serving Benchmark Result ============\nSuccessful requests: 5\n";

const CLAIM: [&str; 4] = ["--hardware", "a100-80g", "--hardware-evidence", "The file's name."];

#[test]
fn results_are_committed_with_their_pages_and_what_cannot_be_read_is_said() {
    let scratch = Scratch::new();
    let page = scratch.path("../vLLM page.md");
    fs::write(&page, PAGE).unwrap();
    let page = page.to_str().unwrap();
    let dry = scratch.rendering(&[&["import", page, "--dry-run"], &CLAIM[..]].concat());
    assert_eq!((dry.code, scratch.files().len()), (0, 1), "{dry:?}");

    let answer = scratch.rendering(&[&["import", page], &CLAIM[..]].concat());
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.err.contains("vLLM page.md:13: not imported: "), "{answer:?}");
    assert!(answer.out.contains("1 results, 1 not read; commit "), "{answer:?}");
    let files = scratch.files();
    let imported = files.iter().find(|path| path.starts_with("results/imports/vllm-page/"));
    let text = fs::read_to_string(scratch.path(imported.unwrap())).unwrap();
    let record: RunRecord = serde_json::from_str(&text).unwrap();
    assert_eq!((record.kind, &*record.hardware.id), (Kind::Imported, "a100-80g"));
    assert_eq!(scratch.results(&["check"]).code, 0);
    // A second import of the same file adds nothing.
    let again = scratch.rendering(&[&["import", page], &CLAIM[..]].concat());
    assert!(again.code == 0 && scratch.files() == files, "{again:?}");
}

#[test]
fn a_page_without_results_and_a_claim_without_evidence_are_refused() {
    let scratch = Scratch::new();
    let page = scratch.path("../empty.md");
    fs::write(&page, "").unwrap();
    let page = page.to_str().unwrap();
    let answer = scratch.rendering(&["import", page]);
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.err.contains("nothing was imported"), "{answer:?}");
    assert_eq!(scratch.rendering(&["import", page, "--hardware", "a100-80g"]).code, 2);
    assert_eq!(scratch.rendering(&["import", "no-such-file"]).code, 4);
}
