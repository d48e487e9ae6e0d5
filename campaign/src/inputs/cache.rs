//! Cache of downloaded inputs, addressed by SHA-256. Several processes may use it at once: a file
//! appears by a rename, complete and verified, or not at all.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use schema::canonical::to_hex;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::files::{self, FileError};
use crate::stop::{Stop, wrong_use};

/// The cache folder of downloaded inputs, build tools, builds of rival engines and the like.
#[derive(Debug, Clone)]
pub struct Cache {
    pub dir: PathBuf,
    /// Files that this command has hashed, in the cache or elsewhere.
    hashed: Arc<Mutex<BTreeMap<PathBuf, Hashed>>>,
}

/// SHA-256 of a file, and the file's stamp before it was hashed.
#[derive(Debug)]
struct Hashed {
    stamp: String,
    sha256: String,
}

impl Cache {
    /// Returns the cache in the folder `dir`, which need not exist yet.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), hashed: Arc::default() }
    }

    /// Returns the path of the cached file with this SHA-256 and name, whether or not it exists.
    pub fn place(&self, sha256: &str, name: &str) -> PathBuf {
        self.dir.join("sha256").join(sha256).join(name)
    }

    /// Returns the folder of a cached model with random weights and this key, whether or not it
    /// exists.
    pub fn shape(&self, key: &str) -> PathBuf {
        self.dir.join("shapes").join(key)
    }

    /// Returns the folder of cached build tools with this name and version, whether or not it
    /// exists.
    pub fn tools(&self, name: &str) -> PathBuf {
        self.dir.join("tools").join(name)
    }

    /// Returns the path of a cached file, or `None` if the file is missing or has another hash than
    /// `sha256`. A file with another hash, such as a truncated model, is removed.
    ///
    /// # Errors
    /// A file with another hash cannot be removed, or the file cannot be read.
    pub fn look_up(&self, sha256: &str, name: &str) -> Result<Option<PathBuf>, Stop> {
        let path = self.place(sha256, name);
        let Ok(stamp) = stamp(&path) else { return Ok(None) };
        // Hashing a model of many gigabytes takes minutes, so unchanged files are trusted.
        if fs::read_to_string(mark_of(&path)).is_ok_and(|mark| mark == stamp) {
            return Ok(Some(path));
        }
        if self.sha256_of(&path)? != sha256 {
            fs::remove_file(&path).map_err(FileError::at("remove the damaged file", &path))?;
            return Ok(None);
        }
        // A read-only cache still serves: each command then hashes its files again.
        let _ = fs::write(mark_of(&path), stamp);
        Ok(Some(path))
    }

    /// Returns the SHA-256 of a file in the cache or elsewhere, in lower-case hex. A command hashes
    /// the file once, and again only if it has changed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn sha256_of(&self, path: &Path) -> Result<String, FileError> {
        let stamp = stamp(path).map_err(FileError::at("read", path))?;
        let mut hashed = self.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = hashed.get(path)
            && known.stamp == stamp
        {
            return Ok(known.sha256.clone());
        }
        let sha256 = sha256_file(path)?;
        hashed.insert(path.to_owned(), Hashed { stamp, sha256: sha256.clone() });
        Ok(sha256)
    }

    /// Moves a finished temporary file into the cache if it has the expected hash.
    ///
    /// # Errors
    /// The file has another hash, and is removed; or it cannot be read, or the folder is not
    /// writable.
    pub fn store(&self, temp: NamedTempFile, sha256: &str, name: &str) -> Result<PathBuf, Stop> {
        let found = sha256_file(temp.path())?;
        if found != sha256 {
            return Err(wrong_use!(
                "what was fetched has the SHA-256 {found}, expected {sha256}; it was removed"
            )
            .with_hint(
                "the package is not the one that the suite pins, or the download was damaged: try \
                 once more",
            ));
        }
        let path = self.place(sha256, name);
        files::put(temp, &path)?;
        if let Ok(stamp) = stamp(&path) {
            let _ = fs::write(mark_of(&path), stamp);
        }
        Ok(path)
    }

    /// Makes the file `path`, whose hash the caller has verified, a file of the cache by a symbolic
    /// link, so that a large file is neither copied nor hashed again. If it changes or vanishes,
    /// [`Cache::look_up`] removes or ignores the link.
    ///
    /// # Errors
    /// The file vanished, or the folder is not writable.
    pub fn link(&self, path: &Path, sha256: &str, name: &str) -> Result<PathBuf, FileError> {
        let (dir, place) = (self.dir.join("sha256").join(sha256), self.place(sha256, name));
        let target = path.canonicalize().map_err(FileError::at("read", path))?;
        // A link to itself would take the place of the file.
        if place.canonicalize().is_ok_and(|known| known == target) {
            return Ok(place);
        }
        files::make_dir(&dir)?;
        let link = tempfile::Builder::new().make_in(&dir, |temp| symlink(&target, temp));
        let put = link.and_then(|link| link.persist(&place).map_err(|error| error.error));
        put.map_err(FileError::at("write", &place))?;
        if let Ok(stamp) = stamp(&place) {
            let _ = fs::write(mark_of(&place), stamp);
        }
        Ok(place)
    }
}

/// Returns the SHA-256 of a file in lower-case hex.
///
/// # Errors
/// The file cannot be read.
pub fn sha256_file(path: &Path) -> Result<String, FileError> {
    let mut file = File::open(path).map_err(FileError::at("read", path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(FileError::at("read", path))?;
        if read == 0 {
            return Ok(to_hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..read]);
    }
}

/// Returns size and times of a file as text. While they are unchanged, the file need not be hashed
/// again.
fn stamp(path: &Path) -> std::io::Result<String> {
    let meta = fs::metadata(path)?;
    let (mtime, ctime) = ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
    Ok(format!("{} {}.{} {}.{}\n", meta.len(), mtime.0, mtime.1, ctime.0, ctime.1))
}

fn mark_of(path: &Path) -> PathBuf {
    path.with_file_name(".verified")
}
