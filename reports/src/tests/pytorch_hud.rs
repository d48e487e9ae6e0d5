//! Tests of the reading of PyTorch's benchmark format.

use schema::run::{RunRecord, Status, TokenSource};
use schema::scenario::Arrival;

use super::broken;
use crate::read;

/// Arguments and facts of a run of `vllm bench serve`.
const ARGS: &str = r#"{"model": "org/Model-1B", "dataset_name": "random", "num_prompts": 1000, "seed": 7,
    "ignore_eos": true, "random_input_len": 20, "host": "10.0.0.7", "header": "***",
    "tensor_parallel_size": "2", "result_dir": "/home/ada/results", "metric_percentiles": "99"}"#;
const FACTS: &str = r#"{"date": "20261101-101010", "backend": "vllm", "model_id": "org/Model-1B",
    "num_prompts": 1000, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": null,
    "duration": 2.0, "completed": 1000, "failed": 0, "total_input_tokens": 20000,
    "total_output_tokens": 11000, "request_throughput": 500.0, "request_goodput": null,
    "output_throughput": 5500.0, "total_token_throughput": 15500.0,
    "max_output_tokens_per_s": 9000.0, "mean_e2el_ms": 200.0, "median_e2el_ms": 199.0,
    "p99_e2el_ms": 230.25}"#;
const METRICS: [(&str, &str); 12] = [
    ("median_ttft_ms", "99.5"),
    ("mean_ttft_ms", "100.0"),
    ("std_ttft_ms", "10.0"),
    ("p99_ttft_ms", "130.125"),
    ("mean_tpot_ms", "10.0"),
    ("median_tpot_ms", "9.9"),
    ("std_tpot_ms", "0.5"),
    ("p99_tpot_ms", "11.5"),
    ("median_itl_ms", "9.8"),
    ("mean_itl_ms", "10.1"),
    ("std_itl_ms", "1.0"),
    ("p99_itl_ms", "20.0"),
];

fn metric(name: &str, values: &str, facts: &str) -> String {
    format!(
        r#"{{"benchmark": {{"name": "vLLM benchmark", "extra_info": {{"args": {ARGS},
        "compilation_config.mode": "", "optimization_level": "", "use_compile": true}}}},
        "model": {{"name": "org/Model-1B"}},
        "metric": {{"name": "{name}", "benchmark_values": {values}, "extra_info": {facts}}}}}"#
    )
}

fn serve() -> String {
    let metrics = METRICS.map(|(name, value)| metric(name, &format!("[{value}]"), FACTS));
    format!("[{}]", metrics.join(", "))
}

fn one(text: &str) -> RunRecord {
    let mut reading = read("r.pytorch.json", text);
    assert_eq!((reading.records.len(), &*reading.unread), (1, &[][..]), "{text}");
    reading.records.remove(0)
}

fn of(summary: &schema::run::Summary) -> [Option<u64>; 4] {
    [summary.mean, summary.p50, summary.std, summary.p99]
}

