//! Committed Markdown pages of a registry: a pure function of its records.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use rayon::prelude::*;

use crate::catalog::Catalog;
use crate::contents::Contents;
use crate::judged::Judged;
use crate::link::Place;
use crate::template::Renderer;

/// File name of the registry's front page.
const README: &str = "README.md";

/// Renders the committed pages of `catalog` and its `README.md`, by path below the registry's root.
/// With `only_overlay`, the result has only pages made from a record of the overlay, and pages
/// about the whole registry.
///
/// # Errors
///
/// A template has a fault, or releases of the catalog cannot be compared.
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
    pages.insert(README.to_owned(), crate::readme::render(&paths));
    Ok(pages)
}

/// Writes the pages whose file differs below `out`, each atomically, and returns their number.
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
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let aside = folder.join(store::layout::leftover_name(&name, std::process::id()));
        fs::write(&aside, text).with_context(|| format!("cannot write `{}`", aside.display()))?;
        fs::rename(&aside, &file).with_context(|| format!("cannot write `{}`", file.display()))?;
        written += 1;
    }
    Ok(written)
}

/// Compares the committed pages below `folder` with what the records render. Returns one line for
/// each page that is missing, differs, or has no records.
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
    let orphans = catalog.registry.pages.iter().filter(|path| !pages.contains_key(*path));
    problems.extend(orphans.map(|path| format!("`{path}` has no records: delete it")));
    Ok(problems)
}

/// Returns the number of the first line, from 1, in which the texts `a` and `b` differ.
pub(crate) fn first_difference(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b);
    same.filter(|(byte, _)| **byte == b'\n').count() + 1
}
