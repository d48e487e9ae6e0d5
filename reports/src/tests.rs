//! Tests of the reading of published reports: results are found wherever they stand, and text that
//! is not a result is reported with its line.

mod evalscope;
mod inferencex;
mod pytorch_hud;
mod tables;

use schema::run::{Kind, Status, TokenSource};
use schema::scenario::Arrival;

use super::{Reading, read};

const SOUND: &str = include_str!("tests/sound.txt");

/// Returns the rules that the only result in the page `text` breaks, with their details.
fn broken(text: &str) -> Vec<String> {
    let Reading { records, unread } = read("page.md", text);
    assert_eq!((records.len(), unread), (1, Vec::new()), "{text}");
    let checks = judge::findings(&records[0]).into_iter();
    let broken = checks.filter(|check| !check.ok);
    broken.map(|check| format!("{} {}", check.rule, check.detail.unwrap_or_default())).collect()
}

/// Returns a page of guidellm's results whose line ends were lost; `figures` follow the totals.
fn page(figures: &str) -> String {
    format!(
        "# Page ##### Short ```yaml dataset_name: Random dataset_input_tokens: 100 \
         dataset_output_tokens: 128 total_requests: 1000 ``` ## Results - Profile: `Short` ``` \
         ============ Serving Benchmark Result ============ Successful requests: 1000 \
         Maximum request concurrency: 512 Benchmark duration (s): 50.00 \
         Total input tokens: 100000 Total generated tokens: 128000 {figures} \
         ================================================== ```"
    )
}

#[test]
fn a_block_becomes_a_record_with_all_that_it_says() {
    let reading = read("log.txt", SOUND);
    let [record] = reading.records.as_slice() else { panic!("{reading:?}") };
    assert_eq!((record.kind, record.status), (Kind::Imported, Status::Ok));
    assert_eq!(record.engine.name, "example");
    assert_eq!(record.model.id, "example/Model-1B");
    assert_eq!(record.scenario.id, "random-100-101-1000");
    assert_eq!(crate::lengths_of(&record.scenario.id), Some((100, 101)));
    assert_eq!(crate::lengths_of("thinking"), Some((2_000, 6_000)));
    assert_eq!(crate::lengths_of("sharegpt-1000").or(crate::lengths_of("random-1-2")), None);
    assert_eq!(record.scenario.arrival, Some(Arrival::AllAtOnce));
    let source = record.source.as_ref().unwrap();
    assert_eq!((source.tool.as_str(), source.line_first, source.line_last), ("lmdeploy", 4, 27));
    let counts = record.counts.as_ref().unwrap();
    assert_eq!(counts.token_source, Some(TokenSource::Requested));
    assert_eq!(
        (counts.output_tokens_requested, counts.output_tokens_reported),
        (Some(101_000), None)
    );
    let gaps = record.metrics.as_ref().unwrap().itl_chunk_us.as_ref().unwrap();
    assert_eq!((gaps.mean, gaps.p50, gaps.p99), (Some(10_000), Some(9_900), None));
    assert_eq!(broken(SOUND), Vec::<String>::new());
}

#[test]
fn line_ends_do_not_matter() {
    let lost = SOUND.replace('\n', " ");
    let (as_printed, on_one_line) = (read("a", SOUND), read("a", &lost));
    let figures =
        |reading: &Reading| (reading.records[0].counts.clone(), reading.records[0].metrics.clone());
    assert_eq!(figures(&as_printed), figures(&on_one_line));
}

#[test]
fn a_command_holds_for_the_one_block_after_it() {
    let block = &SOUND[SOUND.find("====").unwrap()..];
    let reading = read("log.txt", &format!("{SOUND}{block}"));
    let ids: Vec<&str> = reading.records.iter().map(|r| r.scenario.id.as_str()).collect();
    assert_eq!(ids, ["random-100-101-1000", "unknown"]);
}

#[test]
fn a_standard_scenario_is_known_by_what_it_asks() {
    let standard = SOUND
        .replace("--num-prompts 1000", "--num-prompts 2000")
        .replace("-input-len 100 ", "-input-len 1024 ")
        .replace("-output-len 101 ", "-output-len 1024 ");
    assert_eq!(read("a", &standard).records[0].scenario.id, "balanced");
    let uneven = standard.replace("ratio 1.0", "ratio 0.5");
    assert_eq!(read("a", &uneven).records[0].scenario.id, "unknown");
}

