//! Virtual environments of Python packages: each release of an engine is installed into a folder of
//! its own in the cache, by uv where it is on the `PATH`, else by pip. The packages that a release
//! needs are resolved once and pinned in a requirements file, whose hash names the folder. A file
//! that is written last marks an environment as finished. It starts no server.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use schema::canonical::sha256_hex;
use serde::Deserialize;
use tempfile::TempDir;

use crate::catalog::Engine;
use crate::files::{FileError, make_dir, read_text, write_whole};
use crate::lock::Lock;
use crate::process::{ProcessError, capture, describe, is_installed};
use crate::stop::{Stop, environment, wrong_use};
use crate::world::World;

/// Name of the file that marks an environment as finished, in the environment's folder; it has the
/// environment's size in bytes. A folder without it is what an interrupted installation has left.
pub const FINISHED: &str = "finished";
/// Name of the file with the pinned packages of a release, above the folders of its environments.
const REQUIREMENTS: &str = "requirements.txt";
/// Beginning of the line of a requirements file that states the size of all packages' files.
const SIZE: &str = "# bytes to download: ";
/// Python program whose version and platform an environment has.
const PYTHON: &str = "python3";
/// Variables that make Python use packages from outside of an environment, in place of its own.
pub const OUTSIDE: [&str; 2] = ["PYTHONHOME", "PYTHONPATH"];
/// Number of hex digits of a requirements file's hash that name an environment's folder.
const DIGITS: usize = 16;
/// Number of a tool's last lines that an error repeats.
const LAST_LINES: usize = 8;
/// Python script that prints the path of its interpreter and, on a second line, version and
/// platform.
const INTERPRETER: &str = "import sys, sysconfig\nprint(sys.executable)\n\
    print(sys.implementation.cache_tag, sysconfig.get_platform(), sep='-')";
/// Python script that prints the total size of the files at several URLs.
const SIZES: &str = include_str!("sizes.py");

/// Virtual environment of one release of a Python package, which may not be made yet.
#[derive(Debug)]
pub struct Venv<'a> {
    world: &'a World,
    /// Package and version as `name==version`.
    requirement: String,
    python: PathBuf,
    /// Folder of the release for this version of Python: the requirements file, and a folder for
    /// each set of packages.
    dir: PathBuf,
}

/// Packages that a release needs, with their versions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirements {
    /// Text of the requirements file: a comment with the size, and a line for each package.
    text: String,
}

impl<'a> Venv<'a> {
    /// Returns the environment of the release `version` of an engine, for the Python that is on the
    /// `PATH`.
    ///
    /// # Errors
    /// The engine's file names no package, Python cannot be run, or the command is interrupted.
    pub fn of(world: &'a World, engine: &Engine, version: &str) -> Result<Self, Stop> {
        let mut names = engine.file.package.iter().flat_map(|package| &package.names);
        let name = names.next().ok_or_else(|| {
            wrong_use!("`suite/engines/{}.toml` names no Python package", engine.id)
        })?;
        let requirement = format!("{name}=={version}");
        let mut ask = Command::new(PYTHON);
        let printed = run(world, (&requirement, PYTHON), ask.args(["-c", INTERPRETER]))?;
        let Some((python, platform)) = printed.trim().split_once('\n') else {
            return Err(environment!("`{PYTHON}` prints neither its path nor its version"));
        };
        let releases = world.cache.dir.join("venvs").join(&engine.id).join(version);
        let (python, dir) = (PathBuf::from(python), releases.join(platform));
        Ok(Self { world, requirement, python, dir })
    }

    /// Describes the environment for the printed plan: package, version, and how much is to be
    /// downloaded. Packages that cannot be resolved now have an unknown size.
    ///
    /// # Errors
    /// The command is interrupted.
    pub fn planned(&self) -> Result<String, Stop> {
        let requirement = &self.requirement;
        // To resolve packages, pip may download all of them, which nobody has agreed to yet.
        if !self.dir.join(REQUIREMENTS).is_file() && !self.has_uv()? {
            return Ok(format!("{requirement}, to be installed by pip, size unknown"));
        }
        let requirements = match self.requirements() {
            Ok(requirements) => requirements,
            Err(stop) => {
                self.world.interrupt.check()?;
                let (why, _) = stop.cause();
                let why = why.lines().next_back().unwrap_or_default().trim();
                return Ok(format!("{requirement}, to be installed, size unknown: {why}"));
            }
        };
        if let Some(bytes) = finished_bytes(&self.folder(&requirements)) {
            return Ok(format!("{requirement}, available ({})", size_shown(bytes)));
        }
        Ok(format!("{requirement}, {}", requirements.shown()))
    }