#[test]
fn metrics_of_a_run_become_one_record() {
    let text = serve();
    assert_eq!(broken(&text), Vec::<String>::new());
    let record = one(&text);
    let source = record.source.as_ref().unwrap();
    let lines = text.lines().count() as u64;
    assert_eq!((&*source.tool, source.line_first, source.line_last), ("vllm", 1, lines));
    assert_eq!((record.status, &*record.engine.name), (Status::Ok, "vllm"));
    assert_eq!(record.model.id, "org/Model-1B");
    assert_eq!(record.server.unwrap().tp, Some(2));
    assert_eq!(record.time.unwrap().wall_us, Some(2_000_000));
    let scenario = record.scenario;
    assert_eq!((scenario.requests, scenario.seed), (Some(1_000), Some(7)));
    assert_eq!((scenario.ignore_eos, scenario.arrival), (Some(true), Some(Arrival::AllAtOnce)));
    let counts = record.counts.unwrap();
    assert_eq!((counts.requests_ok, counts.input_tokens), (Some(1_000), Some(20_000)));
    assert_eq!(counts.output_tokens_reported, Some(11_000));
    assert_eq!(counts.token_source, Some(TokenSource::Usage));
    let metrics = record.metrics.unwrap();
    assert_eq!(metrics.requests_per_s, Some(500.0));
    assert_eq!(metrics.output_tokens_per_s, Some(5_500.0));
    assert_eq!(metrics.total_tokens_per_s, Some(15_500.0));
    assert_eq!(metrics.output_tokens_per_s_peak, Some(9_000.0));
    let us = |values: [u64; 4]| values.map(Some);
    assert_eq!(of(&metrics.ttft_us.unwrap()), us([100_000, 99_500, 10_000, 130_125]));
    assert_eq!(of(&metrics.tpot_us.unwrap()), us([10_000, 9_900, 500, 11_500]));
    assert_eq!(of(&metrics.itl_chunk_us.unwrap()), us([10_100, 9_800, 1_000, 20_000]));
    let e2e = of(&metrics.e2e_us.unwrap());
    assert_eq!(e2e, [Some(200_000), Some(199_000), None, Some(230_250)]);
    let printed = source.printed.as_ref().unwrap();
    assert_eq!(printed.text("p99_ttft_ms"), Some("130.125"));
    assert_eq!(printed.text("burstiness"), Some("1.0"));
    let setting = |name: &str| {
        printed.settings.iter().find(|row| row.label == name).map(|row| row.text.as_str())
    };
    assert_eq!((setting("seed"), setting("use_compile")), (Some("7"), Some("true")));
    assert_eq!((setting("host"), setting("result_dir")), (Some("{host}"), Some("{path}")));
}

#[test]
fn another_run_begins_where_facts_differ_or_a_metric_comes_again() {
    let slow = FACTS.replace("\"duration\": 2.0", "\"duration\": 3.0");
    let of = |facts: &str| metric("mean_ttft_ms", "[100.0]", facts);
    let text = format!("[{}, {}, {}]", of(FACTS), of(&slow), of(&slow));
    let durations = |text: &str| -> Vec<Option<u64>> {
        let reading = read("a", text);
        assert_eq!(reading.unread, []);
        reading.records.iter().map(|record| record.time.as_ref().unwrap().wall_us).collect()
    };
    let seconds = |all: &[u64]| all.iter().map(|s| Some(s * 1_000_000)).collect::<Vec<_>>();
    assert_eq!(durations(&text), seconds(&[2, 3, 3]));
    // The same holds without a list, where each object has a line of its own.
    let line = |facts: &str| of(facts).replace('\n', " ");
    assert_eq!(durations(&format!("{}\n{}\n", line(FACTS), line(&slow))), seconds(&[2, 3]));
}

#[test]
fn throughput_of_the_engine_alone_has_no_latencies_and_no_output_tokens() {
    let facts = r#"{"elapsed_time": 2.0, "num_requests": 1000, "total_num_tokens": 31000}"#;
    let runners = r#""runners": [{"name": "i-0abc", "type": "linux.aws.h100", "gpu_info": "NVIDIA H100",
        "gpu_count": 2}], "dependencies": {"vllm": {"repo": "vllm-project/vllm", "sha": "abc"}}, "metric""#;
    let text = format!(
        "[{}, {}]",
        metric("requests_per_second", "[500.0]", facts),
        metric("tokens_per_second", "[15500.0]", facts)
    );
    let text = text.replace("\"metric\"", runners).replace("\"2\"", "2");
    let text = text.replace("\"dataset_name\"", "\"backend\": \"vllm\", \"dataset_name\"");
    assert_eq!(broken(&text), Vec::<String>::new());
    let record = one(&text);
    assert_eq!((&*record.engine.name, &*record.model.id), ("vllm", "org/Model-1B"));
    assert_eq!(record.hardware.gpu.unwrap()[0].name, "NVIDIA H100");
    assert_eq!(record.server.unwrap().tp, Some(2));
    assert_eq!(record.time.unwrap().wall_us, Some(2_000_000));
    let counts = record.counts.unwrap();
    assert_eq!((counts.requests_ok, counts.output_tokens_reported), (Some(1_000), None));
    assert_eq!((counts.input_tokens, counts.token_source), (None, None));
    let metrics = record.metrics.unwrap();
    assert_eq!(metrics.total_tokens_per_s, Some(15_500.0));
    assert_eq!((metrics.output_tokens_per_s, metrics.ttft_us), (None, None));
    let printed = record.source.unwrap().printed.unwrap();
    assert_eq!(printed.text("total_num_tokens"), Some("31000"));
    let shown = format!("{printed:?}");
    assert!(shown.contains("linux.aws.h100") && !shown.contains("i-0abc"), "{shown}");
}

