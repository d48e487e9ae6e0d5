//! Reads `results/`, and staged results laid out like it, into ordered plain data. Knows files,
//! not git.

pub mod export;
pub mod folder;
pub mod foreign;
pub mod layout;
pub mod storage;

use std::collections::BTreeMap;
use std::path::Path;

use judge::Registry;
use judge::finding::{Finding, HISTORY};
use judge::order::is_release;
use judge::records::Stored;
use rayon::prelude::*;
use schema::run::RunRecord;

use folder::Listing;
pub use folder::StoreError;
use layout::{FileKind, RunParts};
use storage::Parsed;

/// Loads folders laid out like `results/`. A folder that does not exist is empty. Of a file that
/// several folders contain, the first is kept; for a record, a difference becomes a finding.
///
/// # Errors
///
/// One of `roots` exists and is no folder, or a folder, a file or its metadata cannot be read.
pub fn load(roots: &[&Path]) -> Result<Registry, StoreError> {
    load_where(roots, &|_| true)
}

/// Loads folders as [`load`] does, but below `runs/` only the runs of `releases`, each written with
/// or without its `v`. Files outside of `runs/` are all loaded.
///
/// # Errors
///
/// One of `roots` exists and is no folder, or a folder, a file or its metadata cannot be read.
pub fn load_releases(roots: &[&Path], releases: &[&str]) -> Result<Registry, StoreError> {
    let wanted = |name: &str| releases.iter().any(|release| is_release(release, name));
    load_where(roots, &|path| {
        // A folder above the releases has no such part, and passes so that it is read.
        let release = path.strip_prefix("runs/").and_then(|below| below.split('/').nth(1));
        release.is_none_or(wanted)
    })
}

/// Loads from folders laid out like `results/` only the runs below `runs/` that `parts` admits,
/// without their histograms, and the events.
///
/// # Errors
///
/// One of `roots` exists and is no folder, or a folder, a file or its metadata cannot be read.
pub fn load_runs(roots: &[&Path], parts: &RunParts) -> Result<Registry, StoreError> {
    // Events are needed to know which of the runs are retracted.
    load_figures(roots, &|path| path.split('/').next() == Some("events") || parts.admit(path))
}

/// Loads folders as [`load`] does, except files at or below a path that `wanted` rejects. `wanted`
/// is asked about folders too (by path below `results/`), so that a rejected folder is not read.
///
/// # Errors
///
/// One of `roots` exists and is no folder, or a folder, a file or its metadata cannot be read.
pub fn load_where(
    roots: &[&Path],
    wanted: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Registry, StoreError> {
    load_with(roots, wanted, &|_| {})
}

/// Loads folders as [`load_where`] does, but without the histograms of runs: they are most of a
/// run's size, and tables of many runs do not show them.
///
/// # Errors
///
/// One of `roots` exists and is no folder, or a folder, a file or its metadata cannot be read.
pub fn load_figures(
    roots: &[&Path],
    wanted: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Registry, StoreError> {
    load_with(roots, wanted, &|run| run.histograms = None)
}

fn load_with(
    roots: &[&Path],
    wanted: &(dyn Fn(&str) -> bool + Sync),
    trim: &(dyn Fn(&mut RunRecord) + Sync),
) -> Result<Registry, StoreError> {
    let mut registry = Registry::default();
    let mut listings = Vec::new();
    for root in roots {
        let mut listing = Listing::of_wanted(root, wanted)?;
        registry.findings.append(&mut listing.findings);
        listings.push(listing);
    }
    // By path, so that the staged results' copy of a record is compared with the registry's.
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (root, listing) in listings.iter().enumerate() {
        for (path, _) in &listing.files {
            places.entry(path).or_default().push(root);
        }
    }
    let places: Vec<(&str, Vec<usize>)> = places.into_iter().collect();
    let read = places.par_iter().map(|(path, roots)| read(&listings, path, roots, trim));
    let read = read.collect::<Result<Vec<_>, _>>()?;
    for ((path, roots), (parsed, other)) in places.into_iter().zip(read) {
        take(&mut registry, path.to_owned(), roots[0], parsed);
        registry.findings.extend(other);
    }
    // Events are applied last, because one may name a record of any folder.
    registry.apply_events();
    registry.findings.sort();
    Ok(registry)
}

fn take(registry: &mut Registry, path: String, root: usize, parsed: Result<Parsed, Finding>) {
    match parsed {
        Ok(Parsed::Run(record)) => registry.runs.push(Stored { path, root, record: *record }),
        Ok(Parsed::Kernels(record)) => {
            registry.kernels.push(Stored { path, root, record: *record })
        }
        Ok(Parsed::Campaign(record)) => registry.campaigns.push(Stored { path, root, record }),
        Ok(Parsed::Event(record)) => registry.events.push(Stored { path, root, record }),
        Ok(Parsed::Derived) if FileKind::of(&path) == FileKind::Page => {
            registry.pages.insert(path);
        }
        Ok(Parsed::Derived) => {}
        Err(finding) => registry.findings.push(finding),
    }
}

/// Parsed file at a path, from the first of the folders that contain it, and a finding where a
/// later folder has a different record there.
type Read = (Result<Parsed, Finding>, Option<Finding>);

fn read(
    listings: &[Listing],
    path: &str,
    roots: &[usize],
    trim: &(dyn Fn(&mut RunRecord) + Sync),
) -> Result<Read, StoreError> {
    let (first, others) = roots.split_first().expect("a path was found somewhere");
    let bytes = listings[*first].read(path)?;
    let mut contradicted = None;
    // Rendered files may differ: staged ones also show the staged records.
    for other in others.iter().filter(|_| FileKind::of(path).is_record()) {
        if listings[*other].read(path)? != bytes {
            let detail = "the overlay holds another record under this path";
            contradicted = Some(Finding::breach(HISTORY, path, detail));
        }
    }
    let mut parsed = storage::read(path, &bytes);
    // Each run is trimmed at once, so that all histograms are never in memory together.
    if let Ok(Parsed::Run(run)) = &mut parsed {
        trim(run);
    }
    Ok((parsed, contradicted))
}
