//! View of the data page: files for programs.

use serde::Serialize;

use crate::catalog::Catalog;

/// View of the data page: number of records of each kind, and the schemas.
#[derive(Debug, Clone, Serialize)]
pub struct DataView {
    pub runs: usize,
    pub kernels: usize,
    pub campaigns: usize,
    pub events: usize,
    /// Names of the JSON Schemas that the site offers.
    pub schemas: Vec<String>,
}

impl DataView {
    /// Counts the records of `catalog` and lists the schemas.
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
