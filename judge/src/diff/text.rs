//! Prints a comparison of releases as text for a terminal. Display only.

use std::fmt::Write as _;

use schema::comparison::Diff;

use super::words::{broad, cells, commits, counts, facts, heads, missing, rows, title};
use crate::table::columns;
use crate::table::plain;

/// Formats a comparison of releases as text: sentences, then one table in columns for each cell.
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
