//! Tables in columns for a terminal, and text with control characters made visible.

use std::fmt::Write as _;

/// Returns `text` with control characters escaped, so that quoted file content cannot control the
/// terminal.
pub fn plain(text: &str) -> String {
    let visible =
        |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(visible).collect()
}

/// Formats lines, each a list of texts, as columns that are aligned on the left; control characters
/// are escaped.
pub fn columns(lines: &[Vec<String>]) -> String {
    let widest = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| plain(cell).chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..widest).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(row, "{:width$}  ", plain(cell));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text.trim_end().to_owned()
}
