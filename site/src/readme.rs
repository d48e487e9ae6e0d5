//! Text of `results/README.md`: how to read a path and a record, and the list of pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use schema::id::is_ulid;

use judge::order::ReleaseKey;

/// Text of `results/README.md` that is the same for every registry.
const HEAD: &str = include_str!("readme.md");

/// Committed pages about the whole registry: path of the file and title.
const WHOLE: [(&str, &str); 3] = [
    ("pages/README.md", "Overview"),
    ("pages/corrections.md", "Corrections"),
    ("pages/imports.md", "Published figures of others"),
];

/// Name of the folder of lab pages, which takes the place of an engine's name.
pub const LABS: &str = "labs";

/// Committed pages of a release: the one for all hardware, and one per hardware.
#[derive(Debug, Default)]
struct Pages<'a> {
    all: Option<&'a str>,
    hardware: Vec<(&'a str, &'a str)>,
    /// Comparisons that lead to the release: release before, hardware, path of the page.
    diffs: Vec<(&'a str, &'a str, &'a str)>,
}

/// Renders `results/README.md`, which lists `pages`, given as paths below `results/`.
pub fn render(pages: &BTreeSet<String>) -> String {
    let mut engines: BTreeMap<&str, BTreeMap<ReleaseKey, Pages<'_>>> = BTreeMap::new();
    let mut labs: Vec<(&str, &str, &str)> = Vec::new();
    for page in pages {
        let parts: Vec<&str> = page.split('/').collect();
        let [_, engine, release, file] = parts.as_slice() else { continue };
        if *engine == "imports" {
            continue;
        }
        if *engine == LABS {
            let campaign = file.trim_end_matches(".md");
            // Further parts of a page are linked from the page itself.
            labs.extend(is_ulid(campaign).then_some((*release, campaign, page.as_str())));
            continue;
        }
        let hardware = file.trim_end_matches(".md");
        let (before, release) = release.split_once("..").unwrap_or(("", release));
        let releases = engines.entry(engine).or_default();
        let of = releases.entry(ReleaseKey::of(release)).or_default();
        match (before, hardware) {
            ("", "README") => of.all = Some(page),
            ("", _) => of.hardware.push((hardware, page)),
            _ => of.diffs.push((before, hardware, page)),
        }
    }
    let mut text = HEAD.to_owned();
    let whole: Vec<String> = WHOLE
        .iter()
        .filter(|(path, _)| pages.contains(*path))
        .map(|(path, name)| format!("[{name}]({path})"))
        .collect();
    if !whole.is_empty() {
        let _ = writeln!(text, "\n{}.", whole.join(", "));
    }
    if !labs.is_empty() {
        text.push_str("\n### Labs\n\n");
    }
    // A campaign's id begins with its time, so the reverse order lists the latest first.
    for (lab, campaign, path) in labs.into_iter().rev() {
        let _ = writeln!(text, "- [{lab} {campaign}]({path})");
    }
    if engines.is_empty() {
        text.push_str("\nNo release yet.\n");
    }
    for (engine, releases) in engines {
        let _ = writeln!(text, "\n### {engine}\n");
        for (release, pages) in releases.iter().rev() {
            text.push_str(&line(release.name(), pages));
        }
    }
    text
}

fn line(release: &str, pages: &Pages<'_>) -> String {
    let name = pages.all.map_or_else(|| release.to_owned(), |all| format!("[{release}]({all})"));
    let hardware = pages.hardware.iter().map(|(hardware, page)| format!("[{hardware}]({page})"));
    let diffs = pages
        .diffs
        .iter()
        .map(|(before, hardware, page)| format!("[since {before} on {hardware}]({page})"));
    let links: Vec<String> = hardware.chain(diffs).collect();
    format!("- {name}: {}\n", links.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_listed_by_engine_and_the_latest_release_first() {
        let pages = ["v0.9.2", "v0.10.0", "v0.9.1"]
            .map(|release| format!("pages/redline/{release}/cpu-x.md"))
            .into_iter()
            .chain(
                [
                    "pages/vllm/v0.10.1/h200-141g.md",
                    "pages/README.md",
                    "pages/imports/source/0011.md",
                    "pages/redline/v0.10.0/README.md",
                    "pages/redline/v0.9.2..v0.10.0/cpu-x.md",
                    "pages/labs/cpu-smollm2/01KDVDQ9F80000000000000001.md",
                    "pages/labs/cpu-smollm2/01KDVDQ9F80000000000000002.md",
                    "pages/labs/cpu-smollm2/01KDVDQ9F80000000000000002-2.md",
                ]
                .map(str::to_owned),
            )
            .collect();
        let text = render(&pages);
        let list = text.split("## Pages\n").nth(1).unwrap();
        expect_test::expect![[r#"

            [Overview](pages/README.md).

            ### Labs

            - [cpu-smollm2 01KDVDQ9F80000000000000002](pages/labs/cpu-smollm2/01KDVDQ9F80000000000000002.md)
            - [cpu-smollm2 01KDVDQ9F80000000000000001](pages/labs/cpu-smollm2/01KDVDQ9F80000000000000001.md)

            ### redline

            - [v0.10.0](pages/redline/v0.10.0/README.md): [cpu-x](pages/redline/v0.10.0/cpu-x.md), [since v0.9.2 on cpu-x](pages/redline/v0.9.2..v0.10.0/cpu-x.md)
            - v0.9.2: [cpu-x](pages/redline/v0.9.2/cpu-x.md)
            - v0.9.1: [cpu-x](pages/redline/v0.9.1/cpu-x.md)

            ### vllm

            - v0.10.1: [h200-141g](pages/vllm/v0.10.1/h200-141g.md)
        "#]]
        .assert_eq(list);
    }

    #[test]
    fn the_registry_in_this_tree_begins_with_the_fixed_text() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../results/README.md");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with(HEAD), "`results/README.md` is not as `readme::render` writes it");
    }

    #[test]
    fn an_empty_registry_says_so() {
        assert!(render(&BTreeSet::new()).ends_with("No release yet.\n"));
    }
}
