//! Append-only files of JSON lines that survive a crash: an appended line is on disk before the
//! caller continues, and an incomplete last line is dropped. Knows nothing of the lines' content.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use schema::exit::Exit;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::{FileError, make_dir};
use crate::stop::Ends;

#[derive(Debug, thiserror::Error)]
pub enum LinesError {
    #[error("line {line} of `{}` cannot be read: {detail}", .path.display())]
    Line { path: PathBuf, line: usize, detail: String },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Ends for LinesError {
    fn exit(&self) -> Exit {
        match self {
            Self::Line { .. } => Exit::Unsound,
            Self::File(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Line { .. } => Some("nobody but this program should write there".to_owned()),
            Self::File(error) => error.hint(),
        }
    }
}

/// Content of a file of JSON lines.
#[derive(Debug)]
pub struct Read<T> {
    pub lines: Vec<T>,
    /// Length of the complete lines in bytes; an incomplete line may follow.
    pub whole_bytes: usize,
    /// True when an incomplete line follows.
    pub torn: bool,
}

/// Reads the complete lines of a file; none if the file does not exist.
///
/// # Errors
/// The file cannot be read, or a line before the last is not of type `T`.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Read<T>, LinesError> {
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
                let (path, line) = (path.to_owned(), lines.len() + 1);
                return Err(LinesError::Line { path, line, detail: error.to_string() });
            }
        }
        whole_bytes += chunk.len();
    }
    Ok(Read { torn: whole_bytes < bytes.len(), lines, whole_bytes })
}

/// A file of JSON lines open for appending, with this process as its only writer.
#[derive(Debug)]
pub struct Lines {
    file: File,
    path: PathBuf,
}

impl Lines {
    /// Opens or creates a file and returns its content. An incomplete last line is cut off.
    ///
    /// # Errors
    /// The file cannot be read or written, or a line before the last is not of type `T`.
    pub fn open<T: DeserializeOwned>(path: &Path) -> Result<(Self, Read<T>), LinesError> {
        let dir = path.parent().unwrap_or(Path::new("."));
        make_dir(dir)?;
        let held = read(path)?;
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(FileError::at("write", path))?;
        // Appending after an incomplete line would join the two into one unreadable line.
        let brought = file.set_len(held.whole_bytes as u64).and_then(|()| file.sync_all());
        brought.map_err(FileError::at("write", path))?;
        // A new file's name is on disk only once its folder is flushed.
        let folder = File::open(dir).and_then(|folder| folder.sync_all());
        folder.map_err(FileError::at("write in", dir))?;
        Ok((Self { file, path: path.to_owned() }, held))
    }

    /// Appends one line and flushes it to disk.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn append<T: Serialize>(&mut self, line: &T) -> Result<(), FileError> {
        let text = serde_json::to_string(line).map_err(io::Error::from);
        let written = text.and_then(|text| {
            self.file.write_all(format!("{text}\n").as_bytes())?;
            self.file.sync_data()
        });
        written.map_err(FileError::at("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_short_is_dropped_and_the_next_one_follows_the_whole_ones() {
        let dir = tempfile::tempdir().unwrap();
        for torn in ["{\"a\"", "3", "\0\0\0\0\n"] {
            let path = dir.path().join("lines.jsonl");
            fs::write(&path, format!("1\n2\n{torn}")).unwrap();
            let (mut lines, held) = Lines::open::<u32>(&path).unwrap();
            assert_eq!((held.lines, held.torn), (vec![1, 2], true), "{torn:?}");
            lines.append(&4).unwrap();
            let held = read::<u32>(&path).unwrap();
            assert_eq!((held.lines, held.torn), (vec![1, 2, 4], false));
        }
    }

    #[test]
    fn a_line_in_the_middle_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.jsonl");
        fs::write(&path, "1\nx\n3\n").unwrap();
        let error = read::<u32>(&path).unwrap_err();
        assert!(error.to_string().starts_with("line 2 of `"), "{error}");
        assert_eq!(error.exit(), Exit::Unsound);
    }

    #[test]
    fn a_file_that_is_not_there_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let held = read::<u32>(&dir.path().join("none")).unwrap();
        assert_eq!((held.lines, held.torn), (vec![], false));
    }
}
