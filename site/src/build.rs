//! The HTML site: every page with its Markdown twin, and the records, written aside and put in
//! place at once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use registry::{Stored, trend};
use schema::kernel::KernelRecord;
use serde::Serialize;

use crate::asset::ASSETS;
use crate::catalog::{Catalog, ReleaseKey, Run};
use crate::compare;
use crate::link::{Place, Target};
use crate::pages::{frame, release_frame, target};
use crate::template::{Frame, Renderer};
use crate::view::data::DataView;
use crate::view::diff::DiffView;
use crate::view::explore::{self, ExploreView};
use crate::view::kernels::KernelsView;
use crate::view::method::MethodView;
use crate::view::overview::OverviewView;
use crate::view::release::{Related, ReleaseView};
use crate::view::run::RunView;

/// A site under way, in a folder beside its destination.
struct Site<'a> {
    folder: PathBuf,
    catalog: &'a Catalog<'a>,
    renderer: &'a Renderer,
    runs: Vec<&'a Run<'a>>,
}

/// Writes the site of `catalog`, whose files lie below `roots`, to `out`, which is replaced as a
/// whole.
///
/// # Errors
/// A template is at fault, or a file cannot be read or written.
pub fn build(catalog: &Catalog, roots: &[&Path], renderer: &Renderer, out: &Path) -> Result<()> {
    let folder = beside(out, "new")?;
    remove(&folder)?;
    let runs: Vec<&Run> = catalog.runs.iter().collect();
    let site = Site { folder, catalog, renderer, runs };
    for (path, text) in ASSETS {
        site.file(path, text)?;
    }
    let diffs = site.diffs()?;
    let kernels = site.kernels()?;
    site.releases(&diffs, &kernels)?;
    for run in &site.runs {
        site.run(run)?;
    }
    let listed = |related: &BTreeMap<ReleaseKey, Vec<Related>>| {
        let mut pages: Vec<Related> = Vec::new();
        for page in related.values().flatten() {
            if !pages.iter().any(|known| known.target == page.target) {
                pages.push(page.clone());
            }
        }
        pages
    };
    site.overview(listed(&diffs), listed(&kernels))?;
    site.method()?;
    site.explore()?;
    site.data(roots)?;
    site.put_in_place(out)
}

