//! Virtual environments of Python packages: each release of an engine, and each wheel that is compared
//! with one, is installed into a folder of its own in the cache, by uv where it is on the `PATH`, else
//! by pip. The packages that it needs are resolved once and pinned in a requirements file, whose hash
//! names the folder. A file that is written last marks an environment as finished. It starts no
//! server.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;

use schema::canonical::sha256_hex;
use schema::target::DeviceKind;
use tempfile::TempDir;
use url::Url;

use super::requirements::{Pin, Requirements, pip, size_shown, uv};
use super::wheel::Wheel;
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

/// Advice where the packages of a release cannot be resolved or installed.
const NO_RELEASE: &str = "is there such a release, and a network? `--installed` measures the package \
    that is installed, `--container docker` the release's image";
/// Advice where those of a wheel cannot be.
const NO_WHEEL: &str = "is the wheel for this machine and the version of its `python3`, and is there \
    a network?";

/// Virtual environment of one release of a Python package, or of a wheel, which may not be made yet.
#[derive(Debug)]
pub struct Venv<'a> {
    world: &'a World,
    /// Name for messages: package and version as `name==version`, or the name of a wheel's file.
    title: String,
    /// Requirement that installers get: `name==version`, or `name @ URL` of a wheel.
    requirement: String,
    /// Index with packages that the default index lacks, by its URL; `None` where it lacks none.
    index: Option<String>,
    python: PathBuf,
    /// Folder of the release for this version of Python: the requirements file, and a folder for
    /// each set of packages. That of a wheel lies in the folder of the release that it is compared
    /// with.
    dir: PathBuf,
    /// Wheel of the environment; `None` for a release.
    candidate: Option<Candidate<'a>>,
}

/// Wheel that an environment has in place of a release of its package.
#[derive(Debug)]
struct Candidate<'a> {
    wheel: &'a Wheel,
    /// URL of the wheel's copy in the cache.
    url: String,
    /// Release that the wheel is compared with, as `name==version`.
    release: String,
    /// Versions of that release's other packages, one a line.
    constraints: String,
}

impl<'a> Venv<'a> {
    /// Returns the environment of the release `version` of an engine, in its build for `device`, for
    /// the Python that is on the `PATH`.
    ///
    /// # Errors
    /// The engine's file names no package, Python cannot be run, or the command is interrupted.
    pub fn of(
        world: &'a World,
        engine: &Engine,
        (version, device): (&str, DeviceKind),
    ) -> Result<Self, Stop> {
        let package = engine.file.package.as_ref();
        let cpu = package.and_then(|package| package.cpu.as_ref());
        let cpu = cpu.filter(|_| device == DeviceKind::Cpu);
        let name = match cpu {
            Some(cpu) => Some(&cpu.name),
            None => package.and_then(|package| package.names.first()),
        };
        let name = name.ok_or_else(|| {
            wrong_use!("`suite/engines/{}.toml` names no Python package", engine.id)
        })?;
        let requirement = format!("{name}=={version}");
        let mut ask = Command::new(PYTHON);
        let what = (requirement.as_str(), NO_RELEASE);
        let printed = run(world, what, PYTHON, ask.args(["-c", INTERPRETER]))?;
        let Some((python, platform)) = printed.trim().split_once('\n') else {
            return Err(environment!("`{PYTHON}` prints neither its path nor its version"));
        };
        let releases = world.cache.dir.join("venvs").join(&engine.id).join(version);
        // Both builds of a release may be in one cache.
        let build = if cpu.is_some() { "-cpu" } else { "" };
        let (python, dir) = (PathBuf::from(python), releases.join(format!("{platform}{build}")));
        let (title, index) = (requirement.clone(), cpu.and_then(|cpu| cpu.index.clone()));
        Ok(Self { world, title, requirement, index, python, dir, candidate: None })
    }

