//! Tests of `redline bench`: its JSON document, which later suites read, and its table. Figures are
//! not compared, since they differ from run to run.

use std::process::Output;

use serde_json::{Value, json};

use crate::launched::{command, end_of, tiny_model};

const FLAGS: [&str; 10] =
    ["-p", "8,24", "-n", "2", "-b", "1,3", "--context", "4", "--threads", "1"];

/// Output of `redline bench` for the tiny model.
fn bench(more: &[&str]) -> String {
    let model = tiny_model();
    let args = [&["bench", model.path().to_str().unwrap()], &FLAGS[..], more].concat();
    let Output { status, stdout, stderr } =
        command(&args).stdout(std::process::Stdio::piped()).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0 && number.is_finite())
}

#[test]
fn every_figure_of_a_bench_has_its_share_of_a_limit() {
    let report: Value = serde_json::from_str(&bench(&["--json"])).unwrap();
    let limits = ["int8_ops_per_s", "f32_flops_per_s", "read_bytes_per_s"];
    assert!(limits.iter().all(|name| is_positive(&report["limits"][name])), "{report}");
    // Not every processor has bf16 instructions; no other figure may be missing.
    let bf16 = is_positive(&report["limits"]["bf16_flops_per_s"]);
    assert_eq!(bf16, report["limits"]["bf16_flops_per_s"] != Value::Null, "{report}");
    assert!(report.get("absent").is_none(), "a null has no sentence");
    let rows = |kind: &str, sizes: &[&str]| -> Vec<Vec<Value>> {
        let read = |row: &Value| {
            assert!(is_positive(&row["tokens_per_s"]) && is_positive(&row["limit_share"]), "{row}");
            sizes.iter().map(|name| row[name].clone()).collect()
        };
        report[kind].as_array().unwrap().iter().map(read).collect()
    };
    assert_eq!(rows("prefill", &["tokens"]), [[json!(8)], [json!(24)]]);
    for (kind, rates) in [
        ("products", &["ops_per_s", "limit_share"][..]),
        ("attention", &["kv_bytes_per_s", "flops_per_s", "limit_share"]),
    ] {
        let rows = report[kind].as_array().unwrap();
        let measured = |row: &Value| rates.iter().all(|rate| is_positive(&row[rate]));
        assert!(rows.len() == 2 && rows.iter().all(measured), "{report}");
    }
    assert_eq!(report["products"][0]["rows"], 64);
    assert_eq!(report["products"][1]["rows"], 512);
    assert_eq!(report["attention"][0]["rows"], 1);
    for row in report["attention"].as_array().unwrap() {
        assert!(row["rows"].as_u64() <= row["context"].as_u64(), "{row}");
        assert!(is_positive(&report["limits"][row["limit"].as_str().unwrap()]), "{row}");
    }
    assert_eq!(rows("decode", &["batch", "context"]), [[json!(1), json!(4)], [json!(3), json!(4)]]);
}

#[test]
fn a_person_reads_shares_in_percent() {
    let text = bench(&[]);
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("Gop/s in int8"), 1, "{text}");
    let shares = ["f32", "bf16", "int8"].map(|dtype| count(&format!("% of {dtype} arithmetic")));
    assert_eq!(shares.iter().sum::<usize>(), 2, "{text}");
    assert_eq!(count("% of memory speed"), 2, "{text}");
    let begins = |what: &str| text.lines().filter(|line| line.starts_with(what)).count();
    assert_eq!((begins("product "), begins("attention ")), (2, 2), "{text}");
}

#[test]
fn random_weights_have_no_share_of_the_memory_speed() {
    let text = bench(&["--load-format", "random"]);
    assert!(text.contains("decode ") && !text.contains("% of memory speed"), "{text}");
}

#[test]
fn decoding_is_also_measured_with_sampled_tokens() {
    let text = bench(&["--temperature", "0.7"]);
    assert_eq!(text.matches(", sampled at temperature 0.7\n").count(), 2, "{text}");
    let report: Value = serde_json::from_str(&bench(&["--temperature", "1", "--json"])).unwrap();
    assert!(
        report["decode"].as_array().unwrap().iter().all(|row| row["temperature"] == json!(1.0))
    );
    assert_eq!(end_of(&["bench", "/nowhere", "--temperature=-1"]).0, Some(2));
}

#[test]
fn a_bench_beyond_the_models_length_is_wrong_use() {
    let model = tiny_model();
    let (code, said) = end_of(&["bench", model.path().to_str().unwrap(), "-p", "1000000"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("1000000 tokens are requested"), "{said}");
}

#[test]
fn a_bench_of_a_gpu_that_is_not_there_says_so() {
    if !engine_cuda::usable().is_empty() {
        fixtures::skip("a machine without a GPU", "run it elsewhere");
        return;
    }
    for args in [
        &["bench", "/nowhere", "--device", "cuda"][..],
        &["bench", "--kernels", "--device", "cuda"],
    ] {
        let (code, said) = end_of(args);
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("`--device cuda` needs a GPU") && said.contains("hint: "), "{said}");
    }
    let (code, said) = end_of(&["bench", "--kernels", "--device", "auto"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("`--kernels` measures GPU kernels"), "{said}");
}

#[test]
fn a_bench_of_nothing_is_wrong_use() {
    let output = command(&["bench"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("not provided") && said.contains("<MODEL>"), "{said}");
}
