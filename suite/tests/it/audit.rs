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

/// Result of `redline-bench serving --backend openai-embeddings --save-result`, with the keys of
/// vLLM's tool.
const EMBEDDINGS: &str = r#"{"date": "20261128-120000", "endpoint_type": "openai-embeddings",
 "backend": "openai-embeddings", "model_id": "example/Embed-1B", "num_prompts": 1000,
 "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 16, "duration": 10.0,
 "completed": 1000, "total_input_tokens": 128000, "total_input_sequences": 1000,
 "request_throughput": 100.0, "input_sequence_throughput": 100.0,
 "total_token_throughput": 12800.0, "latencies": [0.14], "mean_e2el_ms": 150.0,
 "median_e2el_ms": 140.0, "std_e2el_ms": 20.0, "p90_e2el_ms": 180.0, "p99_e2el_ms": 210.0}"#;

/// The same as a console block.
const EMBEDDINGS_BLOCK: &str = "\
============ Serving Benchmark Result ============
Successful requests:                     1000
Failed requests:                         0
Maximum request concurrency:             16
Benchmark duration (s):                  10.00
Total input tokens:                      128000
Request throughput (req/s):              100.00
Input throughput (inputs/s):             100.00
Total token throughput (tok/s):          12800.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          150.00
Median E2EL (ms):                        140.00
P99 E2EL (ms):                           210.00
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

#[test]
fn results_of_embeddings_are_read_and_checked() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("embeddings.txt");
    let said = |text: &str| {
        fs::write(&file, text).expect("writable");
        let output = audit(&[file.to_str().expect("UTF-8")]);
        (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"))
    };
    let (code, text) = said(EMBEDDINGS);
    assert_eq!(code, Some(0), "{text}");
    let line = "embeddings.txt:1: result 1, unknown, 1000 requests; tool vllm, server \
                openai-embeddings, model example/Embed-1B\n";
    assert!(text.contains(line), "{text}");
    let (code, text) = said(EMBEDDINGS_BLOCK);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1000 requests; tool vllm"), "{text}");
    let wrong = [
        (EMBEDDINGS, "12800.0", "25600.0", "E06 `input_tokens_per_s` is 25600.00"),
        (EMBEDDINGS_BLOCK, "12800.00", "25600.00", "E06 `input_tokens_per_s` is 25600.00"),
        (
            EMBEDDINGS,
            "t_throughput\": 100.0",
            "t_throughput\": 50.0",
            "E06 `requests_per_s` is 50.00",
        ),
        (EMBEDDINGS, "210.0", "110.0", "E07 "),
        (
            EMBEDDINGS,
            "num_prompts\": 1000",
            "num_prompts\": 1200",
            "E25 survivorship: 1000 of 1200",
        ),
    ];
    for (sound, from, to, finding) in wrong {
        let (code, text) = said(&sound.replace(from, to));
        assert_eq!(code, Some(1), "{finding}: {text}");
        assert!(text.contains(finding), "{finding}: {text}");
    }
    // Without its rate of tokens a result may be one of generated text that lost its end.
    let (code, text) = said(&EMBEDDINGS.replace("total_token_throughput", "lost"));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("not read: a result without `total_output_tokens`"), "{text}");
}
