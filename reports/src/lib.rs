//! Reads other tools' reports into records: console blocks in pages and logs, and result files.
//! Knows no file: text goes in, records come out, and what cannot be read is named by its line.

mod console;
mod csv;
mod figures;
mod json;
mod nested;
mod served;
mod summaries;
mod tool;
mod workload;

use schema::canonical::sha256_hex;
use schema::run::RunRecord;

use figures::Figures;
use served::Served;
use tool::Tool;
use workload::Asked;

/// What a report holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// One record per block or result, judged and sealed, in the order of the text. Their `source`
    /// says the lines.
    pub records: Vec<RunRecord>,
    /// What looks like a result and cannot be read.
    pub unread: Vec<Unread>,
}

/// A place that cannot be read, and why. Nothing of it is guessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Counted from 1.
    pub line: u64,
    /// What was expected there, and what stands there.
    pub why: String,
}

/// One result as its tool gives it.
#[derive(Debug)]
struct Found {
    tool: Tool,
    /// The server that the tool was told it talks to.
    backend: Option<String>,
    figures: Figures,
    asked: Asked,
    served: Served,
    lines: (u64, u64),
}

/// Reads the results in `text`; `file` is the name that they get as their source.
///
/// Console blocks are those titled `Serving Benchmark Result` (LMDeploy's and SGLang's scripts,
/// vLLM, and GPUStack's rendering of guidellm), wherever they stand, also several on a line. A
/// text that begins with `{` is read as results of vLLM or SGLang, one or one per line, or as the
/// report of guidellm, AIPerf, llm-d, inference-perf, inference-benchmarker, trtllm-bench or
/// MLCommons' endpoints; one with the head of LMDeploy's CSV as that.
#[must_use]
pub fn read(file: &str, text: &str) -> Reading {
    // What editors of other systems add says nothing, and no line is counted otherwise without it.
    let plain = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    let begins = |with: &str| plain.trim_start().starts_with(with);
    let results = if begins("{") {
        json::read(&plain)
    } else if begins(csv::HEAD) {
        csv::read(&plain)
    } else {
        console::read(&plain)
    };
    let sha256 = sha256_hex(text.as_bytes());
    let mut reading = Reading::default();
    for result in results {
        match result.and_then(|found| found.record(file, &sha256)) {
            Ok(record) => reading.records.push(record),
            Err(unread) => reading.unread.push(unread),
        }
    }
    if reading.records.is_empty() && reading.unread.is_empty() {
        let why = "no result found: neither a `Serving Benchmark Result` block nor JSON".to_owned();
        reading.unread.push(Unread { line: 1, why });
    }
    reading
}

/// Number of the line that the byte at `offset` is on.
fn line_at(text: &str, offset: usize) -> u64 {
    1 + text.as_bytes()[..offset].iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>()
}

#[cfg(test)]
mod tests;
