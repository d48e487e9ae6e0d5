//! Every file of `results/` with what is known of it. The one place that decides what has to be
//! examined again, and what the index may answer.

use std::path::{Path, PathBuf};

use git2::{ObjectType, Oid};

use crate::index::{Index, Known};
use judge::finding::Finding;
use store::examine::{Facts, examine};
use store::folder::{Listing, Stamp, StoreError};
use store::spread;

/// How a file may be found unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// By size, times and inode: for lists.
    Stamps,
    /// By its bytes, which are read and hashed each time: for checks.
    Bytes,
}

/// Where the index of a registry lies, and who may use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Root of the repository.
    pub root: PathBuf,
    /// Names this build of the program: an index of another is not used.
    pub program: String,
}

/// A file and what it amounts to.
#[derive(Debug, Clone, PartialEq)]
pub struct Surveyed {
    /// Below the folder.
    pub path: String,
    /// By which a later survey sees whether it has changed.
    pub stamp: Stamp,
    /// Id of its bytes in git.
    pub blob: Oid,
    /// `None` for a file that is no readable record and no page.
    pub facts: Option<Facts>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// The files of a folder laid out like `results/`, in the order of their paths.
#[derive(Debug, Default)]
pub struct Survey {
    /// Sound or not.
    pub files: Vec<Surveyed>,
    /// What cannot be followed.
    pub findings: Vec<Finding>,
}

impl Survey {
    /// Surveys `results`, with the index at `place` where there is one, which is renewed.
    ///
    /// # Errors
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
                // Without an index the next survey takes longer and says the same.
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
    let blob = Oid::hash_object(ObjectType::Blob, &bytes).unwrap_or(Oid::ZERO_SHA1);
    if let Some(found) = index.by_blob(path, &blob.to_string()) {
        return Ok(known(found, blob));
    }
    let (facts, findings) = examine(path, &bytes);
    Ok(Surveyed { path: path.to_owned(), stamp, blob, facts, findings })
}

impl Surveyed {
    /// The file as the index keeps it; only a sound one.
    fn known(&self) -> Option<Known> {
        let facts = self.facts.clone().filter(|_| self.findings.is_empty())?;
        let blob = self.blob.to_string();
        Some(Known { path: self.path.clone(), stamp: self.stamp, blob, facts })
    }
}