    /// Returns the folder of the environment, and makes the environment if it is not finished.
    ///
    /// # Errors
    /// The packages cannot be resolved or installed, another command installs the environment, a
    /// file cannot be read or written, or the command is interrupted.
    pub fn obtain(&self) -> Result<PathBuf, Stop> {
        let requirements = self.requirements()?;
        let dir = self.folder(&requirements);
        if finished_bytes(&dir).is_none() {
            let held = format!("another command installs {}", self.requirement);
            let _lock = Lock::take_or(&dir.with_extension("lock"), self.world.pid, &held)?;
            // Another command may have finished it before the lock was free.
            if finished_bytes(&dir).is_none() {
                self.install(&requirements, &dir)?;
            }
        }
        Ok(dir)
    }

    fn folder(&self, requirements: &Requirements) -> PathBuf {
        let hash = sha256_hex(requirements.text.as_bytes());
        self.dir.join(&hash[..DIGITS])
    }

    /// Reads the pinned packages of the release, or resolves and pins them if nobody has yet, so
    /// that a release has the same packages in every campaign of this machine.
    fn requirements(&self) -> Result<Requirements, Stop> {
        let path = self.dir.join(REQUIREMENTS);
        if path.is_file() {
            return Ok(Requirements { text: read_text(&path)? });
        }
        self.world.step(&format!("Resolve {}", self.requirement));
        let requirements = match self.has_uv()? {
            true => self.resolve_with_uv()?,
            false => self.resolve_with_pip()?,
        };
        write_whole(&path, requirements.text.as_bytes())?;
        Ok(requirements)
    }

    fn has_uv(&self) -> Result<bool, ProcessError> {
        is_installed("uv", &self.world.interrupt)
    }

    fn resolve_with_uv(&self) -> Result<Requirements, Stop> {
        let temp = self.temporary()?;
        let (from, to) = (temp.path().join("package.in"), temp.path().join("pylock.toml"));
        fs::write(&from, &self.requirement).map_err(FileError::at("write", &from))?;
        let mut uv = Command::new("uv");
        uv.args(["pip", "compile", "--quiet", "--no-header", "--python"]).arg(&self.python);
        uv.arg("--output-file").arg(&to).arg(&from);
        run(self.world, (&self.requirement, "uv pip compile"), &mut uv)?;
        let lock: uv::Lock = toml::from_str(&read_text(&to)?)
            .map_err(|error| unreadable("uv pip compile", &error))?;
        let bytes = lock.packages.iter().map(uv::Package::bytes_max).sum();
        let pins: Vec<Pin> = lock.packages.into_iter().map(uv::Package::pin).collect();
        Ok(Requirements::new(pins, bytes))
    }

    fn resolve_with_pip(&self) -> Result<Requirements, Stop> {
        let temp = self.temporary()?;
        let mut pip = self.pip(&temp);
        pip.args(["install", "--dry-run", "--ignore-installed", "--report", "-"]);
        pip.args(QUIETLY).arg(&self.requirement);
        let printed = run(self.world, (&self.requirement, "pip install --dry-run"), &mut pip)?;
        let report: pip::Report = serde_json::from_str(&printed)
            .map_err(|error| unreadable("pip install --report", &error))?;
        let urls = report.install.iter().map(|package| &package.download_info.url);
        let mut ask = Command::new(&self.python);
        // Only the size would be missing.
        let bytes = capture(ask.args(["-c", SIZES]).args(urls), &self.world.interrupt)?;
        let bytes = bytes.stdout.trim().parse().ok();
        let pins: Vec<Pin> = report.install.into_iter().map(pip::Package::pin).collect();
        Ok(Requirements::new(pins, bytes))
    }

