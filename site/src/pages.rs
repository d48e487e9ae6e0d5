//! The committed Markdown pages of a registry: a pure function of its records.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::{Catalog, ReleaseKey, Run, records_sha256};
use crate::link::{Place, Target};
use crate::template::{Crumb, Frame, RenderError, Renderer};
use crate::view::limits;
use crate::view::release::ReleaseView;

/// Name and version of what made a page.
pub const GENERATOR: &str = concat!("redline-site ", env!("CARGO_PKG_VERSION"));

/// The pages of `catalog` by their path below the registry's root. With `only`, those releases
/// alone and the list of all pages.
///
/// # Errors
/// A template is at fault.
pub fn render(
    catalog: &Catalog,
    renderer: &Renderer,
    only: Option<&BTreeSet<ReleaseKey>>,
) -> Result<BTreeMap<String, String>, RenderError> {
    let mut pages = BTreeMap::new();
    for (key, runs) in catalog.releases() {
        if only.is_some_and(|only| !only.contains(&key)) {
            continue;
        }
        let path = target(&key).path(Place::Registry);
        let view = ReleaseView::new(&key, &runs, Vec::new());
        let at = (Place::Registry, path.as_str());
        let text = renderer.render("pages/release.md", &release_frame(&key, &runs), &view, at)?;
        pages.insert(path, text);
    }
    Ok(pages)
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
