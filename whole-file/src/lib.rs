//! Writes files completely or not at all: to a temporary file in the same folder, which is then
//! renamed. The rename replaces a regular file or nothing: a path that names something else, such as
//! a device or a pipe, is opened and written to. Also reads the files that a user names, within
//! bounds, and prints to standard output without a panic.

#![warn(missing_docs)]

use std::error::Error;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use tempfile::{Builder, NamedTempFile};

/// Part of a temporary file's name between the name of the file that it becomes and a random end.
const MARK: &str = ".tmp-";
/// Permissions of a new file, less the bits of the user's umask.
const MODE: u32 = 0o666;
/// Permission bits that a file takes over from the one that it replaces.
const MODE_BITS: u32 = 0o777;
/// Largest number of links that are followed from one to the next, as in Linux.
const LINKS_MAX: usize = 40;

/// Largest file that is written by hand, such as a scenario, in bytes.
pub const TEXT_MAX: u64 = 16 << 20;
/// Largest file of data, such as a dataset, a tokenizer or the samples of a run, in bytes.
pub const DATA_MAX: u64 = 4 << 30;

/// Error of a file that a user named to be read. Its source is an [`io::Error`] only where the system
/// does not open or read the file; any other file is unsound.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} `{}`", .path.display())]
pub struct ReadError {
    what: &'static str,
    path: PathBuf,
    source: Box<dyn Error + Send + Sync>,
}

impl ReadError {
    fn new(
        what: &'static str,
        path: &Path,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { what, path: path.to_owned(), source: source.into() }
    }

    /// Returns the kind of the system's error; `None` where the file is unsound.
    pub fn system(&self) -> Option<ErrorKind> {
        self.source.downcast_ref().map(io::Error::kind)
    }
}

/// Opens the file that a user names by `path`; `what` says what it should be, such as `scenario`. It
/// must be a regular file, or a link to one: a pipe may have no writer, and a device no end.
///
/// # Errors
/// `path` names something else, or the file cannot be opened.
pub fn open(path: &Path, what: &'static str) -> Result<File, ReadError> {
    // Before it is opened, because the opening of a pipe waits for a writer.
    let found = fs::metadata(path).map_err(|error| ReadError::new(what, path, error))?;
    if !found.is_file() {
        return Err(ReadError::new(what, path, NOT_REGULAR));
    }
    // Files of `/proc` are regular by their mode, and some wait for what the kernel says next.
    let without_waiting = OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(without_waiting).open(path);
    file.map_err(|error| ReadError::new(what, path, error))
}

const NOT_REGULAR: &str =
    "not a regular file\nhint: save the output of a pipe or device to a file first";

/// Reads the file that a user names by `path`, of at most `max` bytes; `what` as in [`open`].
///
/// # Errors
/// Those of [`open`]; the file is longer, does not fit into memory, or cannot be read.
pub fn read(path: &Path, what: &'static str, max: u64) -> Result<Vec<u8>, ReadError> {
    let file = open(path, what)?;
    let mut bytes = Vec::new();
    let mut read = || {
        let length = file.metadata()?.len();
        if length <= max {
            bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
            // A file may grow, and those of `/proc` state no length.
            (&file).take(max + 1).read_to_end(&mut bytes)?;
        }
        Ok::<_, io::Error>(length.max(bytes.len() as u64))
    };
    match read() {
        Ok(length) if length > max => {
            Err(ReadError::new(what, path, format!("it has more than {max} bytes")))
        }
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            Err(ReadError::new(what, path, NOT_REGULAR))
        }
        Err(error) => Err(ReadError::new(what, path, error)),
    }
}

/// Reads the text file that a user names by `path`, of at most `max` bytes; `what` as in [`open`].
///
/// # Errors
/// Those of [`read`], or the file is not UTF-8.
pub fn read_text(path: &Path, what: &'static str, max: u64) -> Result<String, ReadError> {
    let bytes = read(path, what, max)?;
    String::from_utf8(bytes).map_err(|_| ReadError::new(what, path, "it is not text in UTF-8"))
}

/// Error of [`print()`].
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub struct PrintError(#[source] io::Error);

/// Writes `text` to standard output. A closed pipe is no error: its reader, such as `head`, has all
/// that it wants.
///
/// # Errors
/// Standard output cannot be written, as on a full device.
pub fn print(text: &str) -> Result<(), PrintError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(PrintError(error)),
        _ => Ok(()),
    }
}

