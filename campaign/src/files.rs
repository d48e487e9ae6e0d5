//! File operations with errors that name the path; atomic writes, by which a file is written
//! completely or not at all; and append-only files of JSON lines that survive a crash.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use schema::exit::Exit;
use schema::untrusted;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

use crate::disk::{Change, announce, sync_dir};
use crate::stop::{Ends, Stop, wrong_use};

/// Error of a file operation, with the path of the file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`", untrusted::path(.path))]
pub struct FileError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl FileError {
    /// Returns the conversion of an I/O error for `map_err`:
    /// `fs::read(p).map_err(FileError::at("read", p))`.
    pub fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

impl Ends for FileError {
    fn exit(&self) -> Exit {
        Exit::Environment
    }

    fn hint(&self) -> Option<String> {
        let place = untrusted::path(self.path.parent().unwrap_or(&self.path));
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Some(format!("free some space where `{place}` lies, then run the command again"))
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Some(format!("`{place}` must be writable"))
            }
            _ => None,
        }
    }
}

/// Creates a folder and its parents on disk; one that exists is left as it is. Each is on the disk
/// when this function returns, so that no power failure takes what is written into it.
///
/// # Errors
/// The folder cannot be created.
pub fn make_dir(path: &Path) -> Result<(), FileError> {
    make_dirs(path).map_err(FileError::at("make the folder", path))
}

fn make_dirs(path: &Path) -> io::Result<()> {
    let above = path.parent().unwrap_or(Path::new(""));
    if path.is_dir() {
        // A process that was stopped below has not flushed the name, and has put nothing in.
        let is_empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
        return if is_empty { sync_dir(above) } else { Ok(()) };
    }
    if !above.as_os_str().is_empty() {
        make_dirs(above)?;
    }
    announce(Change::MakeDir(path))?;
    match fs::create_dir(path) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    sync_dir(above)
}

/// Reads a UTF-8 file as text.
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(FileError::at("read", path))
}

/// Creates the folder of `path` and writes `bytes` to `path`, completely or not at all
/// ([`whole_file::write`]). The file is on the disk, under its name, when this function returns.
///
/// # Errors
/// The folder cannot be created, or the file cannot be written or renamed; no partial file remains.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut file = temp_near(path)?;
    let announced = announce(Change::Append(file.path(), bytes));
    let written = announced.and_then(|()| file.write_all(bytes));
    written.map_err(FileError::at("write", path))?;
    put(file, path)
}

/// Copies the file `from` to `to` as [`write_whole`] writes one.
///
/// # Errors
/// `from` cannot be read or `to` not be written; no partial file remains.
pub fn copy(from: &Path, to: &Path) -> Result<(), FileError> {
    write_whole(to, &fs::read(from).map_err(FileError::at("read", from))?)
}

/// Removes a file; it is gone from the disk when this function returns.
///
/// # Errors
/// The file cannot be removed, or its folder cannot be flushed.
pub fn remove(path: &Path) -> Result<(), FileError> {
    let removed = announce(Change::Remove(path)).and_then(|()| fs::remove_file(path));
    removed
        .and_then(|()| sync_dir(path.parent().unwrap_or(Path::new("."))))
        .map_err(FileError::at("remove", path))
}

/// Flushes a file to disk that another process has written; does nothing if there is none.
///
/// # Errors
/// The file cannot be opened or flushed.
pub fn flush(path: &Path) -> Result<(), FileError> {
    if !path.exists() {
        return Ok(());
    }
    let flushed = announce(Change::Sync(path)).and_then(|()| File::open(path)?.sync_all());
    flushed.map_err(FileError::at("flush", path))
}

/// Creates a temporary file that [`put`] turns into the file `path`, in the same folder.
///
/// # Errors
/// The folder cannot be created or is not writable.
pub fn temp_near(path: &Path) -> Result<NamedTempFile, FileError> {
    make_parent(path)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let made = announce(Change::CreateTemp(dir)).and_then(|()| whole_file::temporary(path));
    made.map_err(FileError::at("write in", dir))
}

/// Flushes a finished temporary file to disk, makes it readable by all users, renames it to `path`,
/// and flushes the name.
///
/// # Errors
/// The file cannot be flushed, given its permissions or renamed.
pub fn put(file: NamedTempFile, path: &Path) -> Result<(), FileError> {
    persist(file, path).map_err(FileError::at("write", path))
}

fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    // A copy has the permissions of its source, but results must be readable by others.
    set_mode(file.path(), 0o644)?;
    announce(Change::Sync(file.path()))?;
    announce(Change::Rename(file.path(), path))?;
    whole_file::put(file, path)?;
    sync_dir(path.parent().unwrap_or(Path::new("")))
}

fn make_parent(path: &Path) -> Result<(), FileError> {
    make_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Sets the permission bits of a file.
///
/// # Errors
/// The system denies the change, as for a file that does not exist or belongs to another user.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Lists the files below a folder, sorted by path, without temporary ones that a killed process has
/// left. A folder that does not exist or cannot be read has none.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_left =
        |entry: &fs::DirEntry| whole_file::is_temporary(&entry.file_name().to_string_lossy());
    for entry in entries.filter(|entry| !is_left(entry)) {
        let path = entry.path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// Returns the size of a file in bytes, 0 for a folder; `None` if there is neither at `path` or its
/// metadata cannot be read.
pub fn size(path: &Path) -> Option<u64> {
    let meta = fs::metadata(path).ok()?;
    Some(if meta.is_file() { meta.len() } else { 0 })
}

/// Content of a file of JSON lines, parsed.
#[derive(Debug)]
pub struct Content<T> {
    pub lines: Vec<T>,
    /// Number of bytes of the parsed lines. A last line that is incomplete or cannot be parsed may
    /// follow them in the file.
    pub whole_bytes: usize,
    /// True when a last line that is incomplete or cannot be parsed follows the parsed lines in the
    /// file.
    pub torn: bool,
}

/// Reads a file of JSON lines, without a last line that is incomplete or cannot be parsed. A file
/// that does not exist has no lines.
///
/// # Errors
/// The file cannot be read, or a line before the last is not of type `T`.
pub fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Content<T>, Stop> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read.map_err(FileError::at("read", path))?,
    };
    let (mut lines, mut whole_bytes) = (Vec::new(), 0);
    let mut chunks = bytes.split_inclusive(|byte| *byte == b'\n').peekable();
    while let Some(chunk) = chunks.next() {
        match serde_json::from_slice(chunk) {
            Ok(line) if chunk.ends_with(b"\n") => lines.push(line),
            // A crash may leave part of a line, or disk blocks that were allocated and never
            // written.
            _ if chunks.peek().is_none() => break,
            Ok(_) => {}
            Err(error) => {
                let (line, path) = (lines.len() + 1, path.display());
                return Err(wrong_use!("line {line} of `{path}` cannot be read: {error}")
                    .with_hint("nobody but this program should write there"));
            }
        }
        whole_bytes += chunk.len();
    }
    Ok(Content { torn: whole_bytes < bytes.len(), lines, whole_bytes })
}

/// A file of JSON lines open for appending, with this process as its only writer.
#[derive(Debug)]
pub struct Lines {
    file: File,
    path: PathBuf,
    /// Length in bytes of the lines that were written whole.
    whole_bytes: u64,
}

impl Lines {
    /// Opens or creates a file of JSON lines and returns its content. A last line that is
    /// incomplete or cannot be parsed is cut off.
    ///
    /// # Errors
    /// A file or folder cannot be created, read or written, or a line before the last is not of
    /// type `T`.
    pub fn open<T: DeserializeOwned>(path: &Path) -> Result<(Self, Content<T>), Stop> {
        let dir = path.parent().unwrap_or(Path::new("."));
        make_dir(dir)?;
        let held = read_lines(path)?;
        let made = if path.exists() { Ok(()) } else { announce(Change::Create(path)) };
        let file = made.and_then(|()| OpenOptions::new().create(true).append(true).open(path));
        let file = file.map_err(FileError::at("write", path))?;
        let lines = Self { file, path: path.to_owned(), whole_bytes: held.whole_bytes as u64 };
        let brought = lines.cut().and_then(|()| lines.sync());
        brought.map_err(FileError::at("write", path))?;
        // A new file's name is on disk only once its folder is flushed.
        sync_dir(dir).map_err(FileError::at("write in", dir))?;
        Ok((lines, held))
    }

