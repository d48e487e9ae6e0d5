//! The table as comma-separated values (RFC 4180). Knows cells, not records.

use super::{Cell, columns, rows};
use crate::store::Registry;

/// Every run as a line, metrics in their stored units. A value that is missing is empty.
#[must_use]
pub fn csv(registry: &Registry) -> String {
    let names: Vec<&str> = columns().into_iter().map(|(name, _)| name).collect();
    let mut out = names.join(",");
    out.push('\n');
    for row in rows(registry) {
        let cells: Vec<String> = row.into_iter().map(written).collect();
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}

fn written(cell: Cell) -> String {
    match cell {
        Cell::Missing => String::new(),
        Cell::Text(text) => quoted(&text),
        Cell::Flag(flag) => flag.to_string(),
        Cell::Integer(integer) => integer.to_string(),
        Cell::Number(number) => number.to_string(),
    }
}

/// A text cell. A spreadsheet takes a leading `=`, `+`, `-` or `@` for a formula, so such a text
/// is led by an apostrophe.
#[must_use]
pub fn quoted(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().map(plain).collect();
    let lead = if text.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    if lead.is_empty() && !text.contains([',', '"']) {
        return text;
    }
    format!("\"{lead}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::two_runs;

    #[test]
    fn a_cell_is_neither_a_formula_nor_two_cells() {
        assert_eq!(quoted("=1+1"), "\"'=1+1\"");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain\nname"), "plain name");
    }

    #[test]
    fn every_line_has_the_cells_of_the_head() {
        let text = csv(&two_runs());
        let lines: Vec<&str> = text.lines().collect();
        let cells = lines[0].split(',').count();
        assert_eq!(cells, columns().len());
        assert!(lines.iter().all(|line| line.split(',').count() == cells), "{text}");
        assert!(lines[0].contains(",ttft_us_p50,"), "{}", lines[0]);
        assert!(lines[2].contains(",failed,"), "{}", lines[2]);
    }
}
