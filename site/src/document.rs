//! Writes the measured part of a document: what a registry's machines measured, between two marker
//! lines. The document lies in a folder beside `results/`, such as `docs/`; the rest of it is
//! written by hand.

use std::path::Path;

use anyhow::{Context, Result, anyhow};

use whole_file::TEXT_MAX;

use crate::catalog::Catalog;
use crate::link::Place;
use crate::pages::first_difference;
use crate::template::{Frame, RenderError, Renderer};
use crate::view::measured;

/// Command that updates the measured part of a document, as the part's first marker line names it.
const COMMAND: &str = "cargo xtask site --pages";

/// Renders the measured part of a document, a pure function of the records of `catalog`.
///
/// # Errors
///
/// The template has a fault.
pub fn measured(catalog: &Catalog, renderer: &Renderer) -> Result<String, RenderError> {
    let view = measured::view(catalog);
    renderer.render("documents/measured.md", &Frame::default(), &view, (Place::Registry, ""))
}

/// Replaces the measured part of the file `document` by `part`. Returns true when that changed the
/// file.
///
/// # Errors
///
/// The document has no marker lines, or cannot be read or written.
pub fn write(document: &Path, part: &str) -> Result<bool> {
    let (found, wanted) = both(document, part)?;
    if found == wanted {
        return Ok(false);
    }
    whole_file::write(document, wanted.as_bytes())
        .with_context(|| format!("cannot write `{}`", document.display()))?;
    Ok(true)
}

/// Returns a line that reports a difference between the measured part of `document` and `part`;
/// `None` where they are equal.
///
/// # Errors
///
/// The document has no marker lines, or cannot be read.
pub fn stale(document: &Path, part: &str) -> Result<Option<String>> {
    let (found, wanted) = both(document, part)?;
    let line = first_difference(found.as_bytes(), wanted.as_bytes());
    let name = document.display();
    Ok((found != wanted)
        .then(|| format!("`{name}` is not what its records render: line {line} differs")))
}

/// Returns the text of the document as it is, and as it should be with `part` in it.
fn both(document: &Path, part: &str) -> Result<(String, String)> {
    let name = document.display();
    let found = whole_file::read_text(document, "document", TEXT_MAX)?;
    let wanted = schema::document::insert(&found, COMMAND, part)
        .map_err(|why| anyhow!("what was measured has no place in `{name}`: {why}"))?;
    Ok((found, wanted))
}