#[test]
fn definitions_of_another_tool_are_unknown() {
    let text = serve().replace("vLLM benchmark", "Other benchmark");
    let text =
        text.replacen("\"benchmark_values\"", "\"target_value\": 90.5, \"benchmark_values\"", 1);
    let source = one(&text).source.unwrap();
    assert_eq!((&*source.tool, &source.definitions["itl"]), ("pytorch-hud", &"unknown".into()));
    let printed = source.printed.unwrap();
    let target = printed.rows.iter().find(|row| row.section.as_deref() == Some("target_value"));
    assert_eq!(target.map(|row| row.text.as_str()), Some("90.5"));
}

#[test]
fn what_cannot_be_read_is_named() {
    let alone = |name: &str, values: &str| format!("[{}]", metric(name, values, FACTS));
    let other =
        |name: &str| format!("[\n{}]", metric(name, "[0.5, 0.6]", "{\"avg_latency\": 0.55}"));
    let cases = [
        (alone("mean_ttft_ms", "[\"fast\"]"), 1, "`mean_ttft_ms`: it is not a number"),
        (alone("mean_ttft_ms", "[-1.0]"), 1, "`mean_ttft_ms`: `-1` is not a figure"),
        (alone("mean_ttft_ms", "[1.0, 2.0]"), 1, "`mean_ttft_ms`: 2 values"),
        (alone("mean_ttft_ms", "3.0"), 1, "`benchmark_values` is not a list"),
        (other("latency"), 2, "the metric `latency` is no figure of a serving run"),
        (serve().replace("\"duration\": 2.0,", ""), 1, "a result without `duration`"),
        (serve().replacen("}}, {", "}}, {\"a\": 1}, {", 1), 12, "an object that is no metric"),
    ];
    for (text, line, why) in cases {
        let unread = read("file", &text).unread;
        let named = unread.iter().any(|unread| unread.line == line && unread.why.contains(why));
        assert!(named, "{unread:?} has no {line}: {why}");
    }
    let empty = one(&alone("mean_ttft_ms", "[]"));
    assert_eq!(empty.metrics.unwrap().ttft_us, None, "a list without a value states none");
}

#[test]
fn other_lists_and_hostile_texts_are_no_results() {
    let none = "no result found: neither a `Serving Benchmark Result` block, nor tables of guidellm \
                or AIPerf, nor JSON";
    for text in
        ["[]", "[{}]", "[1, 2]", "[{\"a\": [{}]}]", "[[{\"tput_per_gpu\": 1}]]", "[INFO] log"]
    {
        assert_eq!(read("a", text).unread[0].why, none, "{text}");
    }
    assert!(read("a", "{\"a\": 1}").unread[0].why.contains("a result without `completed`"));
    assert!(read("a", "[{\"a\": 1}, {\"b\"").unread[0].why.contains("not a JSON object"));
    // A log that looks like a list keeps its blocks.
    let log = format!("[{{unclosed\n{}", super::SOUND);
    assert_eq!(read("a", &log).records.len(), 1);
    let deep = "[".repeat(100_000) + "{\"benchmark_values\": 1" + &"]".repeat(100_000);
    let nested = "{\"benchmark_values\": ".repeat(100_000);
    let huge = serve().replace("[100.0]", "[1e999]").replace("1000,", "18446744073709551616,");
    let odd = serve().replace(ARGS, "[[]]").replace("{\"name\": \"org/Model-1B\"}", "3");
    for text in [deep, nested, huge, odd, "]}".to_owned(), "[{\"\\".to_owned(), "{\"a".to_owned()] {
        let reading = read("a", &text);
        assert!(reading.records.len() + reading.unread.len() > 0);
    }
    let many = vec!["{\"Percentiles\": \"1%\", \"TTFT (ms)\": 1e308}"; 100].join("\n");
    assert_eq!(read("a", &many).unread.len(), 100);
}
