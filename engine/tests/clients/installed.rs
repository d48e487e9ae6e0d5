//! Clients that are installed from a package registry, each in a folder that is kept for the next run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PACKAGE_JSON: &str = include_str!("npm/package.json");
const PACKAGE_LOCK: &str = include_str!("npm/package-lock.json");

/// Folder in which installed packages are kept for the next run.
pub fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs a command; `None` if it fails.
pub fn run(command: &mut Command) -> Option<Output> {
    command.output().ok().filter(|output| output.status.success())
}

/// Reports that a test is skipped because `package` could not be installed.
pub fn skip(package: &str) {
    fixtures::skip("the package registries", &format!("`{package}` cannot be installed"));
}

/// Python interpreter of an environment with `package`, or `None` with a message that the test is
/// skipped.
pub fn python_with(package: &str) -> Option<PathBuf> {
    fixtures::python_with(&scratch(package), &[&[package]])
}

/// Folder with the packages of `npm/package.json` in `node_modules`, or `None` with a message that the
/// test is skipped.
pub fn npm_packages() -> Option<PathBuf> {
    let folder = scratch("npm");
    let done = folder.join("installed.json");
    if std::fs::read_to_string(&done).ok().as_deref() != Some(PACKAGE_LOCK) {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("package.json"), PACKAGE_JSON).unwrap();
        std::fs::write(folder.join("package-lock.json"), PACKAGE_LOCK).unwrap();
        let mut npm = Command::new("npm");
        // The packages need no script, and the lock file names no address.
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        npm.args(["--omit-lockfile-registry-resolved", "--loglevel=error"]);
        if run(npm.current_dir(&folder)).is_none() {
            skip("engine/tests/clients/npm/package.json");
            return None;
        }
        std::fs::write(&done, PACKAGE_LOCK).unwrap();
    }
    Some(folder)
}

/// Version of a package that `npm/package.json` pins.
pub fn npm_version(package: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(PACKAGE_JSON).unwrap();
    json["dependencies"][package].as_str().unwrap().to_owned()
}
