//! Reader of InferenceX's results: the object that its `utils/process_result.py` writes for a run,
//! alone or in the list of a sweep.
//!
//! Names, units and numbers of GPUs are those of all revisions of that script up to 843c6254 (August
//! 2026), in the repository SemiAnalysisAI/InferenceX. It has no counts of requests and tokens and
//! no duration, and so do its records.

use schema::run::Printed;
use serde_json::Value;

use super::documents::Document;
use super::figures::Figures;
use super::redact::public;
use super::result_file::rows;
use super::served::{Served, release_of_image};
use super::tool::Tool;
use super::workload::StatedWorkload;
use super::{Found, Unread};

/// Keys without which a text is not InferenceX's.
pub const MARKS: &[&str] = &[PER_GPU];
const PER_GPU: &str = "tput_per_gpu";

/// Latencies, each with its quantity and its name in keys such as `median_e2el`. They are in seconds.
const LATENCIES: &[(&str, &str)] =
    &[("e2e_latency", "e2el"), ("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl")];

const STATISTICS: &[&str] = &["mean", "std", "median", "p50", "p90", "p95", "p99"];

/// Numbers of GPUs by which a result's throughputs were divided; `None` where the result does not
/// state one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Gpus {
    total: Option<f64>,
    /// GPUs that the input throughput is per: those of prefill, or all.
    input: Option<f64>,
    /// GPUs that the output throughput is per: those of decoding, or all.
    output: Option<f64>,
}

/// True for a result of InferenceX, by keys that every revision of its script writes.
pub fn is_result(document: &Document) -> bool {
    ["hw", "conc", "model", PER_GPU].iter().all(|key| document.object.get(key).is_some())
}

/// Reads every result of a text.
pub fn read(documents: Vec<Result<Document, Unread>>) -> Vec<Result<Found, Unread>> {
    let found = |document: Result<Document, Unread>| {
        let document = document?;
        if is_result(&document) {
            return found(&document);
        }
        Err(document.unread("result of InferenceX's `process_result.py`"))
    };
    documents.into_iter().map(found).collect()
}

fn found(document: &Document) -> Result<Found, Unread> {
    let Document { object, lines } = document;
    let figures = figures(object).map_err(|why| Unread { line: lines.0, why })?;
    let text = |key: &str| object.get(key).and_then(Value::as_str).map(public);
    Ok(Found {
        tool: Tool::InferenceX,
        backend: None,
        figures,
        asked: StatedWorkload {
            model: text("model"),
            concurrency: object.get("conc").and_then(Value::as_u64),
            ..StatedWorkload::default()
        },
        served: served(object),
        printed: Printed { rows: rows(object), ..Printed::default() },
        lines: *lines,
    })
}

fn figures(object: &Value) -> Result<Figures, String> {
    // A single-GPU figure is checked like a total, and becomes one only where the GPUs are known.
    let mut per_gpu = Figures::default();
    let mut figures = Figures::default();
    let gpus = gpus(object);
    for (name, key, gpus) in [
        ("total_throughput", PER_GPU, gpus.total),
        ("input_throughput", "input_tput_per_gpu", gpus.input),
        ("output_throughput", "output_tput_per_gpu", gpus.output),
    ] {
        per_gpu.take_key(name, 1.0, object, key)?;
        gpus.map_or(Ok(()), |gpus| figures.take_key(name, gpus, object, key))?;
    }
    per_gpu.complete_with(&["total_throughput"]).map_err(|_| "a result without `tput_per_gpu`")?;
    for (quantity, theirs) in LATENCIES {
        for statistic in STATISTICS {
            let name = format!("{statistic}_{quantity}_ms");
            figures.take_key(&name, 1e3, object, &format!("{statistic}_{theirs}"))?;
        }
    }
    Ok(figures)
}

/// Returns the numbers of GPUs that a result states. Runs on one node divide by the ranks of tensor,
/// pipeline and prefill context parallelism; keys that a revision does not write are those of
/// parallelism that it does not have.
fn gpus(object: &Value) -> Gpus {
    let flag = |key: &str| object.get(key).and_then(Value::as_bool);
    let count = |key: &str| {
        let count = object.get(key).and_then(Value::as_u64)?;
        u32::try_from(count).ok().map(f64::from)
    };
    let (prefill, decode) = (count("num_prefill_gpu"), count("num_decode_gpu"));
    let ranks = |key: &str| object.get(key).map_or(Some(1.0), |_| count(key));
    let node = count("tp").zip(ranks("pp")).zip(ranks("pcp_size"));
    let node = node.map(|((tp, pp), pcp)| tp * pp * pcp);
    let gpus = match (flag("is_multinode"), flag("disagg")) {
        (Some(true), _) => {
            let total = prefill.zip(decode).map(|(prefill, decode)| prefill + decode);
            // Without GPUs of its own, decoding runs on those of prefill.
            let output = if decode == Some(0.0) { total } else { decode };
            Gpus { total, input: prefill, output }
        }
        (Some(false), _) | (None, Some(false)) => Gpus { total: node, input: node, output: node },
        // Revisions of November 2025 call the number of all GPUs `tp`.
        (None, Some(true)) => Gpus { total: count("tp"), input: prefill, output: decode },
        // Revisions before `disagg` divide input and output by numbers that they do not write.
        (None, None) => Gpus { total: count("tp"), ..Gpus::default() },
    };
    let real = |gpus: Option<f64>| gpus.filter(|gpus| *gpus > 0.0);
    Gpus { total: real(gpus.total), input: real(gpus.input), output: real(gpus.output) }
}

fn served(object: &Value) -> Served {
    let text = |key: &str| object.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let flag = |key: &str| object.get(key).and_then(Value::as_bool) == Some(true);
    let framework = text("framework");
    // Other frameworks, such as `dynamo-trt`, have versions of their own.
    let is_engine = matches!(framework, Some("vllm" | "sglang" | "trt"));
    let image = text("image").filter(|_| is_engine);
    let tp = object.get("tp").and_then(Value::as_u64).and_then(|ranks| ranks.try_into().ok());
    Served {
        engine: framework.map(|name| if name == "trt" { "tensorrt-llm" } else { name }.to_owned()),
        release: image.and_then(release_of_image),
        // Prefill and decoding may have different numbers of ranks.
        tp: if flag("is_multinode") || flag("disagg") { None } else { tp },
        gpu: gpu(text("hw"), text("prefill_hw"), text("decode_hw")),
        ..Served::default()
    }
}

/// Returns the GPU's name in the label of a runner, such as `h200` in `h200-multinode`; `None` where
/// prefill and decoding have different GPUs.
fn gpu(label: Option<&str>, prefill: Option<&str>, decode: Option<&str>) -> Option<String> {
    let name = label?.split(['-', '_']).next()?;
    (prefill == decode && !name.is_empty()).then(|| public(name))
}
