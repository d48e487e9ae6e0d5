//! Comparison of releases as text for a terminal, and as Markdown for a pull request: notable rows
//! first, the rest folded. Display only.

use std::fmt::Write as _;

use schema::comparison::{CellDiff, Diff, Row};
use schema::shell;
use schema::untrusted::{code_span, one_line};
use schema::verdict::{Cell, VerdictKind};

use super::words::{
    broad, cells, commits, heads, missing, rows, title, title_of_part, together, word,
};
use super::{caveats, grouped};
use crate::table::{columns, wrapped};

/// First line of the pull-request comment, by which a program finds the comment that it must
/// replace.
pub const MARKER: &str = "<!-- redline diff -->";

/// Formats a comparison of releases as text for a terminal of 100 columns: the decision, what a
/// reader must know about it, the release-blocking metrics, large changes of other metrics, what
/// could not be compared, and the note on the method.
pub fn text(diff: &Diff) -> String {
    let mut lines = vec![diff.decision.sentence.clone()];
    lines.push(format!("{} -> {}", diff.baseline, diff.candidate));
    lines.extend(caveats::caveats(diff));
    lines.extend(diff.waivers.iter().map(caveats::waiver));
    if let Some((head, list)) = diff.commits.as_ref().map(commits) {
        lines.push(head);
        lines.extend(list.into_iter().map(|(id, subject)| format!("  {id} {subject}")));
    }
    lines.extend(broad(diff).into_iter().map(|line| line + "."));
    let mut text = paragraphs(&lines);
    for cells in models(diff) {
        model_text(&mut text, diff, &cells);
    }
    let mut rest = missing(diff);
    rest.push(diff.note.clone());
    text + "\n" + &paragraphs(&rest)
}

/// Wraps each line; lines after the first of a paragraph are indented.
fn paragraphs(lines: &[String]) -> String {
    lines.iter().map(|line| wrapped(line, 2) + "\n").collect()
}

/// Returns the cells of a comparison by engine, hardware, model and configuration.
fn models(diff: &Diff) -> Vec<Vec<&CellDiff>> {
    let key = |cell: &CellDiff| Cell { scenario: String::new(), ..cell.cell.clone() };
    let mut found: Vec<Vec<&CellDiff>> = Vec::new();
    for cell in &diff.cells {
        match found.iter_mut().find(|cells| key(cells[0]) == key(cell)) {
            Some(cells) => cells.push(cell),
            None => found.push(vec![cell]),
        }
    }
    found
}

/// Appends the part about one model in one configuration: its remarks, its release-blocking metrics
/// by scenario, and the large changes of others.
fn model_text(text: &mut String, diff: &Diff, cells: &[&CellDiff]) {
    let Cell { engine, hardware, model, config, .. } = &cells[0].cell;
    let _ =
        writeln!(text, "\n{}", wrapped(&format!("{engine} on {hardware}: {model}, {config}"), 2));
    for remark in grouped::remarks(cells) {
        let scenarios = grouped::scenarios(&remark.scenarios, cells.len());
        let _ = writeln!(text, "{}", wrapped(&format!("- {scenarios}: {}", remark.text), 2));
    }
    let mut lines = vec![heads(diff).to_vec()];
    let of_cells = cells.iter().map(|cell| cell.rows.iter().filter(|row| row.gates).collect());
    let pooled: Vec<&Row> = diff.pooled_of(&cells[0].cell).collect();
    for blocking in together(&pooled).into_iter().chain(of_cells) {
        if let Some(first) = blocking.first() {
            lines.push(vec![first.verdict.scenario()]);
            lines.extend(blocking.into_iter().map(|row| self::cells(row).to_vec()));
        }
    }
    let _ = writeln!(text, "\nRelease-blocking metrics\n{}", table_text(&lines));
    let large = grouped::large(cells);
    if !large.is_empty() {
        let _ = writeln!(text, "\nLarge changes of other metrics");
        for change in &large {
            let _ = writeln!(text, "{}", wrapped(&caveats::large(change, cells.len()), 2));
        }
    }
}

