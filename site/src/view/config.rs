//! Shared and distinct parts of the configurations of several rows: shared parts are shown once,
//! and a row shows only what differs.

use crate::catalog::{self, Run};
use crate::outside;

/// Parts of configurations that all rows of a table share.
#[derive(Debug, Clone, Default)]
pub struct Shared(Vec<String>);

impl Shared {
    /// Finds the parts that the configurations of `rows` share; each row is given by one of its
    /// runs. A single row shares nothing.
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

    /// Parts of the configuration of `run` that are not shared, as one text; empty where there are
    /// none.
    pub fn rest(&self, run: &Run) -> String {
        let mut parts = catalog::config_parts(run.record);
        parts.retain(|part| !self.0.contains(part));
        outside::message(&parts.join(" "))
    }

    /// Shared parts of the configurations, cleaned for display.
    pub fn shown(&self) -> Vec<String> {
        self.0.iter().map(|part| outside::name(part)).collect()
    }
}
