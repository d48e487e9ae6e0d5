//! Survey of all files in `results/` with facts and findings, and the index of files that were
//! examined before. The one place that decides which files are examined again and which are taken
//! from the index.
//!
//! The index lies under `target/`, is rebuilt whenever it does not match, and only saves time: a file
//! whose stamp or bytes differ from the indexed ones is examined again, and only sound files are in
//! the index.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use git2::{ObjectType, Oid};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use judge::finding::Finding;
use store::folder::{Listing, Stamp, StoreError};
use store::storage::{Facts, examine};

/// Folder of the index, below the root of the repository.
const FOLDER: &str = "target/redline-results";
/// Name of the index file in its folder.
const FILE: &str = "index.jsonl";
/// Version of the index file's format; an index of another version is ignored.
const FORMAT: u32 = 1;
/// Age, in nanoseconds before the time at which the index was written, below which a file's stamp
/// is not trusted: a file that changed so shortly before may have changed again within the same
/// tick of the clock.
const TICK_NS: i64 = 1_000_000_000;

/// Criterion by which a file counts as unchanged since it was indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// A file is unchanged if its size, times and inode are those that were indexed, and its last
    /// change is more than a second older than the index. Fast enough for lists.
    Stamps,
    /// A file is unchanged if its bytes are those that were indexed. Every file is read and hashed,
    /// as checks need it.
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

/// File with its facts and findings, as a survey found it or the index recorded it. The index
/// contains only files without findings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Surveyed {
    /// Path of the file below the surveyed folder.
    pub path: String,
    /// Stamp of the file (size, inode, times), by which a later survey recognizes a change.
    pub stamp: Stamp,
    /// Id of the file's git blob, in hex.
    pub blob: String,
    /// Facts about the file; `None` for a file that is neither a readable record nor a page or
    /// `README.md`.
    pub facts: Option<Facts>,
    /// Findings of the storage rules about the file.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// All files of a folder laid out like `results/`, in the order of their paths, and findings about
/// the folder's other entries.
#[derive(Debug, Default)]
pub struct Survey {
    /// All files of the folder, sound or not.
    pub files: Vec<Surveyed>,
    /// Findings about entries of the folder that are neither a regular file nor a folder, or whose
    /// names are not UTF-8.
    pub findings: Vec<Finding>,
}

impl Survey {
    /// Surveys the folder `results`. The index at `place`, if given, is used, and then written
    /// again if it does not match the sound files and there are any.
    ///
    /// # Errors
    ///
    /// `results` exists and is no folder, or a folder, a file or its metadata cannot be read. A
    /// failure to read or write the index is no error.
    pub fn of(results: &Path, place: Option<&Place>, trust: Trust) -> Result<Self, StoreError> {
        let listing = Listing::of(results)?;
        let index = place.and_then(|place| Index::load(&place.root, &place.program));
        let index = index.unwrap_or_default();
        let survey = |(path, at): &(String, Stamp)| survey(&listing, &index, trust, path, *at);
        let files = listing.files.par_iter().map(survey).collect::<Result<Vec<_>, _>>()?;
        if let Some(place) = place {
            let is_sound = |file: &&Surveyed| file.facts.is_some() && file.findings.is_empty();
            let sound: Vec<&Surveyed> = files.iter().filter(is_sound).collect();
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
    if trust == Trust::Stamps
        && let Some(known) = index.by_stamp(path, &stamp)
    {
        return Ok(known.clone());
    }
    let bytes = listing.read(path)?;
    // No indexed file has an empty id, so a failed hash costs time only.
    let blob = Oid::hash_object(ObjectType::Blob, &bytes);
    let blob = blob.map(|oid| oid.to_string()).unwrap_or_default();
    let (facts, findings) = match index.by_blob(path, &blob) {
        Some(known) => (known.facts.clone(), Vec::new()),
        None => examine(path, &bytes),
    };
    Ok(Surveyed { path: path.to_owned(), stamp, blob, facts, findings })
}

/// First line of the index file: format and build of the program that wrote it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    format: u32,
    program: String,
}

/// Index of sound files by path, as one build of the program examined them.
#[derive(Debug, Default)]
struct Index {
    known: BTreeMap<String, Surveyed>,
    written_ns: i64,
}

impl Index {
    /// Reads the index of the repository at `root`. Returns `None` where the index is missing, cannot
    /// be read or parsed, or is of another format or another build than `program`.
    fn load(root: &Path, program: &str) -> Option<Self> {
        let path = root.join(FOLDER).join(FILE);
        let facts = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let text = fs::read_to_string(&path).ok()?;
        let (head, lines) = text.split_once('\n')?;
        let head: Head = serde_json::from_str(head).ok()?;
        if head != (Head { format: FORMAT, program: program.to_owned() }) {
            return None;
        }
        let known = lines.par_lines().map(|line| {
            let known: Surveyed = serde_json::from_str(line).ok()?;
            Some((known.path.clone(), known))
        });
        let written_ns = Stamp::of(&facts).modified_ns;
        // One unreadable line discards the whole index: it was cut short, and can be made again.
        Some(Self { known: known.collect::<Option<_>>()?, written_ns })
    }