    /// Makes a folder that is removed when it goes out of scope, also after an interruption.
    fn temporary(&self) -> Result<TempDir, Stop> {
        make_dir(&self.dir)?;
        Ok(TempDir::new_in(&self.dir).map_err(FileError::at("write in", &self.dir))?)
    }

    /// Returns the command `pip`, which puts its downloads into `temp`: an interrupted pip leaves
    /// them behind.
    fn pip(&self, temp: &TempDir) -> Command {
        let mut pip = Command::new(&self.python);
        pip.args(["-m", "pip"]).env("TMPDIR", temp.path());
        pip
    }

    /// Makes the environment in the folder `dir`, which must not be moved afterwards: its programs
    /// name the path of its interpreter.
    fn install(&self, requirements: &Requirements, dir: &Path) -> Result<(), Stop> {
        let has_uv = self.has_uv()?;
        let [make, tool] = match has_uv {
            true => ["uv venv", "uv pip install"],
            false => ["python3 -m venv", "pip install"],
        };
        let shown = requirements.shown();
        self.world.step(&format!("Install {} with `{tool}`: {shown}", self.requirement));
        if dir.exists() {
            fs::remove_dir_all(dir)
                .map_err(FileError::at("remove the unfinished environment", dir))?;
        }
        let temp = self.temporary()?;
        let [mut create, mut fill] =
            if has_uv { self.with_uv(dir) } else { self.with_pip(dir, &temp) };
        run(self.world, (&self.requirement, make), &mut create)?;
        // A copy: the pinned packages above the folder may be changed, which makes another folder.
        let pinned = dir.join(REQUIREMENTS);
        write_whole(&pinned, requirements.text.as_bytes())?;
        fill.args(["--no-deps", "--requirement"]).arg(&pinned);
        run(self.world, (&self.requirement, tool), &mut fill)?;
        let bytes = bytes_below(dir);
        self.world.console.note(&format!("{}: {}", self.requirement, size_shown(bytes)));
        Ok(write_whole(&dir.join(FINISHED), format!("{bytes}\n").as_bytes())?)
    }

    /// Returns the commands of uv that create an empty environment in the folder `dir`, and that
    /// install packages into it.
    fn with_uv(&self, dir: &Path) -> [Command; 2] {
        let (mut create, mut fill) = (Command::new("uv"), Command::new("uv"));
        create.args(["venv", "--quiet", "--python"]).arg(&self.python).arg(dir);
        // Compiled now, as pip does it, so that the first server does not start slower than others.
        fill.args(["pip", "install", "--quiet", "--compile-bytecode", "--python"]);
        fill.arg(dir.join("bin").join(PYTHON));
        [create, fill]
    }

    /// Returns the commands of Python and pip that do what those of [`Self::with_uv`] do.
    fn with_pip(&self, dir: &Path, temp: &TempDir) -> [Command; 2] {
        let (mut create, mut fill) = (Command::new(&self.python), self.pip(temp));
        // Without a pip of its own, the environment has the same packages as one that uv makes.
        create.args(["-m", "venv", "--without-pip"]).arg(dir);
        fill.arg("--python").arg(dir.join("bin").join(PYTHON)).arg("install").args(QUIETLY);
        [create, fill]
    }
}

/// Options that keep pip from questions, and from output other than errors and results.
const QUIETLY: [&str; 3] = ["--quiet", "--no-input", "--disable-pip-version-check"];

/// Runs a `tool` that resolves or installs `requirement`, and returns its standard output.
///
/// # Errors
/// The tool cannot be started or fails, or the command is interrupted.
fn run(
    world: &World,
    (requirement, tool): (&str, &str),
    command: &mut Command,
) -> Result<String, Stop> {
    for name in OUTSIDE {
        command.env_remove(name);
    }
    let written = capture(command, &world.interrupt)?;
    if written.status.success() {
        return Ok(written.stdout);
    }
    let how = describe(written.status);
    let said = written.last_lines(LAST_LINES).join("\n  ");
    Err(environment!("`{tool}` ended with {how} for {requirement}; its last lines:\n  {said}")
        .with_hint(
            "is there such a release, and a network? `--installed` measures the package that is \
             installed, `--container docker` the release's image",
        ))
}

