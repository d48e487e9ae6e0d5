//! Tests of the reading of `evalscope perf`'s files.

use schema::run::{RunRecord, Status};
use schema::scenario::Arrival;

use super::broken;
use crate::read;

/// Summary of 1,000 answers of 11 tokens each: TTFT of 0.1 s, 10 ms per further token, 2 s in all.
const SUMMARY: &str = r#"{
    "Test Duration (s)": 2.0,
    "Concurrency": 100,
    "Request Rate (req/s)": -1.0,
    "Total Requests": 1000,
    "Success Requests": 1000,
    "Failed Requests": 0,
    "Stream Requests": 1000,
    "Non-Stream Requests": 0,
    "Req Throughput (req/s)": 500.0,
    "Avg Latency (s)": 0.2,
    "Avg Input Tokens": 20.0125,
    "Output Throughput (tok/s)": 5500.0,
    "Total Throughput (tok/s)": 15506.25,
    "Avg TTFT (ms)": 100.0,
    "Avg TPOT (ms)": 10.0,
    "Avg ITL (ms)": 10.01,
    "Avg Output Tokens": 11.0,
    "Input Throughput (tok/s)": 0.0
}"#;
const PERCENTILES: &str = r#"[
    {"Percentiles": "min", "Latency (s)": 0.15, "TTFT (ms)": 60.1},
    {"Percentiles": "50%", "Latency (s)": 0.1995, "TTFT (ms)": 99.1234, "ITL (ms)": 9.9, "TPOT (ms)": 9.95,
     "Input tokens": 20.0, "Output tokens": 11.0, "Output (tok/s)": 55.0, "Decode (tok/s)": 100.5},
    {"Percentiles": "90%", "Latency (s)": 0.21, "TTFT (ms)": 120.0, "ITL (ms)": 10.1, "TPOT (ms)": 10.2},
    {"Percentiles": "95%", "Latency (s)": 0.22, "TTFT (ms)": 125.0, "ITL (ms)": 10.2, "TPOT (ms)": NaN},
    {"Percentiles": "99%", "Latency (s)": 0.23, "TTFT (ms)": 130.0, "ITL (ms)": 10.3, "TPOT (ms)": 10.4},
    {"Percentiles": "max", "Latency (s)": 0.25, "TTFT (ms)": 140.0, "ITL (ms)": 11.0, "TPOT (ms)": 10.5}
]"#;
const SETTINGS: &str = r#"{
    "model": "org/Model-1B", "model_id": "Model-1B", "api": "openai",
    "url": "http://10.0.0.7:8000/v1/chat/completions", "api_key": "**********",
    "headers": {"Authorization": "Bearer abc"}, "number": 1000, "parallel": 100, "rate": -1.0,
    "duration": null, "multi_turn": false, "dataset": "random", "seed": 42, "stream": true,
    "tokenizer_path": "/home/ada/model", "extra_args": {"ignore_eos": true}
}"#;

fn one(text: &str) -> RunRecord {
    let mut reading = read("report.json", text);
    assert_eq!((reading.records.len(), &*reading.unread), (1, &[][..]), "{text}");
    reading.records.remove(0)
}

#[test]
fn a_summary_is_read_in_its_own_units() {
    let record = one(SUMMARY);
    assert_eq!(broken(SUMMARY), Vec::<String>::new());
    let source = record.source.as_ref().unwrap();
    assert_eq!((&*source.tool, source.line_first, source.line_last), ("evalscope", 1, 20));
    assert_eq!(source.definitions["percentiles"], "nearest-rank");
    assert_eq!(record.status, Status::Ok);
    assert_eq!(record.time.unwrap().wall_us, Some(2_000_000));
    assert_eq!(record.scenario.arrival, Some(Arrival::Closed { concurrency: 100 }));
    assert_eq!(record.scenario.requests, Some(1_000));
    let counts = record.counts.unwrap();
    assert_eq!((counts.requests_ok, counts.requests_failed), (Some(1_000), Some(0)));
    assert_eq!((counts.input_tokens, counts.output_tokens_reported), (Some(20_013), Some(11_000)));
    assert_eq!((counts.output_tokens_requested, counts.token_source), (None, None));
    let metrics = record.metrics.unwrap();
    assert_eq!(metrics.requests_per_s, Some(500.0));
    assert_eq!(metrics.output_tokens_per_s, Some(5_500.0));
    assert_eq!(metrics.total_tokens_per_s, Some(15_506.25));
    assert_eq!(metrics.input_tokens_per_s, None, "a summary of chats has a zero for embeddings");
    assert_eq!(metrics.e2e_us.unwrap().mean, Some(200_000));
    assert_eq!(metrics.ttft_us.unwrap().mean, Some(100_000));
    assert_eq!(metrics.tpot_us.unwrap().mean, Some(10_000));
    assert_eq!(metrics.itl_chunk_us.unwrap().mean, Some(10_010));
    let printed = source.printed.as_ref().unwrap();
    assert_eq!(printed.rows.len(), 18);
    assert_eq!(printed.text("Avg Input Tokens"), Some("20.0125"));
}

