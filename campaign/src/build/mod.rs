//! Build of a release: checks it out as a git worktree below `target/`, separate from the user's
//! own files, compiles its engine with the locked dependencies, and keeps the binary under its
//! hash. The submodules build, install or find the programs of other engines.

pub mod contenders;
mod installed;
mod requirements;
pub mod source;
pub mod variants;
pub mod venv;
mod wheel;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, make_dir};
use crate::git::{Git, same_folder};
use crate::inputs::cache::sha256_file;
use crate::places::Places;
use crate::plan::release::Release;
use crate::process::{self, describe};
use crate::stop::{Stop, environment};
use crate::world::World;

/// Names of environment variables that set compiler flags or the build's target platform; they are
/// removed for a build, so that all releases are built alike.
const FLAG_VARIABLES: &[&str] =
    &["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS", "CARGO_BUILD_TARGET"];

/// Built binary of Redline's engine: a copy at a path named by the binary's SHA-256, with that hash
/// and the compiler's version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    pub binary: PathBuf,
    pub sha256: String,
    /// Output of `rustc -V` in the checkout that was built; `None` if it could not be read.
    pub toolchain: Option<String>,
}

/// Builds the program `redline` of the checkout `tree` and keeps its binary.
///
/// # Errors
/// `cargo` cannot be started or fails, the wait for it is interrupted, or the binary cannot be read
/// or copied.
pub fn build(world: &World, tree: &Path, release: &str, commit: &str) -> Result<Built, Stop> {
    let World { places, interrupt, .. } = world;
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--locked", "--workspace", "--bin", "redline"])
        // The engine embeds the commit at build time and reports it with its version.
        .env("REDLINE_COMMIT", commit);
    let target = call_in(&mut cargo, places, tree, commit)?;
    let status = process::show(&mut cargo, interrupt)?;
    if !status.success() {
        let how = describe(status);
        return Err(environment!(
            "`cargo build` of {release} ended with {how}; what it said stands above"
        ));
    }
    let mut rustc = Command::new("rustc");
    let toolchain = process::text(rustc.arg("-V").current_dir(tree), interrupt).ok();
    let (binary, sha256) = keep(places, &target.join("release/redline"))?;
    Ok(Built { binary, sha256, toolchain: toolchain.map(|text| text.trim().to_owned()) })
}

/// Sets up `cargo` for a build in `tree`, and returns its target directory. Programs of a release
/// get a target directory of their own, because a `redline` of another version would replace the
/// user's; intermediate files share the user's build directory, so that dependencies compile once.
/// `commit` is that of the release; the user's own tree at `places.root` needs none.
///
/// # Errors
/// The wrapper of the compiler cannot be written.
pub fn call_in(
    cargo: &mut Command,
    places: &Places,
    tree: &Path,
    commit: &str,
) -> Result<PathBuf, FileError> {
    for name in FLAG_VARIABLES {
        cargo.env_remove(name);
    }
    cargo.current_dir(tree);
    let target = if tree == places.root {
        places.cargo_target.clone()
    } else {
        cargo.env("CARGO_BUILD_BUILD_DIR", &places.cargo_target);
        cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper(places, commit)?);
        places.root.join("target/releases/built")
    };
    cargo.env("CARGO_TARGET_DIR", &target);
    Ok(target)
}

/// Writes a script that runs the compiler unchanged, at a path that contains `commit`, and returns
/// the path. Cargo names a package's files by its path within its workspace and compares only their
/// times, so two checkouts with one build directory would be compiled of each other's packages. The
/// path of a wrapper of the workspace's compiler is part of those names.
fn wrapper(places: &Places, commit: &str) -> Result<PathBuf, FileError> {
    let path = places.cargo_target.join("releases").join(commit).join("rustc");
    if !path.is_file() {
        files::write_whole(&path, b"#!/bin/sh\nexec \"$@\"\n")?;
    }
    files::set_mode(&path, 0o755).map_err(FileError::at("write", &path))?;
    Ok(path)
}

/// Copies a built binary to a path named by its SHA-256, so that the next build cannot replace it.
/// Returns the path and the hash.
fn keep(places: &Places, built: &Path) -> Result<(PathBuf, String), FileError> {
    let sha256 = sha256_file(built)?;
    let kept = places.root.join("target/releases/bin").join(&sha256).join("redline");
    // The name is the content's hash, so an existing file is the same binary.
    if !kept.is_file() {
        let mut temp = files::temp_near(&kept)?;
        let mut source = File::open(built).map_err(FileError::at("read", built))?;
        io::copy(&mut source, &mut temp).map_err(FileError::at("write", &kept))?;
        // Without this, a power failure could leave an empty file that is taken for the binary.
        temp.as_file().sync_all().map_err(FileError::at("write", &kept))?;
        let written = temp.into_temp_path();
        files::set_mode(&written, 0o755).map_err(FileError::at("write", &kept))?;
        fs::rename(&written, &kept).map_err(FileError::at("write", &kept))?;
    }
    Ok((kept, sha256))
}

/// Checks out `release` as a git worktree at `path`. An existing worktree is reused if it has no
/// changes of its own, and moved to the release's commit if it is at another one.
///
/// # Errors
/// The checkout has changes or belongs to another clone, git fails, the wait for it is interrupted,
/// or a folder cannot be created or removed.
pub fn check_out(git: &Git, release: &Release, path: &Path) -> Result<(), Stop> {
    let tree = git.at(path);
    let is_worktree = path.is_dir()
        && tree
            .try_text(&["rev-parse", "--show-toplevel"])?
            .is_some_and(|top| same_folder(Path::new(top.trim()), path));
    if is_worktree {
        let own = git.common_folder()?;
        let found = tree.common_folder()?;
        // A clone that was copied with its `target` has the checkouts of the first: git would move
        // the commit of that clone's checkout, and take this one's files for its changes.
        if !same_folder(&own, &found) {
            let (release, path, found) = (&release.name, path.display(), found.display());
            return Err(environment!(
                "the checkout of {release} in `{path}` belongs to another clone, `{found}`"
            )
            .with_hint(format!(
                "this clone was copied with its checkouts: keep what you need, then `rm -r {path}`"
            )));
        }
        if !tree.text(&["status", "--porcelain"])?.trim().is_empty() {
            let (release, path) = (&release.name, path.display());
            return Err(environment!(
                "the checkout of {release} in `{path}` has changes of its own"
            )
            .with_hint(format!("keep what you need, then `git worktree remove --force {path}`")));
        }
        if tree.text(&["rev-parse", "HEAD"])?.trim() != release.commit {
            // The same folder served another commit of that name, for example before a tag was
            // moved.
            tree.text(&["checkout", "--quiet", "--detach", &release.commit])?;
        }
        return Ok(());
    }
    if path.exists() {
        // The remains of an interrupted checkout, which git does not know.
        fs::remove_dir_all(path).map_err(FileError::at("remove the broken checkout", path))?;
    }
    if let Some(parent) = path.parent() {
        make_dir(parent)?;
    }
    let shown = path.to_string_lossy();
    // `-f` twice: a folder deleted by hand is still registered, and one whose creation was killed
    // is also locked. `worktree prune` would forget the user's own checkouts on disks that are not
    // mounted.
    git.text(&["worktree", "add", "-f", "-f", "--quiet", "--detach", &shown, &release.commit])?;
    Ok(())
}

#[cfg(test)]
mod tests;