impl Site<'_> {
    fn overview(&self, diffs: Vec<Related>, kernels: Vec<Related>) -> Result<()> {
        let view = OverviewView::new(self.catalog, diffs, kernels);
        let mut frame = frame("Redline results", &self.runs, Vec::new());
        frame.crumbs.clear();
        self.page("overview", &Target::Overview, &frame, &view)
    }

    /// Every pair of consecutive releases that share hardware; the pages found, by both releases.
    fn diffs(&self) -> Result<BTreeMap<ReleaseKey, Vec<Related>>> {
        let mut found: BTreeMap<ReleaseKey, Vec<Related>> = BTreeMap::new();
        for pair in compare::pairs(self.catalog) {
            let view = DiffView::new(&pair, &compare::diff(self.catalog, &pair)?);
            let title = format!("{} {} to {}", pair.engine, pair.baseline, pair.candidate);
            let text = format!("{title} on {}", pair.hardware);
            let sides = pair.sides();
            let runs: Vec<&Run> = self
                .catalog
                .runs
                .iter()
                .filter(|run| sides.contains(&ReleaseKey::of(run.record)))
                .collect();
            let crumbs = vec![(title, None), (pair.hardware.clone(), None)];
            self.page("diff", &pair.target(), &frame(&text, &runs, crumbs), &view)?;
            for side in sides {
                let page = Related { text: format!("Diff {text}"), target: pair.target() };
                found.entry(side).or_default().push(page);
            }
        }
        Ok(found)
    }

    fn kernels(&self) -> Result<BTreeMap<ReleaseKey, Vec<Related>>> {
        let mut groups: BTreeMap<ReleaseKey, Vec<&Stored<KernelRecord>>> = BTreeMap::new();
        for entry in &self.catalog.registry.kernels {
            let record = &entry.record;
            let key = ReleaseKey {
                engine: record.engine.name.clone(),
                release: record.engine.release.clone(),
                hardware: record.hardware.id.clone(),
            };
            groups.entry(key).or_default().push(entry);
        }
        let mut found = BTreeMap::new();
        for (key, records) in groups {
            let text = format!("Kernels of {} {} on {}", key.engine, key.release, key.hardware);
            let crumbs = vec![(text.clone(), None)];
            let mut frame = frame(&text, &[], crumbs);
            let hashes: Vec<&str> =
                records.iter().map(|stored| stored.record.record_sha256.as_str()).collect();
            frame.records = hashes.len();
            frame.records_sha256 = crate::catalog::records_sha256(hashes.into_iter());
            let target = Target::Kernels {
                engine: key.engine.clone(),
                release: key.release.clone(),
                hardware: key.hardware.clone(),
            };
            self.page("kernels", &target, &frame, &KernelsView::new(&records))?;
            found.insert(key, vec![Related { text, target }]);
        }
        Ok(found)
    }

    fn releases(
        &self,
        diffs: &BTreeMap<ReleaseKey, Vec<Related>>,
        kernels: &BTreeMap<ReleaseKey, Vec<Related>>,
    ) -> Result<()> {
        for (key, runs) in self.catalog.releases() {
            let related = diffs.get(&key).into_iter().chain(kernels.get(&key)).flatten();
            let view = ReleaseView::new(&key, &runs, related.cloned().collect());
            self.page("release", &target(&key), &release_frame(&key, &runs), &view)?;
        }
        Ok(())
    }

    fn run(&self, run: &Run) -> Result<()> {
        let record = run.record;
        let key = ReleaseKey::of(record);
        let crumbs = vec![
            (format!("{} {} on {}", key.engine, key.release, key.hardware), Some(target(&key))),
            (record.id.clone(), None),
        ];
        let frame = frame(&format!("Run {}", record.id), &[run], crumbs);
        let page = Target::Run { id: record.id.clone(), record: run.path.to_owned() };
        self.page("run", &page, &frame, &RunView::new(run))
    }

    fn method(&self) -> Result<()> {
        let frame = frame("Method", &[], vec![("Method".to_owned(), None)]);
        self.page("method", &Target::Method, &frame, &MethodView::new())
    }

    fn explore(&self) -> Result<()> {
        let frame = frame("Explore", &self.runs, vec![("Explore".to_owned(), None)]);
        self.page("explore", &Target::Explore, &frame, &ExploreView::new(self.catalog))?;
        self.file("data/explore.json", &explore::data(self.catalog))
    }

    /// The list of the data, and the data.
    fn data(&self, roots: &[&Path]) -> Result<()> {
        let frame = frame("Data", &self.runs, vec![("Data".to_owned(), None)]);
        self.page("data", &Target::Data, &frame, &DataView::new(self.catalog))?;
        self.file("data/runs.csv", &registry::export::csv(self.catalog.registry))?;
        let trends = trend::trends(self.catalog.registry, &trend::Filter::default())?;
        self.file("data/trends.json", &serde_json::to_string_pretty(&trends)?)?;
        for (path, root) in self.catalog.files() {
            let Some(root) = roots.get(root) else { continue };
            let file = root.join(path);
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read `{}`", file.display()))?;
            self.file(&Target::Record(path.to_owned()).path(Place::Html), &text)?;
        }
        Ok(())
    }

    /// Writes a page and its Markdown twin.
    fn page<V: Serialize>(
        &self,
        kind: &str,
        target: &Target,
        frame: &Frame,
        view: &V,
    ) -> Result<()> {
        for (place, extension) in [(Place::Html, "html"), (Place::Markdown, "md")] {
            let path = target.path(place);
            let template = format!("pages/{kind}.{extension}");
            let text = self.renderer.render(&template, frame, view, (place, &path))?;
            self.file(&path, &text)?;
        }
        Ok(())
    }

    fn file(&self, path: &str, text: &str) -> Result<()> {
        let file = self.folder.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot make the folder `{}`", parent.display()))?;
        }
        fs::write(&file, text).with_context(|| format!("cannot write `{}`", file.display()))
    }

    /// Moves what stands at `out` away, the new site there, and only then drops the old one.
    fn put_in_place(self, out: &Path) -> Result<()> {
        let old = beside(out, "old")?;
        remove(&old)?;
        if out.exists() {
            rename(out, &old)?;
        }
        rename(&self.folder, out)?;
        remove(&old)
    }
}

fn beside(out: &Path, suffix: &str) -> Result<PathBuf> {
    let name = out.file_name().context("the output folder has no name")?.to_string_lossy();
    Ok(out.with_file_name(format!(".{name}.{suffix}")))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)
        .with_context(|| format!("cannot move `{}` to `{}`", from.display(), to.display()))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove `{}`", folder.display()))
        }
        _ => Ok(()),
    }
}
