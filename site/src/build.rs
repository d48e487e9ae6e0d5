//! Builds the HTML site: every page with its Markdown twin, the records, and data files for
//! programs. The site is written to a temporary folder and put in place at once.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rayon::prelude::*;
use schema::canonical::sha256_hex;
use schema::untrusted;

use crate::asset::ASSETS;
use crate::catalog::Catalog;
use crate::contents::{Contents, Page};
use crate::escape;
use crate::feeds;
use crate::judged::Judged;
use crate::link::{Place, Target};
use crate::template::Renderer;
use crate::view::explore;

/// File of a site that lists its records, by which an earlier build is recognized.
const SUMS: &str = "data/SHA256SUMS";

/// Site that is being built, in a temporary folder beside its destination.
struct Site {
    folder: PathBuf,
}

/// Writes the site of `catalog` to the folder `out`; an earlier site there is replaced as a whole.
/// `roots` are the results folders from which the catalog's registry was read, in the same order.
/// With `address`, at which the site will be published, a site map lists the pages for search
/// engines.
///
/// # Errors
///
/// A template has a fault or does not fit a page, `judge` cannot compare releases or compute
/// trends, the site's data have no JSON form, `out` has no name (such as `..`) or is something else
/// than a site, or a file or folder cannot be read, written, moved or deleted.
pub fn build(
    catalog: &Catalog,
    roots: &[&Path],
    renderer: &Renderer,
    (out, address): (&Path, Option<&str>),
) -> Result<()> {
    check_replaceable(out)?;
    let folder = sibling(out, "new")?;
    // An earlier build may have been stopped and left its folder.
    remove(&folder)?;
    let site = Site { folder };
    for (path, text) in ASSETS {
        site.file(path, text)?;
    }
    let judged = Judged::of(catalog)?;
    let contents = Contents::of(catalog, &judged);
    let pages = contents.pages();
    pages.par_iter().try_for_each(|page| -> Result<()> {
        for (path, text) in page.render(renderer, &[Place::Html, Place::Markdown])? {
            site.file(&path, &text)?;
        }
        Ok(())
    })?;
    if let Some(address) = address {
        site.file("sitemap.xml", &sitemap(&pages, address))?;
    }
    site.data(catalog, &judged, renderer)?;
    site.records(catalog, roots)?;
    site.put_in_place(out)
}

/// Formats the site map (sitemaps.org) of a site that is published at `address`. Pages of single runs
/// are left out: there may be more than a site map can list, and pages about them link there.
fn sitemap(pages: &[Page], address: &str) -> String {
    let listed = pages.iter().filter(|page| !matches!(page.target, Target::Run { .. }));
    let paths = listed.filter_map(|page| page.target.address(Place::Html, 0));
    let address = escape::html(address.trim_end_matches('/'));
    let lines = paths.map(|path| format!("<url><loc>{address}/{path}</loc></url>\n"));
    let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<urlset \
                xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">\n";
    format!("{head}{}</urlset>\n", lines.collect::<String>())
}

impl Site {
    /// Writes the site's files for programs: table of runs, data of the explorer page, trends, JSON
    /// schemas, feeds and badges.
    fn data(&self, catalog: &Catalog, judged: &Judged, renderer: &Renderer) -> Result<()> {
        self.file("data/runs.csv", &store::export::csv(catalog.registry))?;
        self.file("data/explore.json", &explore::data(catalog))?;
        self.file("data/trends.json", &serde_json::to_string_pretty(&judged.trends)?)?;
        for (name, schema) in schema::schemas::all() {
            let text = serde_json::to_string_pretty(&schema)?;
            self.file(&format!("data/schemas/{name}.json"), &text)?;
        }
        let feeds = feeds::feeds(catalog, judged, renderer)?;
        for (path, text) in feeds.into_iter().chain(feeds::badges(catalog, judged)) {
            self.file(&path, &text)?;
        }
        Ok(())
    }

    /// Copies the file of each run, kernel, campaign and event record unchanged, and writes the
    /// SHA-256 of each to `data/SHA256SUMS`.
    fn records(&self, catalog: &Catalog, roots: &[&Path]) -> Result<()> {
        let files = catalog.files();
        let copy = |(path, root): &(&str, usize)| -> Result<Option<String>> {
            let Some(root) = roots.get(*root) else { return Ok(None) };
            let file = root.join(path);
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read `{}`", file.display()))?;
            let target = Target::Record { path: (*path).to_owned() };
            if let Some(place) = target.path(Place::Html) {
                self.file(&place, &text)?;
            }
            Ok(Some(format!("{}  {path}\n", sha256_hex(text.as_bytes()))))
        };
        let lines = files.par_iter().filter_map(|file| copy(file).transpose());
        let lines = lines.collect::<Result<Vec<_>>>()?;
        self.file(SUMS, &lines.concat())
    }

    fn file(&self, path: &str, text: &str) -> Result<()> {
        let file = self.folder.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot make the folder `{}`", parent.display()))?;
        }
        fs::write(&file, text).with_context(|| format!("cannot write `{}`", file.display()))
    }

    /// Moves the old site at `out` away and the new site there, and only then deletes the old one,
    /// so that `out` is missing for as short a time as possible.
    fn put_in_place(self, out: &Path) -> Result<()> {
        let old = sibling(out, "old")?;
        remove(&old)?;
        if out.exists() {
            rename(out, &old)?;
        }
        rename(&self.folder, out)?;
        remove(&old)
    }
}

/// Refuses to replace what no earlier build has written: a link, a device, or a folder with other
/// files.
fn check_replaceable(out: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(out) else { return Ok(()) };
    let is_empty = || fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if found.is_dir() && (out.join(SUMS).is_file() || is_empty()) {
        return Ok(());
    }
    bail!(
        "`{}` is no site of an earlier build, and is not replaced\n  hint: name a folder that does \
         not exist",
        untrusted::path(out)
    )
}

/// Returns the path of a hidden folder beside `out`, for a site before it is put in place or after
/// it was replaced.
fn sibling(out: &Path, suffix: &str) -> Result<PathBuf> {
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
