//! Tests of the reading of InferenceX's results.

use schema::run::RunRecord;

use super::broken;
use crate::read;

/// Result of a run on one node with eight GPUs.
const NODE: &str = r#"{
  "hw": "h200-nb", "conc": 64, "image": "lmsysorg/sglang:v0.5.12-cu130",
  "model": "deepseek-ai/DeepSeek-R1-0528", "infmax_model_prefix": "dsr1", "framework": "sglang",
  "precision": "fp8", "spec_decoding": "none", "disagg": false, "recipe_fingerprint": "",
  "isl": 1024, "osl": 1024, "router": {"name": "smg", "version": "1"},
  "is_multinode": false, "tp": 4, "pp": 2, "dcp_size": 2, "pcp_size": 1, "ep": 1,
  "dp_attention": "false",
  "tput_per_gpu": 1875.0625, "output_tput_per_gpu": 1500.0, "input_tput_per_gpu": 375.0625,
  "mean_ttft": 0.1505, "median_ttft": 0.15, "std_ttft": 0.02, "p99_ttft": 0.2503,
  "mean_tpot": 0.025, "mean_intvty": 40.0, "median_tpot": 0.0245,
  "median_intvty": 40.816326530612244, "std_tpot": 0.001, "std_intvty": 1000.0, "p99_tpot": 0.045,
  "p99_intvty": 22.22222222222222,
  "mean_itl": 0.0251, "median_itl": 0.024, "std_itl": 0.002, "p99_itl": 0.05,
  "mean_e2el": 1.5, "median_e2el": 1.49, "std_e2el": 0.1, "p99_e2el": 2.5,
  "power_metric_schema_version": 2, "power_valid": 1, "avg_power_w": 650.125
}"#;

fn one(text: &str) -> RunRecord {
    let mut reading = read("agg.json", text);
    assert_eq!((reading.records.len(), &*reading.unread), (1, &[][..]), "{text}");
    reading.records.remove(0)
}

/// Returns the total, input and output throughput of the only result in the text.
fn throughputs(text: &str) -> [Option<f64>; 3] {
    let metrics = one(text).metrics.unwrap();
    [metrics.total_tokens_per_s, metrics.input_tokens_per_s, metrics.output_tokens_per_s]
}

#[test]
fn a_result_keeps_what_it_states_and_no_more() {
    let record = one(NODE);
    assert_eq!(broken(NODE), Vec::<String>::new());
    let source = record.source.as_ref().unwrap();
    assert_eq!(source.tool, "inferencex");
    assert_eq!(source.definitions["throughput"], "per-gpu-times-gpus");
    assert_eq!((&*record.engine.name, &*record.engine.release), ("sglang", "v0.5.12"));
    assert_eq!(record.model.id, "deepseek-ai/DeepSeek-R1-0528");
    assert_eq!(record.server.unwrap().tp, Some(4));
    assert_eq!(record.hardware.gpu.unwrap()[0].name, "h200");
    // No count, no duration and no rate is in the result.
    assert_eq!(record.time.unwrap().wall_us, None);
    let counts = record.counts.unwrap();
    assert_eq!((counts.requests_ok, counts.output_tokens_reported), (None, None));
    assert_eq!((record.scenario.requests, record.scenario.arrival), (None, None));
    let metrics = record.metrics.unwrap();
    assert_eq!(metrics.requests_per_s, None);
    assert_eq!(throughputs(NODE), [Some(15_000.5), Some(3_000.5), Some(12_000.0)]);
    let of = |summary: &schema::run::Summary| [summary.mean, summary.p50, summary.std, summary.p99];
    let us = |values: [u64; 4]| values.map(Some);
    assert_eq!(of(&metrics.ttft_us.unwrap()), us([150_500, 150_000, 20_000, 250_300]));
    assert_eq!(of(&metrics.tpot_us.unwrap()), us([25_000, 24_500, 1_000, 45_000]));
    assert_eq!(of(&metrics.itl_chunk_us.unwrap()), us([25_100, 24_000, 2_000, 50_000]));
    assert_eq!(of(&metrics.e2e_us.unwrap()), us([1_500_000, 1_490_000, 100_000, 2_500_000]));
    let printed = source.printed.as_ref().unwrap();
    for (label, text) in [
        ("tput_per_gpu", "1875.0625"),
        ("median_intvty", "40.816326530612244"),
        ("isl", "1024"),
        ("conc", "64"),
        ("avg_power_w", "650.125"),
        ("dp_attention", "false"),
    ] {
        assert_eq!(printed.text(label), Some(text), "{label}");
    }
}

