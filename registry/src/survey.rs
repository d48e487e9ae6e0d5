//! Survey of all files in `results/` with facts and findings. The one place that decides which
//! files are examined again and which are taken from the index.

use std::path::{Path, PathBuf};

use git2::{ObjectType, Oid};

use crate::index::{Index, Known};
use judge::finding::Finding;
use store::examine::{Facts, examine};
use store::folder::{Listing, Stamp, StoreError};
use store::spread;

/// Criterion by which a file counts as unchanged since it was indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Size, times and inode are the same. Fast enough for lists.
    Stamps,
    /// Bytes are the same. Every file is read and hashed, as checks need it.
    Bytes,
}

/// Location of a registry's index, and the program build that may use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Root of the repository that contains the registry.
    pub root: PathBuf,
    /// Name of this build of the program. An index of another build is not used, because its rules
    /// may differ.
    pub program: String,
}

/// A file with its facts and findings.
#[derive(Debug, Clone, PartialEq)]
pub struct Surveyed {
    /// Path of the file below the surveyed folder.
    pub path: String,
    /// Stamp by which a later survey recognizes a change.
    pub stamp: Stamp,
    /// Id of the file's git blob.
    pub blob: Oid,
    /// Facts about the file; `None` for a file that is neither a readable record nor a page.
    pub facts: Option<Facts>,
    /// Findings of the storage rules about the file.
    pub findings: Vec<Finding>,
}

/// Survey of a folder laid out like `results/`, in the order of paths.
#[derive(Debug, Default)]
pub struct Survey {
    /// All files of the folder, sound or not.
    pub files: Vec<Surveyed>,
    /// Findings about entries that are not regular files.
    pub findings: Vec<Finding>,
}

impl Survey {
    /// Surveys `results`. The index at `place`, if given, is used and then renewed.
    ///
    /// # Errors
    ///
    /// A folder or file exists and cannot be read.
    pub fn of(results: &Path, place: Option<&Place>, trust: Trust) -> Result<Self, StoreError> {
        let listing = Listing::of(results)?;
        let index = place.map(|place| Index::load(&place.root, &place.program));
        let index = index.unwrap_or_default();
        let files = spread::map(&listing.files, |(path, stamp)| {
            survey(&listing, &index, trust, path, *stamp)
        });
        let files = files.into_iter().collect::<Result<Vec<Surveyed>, StoreError>>()?;
        if let Some(place) = place {
            let sound: Vec<Known> = files.iter().filter_map(Surveyed::known).collect();
            if !sound.is_empty() && !index.is_of(&sound) {
                // Without an index the next survey takes longer and gives the same result.
                let _ = Index::save(&place.root, &place.program, &sound);
            }
        }
        Ok(Self { files, findings: listing.findings })
    }
}

fn survey(
    listing: &Listing,
    index: &Index,
    trust: Trust,
    path: &str,
    stamp: Stamp,
) -> Result<Surveyed, StoreError> {
    let known = |known: &Known, blob: Oid| Surveyed {
        path: path.to_owned(),
        stamp,
        blob,
        facts: Some(known.facts.clone()),
        findings: Vec::new(),
    };
    if trust == Trust::Stamps
        && let Some(found) = index.by_stamp(path, &stamp)
        && let Ok(blob) = Oid::from_str(&found.blob)
    {
        return Ok(known(found, blob));
    }
    let bytes = listing.read(path)?;
    // The zero id matches no indexed file, so a failed hash costs time only.
    let blob = Oid::hash_object(ObjectType::Blob, &bytes).unwrap_or(Oid::ZERO_SHA1);
    if let Some(found) = index.by_blob(path, &blob.to_string()) {
        return Ok(known(found, blob));
    }
    let (facts, findings) = examine(path, &bytes);
    Ok(Surveyed { path: path.to_owned(), stamp, blob, facts, findings })
}

impl Surveyed {
    /// Returns the index entry of the file; only a sound file has one.
    fn known(&self) -> Option<Known> {
        let facts = self.facts.clone().filter(|_| self.findings.is_empty())?;
        let blob = self.blob.to_string();
        Some(Known { path: self.path.clone(), stamp: self.stamp, blob, facts })
    }
}
