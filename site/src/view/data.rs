//! The data page: what there is for programs to read.

use serde::Serialize;

use crate::catalog::Catalog;

/// The data page.
#[derive(Debug, Clone, Serialize)]
pub struct DataView {
    pub runs: usize,
    pub kernels: usize,
    pub campaigns: usize,
    pub events: usize,
    /// Names of the JSON Schemas.
    pub schemas: Vec<String>,
}

impl DataView {
    /// What `catalog` holds.
    #[must_use]
    pub fn new(catalog: &Catalog) -> Self {
        Self {
            runs: catalog.runs.len(),
            kernels: catalog.registry.kernels.len(),
            campaigns: catalog.registry.campaigns.len(),
            events: catalog.registry.events.len(),
            schemas: schema::schemas::all().iter().map(|(name, _)| (*name).to_owned()).collect(),
        }
    }
}
