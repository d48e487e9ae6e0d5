//! Reads `results/` and overlays laid out like it into ordered plain data. Knows files, not git.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schema::campaign::CampaignRecord;
use schema::event::Event;
use schema::kernel::KernelRecord;
use schema::run::RunRecord;

pub use crate::events::Retraction;
use crate::finding::{Finding, HISTORY, LAYOUT};
use crate::layout::FileKind;
use crate::storage::{self, Parsed};

/// A folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read `{}`", path.display())]
pub struct StoreError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

/// A record and the path of its file, below `results/`.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    pub path: String,
    /// Index of the folder it was read from, in the order given to [`Registry::load`].
    pub root: usize,
    pub record: T,
}

/// Everything in a registry, each list in the order of its paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Registry {
    pub runs: Vec<Stored<RunRecord>>,
    pub kernels: Vec<Stored<KernelRecord>>,
    pub campaigns: Vec<Stored<CampaignRecord>>,
    pub events: Vec<Stored<Event>>,
    /// Paths of the generated pages, below `results/`.
    pub pages: BTreeSet<String>,
    /// Id of a run, a kernels record or an event to why it was retracted (`events`).
    pub retracted: BTreeMap<String, Retraction>,
    /// Files that could not be read, strays and leftovers.
    pub findings: Vec<Finding>,
}

impl Registry {
    /// Reads folders laid out like `results/`. A folder that does not exist is empty. Of a file
    /// that several folders hold, the first is kept; that they agree is checked.
    ///
    /// # Errors
    /// A folder or file exists and cannot be read.
    pub fn load(roots: &[&Path]) -> Result<Self, StoreError> {
        let mut files: BTreeMap<String, (usize, Vec<u8>)> = BTreeMap::new();
        let mut registry = Self::default();
        for (index, root) in roots.iter().enumerate() {
            let folder = read_folder(root)?;
            registry.findings.extend(folder.findings);
            for (path, bytes) in folder.files {
                match files.get(&path) {
                    None => drop(files.insert(path, (index, bytes))),
                    Some((_, first)) if *first == bytes || !FileKind::of(&path).is_record() => {}
                    Some(_) => registry.findings.push(Finding::breach(
                        HISTORY,
                        &path,
                        "the overlay holds another record under this path",
                    )),
                }
            }
        }
        for (path, (root, bytes)) in files {
            registry.take(path, root, &bytes);
        }
        registry.apply_events();
        registry.findings.sort();
        Ok(registry)
    }

    fn take(&mut self, path: String, root: usize, bytes: &[u8]) {
        match storage::read(&path, bytes) {
            Ok(Parsed::Run(record)) => self.runs.push(Stored { path, root, record: *record }),
            Ok(Parsed::Kernels(record)) => {
                self.kernels.push(Stored { path, root, record: *record })
            }
            Ok(Parsed::Campaign(record)) => self.campaigns.push(Stored { path, root, record }),
            Ok(Parsed::Event(record)) => self.events.push(Stored { path, root, record }),
            Ok(Parsed::Derived) if FileKind::of(&path) == FileKind::Page => {
                self.pages.insert(path);
            }
            Ok(Parsed::Derived) => {}
            Err(finding) => self.findings.push(finding),
        }
    }

    /// The run with this id.
    #[must_use]
    pub fn run(&self, id: &str) -> Option<&Stored<RunRecord>> {
        self.runs.iter().find(|run| run.record.id == id)
    }

    /// The runs that still stand, in the order of their paths.
    pub fn standing(&self) -> impl Iterator<Item = &Stored<RunRecord>> {
        self.runs.iter().filter(|run| !self.retracted.contains_key(&run.record.id))
    }

    /// Engine and release of every run.
    #[must_use]
    pub fn releases(&self) -> BTreeSet<(&str, &str)> {
        let engines = self.runs.iter().map(|run| &run.record.engine);
        engines.map(|engine| (engine.name.as_str(), engine.release.as_str())).collect()
    }
}

/// The files of a folder, by path with forward slashes, and what cannot be followed.
#[derive(Debug, Default)]
pub struct Folder {
    pub files: BTreeMap<String, Vec<u8>>,
    pub findings: Vec<Finding>,
}

/// Reads every file below `root`. Symbolic links are findings and never followed.
///
/// # Errors
/// A folder or file exists and cannot be read.
pub fn read_folder(root: &Path) -> Result<Folder, StoreError> {
    let mut folder = Folder::default();
    match fs::symlink_metadata(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(folder),
        Err(source) => return Err(StoreError { path: root.to_owned(), source }),
        Ok(_) => {}
    }
    walk(root, "", &mut folder)?;
    Ok(folder)
}

fn walk(dir: &Path, below: &str, folder: &mut Folder) -> Result<(), StoreError> {
    let failed = |path: &Path, source| StoreError { path: path.to_owned(), source };
    for entry in fs::read_dir(dir).map_err(|error| failed(dir, error))? {
        let entry = entry.map_err(|error| failed(dir, error))?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            let shown = format!("{below}{}", name.to_string_lossy());
            folder.findings.push(Finding::breach(LAYOUT, &shown, "its name is not UTF-8"));
            continue;
        };
        let path = format!("{below}{name}");
        let kind = entry.file_type().map_err(|error| failed(&entry.path(), error))?;
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), folder)?;
        } else if kind.is_file() {
            let bytes = read_bounded(&entry.path()).map_err(|e| failed(&entry.path(), e))?;
            folder.files.insert(path, bytes);
        } else {
            let detail = "not a regular file; links are not followed";
            folder.findings.push(Finding::breach(LAYOUT, &path, detail));
        }
    }
    Ok(())
}

/// Reads at most one byte more than a record may have, so that a huge file costs little.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let limit = storage::RECORD_BYTES_MAX as u64 + 1;
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