fn unreadable(tool: &str, error: &dyn std::error::Error) -> Stop {
    environment!("the result of `{tool}` cannot be read: {error}")
}

/// A package that a release needs: name, version, and the SHA-256 of each file that may be
/// installed for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pin {
    name: String,
    version: String,
    sha256: Vec<String>,
}

impl Requirements {
    fn new(pins: Vec<Pin>, bytes: Option<u64>) -> Self {
        // Installers check the hashes of all packages or of none.
        let hashed = pins.iter().all(|pin| !pin.sha256.is_empty());
        let line = |pin: Pin| {
            let Pin { name, version, sha256 } = pin;
            let hashes = sha256.iter().filter(|_| hashed);
            let hashes: String = hashes.map(|hash| format!(" --hash=sha256:{hash}")).collect();
            format!("{name}=={version}{hashes}\n")
        };
        let mut lines: Vec<String> = pins.into_iter().map(line).collect();
        lines.sort();
        let bytes = bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        Self { text: format!("{SIZE}{bytes}\n{}", lines.concat()) }
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
    }

    /// Formats number and size of the packages: `180 packages to be installed, at most 2.8 GiB to
    /// download`.
    fn shown(&self) -> String {
        let size = self.bytes().map_or("size unknown".to_owned(), |bytes| {
            format!("at most {} to download", size_shown(bytes))
        });
        format!("{} packages to be installed, {size}", self.lines().count())
    }

    /// Returns the size of all packages' files in bytes; `None` if it is not known.
    fn bytes(&self) -> Option<u64> {
        self.text.lines().find_map(|line| line.strip_prefix(SIZE))?.parse().ok()
    }
}

/// Result of `uv pip compile`: a file `pylock.toml` (PEP 751).
mod uv {
    use super::{BTreeMap, Deserialize, Pin};

    #[derive(Debug, Deserialize)]
    pub struct Lock {
        pub packages: Vec<Package>,
    }

    #[derive(Debug, Deserialize)]
    pub struct Package {
        name: String,
        #[serde(default)]
        version: String,
        /// Wheels that fit Python and platform.
        #[serde(default)]
        wheels: Vec<File>,
        sdist: Option<File>,
    }

    #[derive(Debug, Deserialize)]
    struct File {
        size: Option<u64>,
        #[serde(default)]
        hashes: BTreeMap<String, String>,
    }

    impl Package {
        /// Returns the size of the largest file that may be installed, in bytes: of the wheels, else
        /// of the source distribution; `None` if the index states none.
        pub fn bytes_max(&self) -> Option<u64> {
            match &self.wheels[..] {
                [] => self.sdist.as_ref()?.size,
                wheels => wheels.iter().map(|wheel| wheel.size).max()?,
            }
        }

        pub fn pin(self) -> Pin {
            let files = self.wheels.into_iter().chain(self.sdist);
            let sha256 = files.filter_map(|mut file| file.hashes.remove("sha256")).collect();
            Pin { name: self.name, version: self.version, sha256 }
        }
    }
}

/// Report of `pip install --dry-run --report`.
mod pip {
    use super::{BTreeMap, Deserialize, Pin};

    #[derive(Debug, Deserialize)]
    pub struct Report {
        pub install: Vec<Package>,
    }

    #[derive(Debug, Deserialize)]
    pub struct Package {
        metadata: Metadata,
        pub download_info: DownloadInfo,
    }

    #[derive(Debug, Deserialize)]
    struct Metadata {
        name: String,
        version: String,
    }

    #[derive(Debug, Deserialize)]
    pub struct DownloadInfo {
        pub url: String,
        archive_info: Option<ArchiveInfo>,
    }

    #[derive(Debug, Deserialize)]
    struct ArchiveInfo {
        #[serde(default)]
        hashes: BTreeMap<String, String>,
    }

