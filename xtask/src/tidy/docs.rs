//! The documents: the landing page's length, paths and links that exist, tests that are called so,
//! an index that is complete.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::{File, Finding};

/// The landing page fits two screens.
const README_LINES_MAX: usize = 80;

/// Markdown that does not speak of today's tree: rendered from records, true of a release, or what
/// a test expects.
const NO_DOCUMENTS: &[&str] = &["CHANGELOG.md", "results", "site/cases", "templates"];

/// Documents whose claims name the tests that hold them, in the same line as a file of tests.
const CLAIMS: &[&str] = &["docs/METHOD.md", "docs/SECURITY.md"];

pub fn check(files: &[File]) -> Vec<Finding> {
    let tree = tree(files);
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| is_document(file)) {
        let Some(text) = &file.text else { continue };
        findings.extend(dead_paths(file, text, &tree));
        if file.path == Path::new("README.md") && text.lines().count() > README_LINES_MAX {
            findings
                .push(file.finding(README_LINES_MAX + 1, "the landing page has 80 lines at most"));
        }
        if file.path == Path::new("docs/README.md") {
            findings.extend(missing_in_index(file, text, files));
        }
        if CLAIMS.iter().any(|claims| file.path == Path::new(claims)) {
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

fn is_document(file: &File) -> bool {
    file.path.extension().is_some_and(|e| e == "md") && !NO_DOCUMENTS.iter().any(|n| file.under(n))
}

/// Every file and folder.
fn tree(files: &[File]) -> BTreeSet<&Path> {
    files.iter().flat_map(|file| file.path.ancestors()).collect()
}

/// Links, and back-ticked words that look like paths of the tree, that lead nowhere. A path begins
/// at the root or beside its document.
fn dead_paths(file: &File, text: &str, tree: &BTreeSet<&Path>) -> Vec<Finding> {
    let folder = file.path.parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let links = links(line).filter(|link| !tree.contains(&*normal(&folder.join(link))));
        let words = back_ticked(line).filter(|word| is_dead(word, folder, tree));
        findings.extend(
            links
                .chain(words)
                .map(|path| file.finding(index + 1, format!("`{path}` does not exist"))),
        );
    }
    findings
}

/// Whether a word begins as a path of the tree does, and is none; or names a file of code that
/// nobody has.
fn is_dead(word: &str, folder: &Path, tree: &BTreeSet<&Path>) -> bool {
    let path = Path::new(word.trim_end_matches('/'));
    let plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    let mut parts = path.components();
    let (Some(top), Some(_)) = (parts.next(), parts.next()) else {
        let is_code = plain && word.len() > 3 && path.extension().is_some_and(|e| e == "rs");
        return is_code && !tree.iter().any(|file| file.ends_with(path));
    };
    let bases = [Path::new(""), folder];
    let begins = bases.iter().any(|base| tree.contains(&*base.join(top)));
    // What lies under `results/` is added by campaigns, to a registry that may still be empty.
    let may_be_absent = path.starts_with("results");
    plain && begins && !may_be_absent && !bases.iter().any(|base| tree.contains(&*base.join(path)))
}

/// What a line links to in the tree.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let paths = targets.filter_map(|target| target.split('#').next());
    paths.filter(|path| !path.is_empty() && !path.contains("://"))
}

/// The same place without steps up.
pub fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
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
    fn paths_may_begin_beside_their_document_and_links_have_to() {
        let page = "`src/a.rs` `a.rs` `engine/src/a.rs` `/health` `target/x` [d](../docs/D.md#x)\n\
                    `src/b.rs` `b.rs` [d](docs/D.md) [out](https://example.org/x)\n";
        let files = [
            file("engine/README.md", page),
            file("engine/src/a.rs", ""),
            file("docs/D.md", ""),
            file("results/pages/old.md", "`engine/src/b.rs`"),
        ];
        assert_eq!(
            messages(&check(&files)),
            [
                "engine/README.md:2: `docs/D.md` does not exist",
                "engine/README.md:2: `src/b.rs` does not exist",
                "engine/README.md:2: `b.rs` does not exist"
            ]
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