#[test]
fn a_client_that_saw_one_chunk_is_told_from_one_that_counted_the_wait() {
    let times = "Mean Latency(s): 21.40 Mean TTFT (ms): 4400.00 Median TTFT (ms): 2560.00";
    let due = "E2E and TTFT give 133.86 ms";
    for (tpot, itl, finding) in [
        ("34.38", "0.00", "only the first chunk was counted (TPOT is TTFT / 128.0 tokens)"),
        ("167.19", "133.86", "TPOT includes TTFT (it is E2E / 128.0 tokens)"),
        ("60.00", "133.86", "not all chunks were counted"),
    ] {
        let page = page(&format!(
            "{times} Mean TPOT (ms): {tpot} Median TPOT (ms): 31.00 Mean ITL (ms): {itl} \
             Median ITL (ms): {itl}"
        ));
        let broken = broken(&page);
        let said = format!("E23 {finding}: mean TPOT is {tpot} ms, {due}");
        assert!(broken.contains(&said), "{broken:#?}");
        assert_eq!(broken.iter().any(|text| text.starts_with("E24")), itl == "0.00");
    }
    let kept = page(&format!("{times} Mean TPOT (ms): 133.80 Mean ITL (ms): 133.86"));
    assert_eq!(broken(&kept), Vec::<String>::new());
    let most = page(&format!("{times} Mean TPOT (ms): 40.00 Median TPOT (ms): 20.00"));
    assert!(broken(&most)[0].contains("only the first chunk was counted in most answers"));
}

#[test]
fn a_run_with_fewer_answers_than_requests_is_survivorship() {
    let page = page("").replace("requests: 1000 Maximum", "requests: 514 Maximum");
    assert_eq!(
        broken(&page),
        ["E25 survivorship: 514 of 1000 requests succeeded, and all figures are theirs, with 195 \
          prompt tokens each"]
    );
}

#[test]
fn what_cannot_be_read_is_named_by_its_line() {
    let cases = [
        (SOUND.replace("1400.00", "fast"), 16, "`Mean E2E Latency (ms)`: `fast` is not a number"),
        (SOUND.replace(" 400.00", " -4.00"), 19, "`Mean TTFT (ms)`: `-4` is not"),
        (SOUND.replace("Successful", "Good"), 4, "a result without `completed`"),
        (SOUND.replace(" 400.00", " 4\0\0\0"), 19, "zero bytes in a result"),
        (SOUND[..SOUND.len() - 60].to_owned(), 4, "without its closing line"),
        ("# A page of prose\n".to_owned(), 1, "no result found"),
        ("{\"completed\": 1, \"duration\": 2}".to_owned(), 1, "without `total_output_tokens`"),
        ("{\"completed\": 1}\n\n{\"comp".to_owned(), 3, "not a JSON object"),
    ];
    for (text, line, why) in cases {
        let unread = read("file", &text).unread;
        let last = unread.last().unwrap_or_else(|| panic!("`{why}` was read"));
        assert!(last.line == line && last.why.contains(why), "{last:?} is not {line}: {why}");
    }
}

#[test]
fn a_title_within_a_block_begins_no_other() {
    let doubled =
        SOUND.replace("Benchmark duration", "a= Serving Benchmark Result =\nBenchmark duration");
    let Reading { records, unread } = read("log.txt", &doubled);
    assert_eq!((records.len() + unread.len(), doubled.matches("Benchmark Result").count()), (1, 2));
}

