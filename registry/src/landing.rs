//! Puts new files into `results/` completely or not at all: each file is written under a temporary
//! name and renamed, and everything is undone unless it is kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use store::layout::leftover_name;

/// Called at each boundary between two writes. Only tests use it: they end the process there and
/// check what it leaves behind.
pub type Watch<'a> = &'a dyn Fn(&'static str);

/// Files put in place so far. They are removed again when this is dropped without
/// [`Landing::keep`].
pub struct Landing<'a> {
    root: PathBuf,
    watch: Watch<'a>,
    landed: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    replaced: Vec<(PathBuf, Vec<u8>)>,
    kept: bool,
}

impl std::fmt::Debug for Landing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landing").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<'a> Landing<'a> {
    /// Starts to put files in place below `root`.
    pub fn new(root: &Path, watch: Watch<'a>) -> Self {
        Self {
            root: root.to_owned(),
            watch,
            landed: Vec::new(),
            folders: Vec::new(),
            replaced: Vec::new(),
            kept: false,
        }
    }

    /// Writes `bytes` to `path` below the root. An existing file with the same bytes is left
    /// alone; one with other bytes is replaced only where `replace` allows it.
    ///
    /// # Errors
    ///
    /// The path is taken, lies behind a link, or cannot be written.
    pub fn put(&mut self, path: &str, bytes: &[u8], replace: bool) -> Result<()> {
        let target = self.root.join(path);
        self.make_folders(path)?;
        match fs::symlink_metadata(&target) {
            Ok(found) => {
                let is_file = found.is_file();
                let old = if is_file { fs::read(&target) } else { Ok(Vec::new()) };
                let old = old.with_context(|| cannot_write(&target))?;
                if is_file && old == bytes {
                    return Ok(());
                }
                if !is_file || !replace {
                    bail!(
                        "`{}` exists with other content\nhint: a record is never replaced; move the \
                         file away",
                        target.display()
                    );
                }
                write_aside(&target, bytes, self.watch)?;
                self.replaced.push((target, old));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_aside(&target, bytes, self.watch)?;
                self.landed.push(target);
            }
            Err(error) => return Err(error).with_context(|| cannot_write(&target)),
        }
        Ok(())
    }

    /// Keeps all files that were put in place.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Creates the folders above `path` one by one, and refuses to go through a link.
    fn make_folders(&mut self, path: &str) -> Result<()> {
        let mut folder = self.root.clone();
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        for part in std::iter::once("").chain(above.split('/').filter(|part| !part.is_empty())) {
            if !part.is_empty() {
                folder.push(part);
            }
            match fs::symlink_metadata(&folder) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => bail!(
                    "`{}` is a symbolic link or no folder, and records are not written through it",
                    folder.display()
                ),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir(&folder).with_context(|| cannot_write(&folder))?;
                    self.folders.push(folder.clone());
                    (self.watch)("a folder was made");
                }
                Err(error) => return Err(error).with_context(|| cannot_write(&folder)),
            }
        }
        Ok(())
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Errors cannot be reported from `drop`; the next `check` finds what stays behind.
        for path in &self.landed {
            let _ = fs::remove_file(path);
        }
        for (path, old) in &self.replaced {
            let _ = write_aside(path, old, self.watch);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn write_aside(target: &Path, bytes: &[u8], watch: Watch<'_>) -> Result<()> {
    let name = target.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let aside = target.with_file_name(leftover_name(&name, std::process::id()));
    let written = write_whole(&aside, bytes, watch).and_then(|()| fs::rename(&aside, target));
    watch("a file is in its place");
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written.with_context(|| cannot_write(target))
}

fn write_whole(path: &Path, bytes: &[u8], watch: Watch<'_>) -> io::Result<()> {
    // A leftover with this process id is from a killed process, so it may be replaced.
    let _ = fs::remove_file(path);
    let mut file: File = OpenOptions::new().write(true).create_new(true).open(path)?;
    watch("a file is empty");
    let (first, second) = bytes.split_at(bytes.len() / 2);
    file.write_all(first)?;
    watch("a file is half written");
    file.write_all(second)?;
    // Renamed before the data is on the disk, a record could be empty after a power failure.
    file.sync_all()?;
    watch("a file is whole, under another name");
    Ok(())
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let results = dir.path().join("results");
        fs::create_dir(&results).unwrap();
        fs::write(results.join("README.md"), "old").unwrap();
        let mut landing = Landing::new(&results, &|_| {});
        landing.put("runs/a/b.json", b"record", false).unwrap();
        landing.put("README.md", b"new", true).unwrap();
        assert_eq!(fs::read(results.join("README.md")).unwrap(), b"new");
        drop(landing);
        assert_eq!(fs::read(results.join("README.md")).unwrap(), b"old");
        assert!(!results.join("runs").exists());
    }

    #[test]
    fn a_record_is_never_replaced_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (results, elsewhere) = (dir.path().join("results"), dir.path().join("elsewhere"));
        fs::create_dir_all(results.join("runs")).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(results.join("runs/a.json"), "old").unwrap();
        std::os::unix::fs::symlink(&elsewhere, results.join("kernels")).unwrap();
        let mut landing = Landing::new(&results, &|_| {});
        landing.put("runs/a.json", b"old", false).unwrap();
        let occupied = landing.put("runs/a.json", b"new", false).unwrap_err();
        assert!(occupied.to_string().contains("exists with other content"), "{occupied}");
        let linked = landing.put("kernels/a.json", b"new", false).unwrap_err();
        assert!(linked.to_string().contains("is a symbolic link or no folder"), "{linked}");
        landing.keep();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        assert_eq!(fs::read(results.join("runs/a.json")).unwrap(), b"old");
    }
}
