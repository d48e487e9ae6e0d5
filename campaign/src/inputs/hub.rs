//! Models in the local Hugging Face cache: `hub/models--OWNER--NAME` with a folder of links for
//! each revision. Nothing is downloaded here.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::inputs::{CONFIG, Fetcher, GIVEN, InputError, Obtained};

/// Name and revision of a model in the local Hugging Face cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubModel {
    pub id: String,
    /// Commit that the local cache lists as `main`.
    pub revision: String,
}

impl Fetcher<'_> {
    /// Finds the model in the local Hugging Face cache.
    pub(super) fn in_hub(&self, id: &str) -> Result<Obtained, InputError> {
        let dir = self.hub_home.join("hub");
        let folder = dir.join(format!("models--{}", id.replace('/', "--")));
        let revision = fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
        let revision = revision.trim().to_owned();
        let path = folder.join("snapshots").join(&revision);
        // An interrupted download leaves a folder without the configuration.
        if revision.is_empty() || !path.join(CONFIG).is_file() {
            return Err(InputError::NotInHub { hub: id.to_owned(), dir });
        }
        let hub = HubModel { id: id.to_owned(), revision };
        let source = hub.id.clone();
        Ok(Obtained { hub: Some(hub), ..Obtained::file(path, String::new(), source) })
    }
}

/// Describes a model folder that the user has given with `--input`.
pub(super) fn given(path: &Path) -> Obtained {
    Obtained::file(path.to_owned(), String::new(), GIVEN.to_owned())
}
