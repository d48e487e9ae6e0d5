//! The committed Markdown pages of a registry: a pure function of its records.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};

use crate::catalog::{Catalog, ReleaseKey, Run, records_sha256};
use crate::link::{Place, Target};
use crate::template::{Crumb, Frame, RenderError, Renderer};
use crate::view::limits;
use crate::view::release::ReleaseView;

/// Name and version of what made a page.
pub const GENERATOR: &str = concat!("redline-site ", env!("CARGO_PKG_VERSION"));

/// The front page of a registry.
const README: &str = "README.md";

/// The pages of `catalog` and its `README.md`, by their path below the registry's root. With
/// `only_overlay`, the pages of releases that have runs from beside the registry, and the README.
///
/// # Errors
/// A template is at fault.
pub fn render(
    catalog: &Catalog,
    renderer: &Renderer,
    only_overlay: bool,
) -> Result<BTreeMap<String, String>, RenderError> {
    let mut pages = BTreeMap::new();
    let mut paths = BTreeSet::new();
    for (key, runs) in catalog.releases() {
        let path = target(&key).path(Place::Registry);
        paths.insert(path.clone());
        if only_overlay && runs.iter().all(|run| run.root == 0) {
            continue;
        }
        let view = ReleaseView::new(&key, &runs, Vec::new());
        let at = (Place::Registry, path.as_str());
        let text = renderer.render("pages/release.md", &release_frame(&key, &runs), &view, at)?;
        pages.insert(path, text);
    }
    pages.insert(README.to_owned(), registry::readme::render(&paths));
    Ok(pages)
}

/// Writes those of `pages` that are not there yet as they should be, each at once, below `out`;
/// tells how many.
///
/// # Errors
/// A file cannot be written.
pub fn write(pages: &BTreeMap<String, String>, out: &Path) -> Result<usize> {
    let mut written = 0;
    for (path, text) in pages {
        let file = out.join(path);
        if fs::read(&file).is_ok_and(|found| found == text.as_bytes()) {
            continue;
        }
        let folder = file.parent().context("a page has no folder")?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let aside = folder.join(registry::layout::leftover_name(&name, std::process::id()));
        fs::write(&aside, text).with_context(|| format!("cannot write `{}`", aside.display()))?;
        fs::rename(&aside, &file).with_context(|| format!("cannot write `{}`", file.display()))?;
        written += 1;
    }
    Ok(written)
}

/// What is wrong with the committed pages below `folder`: one line for each that is missing, is
/// not what the records render, or has no records.
///
/// # Errors
/// A template is at fault, or a page cannot be read.
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
    let orphans = catalog.registry.pages.iter().filter(|path| !pages.contains_key(*path));
    problems.extend(orphans.map(|path| format!("`{path}` has no records: delete it")));
    Ok(problems)
}

fn first_difference(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b);
    same.filter(|(byte, _)| **byte == b'\n').count() + 1
}

/// The page of `key`.
#[must_use]
pub fn target(key: &ReleaseKey) -> Target {
    Target::Release {
        engine: key.engine.clone(),
        release: key.release.clone(),
        hardware: key.hardware.clone(),
    }
}

/// The frame of a release page.
#[must_use]
pub fn release_frame(key: &ReleaseKey, runs: &[&Run]) -> Frame {
    let title = format!("{} {} on {}", key.engine, key.release, key.hardware);
    frame(
        &title,
        runs,
        vec![(format!("{} {}", key.engine, key.release), None), (key.hardware.clone(), None)],
    )
}

/// A frame for a page made from `runs`.
#[must_use]
pub fn frame(title: &str, runs: &[&Run], crumbs: Vec<(String, Option<Target>)>) -> Frame {
    let hashes: BTreeSet<&str> = runs.iter().map(|run| run.record.record_sha256.as_str()).collect();
    let crumb = |(text, target): (String, Option<Target>)| Crumb {
        text: crate::outside::name(&text),
        target,
    };
    let mut way = vec![Crumb { text: "Overview".into(), target: Some(Target::Overview) }];
    way.extend(crumbs.into_iter().map(crumb));
    let title = crate::outside::name(title);
    Frame {
        summary: format!("{title}: measured throughput and latency, with how they were measured."),
        title,
        crumbs: way,
        records: hashes.len(),
        records_sha256: records_sha256(hashes.into_iter()),
        generator: GENERATOR.to_owned(),
        limits: limits::of(runs),
    }
}
