//! Tidy rules for a source file: first line, length, file name, unfinished code.

use super::{File, Finding};

/// Longest source file, in lines. A longer file needs a line with its reason in docs/STYLE.md.
const LINES_MAX: usize = 600;

/// File names that say nothing about the contents.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helpers", "misc", "manager", "base"];

/// Words that mark unfinished code.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "FIXME", "XXX", "#[ignore"];

pub fn check(files: &[File]) -> Vec<Finding> {
    let excused = files
        .iter()
        .find(|file| file.path.ends_with("docs/STYLE.md"))
        .and_then(|file| file.text.clone())
        .unwrap_or_default();
    files.iter().filter(|file| file.is_rust()).flat_map(|file| check_file(file, &excused)).collect()
}

fn check_file(file: &File, excused: &str) -> Vec<Finding> {
    let Some(text) = &file.text else { return vec![file.finding(0, "make it UTF-8")] };
    let mut findings = Vec::new();
    if !text.starts_with("//! ") {
        findings.push(file.finding(1, "begin with a `//!` line that says what this file is"));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX && !excused.contains(&file.path.display().to_string()) {
        let message = format!("{lines} lines: split it, or give the reason in docs/STYLE.md");
        findings.push(file.finding(0, message));
    }
    let stem = file.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if EMPTY_NAMES.contains(&stem) {
        findings
            .push(file.finding(0, format!("`{stem}` says nothing: name it after what it holds")));
    }
    // Tidy's own sources contain these words as text.
    if !file.under("xtask/src/tidy") {
        for (index, line) in text.lines().enumerate() {
            if let Some(word) = UNFINISHED.iter().find(|word| line.contains(**word)) {
                findings.push(file.finding(index + 1, format!("`{word}` here: finish it")));
            }
        }
    }
    findings
}

/// Lines of `text` that contain code, with their numbers and without comments. A `//` within a
/// string counts as a comment, too.
pub fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let code = line.split("//").next().unwrap_or_default();
        (!code.trim().is_empty()).then_some((index + 1, code))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn a_file_says_what_it_is_and_keeps_its_length() {
        let long = format!("//! x\n{}", "\n".repeat(LINES_MAX));
        let found = messages(&check(&[
            file("a/src/x.rs", "fn main() {}\n"),
            file("a/src/long.rs", &long),
            file("a/src/util.rs", "//! x\n"),
        ]));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("a/src/x.rs:1: begin with"));
        assert!(found[1].starts_with("a/src/long.rs:1: 601 lines"));
        assert!(found[2].starts_with("a/src/util.rs:1: `util` says nothing"));
    }

    #[test]
    fn a_reason_in_the_style_guide_excuses_a_long_file() {
        let long = format!("//! x\n{}", "\n".repeat(LINES_MAX));
        let files = [
            file("a/src/long.rs", &long),
            file("docs/STYLE.md", "- `a/src/long.rs`: one flat table.\n"),
        ];
        assert!(check(&files).is_empty());
    }
}
