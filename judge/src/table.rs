//! Tables in columns, wrapped text and long numbers for people.

use std::fmt::Write as _;

use schema::untrusted::one_line;

/// Number of columns of a terminal that text for people fits.
pub const COLUMNS: usize = 100;

/// Inserts a comma between each three digits before the decimal point.
pub fn grouped(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, tail) = rest.split_at(end);
    let mut out = String::with_capacity(text.len() + digits.len() / 3);
    out.push_str(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out.push_str(tail);
    out
}

/// Wraps `text` at spaces to lines of at most [`COLUMNS`] characters; lines after the first are
/// indented by `indent` spaces. Hidden characters are escaped. A word that is longer than a line
/// keeps a line of its own.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut used = 0;
    for word in one_line(text).split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > COLUMNS {
            let _ = write!(lines, "\n{:indent$}", "");
            used = indent;
        } else if !lines.is_empty() {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += length;
    }
    lines
}

/// Formats lines, each a list of texts, as columns that are aligned on the left; hidden characters
/// are escaped.
pub fn columns(lines: &[Vec<String>]) -> String {
    let widest = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| one_line(cell).chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..widest).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(row, "{:width$}  ", one_line(cell));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_spaces_and_keeps_its_words() {
        let text = "word ".repeat(60) + &"x".repeat(120) + " end";
        let wrapped = wrapped(&text, 2);
        let long: Vec<&str> =
            wrapped.lines().filter(|line| line.chars().count() > COLUMNS).collect();
        assert_eq!(long, [format!("  {}", "x".repeat(120))], "only a word that does not fit");
        assert_eq!(wrapped.split_whitespace().count(), 62);
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with("  ")), "{wrapped}");
        assert_eq!(super::wrapped("short", 2), "short");
    }
}
