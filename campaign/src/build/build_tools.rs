//! Build tools CMake and Ninja for rival engines: those on the `PATH`, else pinned versions that
//! pip installs into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::files::{FileError, make_dir};
use crate::process::{ProcessError, capture};
use crate::stop::Stop;
use crate::world::World;

/// Packages that pip installs if the machine lacks CMake or Ninja.
const PACKAGES: [&str; 2] = ["cmake==4.4.4", "ninja==1.13.2"];

/// Paths of CMake and Ninja.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildTools {
    cmake: PathBuf,
    /// Folder that pip has installed the tools into; `None` if both are on the `PATH`.
    fetched: Option<PathBuf>,
}

impl BuildTools {
    /// Makes a command for `cmake`. The version installed by pip is a script that needs its folder
    /// in `PYTHONPATH`.
    pub fn cmake(&self) -> Command {
        let mut command = Command::new(&self.cmake);
        if let Some(dir) = &self.fetched {
            command.env("PYTHONPATH", dir);
        }
        command
    }

    /// Path of `ninja` if pip has installed it; `None` if it is on the `PATH`.
    pub fn ninja(&self) -> Option<PathBuf> {
        self.fetched.as_ref().map(|dir| dir.join("bin/ninja"))
    }
}

/// Finds the tools on the `PATH` or in the cache, or installs them into the cache.
///
/// # Errors
/// They are not installed and cannot be downloaded.
pub fn find(world: &World) -> Result<BuildTools, Stop> {
    let programs = &world.programs;
    // Both or neither: pip installs them as a pair of tested versions.
    if runs(world, &programs.cmake)? && runs(world, &programs.ninja)? {
        return Ok(BuildTools { cmake: programs.cmake.clone(), fetched: None });
    }
    let dir = world.cache.tools(&PACKAGES.join("+"));
    if !dir.is_dir() {
        world.console.step(world.clock.elapsed(), &format!("Fetch {}", PACKAGES.join(", ")));
        fetch(world, &dir)?;
    }
    Ok(BuildTools { cmake: dir.join("bin/cmake"), fetched: Some(dir) })
}

fn runs(world: &World, program: &Path) -> Result<bool, Stop> {
    match capture(Command::new(program).arg("--version"), &world.interrupt) {
        Ok(written) => Ok(written.status.success()),
        Err(ProcessError::Interrupted) => Err(ProcessError::Interrupted.into()),
        Err(_) => Ok(false),
    }
}

/// Installs the packages into a temporary folder and renames it, so that `dir` is always complete.
fn fetch(world: &World, dir: &Path) -> Result<(), Stop> {
    let near = dir.parent().unwrap_or(Path::new("."));
    make_dir(near)?;
    let work = TempDir::new_in(near).map_err(FileError::at("write in", near))?;
    let whole = work.path().join("whole");
    let mut pip = Command::new(&world.programs.python3);
    pip.args(["-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--quiet"])
        .args(["--disable-pip-version-check", "--no-input", "--target"])
        .arg(&whole)
        .args(PACKAGES);
    let missing = |said: &str| {
        let what = "`cmake` and `ninja` are not both installed, and pip could not fetch them";
        Stop::environment(format!("{what}: {said}")).with_hint(
            "install them, such as by `python3 -m pip install cmake ninja`, so that both are on the \
             PATH",
        )
    };
    let written = match capture(&mut pip, &world.interrupt) {
        Ok(written) => written,
        Err(ProcessError::Start { program, source }) => {
            return Err(missing(&format!("cannot start `{program}`: {source}")));
        }
        Err(error) => return Err(error.into()),
    };
    if !written.status.success() {
        return Err(missing(written.last_said().unwrap_or("it said nothing")));
    }
    fs::rename(&whole, dir).map_err(FileError::at("write", dir))?;
    Ok(())
}
