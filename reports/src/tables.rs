//! Reader of the tables that guidellm and AIPerf print to the terminal.
//!
//! Layout and labels are those of guidellm 0.4 to 0.8 (`benchmark/outputs/console.py` and
//! `utils/console.py`) and of AIPerf 0.13 (`exporters/console_metrics_exporter.py`).

use schema::run::{Printed, PrintedRow};

use super::figures::Figures;
use super::redact::{public, public_text};
use super::served::{Served, value_of};
use super::tool::Tool;
use super::workload::StatedWorkload;
use super::{Found, Unread};

/// Reads every result of `text` that is printed as tables; a result that cannot be read gives an
/// error with its line.
pub fn read(text: &str) -> Vec<Result<Found, Unread>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut results = guidellm(&lines);
    results.extend(aiperf(&lines));
    results
}

/// Returns the number of the line at the index `at`, counted from 1.
fn number(at: usize) -> u64 {
    at as u64 + 1
}

/// Title of guidellm's first table, which has the duration and the tokens of every benchmark.
const SUMMARY: &str = "Run Summary Info";
/// End of the titles of guidellm's other tables.
const STATISTICS: [&str; 3] =
    [" Statistics (Completed Requests)", " Statistics (All Requests)", " Statistics"];
/// Text before the model's name in what guidellm prints before its benchmarks.
const VALIDATED: &str = "backend validated with model ";

/// Figures in guidellm's tables, each with the headings of its column and its name in [`Figures`].
/// Rates are left out: guidellm's are means over instants of all requests, also of incomplete ones.
const OF_A_COLUMN: [(&str, &str); 3] = [
    ("Timings Dur Sec", "duration"),
    ("Input Tokens Comp Tot", "total_input_tokens"),
    ("Output Tokens Comp Tot", "total_output_tokens"),
];
/// Latencies in guidellm's tables, each with the headings of its columns above the statistic, and its
/// quantity. E2E is left out, because a tenth of a second is too coarse to compare with milliseconds,
/// and TPOT, because it includes TTFT there.
const OF_COLUMNS: [(&str, &str); 2] = [("TTFT ms ", "ttft"), ("ITL ms ", "itl")];

/// Table that guidellm prints: a column for each figure, and a row for each benchmark.
struct Table<'a> {
    title: &'a str,
    /// Headings of each column, from the top down, with a space between them.
    columns: Vec<String>,
    rows: Vec<Vec<&'a str>>,
    /// Indexes of the first and the last line of the table, with its title.
    lines: (usize, usize),
}

fn guidellm(lines: &[&str]) -> Vec<Result<Found, Unread>> {
    let tables: Vec<Table<'_>> = (0..lines.len()).filter_map(|at| table_at(lines, at)).collect();
    let first = tables.iter().position(|table| table.title == SUMMARY);
    // Tables before the first summary are the rest of a report whose beginning is missing.
    let reports = tables[first.unwrap_or(tables.len())..]
        .chunk_by(|_, next| next.title != SUMMARY)
        .map(|report| (report, &lines[..report[0].lines.0]));
    let of_report = |(report, before): (&[Table<'_>], &[&str])| {
        let model = before.iter().rev().find_map(|line| Some(line.split_once(VALIDATED)?.1));
        let model = model.map(|name| public(name.trim())).filter(|name| !name.is_empty());
        let rows = 0..report[0].rows.len();
        rows.map(|row| benchmark(report, row, model.clone())).collect::<Vec<_>>()
    };
    reports.flat_map(of_report).collect()
}

/// Reads guidellm's table whose title is the line at the index `at`; `None` if no table begins there.
fn table_at<'a>(lines: &[&'a str], at: usize) -> Option<Table<'a>> {
    // A symbol stands before the title.
    let title = lines[at].trim_start_matches(|c: char| !c.is_ascii_alphabetic()).trim_end();
    let is_title = title == SUMMARY || STATISTICS.iter().any(|end| title.ends_with(end));
    if !is_title || !lines.get(at + 1)?.starts_with("|=") {
        return None;
    }
    let body = &lines[at + 2..];
    let headings = body.iter().position(|line| line.starts_with("|-"))?;
    let values = &body[headings + 1..];
    let count = values.iter().take_while(|line| line.starts_with("| ")).count();
    let rows = values[..count].iter().copied().map(cells).collect();
    let lines = (at, at + 2 + headings + count + 1);
    Some(Table { title, columns: columns(&body[..headings]), rows, lines })
}

