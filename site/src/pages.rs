//! Committed Markdown pages of a registry, with its front page: a pure function of its records.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use judge::{Registry, order};
use rayon::prelude::*;
use schema::id::is_ulid;

use crate::catalog::Catalog;
use crate::contents::Contents;
use crate::escape;
use crate::judged::Judged;
use crate::link::Place;
use crate::template::{Frame, Renderer};
use crate::view::{lab, pick};

/// Begin of every rendered page but the registry's front page.
const RENDERED: &str = "<!-- Rendered from the records";

/// File name of the registry's front page.
const README: &str = "README.md";

/// Renders the committed pages of `catalog` and its `README.md`: text by path below the registry's
/// root. With `only_overlay`, the result has the `README.md` and only those pages that may differ
/// because of records in an overlay, and pages about the whole registry.
///
/// # Errors
///
/// A template has a fault or does not fit a page; `judge` cannot compare releases or compute
/// trends.
pub fn render(
    catalog: &Catalog,
    renderer: &Renderer,
    only_overlay: bool,
) -> Result<BTreeMap<String, String>> {
    let judged = Judged::of(catalog)?;
    let contents = Contents::of(catalog, &judged);
    let mut committed = contents.pages();
    // In the registry a run has no page: its target is the record.
    committed.retain(|page| {
        let path = page.target.path(Place::Registry);
        path.is_some_and(|path| path.starts_with("pages/"))
    });
    let paths: BTreeSet<String> =
        committed.iter().filter_map(|page| page.target.path(Place::Registry)).collect();
    committed.retain(|page| page.fresh || !only_overlay);
    let rendered = committed.par_iter().map(|page| page.render(renderer, &[Place::Registry]));
    let rendered = rendered.collect::<Result<Vec<_>, _>>()?;
    let mut pages: BTreeMap<String, String> = rendered.into_iter().flatten().collect();
    let view = pick::table(catalog, &judged, (None, None));
    let at = (Place::Registry, README);
    let picks = renderer.render("documents/picks.md", &Frame::default(), &view, at)?;
    let found = lab::all(catalog, &judged).into_iter().filter_map(|lab| {
        let path = lab.target().path(Place::Registry)?;
        Some((path, escape::markdown(&lab.sentence())))
    });
    pages.insert(README.to_owned(), readme(&picks, &paths, &found.collect()));
    Ok(pages)
}

/// Writes those of `pages` (text by path below `out`) whose file is missing or differs, each
/// atomically, and returns their number.
///
/// # Errors
///
/// A folder cannot be created, or a file cannot be written or renamed.
pub fn write(pages: &BTreeMap<String, String>, out: &Path) -> Result<usize> {
    let mut written = 0;
    for (path, text) in pages {
        let file = out.join(path);
        // Unchanged files keep their times, so that git and rsync skip them.
        if fs::read(&file).is_ok_and(|found| found == text.as_bytes()) {
            continue;
        }
        let folder = file.parent().context("a page has no folder")?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
        whole_file::replace(&file, text.as_bytes())
            .with_context(|| format!("cannot write `{}`", file.display()))?;
        written += 1;
    }
    Ok(written)
}

/// Removes the rendered pages below `out` that are not among `pages`, all pages of the registry, and
/// returns their number. A file without the first line of a rendered page stays.
///
/// # Errors
///
/// A file cannot be read or removed.
pub fn remove_orphans(
    registry: &Registry,
    pages: &BTreeMap<String, String>,
    out: &Path,
) -> Result<usize> {
    let mut removed = 0;
    for path in orphans(registry, pages) {
        let file = out.join(path);
        let text = match fs::read(&file) {
            Ok(text) => text,
            // The registry that was read may lie in another folder.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read `{}`", file.display()));
            }
        };
        if text.starts_with(RENDERED.as_bytes()) {
            fs::remove_file(&file)
                .with_context(|| format!("cannot remove `{}`", file.display()))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Returns the committed pages that no record renders.
fn orphans<'a>(
    registry: &'a Registry,
    pages: &BTreeMap<String, String>,
) -> impl Iterator<Item = &'a String> {
    registry.pages.iter().filter(|path| !pages.contains_key(*path))
}

/// Compares the committed pages below `folder` with what the records render. Returns one line for
/// each page that is missing or differs, and for each committed page that no record renders.
///
/// # Errors
///
/// A page cannot be read; anything that [`render`] fails with.
pub fn stale(catalog: &Catalog, renderer: &Renderer, folder: &Path) -> Result<Vec<String>> {
    let pages = render(catalog, renderer, false)?;
    let mut problems = Vec::new();
    for (path, text) in &pages {
        let file = folder.join(path);
        match fs::read(&file) {
            Ok(found) if found == text.as_bytes() => {}
            Ok(found) => {
                let line = first_difference(&found, text.as_bytes());
                problems
                    .push(format!("`{path}` is not what its records render: line {line} differs"));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                problems.push(format!("`{path}` is missing"));
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read `{}`", file.display()));
            }
        }
    }
    let orphans = orphans(catalog.registry, &pages);
    problems.extend(orphans.map(|path| format!("`{path}` has no records")));
    Ok(problems)
}

/// Returns the number of the first line, from 1, in which the texts `a` and `b` differ.
pub(crate) fn first_difference(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b);
    same.filter(|(byte, _)| **byte == b'\n').count() + 1
}

