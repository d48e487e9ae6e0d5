//! Changes to a file system that are not on its disk yet, and what a power failure leaves of them:
//! in each folder the first of its changed names, and of each file a part of what was appended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::faults::Random;
use crate::disk::Change;

/// Names and bytes that a power failure may undo.
#[derive(Debug, Default)]
pub struct Unsynced {
    /// Changed names in the order of their changes.
    names: Vec<Name>,
    /// Length in bytes of the part of each file that is on the disk.
    lengths: BTreeMap<PathBuf, u64>,
    /// Files and folders that were flushed, with what other processes had changed in them before.
    synced: BTreeSet<PathBuf>,
}

/// A changed name.
#[derive(Debug)]
enum Name {
    MadeDir(PathBuf),
    Created(PathBuf),
    Renamed {
        from: PathBuf,
        to: PathBuf,
        /// Content of the file that was replaced.
        old: Option<Vec<u8>>,
    },
    Removed {
        path: PathBuf,
        /// Content of the file.
        old: Vec<u8>,
    },
}

impl Name {
    fn path(&self) -> &Path {
        match self {
            Self::MadeDir(path)
            | Self::Created(path)
            | Self::Renamed { to: path, .. }
            | Self::Removed { path, .. } => path,
        }
    }

    fn dir(&self) -> &Path {
        self.path().parent().unwrap()
    }

    fn undo(&self) {
        match self {
            // What is missing already was undone with its folder.
            Self::MadeDir(path) => drop(fs::remove_dir_all(path)),
            Self::Created(path) => drop(fs::remove_file(path)),
            // Its folder may be undone as well.
            Self::Removed { path, old } => drop(fs::write(path, old)),
            Self::Renamed { from, to, old } => {
                if fs::rename(to, from).is_ok()
                    && let Some(old) = old
                {
                    fs::write(to, old).unwrap();
                }
            }
        }
    }
}

impl Unsynced {
    /// Notes a change that is about to be made.
    pub fn note(&mut self, change: Change<'_>) {
        match change {
            Change::MakeDir(path) => self.names.push(Name::MadeDir(path.to_owned())),
            // A temporary name may stay or be lost: nobody relies on either.
            Change::CreateTemp(_) => {}
            Change::Create(path) => {
                self.names.push(Name::Created(path.to_owned()));
                self.lengths.insert(path.to_owned(), 0);
            }
            Change::Append(path, _) => {
                let length = length(path);
                self.lengths.entry(path.to_owned()).or_insert(length);
            }
            Change::Cut(path, bytes) => {
                if let Some(length) = self.lengths.get_mut(path) {
                    *length = bytes.min(*length);
                }
            }
            Change::Sync(path) => {
                self.lengths.remove(path);
                self.synced.insert(path.to_owned());
            }
            Change::Rename(from, to) => {
                if let Some(length) = self.lengths.remove(from) {
                    self.lengths.insert(to.to_owned(), length);
                }
                let (from, to, old) = (from.to_owned(), to.to_owned(), fs::read(to).ok());
                self.names.push(Name::Renamed { from, to, old });
            }
            Change::Remove(path) => {
                let (path, old) = (path.to_owned(), fs::read(path).unwrap());
                self.names.push(Name::Removed { path, old });
            }
            Change::SyncDir(dir) => {
                self.names.retain(|name| name.dir() != dir);
                self.synced.insert(dir.to_owned());
            }
        }
    }

    /// Adds the later changes of another process on the same machine.
    pub fn extend(&mut self, later: Self) {
        self.names.retain(|name| !later.synced.contains(name.dir()));
        self.lengths.retain(|path, _| !later.synced.contains(path));
        self.names.extend(later.names);
        for (path, length) in later.lengths {
            self.lengths.entry(path).or_insert(length);
        }
        self.synced.extend(later.synced);
    }

    /// Loses what a power failure takes.
    pub fn lose(&mut self, random: &mut Random) {
        let mut in_dir: BTreeMap<PathBuf, u64> = BTreeMap::new();
        for name in &self.names {
            *in_dir.entry(name.dir().to_owned()).or_default() += 1;
        }
        for kept in in_dir.values_mut() {
            *kept = random.below(*kept + 1);
        }
        let is_lost = |name: &Name| {
            let kept = in_dir.get_mut(name.dir()).unwrap();
            let is_lost = *kept == 0;
            *kept = kept.saturating_sub(1);
            is_lost
        };
        let (mut is_lost, names) = (is_lost, std::mem::take(&mut self.names));
        let lost: Vec<&Name> = names.iter().filter(|name| is_lost(name)).collect();
        lost.iter().rev().for_each(|name| name.undo());
        for (path, on_disk) in std::mem::take(&mut self.lengths) {
            let all = length(&path);
            if all <= on_disk {
                continue;
            }
            let Ok(file) = File::options().write(true).open(&path) else { continue };
            let kept = on_disk + random.below(all - on_disk + 1);
            file.set_len(kept).unwrap();
            // Blocks that were allocated and never written are zeros.
            if random.one_in(4) {
                file.set_len(all).unwrap();
            }
        }
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |facts| facts.len())
}
