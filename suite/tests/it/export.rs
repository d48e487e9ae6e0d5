//! Results in the formats of other tools: `redline-bench audit` reads every exported file back
//! without an error and with the measurement's own figures.

use std::fs;

use expect_test::expect;
use schema::measurement::Measurement;
use serde_json::Value;
use suite::mock_server::script::{Answer, Scripted};

use crate::workspace::{REQUESTS, Workspace, server, stderr};

const FORMATS: [&str; 11] = [
    "lmdeploy",
    "lmdeploy-csv",
    "sglang",
    "sglang-jsonl",
    "sglang-jsonl-detailed",
    "vllm",
    "vllm-json",
    "vllm-json-detailed",
    "guidellm",
    "aiperf",
    "llm-d",
];

/// Folder with a run exported in all formats, each in a file of the format's name.
fn exported() -> (Workspace, Measurement) {
    let workspace = Workspace::new();
    let flags: Vec<String> = FORMATS.iter().map(|format| format!("{format}={format}")).collect();
    let flags: Vec<&str> = flags.iter().flat_map(|to| ["--export", to]).collect();
    let (code, measurement) = workspace.run(&server(Vec::new()), &flags);
    assert_eq!(code, Some(0));
    (workspace, measurement)
}

fn json(workspace: &Workspace, format: &str) -> Value {
    serde_json::from_slice(&fs::read(workspace.path(format)).expect("written")).expect("JSON")
}

#[test]
fn what_is_exported_is_read_back_without_an_error() {
    let (workspace, _) = exported();
    for format in FORMATS {
        let output = workspace.bench().args(["audit", "--json", format]).output().expect("runs");
        let files: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let results = files[0]["results"].as_array().expect("a list");
        assert_eq!(files[0]["unread"], serde_json::json!([]), "{format}");
        let checks = results[0]["checks"].as_array().expect("a list");
        let wrong = |check: &&Value| check["level"] == "error" && check["ok"] == false;
        let wrong: Vec<&Value> = checks.iter().filter(wrong).map(|check| &check["rule"]).collect();
        // A console block prints the duration with two digits, too few to check rates of so short a
        // run.
        let block = ["lmdeploy", "sglang", "vllm"].contains(&format);
        assert!(
            wrong.iter().all(|rule| block && ["E06", "E21", "E36"].map(Value::from).contains(rule)),
            "{format}: {wrong:?}"
        );
        assert_eq!(results.len(), 1, "{format}");
        assert_eq!(results[0]["requests_ok"], REQUESTS, "{format}");
        let tool = results[0]["tool"].as_str().expect("a name");
        assert!(format.starts_with(tool), "{format} is taken for {tool}");
        if ["guidellm", "aiperf", "vllm-json"].contains(&format) {
            assert_eq!(results[0]["model"], "emitter", "{format}");
        }
    }
}

#[test]
fn every_format_has_the_measurements_own_figures() {
    let (workspace, measurement) = exported();
    let metrics = measurement.metrics.expect("metrics");
    let seconds = measurement.time.expect("time").wall_us.expect("a wall") as f64 / 1e6;
    for format in FORMATS {
        let text = fs::read_to_string(workspace.path(format)).expect("written");
        let found = reports::read(format, &text).records.remove(0);
        let (theirs, counts) = (found.metrics.expect("metrics"), found.counts.expect("counts"));
        let tokens = counts.output_tokens_reported.or(counts.output_tokens_requested);
        assert_eq!((counts.input_tokens, tokens), (Some(32), Some(20)), "{format}");
        let wall_us = found.time.expect("time").wall_us.expect("a wall");
        assert!((wall_us as f64 / 1e6 - seconds).abs() <= 0.005, "{format}: {wall_us}");
        let pairs = [
            ("ttft", &metrics.ttft_us, &theirs.ttft_us),
            ("tpot", &metrics.tpot_us, &theirs.tpot_us),
            ("itl", &metrics.itl_chunk_us, &theirs.itl_chunk_us),
            ("e2e", &metrics.e2e_us, &theirs.e2e_us),
        ];
        for (name, ours, theirs) in pairs {
            let Some(theirs) = theirs else {
                // guidellm's TPOT includes TTFT, its ITL is no gap between chunks, and LMDeploy's
                // table has only means.
                assert!(format == "guidellm" && ["tpot", "itl"].contains(&name), "{format} {name}");
                continue;
            };
            let ours = ours.as_ref().expect("measured");
            let max = ours.max.expect("measured");
            // guidellm takes a value that occurred instead of interpolating between two: the lower
            // one for the median, the upper one for high percentiles.
            let stepped = format == "guidellm";
            let below = |ours: u64| if stepped { 0 } else { ours };
            let above = |ours: u64| if stepped { max } else { ours };
            for (theirs, low, high) in [
                (theirs.mean, ours.mean, ours.mean),
                (theirs.p50, ours.p50.map(below), ours.p50),
                (theirs.p99, ours.p99, ours.p99.map(above)),
            ] {
                let (Some(theirs), Some(low), Some(high)) = (theirs, low, high) else { continue };
                // Console blocks print milliseconds with two decimals.
                let near = low.saturating_sub(6)..=high + 6;
                assert!(near.contains(&theirs), "{format} {name}: {theirs} is not in {near:?}");
            }
        }
    }
}

