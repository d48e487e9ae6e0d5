//! Reader of PyTorch's benchmark format, which the PyTorch HUD shows: a list of objects with one
//! metric each, as vLLM writes it into `*.pytorch.json`.
//!
//! Keys are those of `benchmark.oss_ci_benchmark_v3` in the repository pytorch/test-infra
//! (`clickhouse_db_schema`), metrics those of vLLM 0.33.0: `convert_to_pytorch_benchmark_format` in
//! `benchmarks/lib/utils.py`, and its callers in `serve.py` and `throughput.py`.

use std::collections::BTreeSet;

use schema::run::{Printed, PrintedRow};
use serde_json::{Map, Number, Value};

use super::documents::Document;
use super::figures::Figures;
use super::redact::public;
use super::result_file::{found_in_object, rows};
use super::served::Served;
use super::tool::Tool;
use super::workload::{StatedWorkload, workload_of_settings};
use super::{Found, Unread};

/// Value of `/benchmark/name` in what vLLM writes.
const VLLM: &str = "vLLM benchmark";
/// Keys without which a text is not in this format.
pub const MARKS: &[&str] = &["benchmark_values"];
const METRIC: &str = "/metric/name";

/// Metrics and facts of `vllm bench throughput`, each with its name in [`Figures`] and its key. It
/// states no number of output tokens: its tokens per second are those of prompts and answers.
const THROUGHPUT: &[(&str, &str)] = &[
    ("completed", "num_requests"),
    ("duration", "elapsed_time"),
    ("request_throughput", "requests_per_second"),
    ("total_throughput", "tokens_per_second"),
];

/// JSON pointers to what is equal in all objects of one run.
const SHARED: [&str; 5] =
    ["/benchmark", "/model", "/runners", "/dependencies", "/metric/extra_info"];

/// True for an object with one metric of a benchmark.
pub fn is_metric(document: &Document) -> bool {
    let is_text = |pointer: &str| document.object.pointer(pointer).is_some_and(Value::is_string);
    is_text("/benchmark/name") && is_text(METRIC)
}

/// Reads every run of a text: objects that follow each other and differ in the metric only.
pub fn read(documents: Vec<Result<Document, Unread>>) -> Vec<Result<Found, Unread>> {
    let mut results = Vec::new();
    let mut run: Vec<Document> = Vec::new();
    let mut names = BTreeSet::new();
    for document in documents {
        match document {
            Ok(document) if is_metric(&document) => {
                let name = name(&document.object).to_owned();
                let differs = |first: &Document| !is_same_run(first, &document);
                if run.first().is_some_and(|first| names.contains(&name) || differs(first)) {
                    results.push(found(&std::mem::take(&mut run)));
                    names.clear();
                }
                names.insert(name);
                run.push(document);
            }
            Ok(document) => {
                results.push(Err(document.unread("metric in PyTorch's benchmark format")));
            }
            Err(unread) => results.push(Err(unread)),
        }
    }
    if !run.is_empty() {
        results.push(found(&run));
    }
    results
}

/// Takes the text of a number for the number: the table's column has texts only, and vLLM writes numbers
/// into it.
fn numbered(value: &mut Value) {
    if let Some(number) = value.as_str().and_then(|text| text.parse::<Number>().ok()) {
        *value = Value::Number(number);
    }
}

fn name(object: &Value) -> &str {
    object.pointer(METRIC).and_then(Value::as_str).unwrap_or_default()
}

fn is_same_run(first: &Document, next: &Document) -> bool {
    let at = |pointer: &str| (first.object.pointer(pointer), next.object.pointer(pointer));
    SHARED.iter().map(|pointer| at(pointer)).all(|(left, right)| left == right)
}

fn found(run: &[Document]) -> Result<Found, Unread> {
    let lines = (
        run.first().map_or(1, |document| document.lines.0),
        run.last().map_or(1, |document| document.lines.1),
    );
    let unread = |why: String| Unread { line: lines.0, why };
    let first = run.first().map_or(&Value::Null, |document| &document.object);
    let stated = first.pointer("/metric/extra_info").and_then(Value::as_object);
    let mut known = stated.cloned().unwrap_or_default();
    known.values_mut().for_each(numbered);
    let is_served = known.contains_key("completed");
    if !is_served && run.iter().all(|one| name(&one.object) != "requests_per_second") {
        let name = public(name(first));
        return Err(unread(format!("the metric `{name}` is no figure of a serving run")));
    }
    for document in run {
        let (name, value) =
            metric(&document.object).map_err(|why| Unread { line: document.lines.0, why })?;
        known.insert(name, value);
    }
    let object = Value::Object(known);
    let args = first.pointer("/benchmark/extra_info/args").unwrap_or(&Value::Null);
    let mut found = if is_served {
        found_in_object(&object, lines)?
    } else {
        offline(&object, args, lines).map_err(unread)?
    };
    let is_vllm = first.pointer("/benchmark/name").and_then(Value::as_str) == Some(VLLM);
    found.tool = if is_vllm { Tool::Vllm } else { Tool::PytorchHud };
    found.asked = workload(&object, args);
    found.served = served(first, args);
    found.printed.settings = settings(first, args);
    found.printed.rows.extend(targets(run));
    Ok(found)
}

