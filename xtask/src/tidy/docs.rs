//! The documents: the landing page's length, paths that exist, an index that is complete.

use std::collections::BTreeSet;
use std::path::Path;

use super::{File, Finding};

/// The landing page fits two screens.
const README_LINES_MAX: usize = 80;

/// Documents whose paths in back-ticks must exist.
const MAPS: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/STYLE.md"];

/// Documents whose claims name the tests that hold them, in the same line as a file of tests.
const CLAIMS: &[&str] = &["docs/METHOD.md", "docs/SECURITY.md"];

pub fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let Some(text) = &file.text else { continue };
        if file.path == Path::new("README.md") && text.lines().count() > README_LINES_MAX {
            findings
                .push(file.finding(README_LINES_MAX + 1, "the landing page has 80 lines at most"));
        }
        if file.path == Path::new("docs/README.md") {
            findings.extend(missing_in_index(file, text, files));
        }
        if MAPS.iter().any(|map| file.path == Path::new(map)) {
            findings.extend(dead_paths(file, text, files));
        }
        if CLAIMS.iter().any(|claims| file.path == Path::new(claims)) {
            findings.extend(dead_paths(file, text, files));
            findings.extend(dead_tests(file, text, files));
        }
    }
    findings
}

fn missing_in_index(index: &File, text: &str, files: &[File]) -> Vec<Finding> {
    let pages = files.iter().filter(|file| {
        file.under("docs")
            && file.path != index.path
            && file.path.extension().is_some_and(|e| e == "md")
    });
    pages
        .filter_map(|page| page.path.strip_prefix("docs").ok())
        .filter(|page| !text.contains(&format!("({})", page.display())))
        .map(|page| index.finding(0, format!("list `{}` here", page.display())))
        .collect()
}

/// Back-ticked words that look like paths of the tree and are none.
fn dead_paths(file: &File, text: &str, files: &[File]) -> Vec<Finding> {
    let tops: BTreeSet<_> = files
        .iter()
        .filter_map(|file| file.path.components().next())
        .map(|top| top.as_os_str().to_owned())
        .collect();
    // What lies under `results/` is added by campaigns, to a registry that may still be empty.
    let exists = |path: &str| {
        path.starts_with("results/") || files.iter().any(|file| file.path.starts_with(path))
    };
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in back_ticked(line) {
            let path = word.trim_end_matches('/');
            let plain = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
            let top = path.split('/').next().unwrap_or_default();
            let looks_like_path =
                plain && path.contains('/') && tops.contains(Path::new(top).as_os_str());
            if looks_like_path && !exists(path) {
                findings.push(file.finding(index + 1, format!("`{word}` does not exist")));
            }
        }
    }
    findings
}

/// The words of a line that stand in back-ticks.
fn back_ticked(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Tests that a line names and no file has.
fn dead_tests(file: &File, text: &str, files: &[File]) -> Vec<Finding> {
    let is_name = |word: &str| {
        let plain = word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        plain && word.contains('_')
    };
    let rust: Vec<&str> =
        files.iter().filter(|f| f.is_rust()).filter_map(|f| f.text.as_deref()).collect();
    let exists = |name: &str| {
        let definition = format!("fn {name}(");
        rust.iter().any(|text| text.contains(&definition))
    };
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('|') && line.contains(".rs`: `") {
            let dead = back_ticked(line).filter(|word| is_name(word) && !exists(word));
            findings.extend(
                dead.map(|word| file.finding(index + 1, format!("no test is called `{word}`"))),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn a_path_that_is_gone_is_named() {
        let files = [
            file("ARCHITECTURE.md", "See `engine/src/lib.rs` and `engine/src/gone.rs`.\n"),
            file("engine/src/lib.rs", "//! x\n"),
        ];
        assert_eq!(
            messages(&check(&files)),
            ["ARCHITECTURE.md:1: `engine/src/gone.rs` does not exist"]
        );
    }

    #[test]
    fn a_test_that_is_gone_is_named() {
        let page = "| a_word `of_some_kind` |\n\n| x | `a/x.rs`: `is_there`, `is_gone` |\n";
        let files = [file("docs/METHOD.md", page), file("a/x.rs", "fn is_there() {}\n")];
        assert_eq!(messages(&check(&files)), ["docs/METHOD.md:3: no test is called `is_gone`"]);
    }

    #[test]
    fn the_index_lists_every_page() {
        let files =
            [file("docs/README.md", "[a](A.md)\n"), file("docs/A.md", ""), file("docs/B.md", "")];
        assert_eq!(messages(&check(&files)), ["docs/README.md:1: list `B.md` here"]);
    }

    #[test]
    fn the_landing_page_is_short() {
        let files = [file("README.md", &"line\n".repeat(81))];
        assert_eq!(messages(&check(&files)).len(), 1);
    }
}