#[test]
fn lists_hold_every_request_in_the_order_of_the_plan() {
    let (workspace, _) = exported();
    for format in ["vllm-json-detailed", "sglang-jsonl-detailed"] {
        let found = json(&workspace, format);
        assert_eq!(found["input_lens"], serde_json::json!([8, 8, 8, 8]), "{format}");
        assert_eq!(found["output_lens"], serde_json::json!([5, 5, 5, 5]), "{format}");
        let gaps = found["itls"].as_array().expect("lists");
        assert!(gaps.iter().all(|gaps| gaps.as_array().is_some_and(|gaps| gaps.len() == 4)));
        assert_eq!(found["generated_texts"], Value::from(vec![" t t t t t"; 4]), "{format}");
        assert_eq!(found["errors"], Value::from(vec![""; 4]), "{format}");
    }
    let found = json(&workspace, "vllm-json-detailed");
    assert_eq!((&found["queue_times"], &found["rtfx"]), (&Value::from(vec![0.0; 4]), &0.0.into()));
    assert!(json(&workspace, "vllm-json").get("ttfts").is_none());
}

#[test]
fn a_report_says_what_it_does_not_know_by_null() {
    let (workspace, _) = exported();
    let found = json(&workspace, "sglang-jsonl");
    for key in ["tag", "server_info", "accept_length", "max_concurrency", "random_input_len"] {
        assert!(found[key].is_null(), "{key}: {}", found[key]);
    }
    // All 20 chunks come within the first second, as the tool counts them.
    assert_eq!(
        (&found["max_output_tokens_per_s"], &found["max_concurrent_requests"]),
        (&20.0.into(), &4.into())
    );
    assert_eq!((&found["request_rate"], &found["backend"]), (&"inf".into(), &"redline".into()));
    assert_eq!(found["protocol"], "http");
    assert_eq!(json(&workspace, "guidellm")["metadata"]["guidellm_version"], "unknown");
}

#[test]
fn keys_stand_in_the_order_of_the_tool() {
    let (workspace, _) = exported();
    let found = json(&workspace, "vllm-json");
    let keys: Vec<&str> =
        found.as_object().expect("an object").keys().map(String::as_str).collect();
    expect![[r#"
        date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput total_token_throughput latencies queue_times max_output_tokens_per_s max_concurrent_requests rtfx mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms std_e2el_ms p99_e2el_ms
    "#]]
    .assert_eq(&(keys.join(" ") + "\n"));
}

#[test]
fn a_saved_measurement_is_exported_as_it_was_then() {
    let (workspace, _) = exported();
    for given in ["out.json", "out.samples.jsonl"] {
        let flags = ["export", given, "--format", "vllm-json", "--backend", "redline"];
        let output =
            workspace.bench().args(flags).args(["--model", "emitter"]).output().expect("runs");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(
            output.stdout,
            fs::read(workspace.path("vllm-json")).expect("written"),
            "{given}"
        );
    }
}

#[test]
fn a_measurement_without_figures_or_samples_is_refused() {
    let (workspace, _) = exported();
    fs::remove_file(workspace.path("out.samples.jsonl")).expect("there");
    let export = |format: &str| {
        let output = workspace.bench().args(["export", "out.json", "--format", format]).output();
        let output = output.expect("runs");
        (output.status.code(), stderr(&output))
    };
    assert_eq!(export("lmdeploy").0, Some(0));
    let (code, said) = export("aiperf");
    assert_eq!(code, Some(2));
    assert!(said.contains("format `aiperf` needs samples"), "{said}");
    let mut bare: Value = json(&workspace, "out.json");
    bare["metrics"] = Value::Null;
    workspace.write("out.json", &bare.to_string());
    let (code, said) = export("lmdeploy");
    assert_eq!(code, Some(2));
    assert!(said.contains("no request was answered"), "{said}");
}

/// Answer of a server that sends each token as a chunk. The last chunk has no text, and the usage
/// counts it too, as vLLM's does for an answer that ends at the end-of-sequence token.
fn ends_without_text(prompt_tokens: u64) -> Answer {
    let chunk = |at: u64, text: &str| {
        let choice = serde_json::json!({"choices": [{"index": 0, "text": text}]});
        Scripted::text(20_000 + at * 5_000, format!("data: {choice}\n\n"))
    };
    let mut events: Vec<Scripted> =
        (0..5).map(|at| chunk(at, [" t", ""][usize::from(at == 4)])).collect();
    let usage = serde_json::json!({"prompt_tokens": prompt_tokens, "completion_tokens": 5});
    let usage = serde_json::json!({"choices": [], "usage": usage});
    events.push(Scripted::text(40_000, format!("data: {usage}\n\ndata: [DONE]\n\n")));
    Answer { times: 0, ..Answer::events(events) }
}

#[test]
fn vllms_formats_count_prompts_and_chunks_as_its_tool_does() {
    let workspace = Workspace::new();
    let flags = [
        "--no-output-check",
        "--export",
        "vllm-json-detailed=v.json",
        "--export",
        "sglang-jsonl=s",
    ];
    let (_, measurement) = workspace.run(&server(vec![ends_without_text(11)]), &flags);
    assert_eq!(measurement.counts.expect("counts").output_chunks, Some(16), "those with text");
    let found = json(&workspace, "v.json");
    assert_eq!(found["total_input_tokens"], 44, "the server's count, not that of the plan");
    let gaps = found["itls"].as_array().expect("a list");
    assert!(
        gaps.iter().all(|gaps| gaps.as_array().is_some_and(|gaps| gaps.len() == 4)),
        "{gaps:?}"
    );
    assert_eq!(found["max_output_tokens_per_s"], 20.0);
    assert_eq!(json(&workspace, "s")["max_output_tokens_per_s"], 16.0);
    let output = workspace.bench().args(["audit", "--json", "v.json"]).output().expect("runs");
    let files: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = files[0]["results"][0]["checks"].as_array().expect("a list");
    let chunks = checks.iter().find(|check| check["rule"] == "W12").expect("checked");
    assert_eq!(chunks["ok"], true, "{chunks}");
}