#[test]
fn files_of_vllm_and_sglang_are_read_as_python_writes_them() {
    let vllm = r#"{"backend": "openai", "num_prompts": 100, "request_rate": "inf",
        "completed": 90, "failed": 10, "duration": 10.0, "total_output_tokens": 9000,
        "total_token_throughput": 900.0, "mean_e2el_ms": 100.5, "generated_texts": ["a \"NaN\""]}"#;
    let sglang = "{\"backend\": \"sglang\", \"request_rate\": Infinity, \"completed\": 5, \
                  \"duration\": 2.5, \"total_output_tokens\": 50, \"accept_length\": NaN}\n";
    let [one] = &read("v.json", vllm).records[..] else { panic!("one result") };
    assert_eq!(one.source.as_ref().unwrap().tool, "vllm");
    let older = vllm.replace("\"backend\": \"openai\"", "\"endpoint_type\": \"vllm\"");
    assert_eq!(read("v.json", &older).records[0].engine.name, "vllm");
    assert_eq!(one.status, Status::Partial);
    let e2e = one.metrics.as_ref().unwrap().e2e_us.as_ref().unwrap();
    assert_eq!(e2e.mean, Some(100_500));
    assert!(judge::findings(one).iter().any(|check| check.rule == "E25" && !check.ok));
    assert_eq!(one.scenario.arrival, Some(Arrival::AllAtOnce));
    let ramped = vllm.replace("\"completed\"", "\"ramp_up_strategy\": \"linear\", \"completed\"");
    assert_eq!(read("v.json", &ramped).records[0].scenario.arrival, None);
    let lines = read("s.jsonl", &sglang.repeat(2)).records;
    let places: Vec<u64> =
        lines.iter().map(|record| record.source.as_ref().unwrap().line_first).collect();
    assert_eq!(places, [1, 2]);
    assert_eq!(lines[0].scenario.arrival, Some(Arrival::AllAtOnce));
    assert_eq!(lines[0].source.as_ref().unwrap().tool, "sglang");
}

#[test]
fn what_a_tool_prints_for_nothing_is_no_figure() {
    let capped = "Benchmark duration (s):";
    let unset = format!("Max request concurrency:                 not set\n{capped}");
    assert_eq!(broken(&SOUND.replace(capped, &unset)), Vec::<String>::new());
}

#[test]
fn a_report_is_read_in_its_own_units() {
    let text = r#"{"version": "0.2.1", "run": {"time": {"duration": "PT1M2.5S"}},
        "results": {"request_performance": {"aggregate": {
            "requests": {"total": 10, "failures": 0, "output_length": {"mean": 11.0}},
            "latency": {"time_to_first_token": {"units": "ms", "mean": 20.5},
                        "request_latency": {"units": "s", "mean": 0.1205},
                        "time_per_output_token": {"units": "s/token", "mean": 0.01}}}}}}"#;
    assert_eq!(broken(text), Vec::<String>::new());
    let record = &read("report.json", text).records[0];
    let metrics = record.metrics.as_ref().unwrap();
    assert_eq!(metrics.ttft_us.as_ref().unwrap().mean, Some(20_500));
    assert_eq!(metrics.e2e_us.as_ref().unwrap().mean, Some(120_500));
    assert_eq!(record.time.as_ref().unwrap().wall_us, Some(62_500_000));
    let odd = text.replace("\"ms\"", "\"us\"");
    assert!(read("report.json", &odd).unread[0].why.contains("neither s nor ms"));
}

