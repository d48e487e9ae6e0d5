//! `redline-bench audit` on the published pages and on files made here.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const SOUND: &str = "\
============ Serving Benchmark Result ============
Successful requests:                     10
Benchmark duration (s):                  10.00
Total generated tokens:                  1010
Output token throughput (tok/s):         101.00
==================================================
";

fn audit(arguments: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_redline-bench");
    Command::new(binary).arg("audit").args(arguments).output().expect("it runs")
}

/// Exit code and results of an audit of one page.
fn audited(number: &str) -> Option<(Option<i32>, Vec<Value>)> {
    let output = audit(&["--json", fixtures::published_page(number)?.to_str().expect("UTF-8")]);
    let mut files: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(files[0]["unread"], Value::Array(Vec::new()));
    let results = files[0]["results"].take();
    Some((output.status.code(), results.as_array().expect("a list").clone()))
}

/// Details of the rules that `result` fails, by rule id.
fn broken(result: &Value) -> BTreeMap<String, String> {
    let checks = result["checks"].as_array().expect("a list").iter();
    let broken = checks.filter(|check| check["ok"] == false);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    broken.map(|check| (text(&check["rule"]), text(&check["detail"]))).collect()
}

fn keeps(result: &Value, rule: &str) -> bool {
    let checks = result["checks"].as_array().expect("a list");
    checks.iter().any(|check| check["rule"] == rule && check["ok"] == true)
}

#[test]
fn the_pages_whose_identities_hold_have_no_error() {
    for (number, blocks) in [("000", 16), ("002", 24), ("004", 24)] {
        let Some((code, results)) = audited(number) else { return };
        assert_eq!((code, results.len()), (Some(0), blocks), "{number}");
        for result in &results {
            let broken = broken(result);
            assert!(broken.keys().all(|rule| rule.starts_with('W')), "{number}: {broken:#?}");
            assert!(keeps(result, "E23") && keeps(result, "E24"), "{number}");
            let fixed = !result["scenario"].as_str().unwrap().starts_with("sharegpt");
            assert_eq!(keeps(result, "E19"), fixed, "{number}: {}", result["scenario"]);
            // Half of the scenarios have 500 requests, too few for the p99 that the page prints.
            let few = result["requests_ok"] == 500;
            assert_eq!(broken.contains_key("W11"), few, "{number}");
        }
    }
}

#[test]
fn what_a_reader_has_to_know_of_them_is_said() {
    let (Some((_, lmdeploy)), Some((_, vllm)), Some((_, sglang))) =
        (audited("000"), audited("002"), audited("004"))
    else {
        return;
    };
    let chunked = lmdeploy.iter().filter_map(|result| broken(result).remove("W12"));
    let chunked: Vec<String> = chunked.collect();
    assert_eq!(chunked.len(), 2, "{chunked:#?}");
    assert!(chunked[0].contains("1.164 times") && chunked[1].contains("1.040 times"));
    let recounted = |results: &[Value]| {
        results.iter().filter(|result| broken(result).contains_key("W01")).count()
    };
    assert_eq!((recounted(&lmdeploy), recounted(&vllm), recounted(&sglang)), (0, 7, 7));
    let short: Vec<(String, String)> = sglang
        .iter()
        .filter_map(|result| Some((result["scenario"].to_string(), broken(result).remove("W13")?)))
        .collect();
    assert_eq!(short.len(), 2);
    for (scenario, detail) in short {
        assert_eq!(scenario, "\"sharegpt-1000\"");
        assert!(detail.starts_with("a different workload: 1000 requests"), "{detail}");
    }
}

#[test]
fn the_page_whose_client_missed_chunks_is_told_why() {
    let Some((code, results)) = audited("003") else { return };
    assert_eq!((code, results.len()), (Some(1), 24));
    let all: Vec<_> = results.iter().map(broken).collect();
    assert!(all.iter().all(|broken| broken.keys().any(|rule| rule.starts_with('E'))));
    let with = |rule: &str, words: &str| -> Vec<usize> {
        let said = all.iter().enumerate();
        let said = said.filter(|(_, b)| b.get(rule).is_some_and(|detail| detail.contains(words)));
        said.map(|(number, _)| number).collect()
    };
    assert_eq!(with("E23", "only the first chunk was counted (TPOT is TTFT"), [18, 19, 20, 21]);
    assert_eq!(with("E23", "only the first chunk was counted in most answers"), [22, 23]);
    assert_eq!(with("E23", "TPOT includes TTFT"), [1]);
    assert_eq!(with("E25", "survivorship: 514 of 1000 requests succeeded"), [3]);
    assert_eq!(with("W03", "1.00 arrived"), [20, 21], "a request a second, by their profile");
    let kept: Vec<usize> = (0..24).filter(|number| keeps(&results[*number], "E23")).collect();
    assert_eq!(kept, [10], "the one with 256 sequences keeps the identity");
    let gaps: Vec<usize> = (0..24).filter(|number| keeps(&results[*number], "E24")).collect();
    assert_eq!(gaps, [1], "SGLang's gaps are the only ones that can be");
}

#[test]
fn exit_codes_tell_sound_from_broken_from_unreadable() {
    let folder = TempDir::new().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("writable");
        path.to_str().expect("UTF-8").to_owned()
    };
    let sound = write("sound.txt", SOUND);
    let broken = write("broken.txt", &SOUND.replace("101.00", "202.00"));
    let garbled = write("garbled.txt", &SOUND.replace("10.00", "ten"));
    let code = |files: &[&str]| audit(files).status.code();
    assert_eq!(code(&[&sound]), Some(0));
    assert_eq!(code(&[&sound, &broken]), Some(1));
    assert_eq!(code(&[&broken, &garbled]), Some(2));
    assert_eq!(code(&[]), Some(2));
    assert_eq!(code(&[&format!("{sound}.not")]), Some(4));
    let text = |files: &[&str]| String::from_utf8(audit(files).stdout).expect("UTF-8");
    assert!(
        text(&[&broken])
            .contains("broken.txt:1: result 1, unknown, 10 requests; tool vllm, server unknown")
    );
    assert!(text(&[&broken]).contains("E06 `output_tokens_per_s` is 202.00"));
    assert!(text(&[&garbled]).contains("garbled.txt:3: not read: `Benchmark duration (s)`: `ten`"));
}

#[test]
fn the_tables_of_guidellm_and_aiperf_are_read() {
    let folder = TempDir::new().expect("a folder");
    let log = folder.path().join("log.txt");
    let said = |text: &str| {
        fs::write(&log, text).expect("writable");
        let output = audit(&[log.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let guidellm = said(include_str!("../../../reports/src/tests/guidellm.txt"));
    let line = "log.txt:7: result 2, unknown; tool guidellm, server unknown, \
                model example/Model-1B\n";
    assert!(guidellm.contains(line), "{guidellm}");
    let aiperf = said(include_str!("../../../reports/src/tests/aiperf.txt"));
    let line = "log.txt:1: result 1, unknown, 1000 requests; tool aiperf, server unknown, \
                model example/Model-1B\n";
    assert!(aiperf.contains(line), "{aiperf}");
    let wrong = include_str!("../../../reports/src/tests/aiperf.txt").replace(" 500.00", " 900.00");
    fs::write(&log, wrong).expect("writable");
    let output = audit(&[log.to_str().expect("UTF-8")]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("E06 `requests_per_s` is 900.00"), "{text}");
}
