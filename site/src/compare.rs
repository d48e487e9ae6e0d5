//! Pairs of releases that pages compare, and the comparison of each pair, made by `judge`.

use std::collections::BTreeMap;

use judge::diff::{Diff, DiffError, Filter};

use crate::catalog::{Catalog, ReleaseKey};
use crate::order;
use crate::view::diff::Pair;

impl Pair {
    /// Keys of both releases, baseline first.
    pub fn sides(&self) -> [ReleaseKey; 2] {
        [&self.baseline, &self.candidate].map(|release| ReleaseKey {
            engine: self.engine.clone(),
            release: release.clone(),
            hardware: self.hardware.clone(),
        })
    }
}

/// Returns each pair of consecutive releases of an engine on one hardware.
pub fn pairs(catalog: &Catalog) -> Vec<Pair> {
    let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for key in catalog.releases().into_keys() {
        groups.entry((key.engine, key.hardware)).or_default().push(key.release);
    }
    let mut pairs = Vec::new();
    for ((engine, hardware), mut releases) in groups {
        releases.sort_by(|a, b| order::releases(a, b));
        pairs.extend(releases.windows(2).map(|two| Pair {
            engine: engine.clone(),
            hardware: hardware.clone(),
            baseline: two[0].clone(),
            candidate: two[1].clone(),
        }));
    }
    pairs
}

/// Returns the comparison of `pair`, as `judge` makes it.
///
/// # Errors
///
/// One of the releases has no runs on the hardware.
pub fn diff(catalog: &Catalog, pair: &Pair) -> Result<Diff, DiffError> {
    let filter =
        Filter { engine: Some(pair.engine.clone()), hardware: Some(pair.hardware.clone()) };
    judge::diff::diff(catalog.registry, &pair.baseline, &pair.candidate, &filter)
}
