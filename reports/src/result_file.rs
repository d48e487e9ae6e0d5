//! Reader of result files: vLLM's JSON object, SGLang's JSON lines, reports with nested figures,
//! and the CSV file of LMDeploy's `profile_restful_api.py`, which has a line of column names and
//! then one row per run.

use schema::run::{Printed, PrintedRow};
use serde_json::Value;

use super::documents::parse;
use super::figures::Figures;
use super::redact::setting;
use super::served::Served;
use super::tool::Tool;
use super::workload::workload_of_settings;
use super::{Found, Unread, nested};

/// Parts of figure names in vLLM's files, each with the part that SGLang's names have in its place;
/// figures are stored under SGLang's names.
const ALIASES: &[(&str, &str)] =
    &[("total_token_throughput", "total_throughput"), ("e2el", "e2e_latency")];

/// Reads every result of `text`, which is one JSON object or one object per line.
pub fn read_json(text: &str) -> Vec<Result<Found, Unread>> {
    let lines = 1 + text.trim_end().matches('\n').count() as u64;
    if let Ok(object) = parse(text) {
        let (lines, report) = ((1, lines), Value::Object(object));
        return nested::read(&report, lines)
            .unwrap_or_else(|| vec![found_in_object(&report, lines)]);
    }
    // A text that is not one object has an object on each line.
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            let object = parse(line).map_err(|why| Unread { line: number, why })?;
            found_in_object(&Value::Object(object), (number, number))
        })
        .collect()
}

/// Reads one result of vLLM or SGLang from its JSON object.
pub fn found_in_object(object: &Value, lines: (u64, u64)) -> Result<Found, Unread> {
    let unread = |why: String| Unread { line: lines.0, why };
    let mut figures = Figures::default();
    // With a ramp-up vLLM writes the rate that it would have had without one.
    let ramped = object.get("ramp_up_strategy").is_some_and(Value::is_string);
    let keys = object.as_object().into_iter().flatten();
    for (key, value) in keys.filter(|(key, _)| !(ramped && *key == "request_rate")) {
        take(&mut figures, key, value).map_err(|why| unread(format!("`{key}`: {why}")))?;
    }
    figures.complete().map_err(unread)?;
    let text = |key: &str| match object.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    Ok(Found {
        tool: if object.get("num_prompts").is_some() { Tool::Vllm } else { Tool::Sglang },
        // Older versions of vLLM's tool have another name for the flag.
        backend: text("backend").or_else(|| text("endpoint_type")),
        figures,
        served: Served::default(),
        asked: workload_of_settings(text),
        printed: Printed { rows: rows(object), ..Printed::default() },
        lines,
    })
}

/// Returns the keys of a result with their values, in the order of the file; lists and objects,
/// which hold single requests, are left out.
pub fn rows(object: &Value) -> Vec<PrintedRow> {
    let row = |(key, value): (&String, &Value)| match value {
        Value::String(text) => Some(setting(key, text)),
        Value::Number(_) | Value::Bool(_) | Value::Null => Some(setting(key, &value.to_string())),
        Value::Array(_) | Value::Object(_) => None,
    };
    object.as_object().into_iter().flatten().filter_map(row).collect()
}

/// Adds the value of a result file's key as a figure if it is a number or `inf`; other values, such
/// as lists and names, are ignored.
fn take(figures: &mut Figures, key: &str, value: &Value) -> Result<(), String> {
    let mut name = key.to_owned();
    for (theirs, ours) in ALIASES {
        name = name.replace(theirs, ours);
    }
    match value {
        // A number without an f64 becomes NaN, which `take` refuses.
        Value::Number(number) => figures.take(&name, number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) if text == "inf" => figures.read(&name, 1.0, text),
        _ => Ok(()),
    }
}

/// First column names of LMDeploy's CSV file, by which the format is recognized.
pub const CSV_HEAD: &str = "backend,dataset_name,";

/// Reads every row of the text of LMDeploy's CSV file as a result.
pub fn read_csv(text: &str) -> Vec<Result<Found, Unread>> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let names: Vec<&str> =
        lines.next().map_or_else(Vec::new, |(_, head)| head.split(',').collect());
    lines.map(|(line, row)| found_in_row(&names, line, row)).collect()
}

fn found_in_row(names: &[&str], line: u64, row: &str) -> Result<Found, Unread> {
    let unread = |why: String| Unread { line, why };
    let cells: Vec<&str> = row.split(',').collect();
    if cells.len() != names.len() {
        return Err(unread(format!("{} values under {} names", cells.len(), names.len())));
    }
    let text = |name: &str| {
        let at = names.iter().position(|known| *known == name)?;
        Some(cells[at].trim()).filter(|cell| !cell.is_empty())
    };
    let mut figures = Figures::default();
    for (name, cell) in names.iter().zip(&cells).filter(|(name, _)| is_figure(name)) {
        let cell = cell.trim();
        // An empty cell means that the run did not measure the figure.
        let read = if cell.is_empty() { Ok(()) } else { figures.read(name, 1.0, cell) };
        read.map_err(|why| unread(format!("`{name}`: {why}")))?;
    }
    figures.complete().map_err(unread)?;
    Ok(Found {
        tool: Tool::Lmdeploy,
        backend: text("backend").map(str::to_owned),
        figures,
        served: Served::default(),
        asked: workload_of_settings(|name| text(name).map(str::to_owned)),
        printed: Printed {
            rows: names.iter().zip(&cells).map(|(name, cell)| setting(name, cell.trim())).collect(),
            ..Printed::default()
        },
        lines: (line, line),
    })
}

/// True for a column of LMDeploy's CSV file that contains a figure; false for columns with names
/// and settings.
fn is_figure(name: &str) -> bool {
    let settings = ["backend", "dataset_name", "sharegpt_output_len"];
    !settings.contains(&name) && !name.starts_with("random_")
}