    /// Returns the index's entry of the file at `path`, if the file's stamp is the one that was
    /// indexed and is old enough to be trusted.
    fn by_stamp(&self, path: &str, stamp: &Stamp) -> Option<&Surveyed> {
        let settled = stamp.changed_ns.max(stamp.modified_ns) < self.written_ns - TICK_NS;
        self.known.get(path).filter(|known| settled && known.stamp == *stamp)
    }

    /// Returns the index's entry of the file at `path`, if its content is still the one that was
    /// indexed: `blob` is the id of its git blob now.
    fn by_blob(&self, path: &str, blob: &str) -> Option<&Surveyed> {
        self.known.get(path).filter(|known| known.blob == blob)
    }

    /// True when the index contains exactly these files, with the same content and the same stamps,
    /// all of them old enough to be trusted.
    fn is_of(&self, files: &[&Surveyed]) -> bool {
        let same = |file: &&Surveyed| {
            self.by_stamp(&file.path, &file.stamp).is_some_and(|known| known.blob == file.blob)
        };
        files.len() == self.known.len() && files.iter().all(same)
    }

    /// Writes the index of the repository at `root`.
    ///
    /// # Errors
    ///
    /// The folder or a file in it cannot be written. The caller may go on without an index.
    fn save(root: &Path, program: &str, files: &[&Surveyed]) -> io::Result<()> {
        let folder = root.join(FOLDER);
        fs::create_dir_all(&folder)?;
        // A registry in a repository of its own does not ignore target/.
        fs::write(folder.join(".gitignore"), "*\n")?;
        let mut out = Vec::new();
        let head = Head { format: FORMAT, program: program.to_owned() };
        serde_json::to_writer(&mut out, &head)?;
        for known in files {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, known)?;
        }
        out.write_all(b"\n")?;
        // Others read the old index or the new one.
        whole_file::replace(&folder.join(FILE), &out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(path: &str, changed_ns: i64) -> Surveyed {
        let stamp = Stamp { bytes: 3, inode: 7, modified_ns: changed_ns, changed_ns };
        let facts = Facts { kind: "pages".into(), id: None, run: None };
        let (path, blob, facts) = (path.into(), "ab".into(), Some(facts));
        Surveyed { path, stamp, blob, facts, findings: Vec::new() }
    }

    #[test]
    fn only_what_has_not_changed_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let file = known("a", 1_000);
        Index::save(dir.path(), "p", &[&file]).unwrap();
        let index = Index::load(dir.path(), "p").unwrap();
        assert_eq!(index.by_stamp("a", &file.stamp), Some(&file));
        assert_eq!(index.by_stamp("b", &file.stamp), None);
        for stamp in [
            Stamp { bytes: 4, ..file.stamp },
            Stamp { inode: 8, ..file.stamp },
            Stamp { modified_ns: 999, ..file.stamp },
            Stamp { changed_ns: 1_001, ..file.stamp },
        ] {
            assert_eq!(index.by_stamp("a", &stamp), None, "{stamp:?}");
        }
        assert!(index.by_blob("a", "ab").is_some() && index.by_blob("a", "cd").is_none());
        assert!(index.is_of(&[&file]) && !index.is_of(&[]));
    }

    #[test]
    fn a_file_changed_in_the_tick_of_the_index_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let file = known("a", i64::MAX / 2);
        Index::save(dir.path(), "p", &[&file]).unwrap();
        let index = Index::load(dir.path(), "p").unwrap();
        assert_eq!(index.by_stamp("a", &file.stamp), None);
        assert!(index.by_blob("a", "ab").is_some());
    }

    #[test]
    fn an_index_of_another_program_or_cut_short_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let files = [&known("a", 1), &known("b", 2)];
        Index::save(dir.path(), "p", &files).unwrap();
        assert!(Index::load(dir.path(), "q").is_none());
        let path = dir.path().join(FOLDER).join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert!(Index::load(dir.path(), "p").is_none());
        fs::write(&path, "\u{0}").unwrap();
        assert!(Index::load(dir.path(), "p").is_none());
    }
}