    /// Returns the environment of a wheel that is compared with this release. Its other packages are
    /// those of the release where the wheel allows them, so that the wheel alone makes a difference.
    ///
    /// # Errors
    /// The packages of the release cannot be resolved, a file cannot be read or written, or the
    /// command is interrupted.
    pub fn with_wheel(&self, wheel: &'a Wheel) -> Result<Self, Stop> {
        let pinned = self.requirements()?;
        let place = wheel.place(&self.world.cache);
        let whole = absolute(&place).map_err(FileError::at("find", &place))?;
        let url = Url::from_file_path(&whole)
            .map_err(|()| environment!("`{}` has no URL", whole.display()))?;
        let (of_wheel, of_release) = (&wheel.sha256[..DIGITS], hash_of(&pinned));
        Ok(Self {
            world: self.world,
            title: wheel.file.clone(),
            requirement: format!("{} @ {url}", wheel.name),
            index: self.index.clone(),
            python: self.python.clone(),
            dir: self.dir.join(format!("wheel-{of_wheel}-{of_release}")),
            candidate: Some(Candidate {
                wheel,
                url: url.into(),
                release: self.title.clone(),
                constraints: pinned.constraints(&wheel.name),
            }),
        })
    }

    /// Describes the environment of a wheel for the printed plan, like [`Self::planned`].
    ///
    /// # Errors
    /// A file cannot be read, or the command is interrupted.
    pub fn planned_with(&self, wheel: &'a Wheel) -> Result<String, Stop> {
        match self.is_pinned() {
            true => self.with_wheel(wheel)?.planned(),
            // Which packages the wheel gets depends on those of the release.
            false => Ok(format!("{}, to be installed, size unknown", wheel.file)),
        }
    }

    /// Describes the environment for the printed plan: package, version, and how much is to be
    /// downloaded. Packages that cannot be resolved now have an unknown size.
    ///
    /// # Errors
    /// The command is interrupted.
    pub fn planned(&self) -> Result<String, Stop> {
        let title = &self.title;
        // A wheel is resolved from its copy in the cache, which a plan does not make.
        if self.candidate.is_some() && !self.is_pinned() {
            return Ok(format!("{title}, to be installed, size unknown"));
        }
        // To resolve packages, pip may download all of them, which nobody has agreed to yet.
        if !self.is_pinned() && !self.has_uv()? {
            return Ok(format!("{title}, to be installed by pip, size unknown"));
        }
        let requirements = match self.requirements() {
            Ok(requirements) => requirements,
            Err(stop) => {
                self.world.interrupt.check()?;
                let (why, _) = stop.cause();
                let why = why.lines().next_back().unwrap_or_default().trim();
                return Ok(format!("{title}, to be installed, size unknown: {why}"));
            }
        };
        if let Some(bytes) = finished_bytes(&self.folder(&requirements)) {
            return Ok(format!("{title}, available ({})", size_shown(bytes)));
        }
        Ok(format!("{title}, {}", requirements.shown()))
    }

    /// Returns the folder of the environment, and makes the environment if it is not finished.
    ///
    /// # Errors
    /// The packages cannot be resolved or installed, another command installs the environment, a
    /// file cannot be read or written, or the command is interrupted.
    pub fn obtain(&self) -> Result<PathBuf, Stop> {
        if let Some(candidate) = &self.candidate {
            candidate.wheel.keep(&self.world.cache)?;
        }
        let requirements = self.requirements()?;
        let dir = self.folder(&requirements);
        if finished_bytes(&dir).is_none() {
            let held = format!("another command installs {}", self.title);
            let _lock = Lock::take_or(&dir.with_extension("lock"), self.world.pid, &held)?;
            // Another command may have finished it before the lock was free.
            if finished_bytes(&dir).is_none() {
                self.install(&requirements, &dir)?;
            }
        }
        Ok(dir)
    }

    fn folder(&self, requirements: &Requirements) -> PathBuf {
        self.dir.join(hash_of(requirements))
    }

    fn is_pinned(&self) -> bool {
        self.dir.join(REQUIREMENTS).is_file()
    }

    /// Reads the pinned packages of the release or wheel, or resolves and pins them if nobody has
    /// yet, so that it has the same packages in every campaign of this machine.
    fn requirements(&self) -> Result<Requirements, Stop> {
        let path = self.dir.join(REQUIREMENTS);
        if self.is_pinned() {
            return Ok(Requirements { text: read_text(&path)? });
        }
        self.world.step(&format!("Resolve {}", self.title));
        let requirements = self.resolve()?;
        write_whole(&path, requirements.text.as_bytes())?;
        Ok(requirements)
    }