/// Returns the name and the only value of an object's metric; `null` for a list without a value.
fn metric(object: &Value) -> Result<(String, Value), String> {
    let name = name(object).to_owned();
    let values = object.pointer("/metric/benchmark_values").and_then(Value::as_array);
    match values.map(Vec::as_slice) {
        None => Err(format!("`{}`: `benchmark_values` is not a list", public(&name))),
        Some([]) => Ok((name, Value::Null)),
        // Figures of a serving run are numbers; other values would be ignored silently.
        Some([value]) if value.is_number() || value.is_null() => Ok((name, value.clone())),
        Some([_]) => Err(format!("`{}`: it is not a number", public(&name))),
        Some(values) => {
            Err(format!("`{}`: {} values, where a run has one", public(&name), values.len()))
        }
    }
}

/// Reads a run of `vllm bench throughput`, which calls the engine without a server.
fn offline(object: &Value, args: &Value, lines: (u64, u64)) -> Result<Found, String> {
    let mut figures = Figures::default();
    for (name, key) in THROUGHPUT {
        figures.take_key(name, 1.0, object, key)?;
    }
    figures.complete_with(&["completed", "duration"])?;
    Ok(Found {
        tool: Tool::Vllm,
        backend: args.get("backend").and_then(Value::as_str).map(public),
        figures,
        asked: StatedWorkload::default(),
        served: Served::default(),
        printed: Printed { rows: rows(object), ..Printed::default() },
        lines,
    })
}

/// Builds the workload from what the run recorded, and from the arguments of its command where it
/// recorded nothing.
fn workload(object: &Value, args: &Value) -> StatedWorkload {
    let stated =
        workload_of_settings(|name| match object.get(name).or_else(|| args.get(name))? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(true) => Some("True".to_owned()),
            Value::Bool(false) => Some("False".to_owned()),
            _ => None,
        });
    StatedWorkload { model: stated.model.as_deref().map(public), ..stated }
}

fn served(first: &Value, args: &Value) -> Served {
    let model = first.pointer("/model/name").and_then(Value::as_str);
    // vLLM copies the number from a run's metadata, where it is text.
    let ranks = match args.get("tensor_parallel_size") {
        Some(Value::String(text)) => text.parse().ok(),
        Some(number) => number.as_u64().and_then(|ranks| ranks.try_into().ok()),
        None => None,
    };
    let runners = first.get("runners").and_then(Value::as_array);
    let names = runners.into_iter().flatten().map(|runner| runner["gpu_info"].as_str());
    let mut gpus: Vec<&str> = names.map(Option::unwrap_or_default).collect();
    gpus.dedup();
    Served {
        model: model.filter(|name| !name.is_empty()).map(public),
        tp: ranks,
        // Runners with different GPUs do not say on which the engine ran.
        gpu: if let [name] = gpus[..] { Some(name) } else { None }
            .filter(|name| !name.is_empty())
            .map(public),
        ..Served::default()
    }
}

/// Returns the arguments of the command, and what is stated about benchmark, model, runners and
/// dependencies; without the runners' names, which are names of machines.
fn settings(first: &Value, args: &Value) -> Vec<PrintedRow> {
    let mut printed = rows(args);
    let mut add = |section: &str, object: &Value| {
        let of = |row: PrintedRow| PrintedRow { section: Some(section.to_owned()), ..row };
        printed.extend(rows(object).into_iter().map(of));
    };
    for section in ["benchmark", "model"] {
        let object = &first[section];
        add(section, object);
        add(section, &object["extra_info"]);
    }
    for runner in first.get("runners").and_then(Value::as_array).into_iter().flatten() {
        let public = |(key, value): (&String, &Value)| (key.clone(), value.clone());
        let object: Map<String, Value> = runner
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| *key != "name")
            .map(public)
            .collect();
        add("runners", &Value::Object(object));
    }
    for (name, object) in first.get("dependencies").and_then(Value::as_object).into_iter().flatten()
    {
        add(&public(name), object);
    }
    printed
}

/// Returns the target values that a run's metrics have.
fn targets(run: &[Document]) -> Vec<PrintedRow> {
    let row = |document: &Document| {
        let target = document.object.pointer("/metric/target_value")?.as_number()?;
        Some(PrintedRow {
            section: Some("target_value".to_owned()),
            label: public(name(&document.object)),
            text: target.to_string(),
        })
    };
    run.iter().filter_map(row).collect()
}
