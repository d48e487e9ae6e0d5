//! Reads the benchmark reports of other tools into records: console blocks in pages and logs, and
//! result files. Does no I/O: text goes in, records come out, and parts that cannot be read are
//! reported with their line.

mod console;
mod documents;
mod evalscope;
mod figures;
mod inferencex;
mod nested;
mod notes;
mod printed;
mod pytorch_hud;
mod redact;
mod result_file;
mod served;
mod tables;
mod tool;
mod workload;

use schema::canonical::sha256_hex;
use schema::run::{Printed, RunRecord};
use serde::Serialize;

use documents::Document;
use figures::Figures;
pub use figures::{figure_of, latency_us, name_of_label};
use served::Served;
use tool::Tool;
use workload::StatedWorkload;
pub use workload::lengths_of;

/// Records read from one published report, and the results in it that could not be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// One run record per result in the report, in the order of the text, without verdict and
    /// without the record's SHA-256. The record's `source` names the lines of the result.
    pub records: Vec<RunRecord>,
    /// Results in the report that cannot be read; for a report without any result, one entry that
    /// says so.
    pub unread: Vec<Unread>,
}

/// Line of a report at which a result cannot be read, and why. The result's figures are left out,
/// not guessed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// Number of the line, counted from 1, that cannot be read; of the result's first line where
    /// that is not one line, as for a missing figure.
    pub line: u64,
    /// Reason why the result cannot be read: what is wrong with the text, or what is missing in it.
    pub why: String,
}

/// One published result, with the figures that its tool reports and the stated facts about server
/// and workload.
#[derive(Debug)]
struct Found {
    tool: Tool,
    /// Kind of server for which the benchmark tool was configured, such as `vllm`; `None` if not
    /// stated.
    backend: Option<String>,
    figures: Figures,
    asked: StatedWorkload,
    served: Served,
    printed: Printed,
    lines: (u64, u64),
}

/// Revision of the reader: raised whenever it reads another record from the same text. It is part of
/// a record's id and path, so that a later reading stands beside the earlier one.
pub const READER: u32 = 5;

/// Reads the results in `text`; the name `file` and the text's SHA-256 are recorded as their
/// source.
///
/// Console blocks are those titled `Serving Benchmark Result` (LMDeploy's and SGLang's scripts,
/// vLLM, and GPUStack's rendering of guidellm), anywhere in the text, also several on a line. The
/// tables that guidellm and AIPerf print are read anywhere where their lines are whole. A text that
/// begins with `{` is read as results of vLLM (of text or embeddings) or SGLang, one object or one
/// per line, or as a report of guidellm, AIPerf, llm-d, inference-perf, inference-benchmarker,
/// trtllm-bench or MLCommons' endpoints. Objects one after another or in lists, such as `[{`, are read as results of `evalscope
/// perf`, of InferenceX, or in PyTorch's benchmark format, which vLLM writes. A text that begins with
/// the column names of LMDeploy's CSV file is read as such a file.
pub fn read(file: &str, text: &str) -> Reading {
    // Removes a byte-order mark and carriage returns, which some editors add. Line numbers stay
    // the same.
    let plain = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    let begins = |with: &str| plain.trim_start().starts_with(with);
    let results = if let Some(results) = in_documents(&plain) {
        results
    } else if begins("{") {
        result_file::read_json(&plain)
    } else if begins(result_file::CSV_HEAD) {
        result_file::read_csv(&plain)
    } else {
        let mut results = console::read(&plain);
        results.extend(tables::read(&plain));
        results
    };
    // Over the text as published, so that anyone can compare it with the source.
    let sha256 = sha256_hex(text.as_bytes());
    let mut reading = Reading::default();
    for result in results {
        match result.and_then(|found| found.record(file, &sha256)) {
            Ok(record) => reading.records.push(record),
            Err(unread) => reading.unread.push(unread),
        }
    }
    if reading.records.is_empty() && reading.unread.is_empty() {
        let why = "no result found: neither a `Serving Benchmark Result` block, nor tables of \
                   guidellm or AIPerf, nor JSON"
            .to_owned();
        reading.unread.push(Unread { line: 1, why });
    }
    reading
}

/// Reads a text that consists of JSON objects and lists of them, if an object in it is of a tool
/// that writes such texts; otherwise `None`.
fn in_documents(text: &str) -> Option<Vec<Result<Found, Unread>>> {
    let start = text.trim_start();
    let is_list = start.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with('{'));
    // Most reports have none of the keys, and are not parsed twice.
    let marks = [evalscope::MARKS, inferencex::MARKS, pytorch_hud::MARKS];
    let is_marked = marks.iter().any(|marks| marks.iter().any(|mark| text.contains(mark)));
    let is_candidate = is_list || start.starts_with('{') && is_marked;
    if !is_candidate {
        return None;
    }
    let documents = documents::documents(text)?;
    let any = |known: fn(&Document) -> bool| documents.iter().flatten().any(known);
    if any(evalscope::is_part) {
        Some(evalscope::read(documents))
    } else if any(inferencex::is_result) {
        Some(inferencex::read(documents))
    } else if any(pytorch_hud::is_metric) {
        Some(pytorch_hud::read(documents))
    } else {
        // A list that is cut off in its first object shows no tool. A page may look like one.
        let is_broken = is_list && documents.iter().any(Result::is_err);
        (is_broken && console::read(text).is_empty())
            .then(|| documents.into_iter().filter_map(Result::err).map(Err).collect())
    }
}

/// Returns the number of the line, counted from 1, that contains the byte at `offset`.
fn line_at(text: &str, offset: usize) -> u64 {
    1 + text.as_bytes()[..offset].iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>()
}

#[cfg(test)]
mod tests;