    /// Resolves the packages: those of a wheel in the versions of the release that it is compared
    /// with, or, where it does not allow them, without regard to them.
    fn resolve(&self) -> Result<Requirements, Stop> {
        let Some(candidate) = &self.candidate else { return self.resolve_under(None) };
        let stop = match self.resolve_under(Some(&candidate.constraints)) {
            Err(stop) => stop,
            found => return found,
        };
        self.world.interrupt.check()?;
        let (said, _) = stop.cause();
        let why = said.lines().next_back().unwrap_or_default().trim();
        let (title, release) = (&self.title, &candidate.release);
        self.world.console.note(&format!(
            "{title} does not take the packages of {release}, and gets others: {why}"
        ));
        self.resolve_under(None)
    }

    /// Resolves the packages in the versions of `constraints`, one a line, where there are any.
    fn resolve_under(&self, constraints: Option<&str>) -> Result<Requirements, Stop> {
        let temp = self.temporary()?;
        let mut options: Vec<OsString> = Vec::new();
        if let Some(text) = constraints {
            let path = temp.path().join("constraints.txt");
            fs::write(&path, text).map_err(FileError::at("write", &path))?;
            options.extend([OsString::from("--constraint"), path.into_os_string()]);
        }
        match self.has_uv()? {
            true => self.resolve_with_uv(&temp, &options),
            false => self.resolve_with_pip(&temp, &options),
        }
    }

    fn has_uv(&self) -> Result<bool, ProcessError> {
        is_installed("uv", &self.world.interrupt)
    }

    fn resolve_with_uv(&self, temp: &TempDir, options: &[OsString]) -> Result<Requirements, Stop> {
        let (from, to) = (temp.path().join("package.in"), temp.path().join("pylock.toml"));
        fs::write(&from, &self.requirement).map_err(FileError::at("write", &from))?;
        let mut uv = Command::new("uv");
        uv.args(["pip", "compile", "--quiet", "--no-header", "--python"]).arg(&self.python);
        uv.args(self.of_index())
            .args(self.of_all_indexes())
            .args(options)
            .arg("--output-file")
            .arg(&to)
            .arg(&from);
        self.run("uv pip compile", &mut uv)?;
        let mut lock: uv::Lock = toml::from_str(&read_text(&to)?)
            .map_err(|error| unreadable("uv pip compile", &error))?;
        if let Some(candidate) = &self.candidate {
            lock.leave_out(&candidate.wheel.name);
        }
        let bytes = lock.packages.iter().map(uv::Package::bytes_max).sum();
        Ok(self.pinned(lock.packages.into_iter().map(uv::Package::pin), bytes))
    }

    fn resolve_with_pip(&self, temp: &TempDir, options: &[OsString]) -> Result<Requirements, Stop> {
        let mut pip = self.pip(temp);
        pip.args(["install", "--dry-run", "--ignore-installed", "--report", "-"]);
        pip.args(QUIETLY).args(self.of_index()).args(options).arg(&self.requirement);
        let printed = self.run("pip install --dry-run", &mut pip)?;
        let mut report: pip::Report = serde_json::from_str(&printed)
            .map_err(|error| unreadable("pip install --report", &error))?;
        if let Some(candidate) = &self.candidate {
            report.leave_out(&candidate.wheel.name);
        }
        let urls = report.install.iter().map(|package| &package.download_info.url);
        let mut ask = Command::new(&self.python);
        // Only the size would be missing.
        let bytes = capture(ask.args(["-c", SIZES]).args(urls), &self.world.interrupt)?;
        let bytes = bytes.stdout.trim().parse().ok();
        Ok(self.pinned(report.install.into_iter().map(pip::Package::pin), bytes))
    }

    /// Pins the packages that a tool has resolved, and a wheel by the place of its copy.
    fn pinned(&self, pins: impl Iterator<Item = Pin>, bytes: Option<u64>) -> Requirements {
        let own = self
            .candidate
            .as_ref()
            .map(|Candidate { wheel, url, .. }| Pin::of_file(&wheel.name, url, &wheel.sha256));
        Requirements::new(own.into_iter().chain(pins).collect(), bytes)
    }

