//! The HTML site: every page with its Markdown twin, and the records, written aside and put in
//! place at once.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::catalog::Catalog;
use crate::link::{Place, Target};
use crate::pages::{release_frame, target};
use crate::template::{Frame, Renderer};
use crate::view::release::ReleaseView;

/// The one style sheet.
const STYLE: &str = include_str!("../static/site.css");

/// A site under way, in a folder beside its destination.
struct Staging<'a> {
    folder: PathBuf,
    renderer: &'a Renderer,
}

/// Writes the site of `catalog` to `out`, which is replaced as a whole.
///
/// # Errors
/// A template is at fault, or a file cannot be written.
pub fn build(catalog: &Catalog, renderer: &Renderer, out: &Path) -> Result<()> {
    let folder = beside(out, "new")?;
    remove(&folder)?;
    let staging = Staging { folder, renderer };
    staging.file("site.css", STYLE)?;
    for (key, runs) in catalog.releases() {
        let view = ReleaseView::new(&key, &runs, Vec::new());
        staging.page("release", &target(&key), &release_frame(&key, &runs), &view)?;
    }
    staging.put_in_place(out)
}

impl Staging<'_> {
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
    Ok(out.with_file_name(format!("{name}.{suffix}")))
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