    impl Package {
        pub fn pin(self) -> Pin {
            let hashes = self.download_info.archive_info.map(|info| info.hashes);
            let sha256 = hashes.and_then(|mut hashes| hashes.remove("sha256"));
            let Metadata { name, version } = self.metadata;
            Pin { name, version, sha256: sha256.into_iter().collect() }
        }
    }
}

/// Returns the size of the finished environment in the folder `dir`, in bytes; `None` if it is not
/// finished, or the Python that it was made with is gone.
fn finished_bytes(dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join(FINISHED)).ok()?;
    let python = dir.join("bin").join(PYTHON);
    text.trim().parse().ok().filter(|_| python.is_file())
}

/// Returns the total size of the files below `dir` in bytes; links are not followed.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// Formats a size in bytes for a plan: `2.9 GiB` or `12 MiB`.
fn size_shown(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 30;
    match tenths {
        0..10 => format!("{} MiB", (bytes >> 20).max(1)),
        _ => format!("{}.{} GiB", tenths / 10, tenths % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn of_uv(text: &str) -> Requirements {
        let lock: uv::Lock = toml::from_str(text).unwrap();
        let bytes = lock.packages.iter().map(uv::Package::bytes_max).sum();
        Requirements::new(lock.packages.into_iter().map(uv::Package::pin).collect(), bytes)
    }

    #[test]
    fn a_lock_of_uv_pins_every_file_that_fits() {
        let text = r#"
            lock-version = "1.0"
            created-by = "uv"
            [[packages]]
            name = "torch"
            version = "2.7.1"
            index = "https://x/simple"
            wheels = [
              { url = "https://x/a.whl", size = 800, hashes = { sha256 = "aa" } },
              { url = "https://x/b.whl", size = 900, hashes = { sha256 = "bb" } },
            ]
            [[packages]]
            name = "fire"
            version = "0.7"
            sdist = { url = "https://x/fire.tar.gz", size = 20, hashes = { sha256 = "cc" } }
        "#;
        expect![[r#"
            # bytes to download: 920
            fire==0.7 --hash=sha256:cc
            torch==2.7.1 --hash=sha256:aa --hash=sha256:bb
        "#]]
        .assert_eq(&of_uv(text).text);
        let unhashed = text.replace("sha256 = \"cc\"", "").replace("size = 20, ", "");
        expect![[r#"
            # bytes to download: unknown
            fire==0.7
            torch==2.7.1
        "#]]
        .assert_eq(&of_uv(&unhashed).text);
    }

    #[test]
    fn a_report_of_pip_pins_the_file_of_each_package() {
        let text = r#"{"version": "1", "install": [
            {"download_info": {"url": "https://x/b.whl", "archive_info": {"hash": "sha256=bb",
                "hashes": {"sha256": "bb"}}}, "requested": true,
                "metadata": {"metadata_version": "2.1", "name": "lmdeploy", "version": "0.10.0"}},
            {"download_info": {"url": "https://x/a.whl", "archive_info": {
                "hashes": {"sha256": "aa"}}}, "metadata": {"name": "fire", "version": "0.7"}}]}"#;
        let report: pip::Report = serde_json::from_str(text).unwrap();
        let pins = report.install.into_iter().map(pip::Package::pin).collect();
        let requirements = Requirements::new(pins, Some(5));
        assert_eq!((requirements.bytes(), requirements.lines().count()), (Some(5), 2));
        assert!(requirements.text.ends_with("lmdeploy==0.10.0 --hash=sha256:bb\n"));
    }

    #[test]
    fn sizes_are_shown_with_few_digits() {
        for (bytes, shown) in [
            (0, "1 MiB"),
            (300 << 20, "300 MiB"),
            (1 << 30, "1.0 GiB"),
            (3_059_000_000, "2.8 GiB"),
            (u64::MAX, "1717986918.3 GiB"),
        ] {
            assert_eq!(size_shown(bytes), shown);
        }
    }

    #[test]
    fn links_are_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lib")).unwrap();
        fs::write(dir.path().join("lib/module.py"), [0; 100]).unwrap();
        std::os::unix::fs::symlink("lib", dir.path().join("lib64")).unwrap();
        let bytes = bytes_below(dir.path());
        assert!((100..200).contains(&bytes), "{bytes}");
    }
}
