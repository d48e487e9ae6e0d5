//! View of Redline's measurements on the machines of a registry: beside other engines, and beside
//! the machines' own limits (roofline). For a document, not a page.

pub mod engines;
pub mod roofline;

use engines::Engines;
use roofline::Roofline;
use serde::Serialize;

use crate::catalog::Catalog;

/// Name of the engine that others are compared with.
const OWN: &str = "redline";

/// View with one comparison per hardware and other engine, and one roofline per hardware.
#[derive(Debug, Clone, Serialize)]
pub struct MeasuredView {
    pub engines: Vec<Engines>,
    pub rooflines: Vec<Roofline>,
}

impl MeasuredView {
    pub fn new(catalog: &Catalog) -> Self {
        Self { engines: engines::all(catalog), rooflines: roofline::all(catalog) }
    }
}

/// Returns the distinct names among `names`, sorted.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}
