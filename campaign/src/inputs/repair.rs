//! Repair of a dataset that its package contains in a damaged form. The result is the same every
//! time, so that its hash can be pinned.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use schema::model::RepairMethod;

use crate::files::FileError;

/// Separator between two objects of the pretty-printed top-level array.
const SEPARATOR: &[u8] = b"\n  },\n  {\n";
/// Text that closes the array after its last complete object.
const CLOSING: &[u8] = b"\n  }\n]\n";
/// Largest distance from the end of the file, in bytes, at which the last complete object is
/// searched.
const TAIL_BYTES: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    #[error("no whole object was found in its last {TAIL_BYTES} bytes")]
    NoObject,
    #[error(transparent)]
    File(#[from] FileError),
}

/// Writes the repaired form of `raw` to `out`, whose path is `place`.
///
/// # Errors
/// The file is not damaged in the way that `method` repairs, or cannot be copied.
pub fn mend(
    method: RepairMethod,
    raw: &Path,
    out: &mut File,
    place: &Path,
) -> Result<(), RepairError> {
    let RepairMethod::CloseJsonArray = method;
    let (mut input, whole) = whole_objects(raw).map_err(FileError::at("read", raw))?;
    let whole = whole.ok_or(RepairError::NoObject)?;
    close_array(&mut input, whole, out).map_err(FileError::at("write", place))?;
    Ok(())
}

/// Opens the file, and returns the length of the part that ends with its last complete object.
fn whole_objects(raw: &Path) -> io::Result<(File, Option<u64>)> {
    let mut input = File::open(raw)?;
    let length = input.metadata()?.len();
    // The file is large, and only its end is damaged.
    let tail_start = length.saturating_sub(TAIL_BYTES);
    input.seek(SeekFrom::Start(tail_start))?;
    let mut tail = Vec::new();
    input.read_to_end(&mut tail)?;
    let at = tail.windows(SEPARATOR.len()).rposition(|window| window == SEPARATOR);
    input.rewind()?;
    Ok((input, at.map(|at| tail_start + at as u64)))
}

/// Copies the first `whole` bytes, then closes the array.
fn close_array(input: &mut File, whole: u64, out: &mut File) -> io::Result<()> {
    io::copy(&mut input.take(whole), out)?;
    out.write_all(CLOSING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn mended(text: &str) -> Result<String, RepairError> {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("raw.json");
        fs::write(&raw, text).unwrap();
        let mut out = tempfile::NamedTempFile::new_in(dir.path()).unwrap();
        let place = out.path().to_owned();
        mend(RepairMethod::CloseJsonArray, &raw, out.as_file_mut(), &place)?;
        Ok(fs::read_to_string(out.path()).unwrap())
    }

    const CUT: &str =
        "[\n  {\n    \"id\": \"a\"\n  },\n  {\n    \"id\": \"b\"\n  },\n  {\n    \"id\": \"c, }\n";

    #[test]
    fn an_array_cut_in_mid_string_ends_after_its_last_whole_object() {
        let text = mended(CUT).unwrap();
        assert_eq!(text, "[\n  {\n    \"id\": \"a\"\n  },\n  {\n    \"id\": \"b\"\n  }\n]\n");
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed.as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn a_file_without_a_whole_object_is_refused() {
        assert!(matches!(mended("[\n  {\n    \"id\""), Err(RepairError::NoObject)));
        assert!(matches!(mended(""), Err(RepairError::NoObject)));
    }
}