#[test]
fn percentiles_and_settings_in_the_same_text_are_the_runs_own() {
    for text in [
        format!("{SUMMARY}\n{PERCENTILES}\n{SETTINGS}\n"),
        format!("{SETTINGS}{PERCENTILES}{SUMMARY}"),
        format!("{PERCENTILES}\n{SETTINGS}\n{SUMMARY}"),
    ] {
        let record = one(&text);
        assert_eq!((&*record.model.id, record.scenario.seed), ("org/Model-1B", Some(42)));
        assert_eq!(record.scenario.dataset.as_deref(), Some("random"));
        assert_eq!(record.scenario.ignore_eos, Some(true));
        let metrics = record.metrics.unwrap();
        let ttft = metrics.ttft_us.unwrap();
        assert_eq!((ttft.p50, ttft.p90, ttft.p95), (Some(99_123), Some(120_000), Some(125_000)));
        assert_eq!((ttft.p99, ttft.max), (Some(130_000), Some(140_000)));
        let tpot = metrics.tpot_us.unwrap();
        assert_eq!((tpot.p50, tpot.p95, tpot.p99), (Some(9_950), None, Some(10_400)));
        assert_eq!(metrics.e2e_us.unwrap().p50, Some(199_500));
        assert_eq!(metrics.itl_chunk_us.unwrap().max, Some(11_000));
        let source = record.source.unwrap();
        let lines = text.trim_end().lines().count() as u64;
        // A list's bracket on the line above belongs to no run.
        let first = if text.starts_with('[') { 2 } else { 1 };
        assert_eq!((source.line_first, source.line_last), (first, lines));
        let printed = source.printed.unwrap();
        let decode = printed.rows.iter().find(|row| row.label == "Decode (tok/s)").unwrap();
        assert_eq!((decode.section.as_deref(), &*decode.text), (Some("50%"), "100.5"));
        let setting = |name: &str| {
            printed.settings.iter().find(|row| row.label == name).map(|row| row.text.as_str())
        };
        assert_eq!((setting("number"), setting("ignore_eos")), (Some("1000"), Some("true")));
        let hidden = ["url", "api_key", "tokenizer_path"].map(setting);
        assert_eq!(hidden, [Some("{url}"), Some("{secret}"), Some("{path}")]);
        assert!(!format!("{printed:?}").contains("abc"), "headers are not printed");
    }
}

#[test]
fn a_second_summary_is_a_second_run() {
    let second = SUMMARY.replace("\"Success Requests\": 1000", "\"Success Requests\": 900");
    let reading = read("a.json", &format!("{SUMMARY}\n{PERCENTILES}\n{second}\n{SETTINGS}"));
    assert_eq!(reading.unread, []);
    let [first, second] = &reading.records[..] else { panic!("two runs: {reading:?}") };
    let p99 = |record: &RunRecord| {
        record.metrics.as_ref().and_then(|metrics| metrics.ttft_us.as_ref()?.p99)
    };
    assert_eq!((p99(first), p99(second)), (Some(130_000), None));
    assert_eq!((&*first.model.id, &*second.model.id), ("unknown", "org/Model-1B"));
    // 900 of 1,000 requests succeeded.
    assert_eq!((first.status, second.status), (Status::Ok, Status::Partial));
}

