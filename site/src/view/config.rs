//! What the configurations of several rows share, and what sets each apart: said once, a row shows
//! what differs.

use crate::catalog::{self, Run};
use crate::outside;

/// Parts of configurations that all rows of a table have.
#[derive(Debug, Clone, Default)]
pub struct Shared(Vec<String>);

impl Shared {
    /// What the configurations of `rows` have in common, each by one of its runs; of a single row
    /// nothing.
    #[must_use]
    pub fn of(rows: &[&Run]) -> Self {
        let [first, rest @ ..] = rows else { return Self::default() };
        if rest.is_empty() {
            return Self::default();
        }
        let mut shared = catalog::config_parts(first.record);
        for row in rest {
            let own = catalog::config_parts(row.record);
            shared.retain(|part| own.contains(part));
        }
        Self(shared)
    }

    /// What of the configuration of `run` is not shared; empty where there is no more.
    #[must_use]
    pub fn rest(&self, run: &Run) -> String {
        let mut parts = catalog::config_parts(run.record);
        parts.retain(|part| !self.0.contains(part));
        outside::message(&parts.join(" "))
    }

    /// The shared parts as they are shown.
    #[must_use]
    pub fn shown(&self) -> Vec<String> {
        self.0.iter().map(|part| outside::name(part)).collect()
    }
}
