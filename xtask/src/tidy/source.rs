//! Tidy rules for files: the first line, length, name and unfinished code of a source file, the first
//! key of a scenario, and the size of every file and of the tree.

use super::{File, Finding};

/// Limit on the number of lines of a source file. A longer file needs a line with its reason in
/// docs/STYLE.md.
const LINES_MAX: usize = 600;

/// Names that source files must not have, because they say nothing about the contents.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helpers", "misc", "manager", "base"];

/// Words that source files must not contain, because they mark unfinished code.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "FIXME", "XXX", "#[ignore"];

/// Limit on the size, in bytes, of a file that is neither below `results` nor below
/// `tests/fixtures`.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// Limit on the size, in bytes, of a file below `results` or `tests/fixtures`. The record of a
/// campaign has an entry for every slice of a comparison in turns: 1.3 MB for seven scenarios of five
/// minutes on two fast cores.
const DATA_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Limit on the size of all files of the tree together, in bytes, so that it stays quick to clone.
const TREE_BYTES_MAX: u64 = 64 * 1024 * 1024;

pub fn check(files: &[File]) -> Vec<Finding> {
    let excused = files
        .iter()
        .find(|file| file.path.ends_with("docs/STYLE.md"))
        .and_then(|file| file.text.clone())
        .unwrap_or_default();
    let sources = files.iter().filter(|file| file.is_rust());
    let mut findings: Vec<Finding> =
        sources.flat_map(|file| check_source(file, &excused)).collect();
    findings.extend(files.iter().flat_map(check_file));
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    if total > TREE_BYTES_MAX {
        let message = format!("the tree holds {total} bytes, more than {TREE_BYTES_MAX}");
        findings.push(Finding { path: ".".into(), line: 0, message });
    }
    findings
}

fn check_file(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_data = ["results", "tests/fixtures"].iter().any(|folder| file.under(folder));
    let bytes_max = if is_data { DATA_BYTES_MAX } else { FILE_BYTES_MAX };
    if file.bytes > bytes_max {
        let message = format!("{} bytes, more than {bytes_max}: keep it elsewhere", file.bytes);
        findings.push(file.finding(0, message));
    }
    let is_scenario = file.under("suite/scenarios");
    let first = file.text.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
    if is_scenario && !first.starts_with("question = ") {
        findings.push(file.finding(1, "a scenario's first key is the `question` it answers"));
    }
    findings
}

fn check_source(file: &File, excused: &str) -> Vec<Finding> {
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

/// Returns the lines of `text` that contain code, with their numbers from 1 and without comments. A
/// `//` within a string counts as a comment, too.
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

    #[test]
    fn a_scenario_begins_with_its_question() {
        let found = messages(&check(&[
            file("suite/scenarios/a.toml", "rev = 1\n"),
            file("suite/scenarios/b.toml", "question = \"How fast?\"\n"),
        ]));
        assert_eq!(
            found,
            ["suite/scenarios/a.toml:1: a scenario's first key is the `question` it answers"]
        );
    }

    #[test]
    fn a_large_file_is_named() {
        let of = |path, bytes| File { bytes, ..file(path, "") };
        assert_eq!(check(&[of("docs/picture.svg", FILE_BYTES_MAX + 1)]).len(), 1);
        assert_eq!(check(&[of("results/kernels/x.json", FILE_BYTES_MAX + 1)]).len(), 0);
        assert_eq!(check(&[of("results/kernels/x.json", DATA_BYTES_MAX + 1)]).len(), 1);
    }
}