#[test]
fn what_a_run_did_not_measure_is_no_figure() {
    let unstreamed = SUMMARY.replace("\"Stream Requests\": 1000", "\"Stream Requests\": 0");
    let metrics = one(&unstreamed).metrics.unwrap();
    assert_eq!((metrics.ttft_us, metrics.tpot_us, metrics.itl_chunk_us), (None, None, None));
    assert_eq!(metrics.e2e_us.unwrap().mean, Some(200_000));
    let short = SUMMARY.replace("\"Avg TPOT (ms)\": 10.0", "\"Avg TPOT (ms)\": 0.0");
    assert_eq!(one(&short).metrics.unwrap().tpot_us, None);
    let failed = SUMMARY
        .replace("\"Success Requests\": 1000", "\"Success Requests\": 0")
        .replace("\"Failed Requests\": 0", "\"Failed Requests\": 1000")
        .replace("\"Avg Latency (s)\": 0.2", "\"Avg Latency (s)\": -1")
        .replace("\"Avg TTFT (ms)\": 100.0", "\"Avg TTFT (ms)\": -1000")
        .replace("\"Avg Output Tokens\": 11.0", "\"Avg Output Tokens\": -1");
    let record = one(&failed);
    assert_eq!(record.counts.unwrap().output_tokens_reported, Some(0));
    let metrics = record.metrics.unwrap();
    assert_eq!((record.status, metrics.e2e_us, metrics.ttft_us), (Status::Partial, None, None));
    // A rate is kept as the tool's own; without a limit on concurrency nothing says when requests
    // were sent.
    let open = SUMMARY.replace("\"Concurrency\": 100", "\"Concurrency\": -1");
    assert_eq!(one(&open).scenario.arrival, None);
    // A time limit, and conversations instead of requests, leave the number that was sent.
    let timed = SETTINGS.replace("\"duration\": null", "\"duration\": 2.0");
    for settings in [timed, SETTINGS.replace("\"multi_turn\": false", "\"multi_turn\": true")] {
        let settings = settings.replace("\"number\": 1000", "\"number\": 5000");
        let record = one(&format!("{SUMMARY}{settings}"));
        assert_eq!((record.scenario.requests, record.status), (Some(1_000), Status::Ok));
    }
}

#[test]
fn a_part_that_cannot_be_read_is_named() {
    let cases = [
        (
            SUMMARY.replace("\"Avg TTFT (ms)\": 100.0", "\"Avg TTFT (ms)\": \"fast\""),
            1,
            "`Avg TTFT (ms)`: it is not a number",
        ),
        (
            SUMMARY.replace("\"Avg TTFT (ms)\": 100.0", "\"Avg TTFT (ms)\": -3.5"),
            1,
            "`Avg TTFT (ms)`: `-3.5` is not a figure",
        ),
        (
            SUMMARY.replace("\"Success Requests\": 1000", "\"Success Requests\": 1.5"),
            1,
            "`1.5` is not a whole number",
        ),
        (
            SUMMARY.replace("    \"Avg Output Tokens\": 11.0,\n", ""),
            1,
            "without `total_output_tokens`",
        ),
        (
            SUMMARY
                .replace("\"Avg Output Tokens\": 11.0", "\"Avg Output Tokens\": 0.0")
                .replace("(tok/s)\": 0.0", "(tok/s)\": 90.0"),
            1,
            "generates no tokens",
        ),
        (PERCENTILES.to_owned(), 2, "without its `benchmark_summary.json`"),
        (
            format!("{SUMMARY}\n{}", PERCENTILES.replace("130.0", "[1]")),
            1,
            "row `99%`: `TTFT (ms)`: it is not a number",
        ),
        (
            format!("{SUMMARY}\n{}", &PERCENTILES[..PERCENTILES.len() - 9]),
            28,
            "a JSON list without its end",
        ),
        (format!("{SUMMARY}\n{{\"Percentiles\": 3}}"), 21, "no part of a report of `evalscope"),
    ];
    for (text, line, why) in cases {
        let unread = read("file", &text).unread;
        let named = unread.iter().any(|unread| unread.line == line && unread.why.contains(why));
        assert!(named, "{unread:?} has no {line}: {why}");
    }
}
