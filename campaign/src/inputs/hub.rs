//! Files of datasets in the local Hugging Face cache: found there by their hash, and downloaded
//! into it by the hub's own client.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use schema::model::InputSource;
use tempfile::TempDir;

use crate::files::{self, FileError};
use crate::inputs::package;
use crate::stop::Stop;
use crate::world::World;

/// Program name of the hub's own client.
const CLIENT: &str = "hf";

/// File of a dataset on the Hugging Face hub.
#[derive(Debug, Clone, Copy)]
pub struct HubFile<'a> {
    /// Hugging Face id of the dataset.
    pub id: &'a str,
    /// Path of the file in the dataset.
    file: &'a str,
}

/// Result of the search for a file with one hash in the local Hugging Face cache.
#[derive(Debug)]
pub enum Found {
    /// The file with this hash.
    Wanted(PathBuf),
    /// Only files of the same name with other hashes; one of them.
    Other { path: PathBuf, sha256: String },
    /// No file of the name.
    Missing,
}

impl<'a> HubFile<'a> {
    /// Returns the file of a dataset that `source` names; `None` for a source of another kind.
    pub fn of(source: &'a InputSource) -> Option<Self> {
        let (id, file) = source.hub.as_deref().zip(source.file.as_deref())?;
        Some(Self { id, file })
    }

    /// Searches the revisions of the dataset that the local Hugging Face cache has for the file
    /// with the hash `sha256`.
    ///
    /// # Errors
    /// A file of the cache cannot be read.
    pub fn find(&self, world: &World, sha256: &str) -> Result<Found, FileError> {
        let snapshots = self.folder(world).join("snapshots");
        let revisions = fs::read_dir(snapshots).into_iter().flatten().flatten();
        // Revisions link to the same content, which is hashed once.
        let copies: BTreeSet<PathBuf> = revisions
            .filter_map(|revision| revision.path().join(self.file).canonicalize().ok())
            .collect();
        let mut found = Found::Missing;
        for path in copies {
            let other = world.cache.sha256_of(&path)?;
            if other == sha256 {
                return Ok(Found::Wanted(path));
            }
            found = Found::Other { path, sha256: other };
        }
        Ok(found)
    }

    /// Downloads the file into the local Hugging Face cache, and returns as an inner error why it
    /// could not be downloaded.
    ///
    /// # Errors
    /// The cache of inputs is not writable, or the command is interrupted.
    pub fn download(&self, world: &World) -> Result<Result<(), String>, Stop> {
        let near = &world.cache.dir;
        files::make_dir(near)?;
        let temp = TempDir::new_in(near).map_err(FileError::at("write in", near))?;
        let mut client = Command::new(CLIENT);
        client.args(self.arguments()).arg("--quiet");
        // The client has an older variable too, which would name another folder than the searched one.
        client.env("HF_HUB_CACHE", &world.hub_cache);
        package::run(world, self.id, client, (temp.path(), &self.folder(world)))
    }

    /// Returns the command that downloads the file, for a person to type.
    pub fn command(&self) -> String {
        format!("{CLIENT} {}", self.arguments().join(" "))
    }

    fn arguments(&self) -> [&'a str; 5] {
        ["download", "--repo-type", "dataset", self.id, self.file]
    }

    fn folder(&self, world: &World) -> PathBuf {
        let name = format!("datasets--{}", self.id.replace('/', "--"));
        world.hub_cache.join(name)
    }
}
