//! Tidy rules for documents: length of the landing page, links, headings and paths that exist, tests
//! that exist, an index that lists every page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::{File, Finding};

/// Limit on the number of lines of the README.md in the root: two screens.
const README_LINES_MAX: usize = 80;

/// Markdown files and folders that do not describe today's tree, and are not checked: pages
/// rendered from records, the notes of past releases, expected outputs of tests, and templates.
const NO_DOCUMENTS: &[&str] = &["CHANGELOG.md", "results", "site/cases", "templates"];

/// Notes of past releases, whose links to headings are checked where the document still exists.
const CHANGELOG: &str = "CHANGELOG.md";

/// Documents with tables of claims; each claim names its test and the test's file.
const CLAIMS: &[&str] = &["docs/method/client.md", "docs/SECURITY.md"];

pub fn check(files: &[File]) -> Vec<Finding> {
    // All files and folders of the tree.
    let tree: BTreeSet<&Path> = files.iter().flat_map(|file| file.path.ancestors()).collect();
    let mut findings = dead_anchors(files);
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

/// Returns a finding for each page of `docs/` that is linked neither from the index,
/// `docs/README.md`, nor from a page of `docs/` that the index links.
fn missing_in_index(index: &File, text: &str, files: &[File]) -> Vec<Finding> {
    let targets = |file: &File, text: &str| -> Vec<PathBuf> {
        let folder = file.path.parent().unwrap_or(Path::new("")).to_path_buf();
        text.lines().flat_map(links).map(|link| normal(&folder.join(link))).collect()
    };
    let listed = targets(index, text);
    let lists = files.iter().filter(|file| file.under("docs") && listed.contains(&file.path));
    let second = lists.filter_map(|file| Some(targets(file, file.text.as_deref()?)));
    let linked: BTreeSet<PathBuf> = second.flatten().chain(listed.clone()).collect();
    let pages = files.iter().filter(|file| is_document(file) && file.under("docs"));
    let unlisted = pages.filter(|page| page.path != index.path && !linked.contains(&page.path));
    unlisted.map(|page| index.finding(0, format!("list `{}` here", page.path.display()))).collect()
}

/// Returns a finding for each link to a heading that its document does not have.
fn dead_anchors(files: &[File]) -> Vec<Finding> {
    let is_markdown = |file: &&File| file.path.extension().is_some_and(|e| e == "md");
    let texts = files.iter().filter(is_markdown);
    let texts = texts.filter_map(|file| Some((file.path.as_path(), file.text.as_deref()?)));
    let texts: BTreeMap<&Path, &str> = texts.collect();
    let mut known: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut findings = Vec::new();
    let from = files.iter().filter(|file| is_document(file) || file.under(CHANGELOG));
    for (file, text) in from.filter_map(|file| Some((file, file.text.as_deref()?))) {
        let folder = file.path.parent().unwrap_or(Path::new(""));
        for (index, line) in text.lines().enumerate() {
            for (path, anchor) in targets(line).filter_map(|target| target.split_once('#')) {
                let path = match path {
                    "" => file.path.clone(),
                    path => normal(&folder.join(path)),
                };
                let Some(text) = texts.get(path.as_path()) else { continue };
                let headings = known.entry(path.clone()).or_insert_with(|| anchors(text));
                if !headings.contains(anchor) {
                    let problem = format!("`{}` has no heading `#{anchor}`", path.display());
                    findings.push(file.finding(index + 1, problem));
                }
            }
        }
    }
    findings
}

/// Returns the anchors of a document, as GitHub makes them of headings, and those that it names itself.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_fenced = false;
    for line in text.lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !is_fenced && (1..=6).contains(&level) && title.starts_with(' ') {
            let first = slug(title.trim());
            let again = (1..).map(|number| format!("{first}-{number}"));
            let free = std::iter::once(first.clone()).chain(again).find(|a| !anchors.contains(a));
            anchors.extend(free);
        }
        let named = line.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        anchors.extend(named.map(str::to_owned));
    }
    anchors
}

/// Returns the anchor of a heading: lower case, hyphens in place of spaces, without other marks and
/// without the targets of links.
fn slug(title: &str) -> String {
    let mut parts = title.split("](");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    let kept = shown.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn is_document(file: &File) -> bool {
    file.path.extension().is_some_and(|e| e == "md") && !NO_DOCUMENTS.iter().any(|n| file.under(n))
}

/// Returns a finding for each link, and each back-ticked word that looks like a path of the tree,
/// that leads nowhere. A path is relative to the root or to its document.
fn dead_paths(file: &File, text: &str, tree: &BTreeSet<&Path>) -> Vec<Finding> {
    let folder = file.path.parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let links = links(line).filter(|link| !tree.contains(&*normal(&folder.join(link))));
        let dead = links.chain(back_ticked(line).filter(|word| is_dead(word, folder, tree)));
        let finding = |path| file.finding(index + 1, format!("`{path}` does not exist"));
        findings.extend(dead.map(finding));
    }
    findings
}