/// Writes `bytes` to the file that a person names by `path`. Links are followed, and a replaced file
/// keeps its permissions. After a crash there is the old content or the new one. A device, pipe or
/// terminal is written to as it is, and so is this program's own standard output.
///
/// # Errors
/// `path` is a folder or names no file, or the file cannot be written or renamed. A file that stood
/// there before is then unchanged, and no part of a new one remains; what a device or pipe has taken
/// stays taken.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if is_stream(path)? {
        let mut stream = stream(path)?;
        return stream.write_all(bytes).and_then(|()| stream.flush());
    }
    let mut file = temporary(path)?;
    file.write_all(bytes)?;
    put(file, path)
}

/// Creates an empty file that [`put`] turns into the file `path`: in the same folder, so that it can
/// be renamed, or in the system's folder for temporary files where `path` is written to as it is. It
/// is removed when it is dropped.
///
/// # Errors
/// `path` is a folder or names no file, or its folder does not exist or is not writable.
pub fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    match place(path)? {
        Place::File(file) => in_folder_of(&file),
        Place::Stream => NamedTempFile::new(),
    }
}

/// Moves a complete `file` to `path`, as [`write()`] writes there.
///
/// # Errors
/// Those of [`write()`].
pub fn put(file: NamedTempFile, path: &Path) -> io::Result<()> {
    let target = match place(path)? {
        Place::File(target) => target,
        Place::Stream => {
            let mut stream = stream(path)?;
            io::copy(&mut file.reopen()?, &mut stream)?;
            return stream.flush();
        }
    };
    if let Ok(found) = fs::metadata(&target) {
        let kept = Permissions::from_mode(found.permissions().mode() & MODE_BITS);
        file.as_file().set_permissions(kept)?;
    }
    // Without this, a power failure could leave an empty file under the final name.
    file.as_file().sync_all()?;
    file.persist(target).map_err(|error| error.error)?;
    Ok(())
}

/// Writes `bytes` to the file `path` of a folder that a program keeps, and whose other content may
/// be that of strangers: a link is replaced and never followed. The file is not flushed to disk,
/// because the program can make it again.
///
/// # Errors
/// `path` is neither a regular file nor a link nor absent, or the file cannot be written or renamed.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() || found.is_symlink() => {}
        Ok(_) => return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut file = in_folder_of(path)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// True where `path` names something that [`write()`] writes to as it is: a device, pipe or
/// terminal, or this program's own standard output or error. What was written there cannot be
/// replaced.
///
/// # Errors
/// `path` is a folder, or the system does not tell what it is.
pub fn is_stream(path: &Path) -> io::Result<bool> {
    Ok(matches!(place(path)?, Place::Stream))
}

/// True where `path` names this program's own standard output, so that a document that is written
/// there stands among what the program prints.
pub fn is_standard_output(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| is_open_as(&found, &io::stdout()))
}

/// Returns the name of a temporary file that becomes the file `name`; `end` tells it from others.
pub fn temporary_name(name: &str, end: &str) -> String {
    format!(".{name}{MARK}{end}")
}

/// True for the name of a temporary file, which a killed program may leave behind.
pub fn is_temporary(name: &str) -> bool {
    let end = name.strip_prefix('.').and_then(|rest| rest.rsplit_once(MARK));
    end.is_some_and(|(_, end)| {
        !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Way in which something is written to a path.
enum Place {
    /// By a rename to this path, which is no link.
    File(PathBuf),
    /// As it is.
    Stream,
}

fn place(path: &Path) -> io::Result<Place> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if found.is_file() && own_output(&found).is_none() => {
            Ok(Place::File(behind_links(path)))
        }
        Ok(_) => Ok(Place::Stream),
        // A link to nothing names the file that it leads to.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Place::File(behind_links(path))),
        Err(error) => Err(error),
    }
}

/// Returns the path that is left when `path` is a link, or a link to a link, and so on.
fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(to) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(to);
    }
    path
}

/// Creates a temporary file in the folder of `path`.
fn in_folder_of(path: &Path) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?.to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let prefix = temporary_name(&name, "");
    let mut builder = Builder::new();
    builder.prefix(&prefix).permissions(Permissions::from_mode(MODE));
    builder.tempfile_in(folder.unwrap_or(Path::new(".")))
}

fn stream(path: &Path) -> io::Result<Box<dyn Write>> {
    match own_output(&fs::metadata(path)?) {
        Some(own) => Ok(own),
        None => Ok(Box::new(OpenOptions::new().write(true).open(path)?)),
    }
}

