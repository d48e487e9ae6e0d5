//! Reader of console blocks titled `============ Serving Benchmark Result ============`, in a log,
//! in a fenced part of a page, or with lost line ends.

use super::figures::{Figures, name_of_label};
use super::served::{served, variant};
use super::tool::Tool;
use super::workload::workload_before;
use super::{Found, Unread, line_at, notes, printed};
use schema::run::Printed;

const TITLE: &str = " Serving Benchmark Result ";
/// Row of `=` that closes a `Serving Benchmark Result` block; a longer row also closes it.
const RULE: &str = "==========";

/// A `Serving Benchmark Result` block: its body without title and closing line, and its byte range
/// in the text, from the body's start to the end of the closing line.
struct Block<'a> {
    body: &'a str,
    start: usize,
    end: usize,
}

/// Reads every `Serving Benchmark Result` block of `text`; a block that cannot be read gives an
/// error with its line.
pub fn read(text: &str) -> Vec<Result<Found, Unread>> {
    let mut results: Vec<Result<Found, Unread>> = Vec::new();
    let mut bodies = Vec::new();
    let mut read_to = 0;
    // The words of the title also occur in prose; only a title follows a row of `=`.
    for (title, _) in text.match_indices(TITLE).filter(|(at, _)| text[..*at].ends_with('=')) {
        // Words of the title within a block belong to that block.
        if title < read_to {
            continue;
        }
        let Some(block) = block_at(text, title) else {
            let why = "a `Serving Benchmark Result` without its closing line".to_owned();
            results.push(Err(Unread { line: line_at(text, title), why }));
            continue;
        };
        // Text before lost bytes may belong to another result.
        let lost = text[..block.start].rfind('\0').map_or(0, |at| at + 1);
        let (before, between) = (&text[lost..block.start], &text[read_to.max(lost)..block.start]);
        results.push(found(text, &block, before, between));
        bodies.push(block.start..block.end);
        read_to = block.end;
    }
    // Prose cannot be told from a log beside a damaged result.
    if results.iter().all(Result::is_ok) {
        for (found, notes) in results.iter_mut().flatten().zip(notes::notes(text, &bodies)) {
            found.printed.notes = notes;
        }
    }
    results
}

fn block_at(text: &str, title: usize) -> Option<Block<'_>> {
    let start = title + TITLE.len();
    let start = start + text[start..].bytes().take_while(|byte| *byte == b'=').count();
    let end = start + text[start..].find(RULE)?;
    let close = end + text[end..].bytes().take_while(|byte| *byte == b'=').count();
    // A row of `=` that opens the next block does not close this one.
    let closes = !text[close..].starts_with(TITLE);
    closes.then(|| Block { body: &text[start..end], start, end: close })
}

fn found(text: &str, block: &Block<'_>, before: &str, between: &str) -> Result<Found, Unread> {
    // Text before and after such a hole may belong to two results.
    if let Some(at) = block.body.find('\0') {
        let why = "zero bytes in a result: part of the file is lost".to_owned();
        return Err(Unread { line: line_at(text, block.start + at), why });
    }
    let rows = printed::block(block.body);
    let mut figures = Figures::default();
    for printed::BlockRow { row, at } in &rows {
        // Tools print more than records have fields for, so an unknown label is no error.
        let Some((name, scale)) = name_of_label(&row.label) else { continue };
        let value = row.text.split_whitespace().next().unwrap_or_default();
        figures.read(&name, scale, value).map_err(|why| Unread {
            line: line_at(text, block.start + at),
            why: format!("`{}`: {why}", row.label),
        })?;
    }
    let lines = (line_at(text, block.start), line_at(text, block.end));
    figures.complete().map_err(|why| Unread { line: lines.0, why })?;
    let rows: Vec<_> = rows.into_iter().map(|row| row.row).collect();
    let backend = rows.iter().find(|row| row.label == "Backend").map(|row| row.text.clone());
    let asked = workload_before(before, between);
    Ok(Found {
        tool: Tool::of_labels(rows.iter().map(|row| row.label.as_str())),
        backend,
        figures,
        served: served(text, before, between, asked.model.as_deref()),
        printed: Printed {
            headings: printed::headings(before),
            variant: variant(between),
            profile: asked.profile.clone(),
            settings: asked.settings.clone(),
            log: printed::log(between),
            rows,
            // Read when all results of the text are known.
            notes: Vec::new(),
        },
        asked,
        lines,
    })
}