/// Formats lines as a table in columns; a line with a single text, the name of a scenario, spans
/// all of them.
fn table_text(lines: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = lines.iter().filter(|line| line.len() > 1).cloned().collect();
    let table = columns(&rows);
    let mut rows = table.lines();
    let line = |line: &Vec<String>| match line.as_slice() {
        [name] => one_line(name),
        _ => format!("  {}", rows.next().unwrap_or_default()),
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats a comparison of releases as a Markdown comment for a pull request.
pub fn markdown(diff: &Diff) -> String {
    // Writing to a string cannot fail.
    let mut text =
        format!("{MARKER}\n## {} -> {}\n\n", name(&diff.baseline), name(&diff.candidate));
    let _ = writeln!(text, "**{}**\n", name(&diff.decision.sentence));
    for line in caveats::caveats(diff) {
        let _ = writeln!(text, "- {}", name(&line));
    }
    let _ = writeln!(text);
    for waiver in &diff.waivers {
        let _ = writeln!(text, "> {}\n", name(&caveats::waiver(waiver)));
    }
    notable(&mut text, diff);
    for cells in models(diff) {
        let large = grouped::large(&cells);
        if !large.is_empty() {
            let of = format!("{}, {}", cells[0].cell.model, cells[0].cell.config);
            let _ = writeln!(text, "Large changes of other metrics ({}):\n", name(&of));
            for change in &large {
                let _ = writeln!(text, "- {}", name(&caveats::large(change, cells.len())));
            }
            let _ = writeln!(text);
        }
    }
    for line in broad(diff) {
        let _ = writeln!(text, "{}.\n", name(&line));
    }
    if let Some((head, lines)) = diff.commits.as_ref().map(commits) {
        let _ = writeln!(text, "<details><summary>{}</summary>\n", name(&head));
        for (id, subject) in lines {
            let _ = writeln!(text, "- {} {}", code(&id), code(&subject));
        }
        let _ = writeln!(text, "\n</details>\n");
    }
    for rows in together(&diff.pooled.iter().collect::<Vec<_>>()) {
        let title = name(&title_of_part(rows[0]));
        let _ = writeln!(text, "<details><summary>{title}</summary>\n");
        whole_table(&mut text, diff, rows);
        let _ = writeln!(text, "</details>\n");
    }
    for cell in &diff.cells {
        whole(&mut text, diff, cell);
    }
    for line in missing(diff) {
        let _ = writeln!(text, "{}\n", name(&line));
    }
    let _ = writeln!(text, "{}", name(&diff.note));
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
    for row in diff.rows().filter(is_notable) {
        let [metric, before, after, effect, interval, _] = &cells(row);
        let of = format!("{} {}", row.verdict.cell.model, row.verdict.scenario());
        let words = [&of, metric, before, after, effect, interval, &word(row)];
        lines.push(words.map(|word| name(word)).to_vec());
    }
    if !lines.is_empty() {
        let head = ["scenario", "metric", &diff.baseline, &diff.candidate];
        let rest = ["change", "95 % interval", "verdict"];
        let heads: Vec<String> = head.iter().chain(&rest).map(|head| name(head)).collect();
        table(text, &heads, &lines);
    }
}

/// Appends to `text` a collapsible section with all sentences and rows of a cell.
fn whole(text: &mut String, diff: &Diff, cell: &CellDiff) {
    let _ = writeln!(text, "<details><summary>{}</summary>\n", name(&title(&cell.cell)));
    for remark in grouped::remarks(&[cell]) {
        let _ = writeln!(text, "- {}", name(&remark.text));
    }
    let _ = writeln!(text);
    whole_table(text, diff, rows(cell));
    let _ = writeln!(text, "Measure again: {}\n\n</details>\n", code(&shell::line(&cell.command)));
}

/// Appends to `text` a table of `rows`.
fn whole_table<'a>(text: &mut String, diff: &Diff, rows: impl IntoIterator<Item = &'a Row>) {
    let heads: Vec<String> = heads(diff).iter().map(|head| name(head)).collect();
    let line = |row: &Row| cells(row).iter().map(|cell| name(cell)).collect();
    table(text, &heads, &rows.into_iter().map(line).collect::<Vec<Vec<String>>>());
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

/// Escapes hidden characters and the characters `<`, `&`, `|`, `*`, `[`, `]` and `\` in text of a
/// record, so that it adds no HTML, table columns, emphasis by `*` or links to Markdown.
fn name(text: &str) -> String {
    let mut safe = String::new();
    for character in one_line(text).chars() {
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

/// Formats text as a Markdown code span, with hidden characters escaped.
fn code(text: &str) -> String {
    code_span(&one_line(text))
}