    /// Runs a `tool` that resolves or installs the packages, and returns its standard output.
    fn run(&self, tool: &str, command: &mut Command) -> Result<String, Stop> {
        let advice = if self.candidate.is_some() { NO_WHEEL } else { NO_RELEASE };
        run(self.world, (&self.title, advice), tool, command)
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
        self.world.step(&format!("Install {} with `{tool}`: {shown}", self.title));
        if dir.exists() {
            fs::remove_dir_all(dir)
                .map_err(FileError::at("remove the unfinished environment", dir))?;
        }
        let temp = self.temporary()?;
        let [mut create, mut fill] =
            if has_uv { self.with_uv(dir) } else { self.with_pip(dir, &temp) };
        self.run(make, &mut create)?;
        // A copy: the pinned packages above the folder may be changed, which makes another folder.
        let pinned = dir.join(REQUIREMENTS);
        write_whole(&pinned, requirements.text.as_bytes())?;
        fill.args(["--no-deps", "--requirement"]).arg(&pinned);
        self.run(tool, &mut fill)?;
        let bytes = bytes_below(dir);
        self.world.console.note(&format!("{}: {}", self.title, size_shown(bytes)));
        Ok(write_whole(&dir.join(FINISHED), format!("{bytes}\n").as_bytes())?)
    }

    /// Returns the options by which pip and uv also look into the environment's own index.
    fn of_index(&self) -> Vec<&str> {
        self.index.iter().flat_map(|url| ["--extra-index-url", url]).collect()
    }

    /// Returns the options by which uv looks for a package in all indexes, as pip does: else the first
    /// index that has any version of it counts.
    fn of_all_indexes(&self) -> &'static [&'static str] {
        if self.index.is_some() { &["--index-strategy", "unsafe-best-match"] } else { &[] }
    }

    /// Returns the commands of uv that create an empty environment in the folder `dir`, and that
    /// install packages into it.
    fn with_uv(&self, dir: &Path) -> [Command; 2] {
        let (mut create, mut fill) = (Command::new("uv"), Command::new("uv"));
        create.args(["venv", "--quiet", "--python"]).arg(&self.python).arg(dir);
        // Compiled now, as pip does it, so that the first server does not start slower than others.
        fill.args(["pip", "install", "--quiet", "--compile-bytecode", "--python"]);
        fill.arg(dir.join("bin").join(PYTHON)).args(self.of_index()).args(self.of_all_indexes());
        [create, fill]
    }

    /// Returns the commands of Python and pip that do what those of [`Self::with_uv`] do.
    fn with_pip(&self, dir: &Path, temp: &TempDir) -> [Command; 2] {
        let (mut create, mut fill) = (Command::new(&self.python), self.pip(temp));
        // Without a pip of its own, the environment has the same packages as one that uv makes.
        create.args(["-m", "venv", "--without-pip"]).arg(dir);
        fill.arg("--python").arg(dir.join("bin").join(PYTHON)).arg("install").args(QUIETLY);
        fill.args(self.of_index());
        [create, fill]
    }
}

/// Options that keep pip from questions, and from output other than errors and results.
const QUIETLY: [&str; 3] = ["--quiet", "--no-input", "--disable-pip-version-check"];

/// Runs a `tool` that resolves or installs the release or wheel `title`, and returns its standard
/// output. `advice` is the hint where it fails.
///
/// # Errors
/// The tool cannot be started or fails, or the command is interrupted.
fn run(
    world: &World,
    (title, advice): (&str, &str),
    tool: &str,
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
    Err(environment!("`{tool}` ended with {how} for {title}; its last lines:\n  {said}")
        .with_hint(advice))
}

/// Returns the beginning of the hash of pinned packages, which names the folder of their environment.
fn hash_of(requirements: &Requirements) -> String {
    let mut hash = sha256_hex(requirements.text.as_bytes());
    hash.truncate(DIGITS);
    hash
}

fn unreadable(tool: &str, error: &dyn std::error::Error) -> Stop {
    environment!("the result of `{tool}` cannot be read: {error}")
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

#[cfg(test)]
mod tests {
    use super::*;

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
