//! Comparison of releases as text for a terminal, and as Markdown for a pull request: notable rows
//! first, the rest folded. Display only.

use std::fmt::Write as _;

use schema::comparison::{CellDiff, Diff, Row};
use schema::verdict::VerdictKind;

use super::words::{broad, cells, commits, counts, facts, heads, missing, rows, title, word};
use crate::table::{columns, plain};

/// First line of the pull-request comment, by which a program finds the comment that it must
/// replace.
pub const MARKER: &str = "<!-- redline diff -->";

/// Formats a comparison of releases as text: sentences, one table in columns for each cell, what
/// could not be compared, and the note on the method.
pub fn text(diff: &Diff) -> String {
    // Writing to a string cannot fail.
    let mut text = format!("{} -> {}: ", plain(&diff.baseline), plain(&diff.candidate));
    let _ = writeln!(text, "{}", counts(diff));
    if let Some((head, lines)) = diff.commits.as_ref().map(commits) {
        let _ = writeln!(text, "{}", plain(&head));
        for (id, subject) in lines {
            let _ = writeln!(text, "  {} {}", plain(&id), plain(&subject));
        }
    }
    for line in broad(diff) {
        let _ = writeln!(text, "{}", plain(&line));
    }
    for cell in &diff.cells {
        let _ = writeln!(text, "\n{}", plain(&title(&cell.cell)));
        for line in facts(cell) {
            let _ = writeln!(text, "  {}", plain(&line));
        }
        let mut lines = vec![heads(diff).to_vec()];
        lines.extend(rows(cell).into_iter().map(|row| cells(row).to_vec()));
        for line in columns(&lines).lines() {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(text, "  again: {}", plain(&cell.command.join(" ")));
    }
    for line in missing(diff) {
        let _ = writeln!(text, "\n{}", plain(&line));
    }
    let _ = writeln!(text, "\n{}", diff.note);
    text
}

/// Formats a comparison of releases as a Markdown comment for a pull request.
pub fn markdown(diff: &Diff) -> String {
    // Writing to a string cannot fail.
    let mut text =
        format!("{MARKER}\n## {} -> {}\n\n", name(&diff.baseline), name(&diff.candidate));
    let _ = writeln!(text, "{}\n", counts(diff));
    notable(&mut text, diff);
    for line in broad(diff) {
        let _ = writeln!(text, "{}\n", name(&line));
    }
    if let Some((head, lines)) = diff.commits.as_ref().map(commits) {
        let _ = writeln!(text, "<details><summary>{}</summary>\n", name(&head));
        for (id, subject) in lines {
            let _ = writeln!(text, "- {} {}", code(&id), code(&subject));
        }
        let _ = writeln!(text, "\n</details>\n");
    }
    for cell in &diff.cells {
        whole(&mut text, diff, cell);
    }
    for line in missing(diff) {
        let _ = writeln!(text, "{}\n", name(&line));
    }
    let _ = writeln!(text, "{}", diff.note);
    text
}

/// Appends to `text` a table of the release-blocking metrics that the screen suspected or whose
/// verdict is neither unchanged nor inconclusive; appends nothing where there are none.
fn notable(text: &mut String, diff: &Diff) {
    let is_notable = |row: &&Row| {
        let plain = [VerdictKind::Unchanged, VerdictKind::Inconclusive];
        row.gates && (row.verdict.suspected || !plain.contains(&row.verdict.verdict))
    };
    let mut lines = Vec::new();
    for cell in &diff.cells {
        for row in cell.rows.iter().filter(is_notable) {
            let [metric, before, after, effect, interval, ..] = &cells(row);
            let of = format!("{} {}", cell.cell.model, cell.cell.scenario);
            let words = [&of, metric, before, after, effect, interval, &word(row)];
            lines.push(words.map(|word| name(word)).to_vec());
        }
    }
    if !lines.is_empty() {
        let head = ["cell", "metric", &diff.baseline, &diff.candidate];
        let rest = ["effect", "95 % interval", "verdict"];
        let heads: Vec<String> = head.iter().chain(&rest).map(|head| name(head)).collect();
        table(text, &heads, &lines);
    }
}

/// Appends to `text` a collapsible section with all sentences and rows of a cell.
fn whole(text: &mut String, diff: &Diff, cell: &CellDiff) {
    let _ = writeln!(text, "<details><summary>{}</summary>\n", name(&title(&cell.cell)));
    for line in facts(cell) {
        let _ = writeln!(text, "- {}", name(&line));
    }
    let _ = writeln!(text);
    let heads: Vec<String> = heads(diff).iter().map(|head| name(head)).collect();
    let lines: Vec<Vec<String>> = rows(cell)
        .into_iter()
        .map(|row| cells(row).iter().map(|cell| name(cell)).collect())
        .collect();
    table(text, &heads, &lines);
    let _ = writeln!(text, "Again: {}\n\n</details>\n", code(&cell.command.join(" ")));
}

/// Appends to `text` a Markdown table whose first and last columns are left-aligned text and whose
/// other columns are right-aligned numbers.
fn table(text: &mut String, heads: &[String], lines: &[Vec<String>]) {
    let last = heads.len() - 1;
    let rule = (0..heads.len()).map(|at| if at == 0 || at == last { "---" } else { "---:" });
    let _ = writeln!(text, "| {} |", heads.join(" | "));
    let _ = writeln!(text, "| {} |", rule.collect::<Vec<_>>().join(" | "));
    for line in lines {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    let _ = writeln!(text);
}

/// Escapes control characters and the characters `<`, `&`, `|`, `*`, `[`, `]` and `\` in text of a
/// record, so that it adds no HTML, table columns, emphasis by `*` or links to Markdown.
fn name(text: &str) -> String {
    let mut safe = String::new();
    for character in plain(text).chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '&' => safe.push_str("&amp;"),
            '|' | '*' | '[' | ']' | '\\' => {
                safe.push('\\');
                safe.push(character);
            }
            _ => safe.push(character),
        }
    }
    safe
}

/// Formats text as a Markdown code span, with control characters escaped and back-ticks replaced by
/// apostrophes.
fn code(text: &str) -> String {
    format!("`{}`", plain(text).replace('`', "'"))
}