/// Returns this program's standard output or error, where `found` are the facts of its file. Opened
/// once more, a file would be written from its start, over what the program has printed.
fn own_output(found: &Metadata) -> Option<Box<dyn Write>> {
    if is_open_as(found, &io::stdout()) {
        Some(Box::new(io::stdout()))
    } else if is_open_as(found, &io::stderr()) {
        Some(Box::new(io::stderr()))
    } else {
        None
    }
}

/// True where the file with the facts `found` is the one that `own` has open.
fn is_open_as(found: &Metadata, own: &impl AsFd) -> bool {
    let own = own.as_fd().try_clone_to_owned().and_then(|own| File::from(own).metadata());
    own.is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, symlink};
    use std::thread;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn left(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> =
            entries.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_regular_files_of_bounded_length_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        fs::write(at("text"), "four").unwrap();
        symlink("text", at("link")).unwrap();
        fs::write(at("bytes"), [0xff]).unwrap();
        File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        let read = |path: &Path, max| match read_text(path, "key", max) {
            Ok(text) => text,
            Err(error) => {
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                format!("{:?} {}", error.system(), error.source)
            }
        };
        for special in [at("pipe"), folder.path().to_owned(), "/dev/zero".into()] {
            let said = read(&special, 4);
            assert!(said.starts_with("None not a regular file"), "{said}");
        }
        assert_eq!(read(&at("link"), 4), "four");
        let long = "None it has more than 3 bytes";
        // The system states no length of the last one.
        for path in [at("text"), at("sparse"), "/proc/self/maps".into()] {
            assert_eq!(read(&path, 3), long);
        }
        assert_eq!(read(&at("bytes"), 4), "None it is not text in UTF-8");
        assert!(read(&at("absent"), 4).starts_with("Some(NotFound)"));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.json");
        write(&path, b"old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(left(folder.path()), ["m.json"]);
    }

    #[test]
    fn a_link_leads_to_the_file_that_is_replaced_also_where_there_is_none_yet() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("there")).unwrap();
        symlink("there/m.json", at("one")).unwrap();
        symlink("one", at("two")).unwrap();
        for text in ["first", "second"] {
            write(&at("two"), text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(at("there/m.json")).unwrap(), text);
        }
        assert!(fs::symlink_metadata(at("one")).unwrap().is_symlink());
        assert_eq!(left(&at("there")), ["m.json"]);
    }

    #[test]
    fn a_file_of_a_kept_folder_is_never_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("mine"), "mine").unwrap();
        symlink("mine", at("page.md")).unwrap();
        replace(&at("page.md"), b"page").unwrap();
        assert_eq!(fs::read(at("mine")).unwrap(), b"mine");
        assert!(fs::symlink_metadata(at("page.md")).unwrap().is_file());
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        assert!(replace(&at("pipe"), b"").is_err() && replace(folder.path(), b"").is_err());
    }

    #[test]
    fn devices_and_pipes_are_written_to_and_stay_what_they_are() {
        let full = Path::new("/dev/full");
        assert_eq!(write(full, b"x").unwrap_err().kind(), ErrorKind::StorageFull);
        write(Path::new("/dev/null"), b"x").unwrap();
        for device in ["/dev/full", "/dev/null"] {
            assert!(fs::metadata(device).unwrap().file_type().is_char_device(), "{device}");
        }
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let from = pipe.clone();
        let reader = thread::spawn(move || {
            let mut text = String::new();
            File::open(from).unwrap().read_to_string(&mut text).unwrap();
            text
        });
        let mut file = temporary(&pipe).unwrap();
        file.write_all(b"text").unwrap();
        put(file, &pipe).unwrap();
        assert_eq!(reader.join().unwrap(), "text");
        assert_eq!(left(folder.path()), ["pipe"]);
    }

    #[test]
    fn a_folder_and_a_path_without_a_name_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = write(folder.path(), b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        assert!(write(Path::new(""), b"x").is_err());
        assert!(write(&folder.path().join("none/x"), b"x").is_err());
        assert_eq!(left(folder.path()), [""; 0]);
    }

    #[test]
    fn temporary_names_are_told_from_others() {
        assert!(is_temporary(&temporary_name("m.json", "17")));
        assert!(is_temporary(".m.json.tmp-aB3"));
        for name in ["m.json", ".m.json.tmp-", ".m.json", "m.json.tmp-17"] {
            assert!(!is_temporary(name), "{name}");
        }
    }
}
