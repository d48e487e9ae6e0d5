//! Index of files that were examined before, kept under `target/` and rebuilt whenever it does not
//! match. It only saves time: a file whose stamp or bytes differ from the indexed ones is examined
//! again, and only sound files are in the index.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use store::examine::Facts;
use store::folder::Stamp;
use store::layout::leftover_name;

/// Folder of the index, below the root of the repository.
const FOLDER: &str = "target/redline-results";
/// Name of the index file in its folder.
const FILE: &str = "index.jsonl";
/// Version of the index file's format; an index of another version is ignored.
const FORMAT: u32 = 1;
/// Age below which a file's stamp is not trusted: a file that changed so shortly before the index
/// was written may have changed again within the same tick of the clock.
const TICK_NS: i64 = 1_000_000_000;

/// First line of the index file: format and build of the program that wrote it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    format: u32,
    program: String,
}

/// A file that was sound when it was examined, with its stamp, git blob and facts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Known {
    pub path: String,
    pub stamp: Stamp,
    /// Id of the file's git blob, in hex.
    pub blob: String,
    pub facts: Facts,
}

/// Index of sound files by path, as one build of the program examined them.
#[derive(Debug, Default)]
pub struct Index {
    known: BTreeMap<String, Known>,
    written_ns: i64,
}

impl Index {
    /// Reads the index of the repository at `root`. An index that is missing, cut short or written
    /// by another build than `program` is empty.
    pub fn load(root: &Path, program: &str) -> Self {
        let path = root.join(FOLDER).join(FILE);
        Self::read(&path, program).unwrap_or_default()
    }

    fn read(path: &Path, program: &str) -> Option<Self> {
        let facts = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        let text = fs::read_to_string(path).ok()?;
        let (head, lines) = text.split_once('\n')?;
        let head: Head = serde_json::from_str(head).ok()?;
        if head != (Head { format: FORMAT, program: program.to_owned() }) {
            return None;
        }
        let lines: Vec<&str> = lines.lines().collect();
        let read = store::spread::map(&lines, |line| serde_json::from_str::<Known>(line).ok());
        let known = read.into_iter().map(|known| known.map(|known| (known.path.clone(), known)));
        let written_ns = Stamp::of(&facts).modified_ns;
        Some(Self { known: known.collect::<Option<_>>()?, written_ns })
    }

    /// Returns what is known of the file at `path`, if its stamp is still the one that was
    /// indexed.
    pub fn by_stamp(&self, path: &str, stamp: &Stamp) -> Option<&Known> {
        let settled = stamp.changed_ns.max(stamp.modified_ns) < self.written_ns - TICK_NS;
        self.known.get(path).filter(|known| settled && known.stamp == *stamp)
    }

    /// Returns what is known of the file at `path`, if its content is still the one that was
    /// indexed.
    pub fn by_blob(&self, path: &str, blob: &str) -> Option<&Known> {
        self.known.get(path).filter(|known| known.blob == blob)
    }

    /// True when the index contains exactly these files with these stamps.
    pub fn is_of(&self, files: &[Known]) -> bool {
        let same = |file: &Known| {
            self.by_stamp(&file.path, &file.stamp).is_some_and(|known| known.blob == file.blob)
        };
        files.len() == self.known.len() && files.iter().all(same)
    }

    /// Writes the index of the repository at `root`.
    ///
    /// # Errors
    ///
    /// The folder cannot be written. The caller may go on without an index.
    pub fn save(root: &Path, program: &str, files: &[Known]) -> io::Result<()> {
        let folder = root.join(FOLDER);
        fs::create_dir_all(&folder)?;
        // A registry in a repository of its own does not ignore target/.
        fs::write(folder.join(".gitignore"), "*\n")?;
        let aside: PathBuf = folder.join(leftover_name(FILE, std::process::id()));
        let mut out = BufWriter::new(fs::File::create(&aside)?);
        let head = Head { format: FORMAT, program: program.to_owned() };
        serde_json::to_writer(&mut out, &head)?;
        for known in files {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, known)?;
        }
        out.write_all(b"\n")?;
        out.flush()?;
        fs::rename(&aside, folder.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(path: &str, changed_ns: i64) -> Known {
        let stamp = Stamp { bytes: 3, inode: 7, modified_ns: changed_ns, changed_ns };
        let facts = Facts { kind: "pages".into(), id: None, run: None };
        Known { path: path.into(), stamp, blob: "ab".into(), facts }
    }

    #[test]
    fn only_what_has_not_changed_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let file = known("a", 1_000);
        Index::save(dir.path(), "p", std::slice::from_ref(&file)).unwrap();
        let index = Index::load(dir.path(), "p");
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
        assert!(index.is_of(std::slice::from_ref(&file)) && !index.is_of(&[]));
    }

    #[test]
    fn a_file_changed_in_the_tick_of_the_index_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let file = known("a", i64::MAX / 2);
        Index::save(dir.path(), "p", std::slice::from_ref(&file)).unwrap();
        let index = Index::load(dir.path(), "p");
        assert_eq!(index.by_stamp("a", &file.stamp), None);
        assert!(index.by_blob("a", "ab").is_some());
    }

    #[test]
    fn an_index_of_another_program_or_cut_short_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let files = [known("a", 1), known("b", 2)];
        Index::save(dir.path(), "p", &files).unwrap();
        assert!(Index::load(dir.path(), "q").known.is_empty());
        let path = dir.path().join(FOLDER).join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert!(Index::load(dir.path(), "p").known.is_empty());
        fs::write(&path, "\u{0}").unwrap();
        assert!(Index::load(dir.path(), "p").known.is_empty());
    }
}