/// First lines of `results/README.md`.
const TITLE: &str = "# Results\n\nThis page and `pages/` are rendered from the records.\n";

/// Part of `results/README.md` that explains paths and records, the same for every registry.
const HEAD: &str = include_str!("readme.md");

/// Committed pages about the whole registry: path of the file and title.
const WHOLE: [(&str, &str); 3] = [
    ("pages/README.md", "Overview"),
    ("pages/corrections.md", "Corrections"),
    ("pages/imports.md", "Published elsewhere, not verified"),
];

/// Name of the folder of lab pages, which takes the place of an engine's name.
pub(crate) const LABS: &str = "labs";

/// Name of the folder of the pages of picks, which takes the place of an engine's name.
pub(crate) const PICKS: &str = "picks";

/// Name of the folder of the pages of engines side by side, which takes the place of an engine's
/// name.
pub(crate) const SIDE_BY_SIDE: &str = "side-by-side";

/// Committed pages of a release, for the front page: the one for all hardware, one per hardware,
/// and the comparisons that lead to the release.
#[derive(Debug, Default)]
struct Pages<'a> {
    all: Option<&'a str>,
    hardware: Vec<(&'a str, &'a str)>,
    /// Comparisons that lead to the release: release before, hardware, path of the page.
    diffs: Vec<(&'a str, &'a str, &'a str)>,
}

/// Renders the registry's front page `results/README.md`: the rendered table of `picks`, how to read
/// a path and a record, and the list of `pages`, given as paths below `results/`. `found` has question
/// and result of labs by the path of their page.
fn readme(picks: &str, pages: &BTreeSet<String>, found: &BTreeMap<String, String>) -> String {
    let mut engines: BTreeMap<&str, BTreeMap<order::ReleaseKey, Pages<'_>>> = BTreeMap::new();
    let mut labs: Vec<(&str, &str, &String)> = Vec::new();
    let mut beside: Vec<String> = Vec::new();
    for page in pages {
        let parts: Vec<&str> = page.split('/').collect();
        let [_, engine, release, file] = parts.as_slice() else { continue };
        if ["imports", PICKS].contains(engine) {
            continue;
        }
        if *engine == SIDE_BY_SIDE {
            beside.push(format!("- [{release} on {}]({page})", file.trim_end_matches(".md")));
            continue;
        }
        if *engine == LABS {
            let campaign = file.trim_end_matches(".md");
            // Further parts of a page are linked from the page itself.
            labs.extend(is_ulid(campaign).then_some((*release, campaign, page)));
            continue;
        }
        let hardware = file.trim_end_matches(".md");
        let (before, release) = release.split_once("..").unwrap_or(("", release));
        let releases = engines.entry(engine).or_default();
        let of = releases.entry(order::ReleaseKey::of(release)).or_default();
        match (before, hardware) {
            ("", "README") => of.all = Some(page),
            ("", _) => of.hardware.push((hardware, page)),
            _ => of.diffs.push((before, hardware, page)),
        }
    }
    let mut text = format!("{TITLE}\n{}\n\n{HEAD}", picks.trim());
    let whole = WHOLE.iter().filter(|(path, _)| pages.contains(*path));
    let whole: Vec<String> = whole.map(|(path, name)| format!("[{name}]({path})")).collect();
    if !whole.is_empty() {
        let _ = writeln!(text, "\n{}.", whole.join(", "));
    }
    if !beside.is_empty() {
        let _ = writeln!(text, "\n### Engines side by side\n\n{}", beside.join("\n"));
    }
    if !labs.is_empty() {
        text.push_str("\n### Labs\n\n");
    }
    // A campaign's id begins with its time, so the reverse order lists the latest first.
    for (lab, campaign, path) in labs.into_iter().rev() {
        let sentence = found.get(path).map_or(campaign, String::as_str);
        let _ = writeln!(text, "- [{lab}]({path}): {sentence}");
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
                    "pages/side-by-side/smollm2/cpu-x.md",
                    "pages/labs/cpu-smollm2/01KDVDQ9F80000000000000001.md",
                    "pages/labs/cpu-smollm2/01KDVDQ9F80000000000000002.md",
                    "pages/labs/cpu-smollm2/01KDVDQ9F80000000000000002-2.md",
                ]
                .map(str::to_owned),
            )
            .collect();
        let found = "Which options? Recommended: v0.9.2, kv f16 (+3.1 %)".to_owned();
        let path = "pages/labs/cpu-smollm2/01KDVDQ9F80000000000000002.md".to_owned();
        let text = readme("", &pages, &BTreeMap::from([(path, found)]));
        let list = text.split("## Pages\n").nth(1).unwrap();
        expect_test::expect![[r#"

            [Overview](pages/README.md).

            ### Engines side by side

            - [smollm2 on cpu-x](pages/side-by-side/smollm2/cpu-x.md)

            ### Labs

            - [cpu-smollm2](pages/labs/cpu-smollm2/01KDVDQ9F80000000000000002.md): Which options? Recommended: v0.9.2, kv f16 (+3.1 %)
            - [cpu-smollm2](pages/labs/cpu-smollm2/01KDVDQ9F80000000000000001.md): 01KDVDQ9F80000000000000001

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
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(HEAD), "`results/README.md` is not as `pages::readme` writes it");
    }

    #[test]
    fn an_empty_registry_says_so() {
        assert!(readme("", &BTreeSet::new(), &BTreeMap::new()).ends_with("No release yet.\n"));
    }
}
