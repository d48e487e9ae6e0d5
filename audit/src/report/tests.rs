//! Results are read as they are printed, wherever they stand, and what is not one is named.

use schema::run::{Kind, Status, TokenSource};
use schema::scenario::Arrival;

use super::{Reading, read};

const SOUND: &str = include_str!("tests/sound.txt");

/// The rules that the only result of `text` breaks, with what they say.
fn broken(text: &str) -> Vec<String> {
    let Reading { records, unread } = read("page.md", text);
    assert_eq!((records.len(), unread), (1, Vec::new()), "{text}");
    let checks = records.into_iter().flat_map(|record| record.checks);
    let broken = checks.filter(|check| !check.ok);
    broken.map(|check| format!("{} {}", check.rule, check.detail.unwrap_or_default())).collect()
}

/// A page of guidellm's results whose line ends were lost; `figures` follow the totals.
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
fn files_of_vllm_and_sglang_are_read_as_python_writes_them() {
    let vllm = r#"{"backend": "openai", "num_prompts": 100, "request_rate": "inf",
        "completed": 90, "failed": 10, "duration": 10.0, "total_output_tokens": 9000,
        "total_token_throughput": 900.0, "mean_e2el_ms": 100.5, "generated_texts": ["a \"NaN\""]}"#;
    let sglang = "{\"backend\": \"sglang\", \"request_rate\": Infinity, \"completed\": 5, \
                  \"duration\": 2.5, \"total_output_tokens\": 50, \"accept_length\": NaN}\n";
    let [one] = &read("v.json", vllm).records[..] else { panic!("one result") };
    assert_eq!(one.source.as_ref().unwrap().tool, "vllm");
    assert_eq!(one.status, Status::Partial);
    let e2e = one.metrics.as_ref().unwrap().e2e_us.as_ref().unwrap();
    assert_eq!(e2e.mean, Some(100_500));
    assert!(one.checks.iter().any(|check| check.rule == "E25" && !check.ok));
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