    /// Appends one JSON line to the file and flushes it to disk.
    ///
    /// # Errors
    /// `line` has no JSON form, or the file cannot be written.
    pub fn append<T: Serialize>(&mut self, line: &T) -> Result<(), FileError> {
        let text = serde_json::to_string(line).map_err(io::Error::from);
        let written = text.and_then(|text| self.write(format!("{text}\n").as_bytes()));
        written.map_err(FileError::at("write", &self.path))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // An earlier line may have come to the file in part, as on a full disk.
        self.cut()?;
        announce(Change::Append(&self.path, bytes))?;
        self.file.write_all(bytes)?;
        self.sync()?;
        self.whole_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Cuts off what follows the whole lines: appending after an incomplete line would join the two
    /// into one unreadable line.
    fn cut(&self) -> io::Result<()> {
        if self.file.metadata()?.len() == self.whole_bytes {
            return Ok(());
        }
        announce(Change::Cut(&self.path, self.whole_bytes))?;
        self.file.set_len(self.whole_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        announce(Change::Sync(&self.path))?;
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use store::layout::FileKind;

    use super::*;

    #[test]
    fn a_full_disk_is_named_with_what_to_do() {
        let path = Path::new("/somewhere/results/run.json");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let stop = Stop::from(FileError::at("write", path)(full));
        assert_eq!(stop.exit(), Exit::Environment);
        assert_eq!(
            stop.to_string(),
            "error: cannot write `/somewhere/results/run.json`: no storage space\n\
             hint: free some space where `/somewhere/results` lies, then run the command again"
        );
    }

    #[test]
    fn a_file_in_the_way_of_a_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let blocker = dir.path().join("target");
        fs::write(&blocker, "").unwrap();
        let error = write_whole(&blocker.join("x/y.json"), b"{}").unwrap_err();
        assert!(error.to_string().contains("target/x"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing half-written is left");
    }

    #[test]
    fn a_line_that_was_cut_short_is_dropped_and_the_next_one_follows_the_whole_ones() {
        let dir = tempfile::tempdir().unwrap();
        for torn in ["{\"a\"", "3", "\0\0\0\0\n"] {
            let path = dir.path().join("lines.jsonl");
            fs::write(&path, format!("1\n2\n{torn}")).unwrap();
            let (mut lines, held) = Lines::open::<u32>(&path).unwrap();
            assert_eq!((held.lines, held.torn), (vec![1, 2], true), "{torn:?}");
            lines.append(&4).unwrap();
            let held = read_lines::<u32>(&path).unwrap();
            assert_eq!((held.lines, held.torn), (vec![1, 2, 4], false));
        }
    }

    #[test]
    fn a_line_that_came_to_the_disk_in_part_is_not_joined_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.jsonl");
        let (mut lines, _) = Lines::open::<u32>(&path).unwrap();
        lines.append(&1).unwrap();
        // As an append leaves it that fails on a full disk.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"23").unwrap();
        lines.append(&4).unwrap();
        lines.append(&5).unwrap();
        let held = read_lines::<u32>(&path).unwrap();
        assert_eq!((held.lines, held.torn), (vec![1, 4, 5], false));
    }

    #[test]
    fn what_a_killed_process_has_left_is_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("runs/a.json");
        write_whole(&kept, b"{}").unwrap();
        // The file of a process that was killed is not removed.
        let left = temp_near(&kept).unwrap().into_temp_path().keep().unwrap();
        assert_eq!(files_below(dir.path()), [kept]);
        let name = format!("runs/{}", left.file_name().unwrap().to_string_lossy());
        assert_eq!(FileKind::of(&name), FileKind::Leftover, "the registry knows it too");
    }

    #[test]
    fn a_line_in_the_middle_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.jsonl");
        fs::write(&path, "1\nx\n3\n").unwrap();
        let error = read_lines::<u32>(&path).unwrap_err();
        assert!(error.to_string().starts_with("error: line 2 of `"), "{error}");
        assert_eq!(error.exit(), Exit::Unsound);
    }

    #[test]
    fn a_file_that_is_not_there_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let held = read_lines::<u32>(&dir.path().join("none")).unwrap();
        assert_eq!((held.lines, held.torn), (vec![], false));
    }
}