/// Returns the headings of each column of guidellm's table from its lines above the values.
fn columns(headings: &[&str]) -> Vec<String> {
    let count = headings.first().map_or(0, |line| cells(line).len());
    let mut columns = vec![String::new(); count];
    for line in headings {
        let mut heading = "";
        for (column, cell) in columns.iter_mut().zip(cells(line)) {
            // A cell without width belongs to the heading before it, which spans several columns.
            if !cell.is_empty() {
                heading = cell.trim();
            }
            if !heading.is_empty() {
                let space = if column.is_empty() { "" } else { " " };
                *column += space;
                *column += heading;
            }
        }
    }
    columns
}

/// Returns the cells of a line of guidellm's table, as they are printed.
fn cells(line: &str) -> Vec<&str> {
    let line = line.trim_end();
    let line = line.strip_prefix('|').unwrap_or(line);
    line.strip_suffix('|').unwrap_or(line).split('|').collect()
}

/// Reads the benchmark in the row `row` of each table of a report by guidellm.
fn benchmark(report: &[Table<'_>], row: usize, model: Option<String>) -> Result<Found, Unread> {
    let mut figures = Figures::default();
    let mut rows = Vec::new();
    for table in report {
        let values = table.rows.get(row).into_iter().flatten();
        for (column, value) in table.columns.iter().zip(values) {
            let (section, text) = (Some(table.title.to_owned()), value.trim());
            take(&mut figures, column, text).map_err(|why| Unread {
                line: number(table.lines.0),
                why: format!("`{column}` of benchmark {}: {why}", row + 1),
            })?;
            rows.push(PrintedRow { section, label: column.clone(), text: public_text(text) });
        }
    }
    let lines = (report[0].lines.0, report[report.len() - 1].lines.1);
    let lines = (number(lines.0), number(lines.1));
    let complete = figures.complete_with(&["duration", "total_output_tokens"]);
    complete.map_err(|why| Unread { line: lines.0, why })?;
    Ok(Found {
        tool: Tool::Guidellm,
        backend: None,
        figures,
        asked: StatedWorkload::default(),
        served: Served { model, ..Served::default() },
        printed: Printed { rows, ..Printed::default() },
        lines,
    })
}

/// Adds the figure of a column of guidellm's tables; a column without one, and the value `--` for
/// none, are left out.
fn take(figures: &mut Figures, column: &str, text: &str) -> Result<(), String> {
    if text == "--" {
        return Ok(());
    }
    let value = || text.parse::<f64>().map_err(|_| format!("`{text}` is not a number"));
    if let Some((_, name)) = OF_A_COLUMN.iter().find(|(known, _)| *known == column) {
        let value = value()?;
        // A total is a mean times a count there, and the true total is a whole number.
        return figures.take(name, if *name == "duration" { value } else { value.round() });
    }
    let latency = OF_COLUMNS.iter().find_map(|(head, quantity)| {
        let statistic = match column.strip_prefix(head)? {
            "Mean" => "mean",
            "Mdn" => "median",
            percentile => percentile,
        };
        Some(format!("{statistic}_{quantity}_ms"))
    });
    latency.map_or(Ok(()), |name| figures.take(&name, value()?))
}

/// Title of AIPerf's table before the kind of its metrics, such as `LLM Metrics`. Titles of tables
/// with further metrics end with a colon and the name of a group.
const TITLE: &str = "NVIDIA AIPerf | ";
const COMMAND: &str = "CLI Command:";
const DURATION: &str = "Benchmark Duration:";

/// Figures in AIPerf's table that have one value for the whole run, each with its metric and its
/// name in [`Figures`].
const OF_THE_RUN: [(&str, &str); 3] = [
    ("Request Count", "completed"),
    ("Request Throughput", "request_throughput"),
    ("Output Token Throughput", "output_throughput"),
];
/// Latencies in AIPerf's table, each with its metric and its quantity. AIPerf's inter-token latency
/// is one mean per request, which is TPOT.
const LATENCIES: [(&str, &str); 3] = [
    ("Request Latency", "e2e_latency"),
    ("Time to First Token", "ttft"),
    ("Inter Token Latency", "tpot"),
];

fn aiperf(lines: &[&str]) -> Vec<Result<Found, Unread>> {
    let is_title = |line: &&str| {
        let title = line.trim().strip_prefix(TITLE);
        title.is_some_and(|kind| kind.ends_with("Metrics"))
    };
    let titles: Vec<usize> =
        lines.iter().enumerate().filter(|(_, line)| is_title(line)).map(|(at, _)| at).collect();
    let ends = titles.iter().skip(1).copied().chain([lines.len()]);
    titles.iter().zip(ends).map(|(at, end)| profile(*at, &lines[*at..end])).collect()
}

/// Reads the table of AIPerf whose title is the first of `lines`, at the index `at` of the text, and
/// what AIPerf prints after it.
fn profile(at: usize, lines: &[&str]) -> Result<Found, Unread> {
    let mut figures = Figures::default();
    let rows = metrics(lines);
    for row in &rows {
        figure(&mut figures, row).map_err(|why| Unread {
            line: number(at),
            why: format!("{}: {why}", described(row)),
        })?;
    }
    let ends =
        lines.iter().rposition(|line| line.starts_with(['└', '+']) || line.starts_with(DURATION));
    let duration = lines.iter().find_map(|line| line.trim().strip_prefix(DURATION));
    let duration = duration.and_then(|text| text.trim().strip_suffix(" sec"));
    let read = duration.map_or(Ok(()), |seconds| figures.read("duration", 1.0, seconds));
    let complete = read.and_then(|()| figures.complete_with(&["completed"]));
    complete.map_err(|why| Unread { line: number(at), why })?;
    Ok(Found {
        tool: Tool::Aiperf,
        backend: None,
        figures,
        asked: StatedWorkload::default(),
        served: Served { model: model(lines), ..Served::default() },
        printed: Printed { rows, ..Printed::default() },
        lines: (number(at), number(at + ends.unwrap_or(0))),
    })
}

/// Returns the values of AIPerf's table, each with its metric and unit as the section and its
/// statistic as the label.
fn metrics(lines: &[&str]) -> Vec<PrintedRow> {
    let end = lines.iter().position(|line| line.starts_with('└')).unwrap_or(lines.len());
    let bordered = |line: &&&str| line.starts_with(['┃', '│']);
    let mut table = lines[..end].iter().filter(bordered).map(|line| {
        let cells = line.trim_end().trim_matches(['┃', '│']).split(['┃', '│']);
        cells.map(str::trim).collect::<Vec<_>>()
    });
    let head = table.next().unwrap_or_default();
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for cells in table {
        let (label, values) = (cells.first().copied().unwrap_or_default(), &cells[1..]);
        match rows.last_mut() {
            // A label that does not fit its column goes on in the next line.
            Some((before, _)) if !before.ends_with(')') => *before += &format!(" {label}"),
            _ => rows.push((label.to_owned(), values.to_vec())),
        }
    }
    let of = |(metric, values): (String, Vec<&str>)| {
        let statistics = head.iter().skip(1).zip(values);
        let row = |(statistic, value): (&&str, &str)| PrintedRow {
            section: Some(metric.clone()),
            label: (*statistic).to_owned(),
            text: value.to_owned(),
        };
        statistics.map(row).collect::<Vec<_>>()
    };
    rows.into_iter().flat_map(of).collect()
}

/// Returns the words by which an error names a value of AIPerf's table.
fn described(row: &PrintedRow) -> String {
    format!("`{}` of `{}`", row.label, row.section.as_deref().unwrap_or_default())
}

/// Adds the figure of a value in AIPerf's table; values without one are left out.
fn figure(figures: &mut Figures, row: &PrintedRow) -> Result<(), String> {
    let Some((metric, unit)) = row.section.as_deref().and_then(|text| text.rsplit_once(" ("))
    else {
        return Ok(());
    };
    let named = |known: &[(&str, &'static str)]| {
        known.iter().find(|(name, _)| *name == metric).map(|(_, ours)| *ours)
    };
    let name = match (named(&OF_THE_RUN), named(&LATENCIES)) {
        (Some(name), _) if row.label == "avg" => name.to_owned(),
        (None, Some(_)) if unit != "ms)" => {
            return Err(format!("it is in `{}`, not in ms", unit.trim_end_matches(')')));
        }
        (None, Some(quantity)) => {
            let statistic = if row.label == "avg" { "mean" } else { row.label.as_str() };
            format!("{statistic}_{quantity}_ms")
        }
        _ => return Ok(()),
    };
    if row.text.contains('…') {
        return Err(format!("`{}` is cut off, because the terminal was too narrow", row.text));
    }
    figures.read(&name, 1.0, &row.text.replace(',', ""))
}

/// Returns the model of the command that AIPerf prints after its table; `None` without a command.
fn model(lines: &[&str]) -> Option<String> {
    let begin = lines.iter().position(|line| line.starts_with(COMMAND))?;
    let command = &lines[begin..];
    // A long command goes on in the next lines.
    let end = command.iter().position(|line| line.starts_with(DURATION) || line.is_empty());
    let words = command[..end.unwrap_or(command.len())].iter();
    let words: Vec<&str> = words.flat_map(|line| line.split_whitespace()).collect();
    let name = value_of(&words, &["--model", "--model-names", "-m"])?;
    Some(public(name.trim_matches('\'')))
}
