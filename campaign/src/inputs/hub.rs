//! Models of the hub, in its local cache: `hub/models--OWNER--NAME`, with a folder of links for
//! each revision. Nothing is fetched from here.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::inputs::{CONFIG, Fetcher, GIVEN, InputError, Obtained};

/// A model by its name and revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubModel {
    pub id: String,
    /// The commit that the local cache calls its main one.
    pub revision: String,
}

impl Fetcher<'_> {
    /// The model as the local cache has it.
    pub(super) fn in_hub(&self, id: &str) -> Result<Obtained, InputError> {
        let dir = self.hub_home.join("hub");
        let folder = dir.join(format!("models--{}", id.replace('/', "--")));
        let revision = fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
        let revision = revision.trim().to_owned();
        let path = folder.join("snapshots").join(&revision);
        if revision.is_empty() || !path.join(CONFIG).is_file() {
            return Err(InputError::NotInHub { hub: id.to_owned(), dir });
        }
        let hub = HubModel { id: id.to_owned(), revision };
        let source = hub.id.clone();
        Ok(Obtained { hub: Some(hub), ..Obtained::file(path, String::new(), source) })
    }
}

/// The folder that the user has instead.
pub(super) fn given(path: &Path) -> Obtained {
    Obtained::file(path.to_owned(), String::new(), GIVEN.to_owned())
}
