//! Tests of `redline-results import`: results published elsewhere, as a user records them.

use std::fs;

use crate::scratch::{Scratch, write};
use schema::canonical::to_file_text;
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
    assert!(dry.out.contains(", on a100-80g, lines 7 to "), "{dry:?}");

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
    let best = scratch.results(&["best", "m-1b", "--hardware", "a100-80g"]);
    let published = "no run of `m-1b` on `a100-80g` was measured; 1 result is published elsewhere";
    assert!(best.code == 2 && best.err.contains(published), "{best:?}");
    // A second import of the same file adds nothing.
    let again = scratch.rendering(&[&["import", page], &CLAIM[..]].concat());
    assert!(again.code == 0 && scratch.files() == files, "{again:?}");
}

#[test]
fn what_a_report_does_not_state_is_stated_by_the_user_and_marked_so() {
    let scratch = Scratch::new();
    let file = scratch.path("../result.json");
    let json = r#"{"endpoint_type": "openai-comp", "num_prompts": 5, "completed": 4, "failed": 1,
        "duration": 2.5, "total_output_tokens": 50}"#;
    fs::write(&file, json).unwrap();
    let import = ["import", file.to_str().unwrap()];
    let dry = scratch.rendering(&[&import[..], &["--dry-run"], &CLAIM].concat());
    assert!(dry.code == 0 && dry.out.contains("  error E25: "), "{dry:?}");
    let facts = ["--engine", "vllm", "--release", "0.10.1", "--model", "org/M-1B"];
    let answer =
        scratch.rendering(&[&import[..], &facts, &["--scenario", "mine"], &CLAIM].concat());
    assert_eq!(answer.code, 0, "{answer:?}");
    let files = scratch.files();
    let imported = files.iter().find(|path| path.starts_with("results/imports/result/"));
    let text = fs::read_to_string(scratch.path(imported.unwrap())).unwrap();
    let record: RunRecord = serde_json::from_str(&text).unwrap();
    assert_eq!((&*record.engine.name, &*record.engine.release), ("vllm", "v0.10.1"));
    assert_eq!((&*record.model.id, &*record.scenario.id), ("m-1b", "mine"));
    let stated = record.source.and_then(|source| source.stated).unwrap();
    assert_eq!(stated.into_keys().collect::<Vec<_>>(), ["engine", "model", "release", "scenario"]);
    assert_eq!(scratch.results(&["check"]).code, 0);
    let page = scratch.path("../page.md");
    fs::write(&page, PAGE).unwrap();
    let sglang = ["import", page.to_str().unwrap(), "--engine", "sglang"];
    let other = scratch.rendering(&[&sglang[..], &CLAIM].concat());
    assert!(other.code == 2 && other.err.contains("which states `vllm`"), "{other:?}");
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

#[test]
fn results_on_a_hardware_that_nobody_states_are_refused_unless_that_is_meant() {
    let scratch = Scratch::new();
    let page = scratch.path("../page.md");
    fs::write(&page, PAGE).unwrap();
    let page = page.to_str().unwrap();
    let answer = scratch.rendering(&["import", page]);
    assert_eq!((answer.code, scratch.files().len()), (2, 1), "{answer:?}");
    assert!(answer.err.contains("the hardware of 1 result is not known"), "{answer:?}");
    let meant = scratch.rendering(&["import", page, "--hardware", "unknown"]);
    assert_eq!(meant.code, 0, "{meant:?}");
    // A committed result keeps its hardware; the message says what can be done.
    let other = scratch.rendering(&[&["import", page], &CLAIM[..]].concat());
    assert!(other.code == 2 && other.err.contains("with the hardware `unknown`"), "{other:?}");
}

#[test]
fn a_report_that_an_earlier_reader_read_is_replaced_in_one_commit() {
    let scratch = Scratch::new();
    let page = scratch.path("../page.md");
    fs::write(&page, PAGE).unwrap();
    let import = [&["import", page.to_str().unwrap(), "--source", "pages"], &CLAIM[..]].concat();
    let first = scratch.rendering(&import);
    assert_eq!(first.code, 0, "{first:?}");
    let files = scratch.files();
    let now = files.iter().find(|path| path.starts_with("results/imports/pages/")).unwrap();
    // The same reading as by an earlier reader, in a clone that has nothing else.
    let reading = format!("-r{}", reports::READER);
    let before = now.replace(&reading, "-r2");
    let text = fs::read_to_string(scratch.path(now)).unwrap();
    let mut record: RunRecord = serde_json::from_str(&text).unwrap();
    record.id = record.id.replace(&reading, "-r2");
    record.source.as_mut().unwrap().reader = Some(2);
    judge::seal(&mut record).unwrap();
    let scratch = Scratch::new();
    let staged = scratch.staged("old", &[]);
    let path = staged.join(before.strip_prefix("results/").unwrap());
    write(&path, &to_file_text(&record).unwrap());
    assert_eq!(scratch.record(&staged).code, 0);

    let answer = scratch.rendering(&import);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.out.contains("was read by r2; this reading replaces it"), "{answer:?}");
    let files = scratch.files();
    assert!(files.contains(now) && files.contains(&before), "{files:?}");
    let event = files.iter().find(|path| path.starts_with("results/events/")).unwrap();
    let event = fs::read_to_string(scratch.path(event)).unwrap();
    let folder = before.strip_prefix("results/").unwrap().strip_suffix("001.json").unwrap();
    assert!(event.contains("\"retract\"") && event.contains(folder), "{event}");
    assert_eq!(scratch.git(&["rev-list", "--count", "HEAD"]).trim(), "3");
    assert_eq!(scratch.results(&["check"]).code, 0);
    let again = scratch.rendering(&import);
    assert!(again.code == 0 && scratch.files() == files, "{again:?}");
}