/// Returns true if a word begins with a folder of the tree but is not a path of it, or if it is the
/// name of a Rust file that does not exist. False for code, commands and paths below `results/`.
fn is_dead(word: &str, folder: &Path, tree: &BTreeSet<&Path>) -> bool {
    let path = Path::new(word.trim_end_matches('/'));
    // A word with other characters is code or a command, not a path.
    let plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    let mut parts = path.components();
    let (Some(top), Some(_)) = (parts.next(), parts.next()) else {
        let is_code = plain && word.len() > 3 && path.extension().is_some_and(|e| e == "rs");
        return is_code && !tree.iter().any(|file| file.ends_with(path));
    };
    let bases = [Path::new(""), folder];
    let begins = bases.iter().any(|base| tree.contains(&*base.join(top)));
    // Campaigns create the files under `results/`, and a new registry is empty.
    let may_be_absent = path.starts_with("results");
    plain && begins && !may_be_absent && !bases.iter().any(|base| tree.contains(&*base.join(path)))
}

/// Returns the targets of a Markdown line's links within the tree, without fragments.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let paths = targets(line).filter_map(|target| target.split('#').next());
    paths.filter(|path| !path.is_empty())
}

/// Returns the targets of a Markdown line's links within the tree, with their fragments.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

/// Returns the path without its `..` components, resolved by name only.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// Returns the back-ticked words of a Markdown line.
fn back_ticked(line: &str) -> impl Iterator<Item = &str> {
    // Every second part of the line lies between two back-ticks.
    line.split('`').skip(1).step_by(2)
}

/// Returns a finding for each name of a test that a document's table of claims states and that no
/// Rust file defines. A table's row is a claim if it also names the file of its tests.
fn dead_tests(file: &File, text: &str, files: &[File]) -> Vec<Finding> {
    let is_name = |word: &str| {
        let plain = word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        // A word without an underscore may be code of any kind; names of tests have several.
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
        // Only rows of a table that name a file of tests make a claim.
        if line.starts_with('|') && line.contains(".rs`: `") {
            let dead = back_ticked(line).filter(|word| is_name(word) && !exists(word));
            let finding = |word| file.finding(index + 1, format!("no test is called `{word}`"));
            findings.extend(dead.map(finding));
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
            file("docs/D.md", "# X\n"),
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
    fn a_heading_that_is_gone_is_named() {
        let page = "# The `x` of [a page](A.md), (2)\n[a](#the-x-of-a-page-2) [b](#gone)\n\
                    [c](docs/D.md#twice-1) [d](docs/D.md#twice-2) [e](docs/D.md#code) [f](docs/D.md#own)\n";
        let other = "## Twice\n## Twice\n```\n# Code\n```\n<a id=\"own\"></a>\n";
        let old = "[g](docs/D.md#once) [h](docs/gone.md#x)\n";
        let files = [file("A.md", page), file("docs/D.md", other), file("CHANGELOG.md", old)];
        assert_eq!(
            messages(&check(&files)),
            [
                "A.md:2: `A.md` has no heading `#gone`",
                "A.md:3: `docs/D.md` has no heading `#twice-2`",
                "A.md:3: `docs/D.md` has no heading `#code`",
                "CHANGELOG.md:1: `docs/D.md` has no heading `#once`",
            ]
        );
    }

    #[test]
    fn a_test_that_is_gone_is_named() {
        let page = "| a_word `of_some_kind` |\n\n| x | `a/x.rs`: `is_there`, `is_gone` |\n";
        let files = [file("docs/SECURITY.md", page), file("a/x.rs", "fn is_there() {}\n")];
        assert_eq!(messages(&check(&files)), ["docs/SECURITY.md:3: no test is called `is_gone`"]);
    }

    #[test]
    fn the_index_lists_every_page() {
        let files = [
            file("docs/README.md", "[a](A.md)\n"),
            file("docs/A.md", "[c](deep/C.md)\n"),
            file("docs/B.md", ""),
            file("docs/deep/C.md", ""),
        ];
        assert_eq!(messages(&check(&files)), ["docs/README.md:1: list `docs/B.md` here"]);
    }

    #[test]
    fn the_landing_page_is_short() {
        let files = [file("README.md", &"line\n".repeat(81))];
        assert_eq!(messages(&check(&files)).len(), 1);
    }
}