#[test]
fn figures_per_gpu_become_totals_only_with_the_number_of_gpus() {
    let cut = |text: &str| NODE.replace(text, "");
    let many =
        NODE.replace("\"is_multinode\": false, \"tp\": 4, \"pp\": 2", "\"is_multinode\": true");
    let of = |gpus: &str| throughputs(&many.replace("\"conc\"", &format!("{gpus}, \"conc\"")));
    // 20 GPUs of prefill and 8 of decoding.
    let two = of("\"num_prefill_gpu\": 20, \"num_decode_gpu\": 8");
    assert_eq!(two, [Some(52_501.75), Some(7_501.25), Some(12_000.0)]);
    let shared = of("\"num_prefill_gpu\": 8, \"num_decode_gpu\": 0");
    assert_eq!(shared, [Some(15_000.5), Some(3_000.5), Some(12_000.0)]);
    assert_eq!(of("\"num_prefill_gpu\": 8"), [None, Some(3_000.5), None]);
    assert_eq!(throughputs(&many), [None; 3]);
    assert_eq!(throughputs(&NODE.replace("\"tp\": 4", "\"tp\": \"4\"")), [None; 3]);
    assert_eq!(throughputs(&NODE.replace("\"pp\": 2", "\"pp\": 0")), [None; 3]);
    assert_eq!(throughputs(&NODE.replace("\"pp\": 2", "\"pp\": 1e300")), [None; 3]);
    // Before December 2025 results do not say whether they are of several nodes.
    let older = cut("\"is_multinode\": false, ").replace("\"pp\": 2, \"dcp_size\": 2, ", "");
    assert_eq!(throughputs(&older)[0], Some(7_500.25));
    let split = older.replace(
        "\"disagg\": false",
        "\"disagg\": true, \"num_prefill_gpu\": 1, \"num_decode_gpu\": 3",
    );
    assert_eq!(throughputs(&split), [Some(7_500.25), Some(375.0625), Some(4_500.0)]);
    assert_eq!(one(&split).server, None, "`tp` is a number of GPUs there");
    let oldest = older.replace("\"disagg\": false, ", "");
    assert_eq!(throughputs(&oldest), [Some(7_500.25), None, None]);
}

#[test]
fn servers_are_named_by_their_own_images_only() {
    let of = |framework: &str, image: &str| {
        let text =
            NODE.replace("\"framework\": \"sglang\"", &format!("\"framework\": \"{framework}\""));
        let engine = one(&text.replace("lmsysorg/sglang:v0.5.12-cu130", image)).engine;
        (engine.name, engine.release)
    };
    let pair = |name: &str, release: &str| (name.to_owned(), release.to_owned());
    assert_eq!(of("vllm", "vllm/vllm-openai:v0.22.0"), pair("vllm", "v0.22.0"));
    assert_eq!(of("vllm", "vllm/vllm-openai:nightly-09663"), pair("vllm", ""));
    let trt = of("trt", "nvcr.io#nvidia/tensorrt-llm/release:1.3.0rc14");
    assert_eq!(trt, pair("tensorrt-llm", "v1.3.0rc14"));
    assert_eq!(of("dynamo-sglang", "lmsysorg/sglang:v0.5.14"), pair("dynamo-sglang", ""));
    let mixed =
        NODE.replace("\"conc\"", "\"prefill_hw\": \"gb200\", \"decode_hw\": \"h100\", \"conc\"");
    assert_eq!(one(&mixed).hardware.gpu, None);
}

#[test]
fn every_result_of_a_sweep_is_read_or_named_by_its_line() {
    let lines = NODE.lines().count() as u64;
    let bad = NODE.replace("\"mean_ttft\": 0.1505", "\"mean_ttft\": \"0.1505\"");
    let agentic = "{\"scenario_type\": \"agentic-coding\", \"request_metrics\": {}}";
    let cut = &NODE[..NODE.len() - 20];
    let text = format!("[\n{NODE},\n{bad},\n{agentic},\n{NODE},\n{cut}");
    let reading = read("agg_sweep.json", &text);
    let place = |record: &RunRecord| {
        let source = record.source.as_ref().unwrap();
        (source.line_first, source.line_last)
    };
    let places: Vec<(u64, u64)> = reading.records.iter().map(place).collect();
    assert_eq!(places, [(2, 1 + lines), (3 + 2 * lines, 2 + 3 * lines)]);
    let unread: Vec<(u64, &str)> =
        reading.unread.iter().map(|unread| (unread.line, &*unread.why)).collect();
    assert_eq!(unread.len(), 4, "{unread:?}");
    assert_eq!(unread[0], (2 + lines, "`mean_ttft`: it is not a number"));
    assert_eq!(unread[1].0, 2 + 2 * lines);
    assert!(unread[1].1.contains("no result of InferenceX"), "{unread:?}");
    assert!(unread[2].0 == 3 + 3 * lines && unread[2].1.contains("not a JSON object"));
    assert!(unread[3].1.contains("a JSON list without its end"), "{unread:?}");
    // A file with a result per line is read as well.
    let line = NODE.replace('\n', " ");
    assert_eq!(read("a", &format!("{line}\n{line}\n")).records.len(), 2);
    let none = NODE.replace("\"tput_per_gpu\": 1875.0625", "\"tput_per_gpu\": null");
    assert_eq!(read("a", &none).unread[0].why, "a result without `tput_per_gpu`");
}