/// Reads four tools' files of a run of 1,000 answers of 11 tokens each: TTFT of 0.1 s, 10 ms per
/// further token, 2 s in all.
#[test]
fn files_of_four_more_tools_are_read_in_their_own_words_and_units() {
    let inference_perf = r#"{"benchmark_time_seconds": 2.0, "load_summary": {"count": 1000},
        "successes": {"count": 1000,
            "latency": {"request_latency": {"mean": 0.2, "median": 0.2},
                        "time_to_first_token": {"mean": 0.1, "median": 0.1},
                        "time_per_output_token": {"mean": 0.01},
                        "inter_token_latency": {"mean": 0.01, "median": 0.0, "p99": 0.02}},
            "throughput": {"requests_per_sec": 500.0, "input_tokens_per_sec": 10000.0,
                           "output_tokens_per_sec": 5500.0},
            "prompt_tokens": {"total": 20000.0}, "output_len": {"mean": 11.0},
            "output_tokens": {"total": 11200.0}},
        "failures": {"count": 0}}"#;
    let benchmarker = r#"{"config": {}, "results": [{"id": "throughput", "total_tokens": 11000,
        "duration_ms": 2000, "token_throughput_secs": 5500.0, "successful_requests": 1000,
        "failed_requests": 0, "request_rate": 500.0, "total_tokens_sent": 20000,
        "time_to_first_token_ms": {"avg": 100.0, "p50": 100.0},
        "inter_token_latency_ms": {"avg": 10.0, "p50": 10.0},
        "e2e_latency_ms": {"avg": 200.0, "p50": 200.0}}]}"#;
    let trtllm = r#"{"engine": {"model": "org/Model-1B", "version": "1.2.1"},
        "world_info": {"tp_size": 2},
        "request_info": {"num_requests": 1000, "avg_num_concurrent_requests": 100.0,
                         "avg_input_length": 20.0, "avg_output_length": 11.0},
        "performance": {"total_latency_ms": 2000.0, "request_throughput_req_s": 500.0,
            "system_output_throughput_tok_s": 5500.0, "system_total_throughput_tok_s": 15500.0,
            "request_latency_percentiles_ms": {"average": 200.0, "p50": 200.0, "maximum": 200.0}},
        "streaming_metrics": {"tpot_percentiles": {"average": 10.0},
            "ttft_percentiles": {"average": 100.0, "p50": 100.0}}}"#;
    let endpoints = r#"{"version": "1", "n_samples_issued": 1000, "n_samples_completed": 1000,
        "n_samples_failed": 0, "duration_ns": 2000000000, "qps": 500.0, "tps": 5500.0,
        "ttft": {"avg": 100000000, "median": 100000000, "percentiles": {"99": 100000000}},
        "tpot": {"avg": 10000000, "median": 10000000, "percentiles": {"99.0": 10000000}},
        "latency": {"avg": 200000000, "median": 200000000},
        "output_sequence_lengths": {"total": 11000, "avg": 11.0}}"#;
    for (tool, text) in [
        ("inference-perf", inference_perf),
        ("inference-benchmarker", benchmarker),
        ("trtllm-bench", trtllm),
        ("mlcommons-endpoints", endpoints),
    ] {
        assert_eq!(broken(text), Vec::<String>::new(), "{tool}");
        let record = read("report.json", text).records.remove(0);
        assert_eq!(record.source.as_ref().unwrap().tool, tool);
        assert_eq!(record.time.as_ref().unwrap().wall_us, Some(2_000_000), "{tool}");
        let counts = record.counts.as_ref().unwrap();
        assert_eq!(
            (counts.requests_ok, counts.output_tokens_reported),
            (Some(1_000), Some(11_000))
        );
        let metrics = record.metrics.as_ref().unwrap();
        let mean = |summary: &Option<schema::run::Summary>| summary.as_ref().unwrap().mean;
        let [ttft, tpot, e2e] = [&metrics.ttft_us, &metrics.tpot_us, &metrics.e2e_us].map(mean);
        assert_eq!((ttft, tpot, e2e), (Some(100_000), Some(10_000), Some(200_000)), "{tool}");
        assert_eq!(metrics.output_tokens_per_s, Some(5_500.0), "{tool}");
    }
    let served = read("report.json", trtllm).records.remove(0);
    assert_eq!((&*served.engine.name, &*served.engine.release), ("tensorrt-llm", "v1.2.1"));
    assert_eq!(served.server.and_then(|server| server.tp), Some(2));
    // The diagnosis of a mislabeled figure appears in the finding's detail too.
    let tpot = r#""tpot_percentiles": {"average": 10.0}"#;
    let with_first = trtllm.replace(tpot, &tpot.replace("10.0", "18.18"));
    assert!(broken(&with_first)[0].starts_with("E23 TPOT includes TTFT"));
    // Older reports of inference-perf omit the duration that their rates refer to.
    let older = inference_perf.replace("\"benchmark_time_seconds\": 2.0, ", "");
    assert_eq!(read("a", &older).records[0].time.as_ref().unwrap().wall_us, Some(2_000_000));
    // Rates over a window without the tail are not compared with the duration.
    let cut = endpoints
        .replace("\"qps\": 500.0", "\"legacy_loadgen_window_duration_ns\": 1, \"qps\": 9.0");
    assert_eq!(read("a", &cut).records[0].metrics.as_ref().unwrap().requests_per_s, None);
}
