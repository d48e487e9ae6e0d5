//! What the machines of a registry measured of Redline: beside other engines, and beside their own
//! limits. For a document, not a page.

pub mod engines;
pub mod roofline;

use engines::Engines;
use roofline::Roofline;
use serde::Serialize;

use crate::catalog::Catalog;

/// The engine that others are held beside.
const OWN: &str = "redline";

/// One part for each hardware, and for each engine that was measured there.
#[derive(Debug, Clone, Serialize)]
pub struct MeasuredView {
    pub engines: Vec<Engines>,
    pub rooflines: Vec<Roofline>,
}

impl MeasuredView {
    #[must_use]
    pub fn new(catalog: &Catalog) -> Self {
        Self { engines: engines::all(catalog), rooflines: roofline::all(catalog) }
    }
}

/// The distinct names among `names`, in their order.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}
