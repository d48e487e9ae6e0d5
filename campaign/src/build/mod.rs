//! Building the engine of a checkout with its locked dependencies, and keeping the binary by its
//! content.

mod build_tools;
pub(crate) mod installed;
pub mod origin;
pub mod source;
pub mod variants;
pub(crate) mod worktree;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{self, FileError};
use crate::inputs::cache::sha256_file;
use crate::places::Places;
use crate::process::{self, describe};
use crate::stop::Stop;
use crate::world::World;

/// Compiler flags that a user's environment may hold.
const FLAG_VARIABLES: &[&str] =
    &["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS", "CARGO_BUILD_TARGET"];

/// A kept binary of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    pub binary: PathBuf,
    pub sha256: String,
    /// `rustc -V` where it was built.
    pub toolchain: Option<String>,
}

/// Builds `redline` in `tree`.
///
/// # Errors
/// cargo fails, or the binary cannot be kept.
pub fn build(world: &World, tree: &Path, release: &str, commit: &str) -> Result<Built, Stop> {
    let World { programs, places, interrupt, .. } = world;
    let mut cargo = Command::new(&programs.cargo);
    cargo
        .args(["build", "--release", "--locked", "--workspace", "--bin", "redline"])
        .env("REDLINE_COMMIT", commit);
    let target = call_in(&mut cargo, places, tree);
    let status = process::show(&mut cargo, interrupt)?;
    if !status.success() {
        let how = describe(status);
        return Err(Stop::environment(format!(
            "`cargo build` of {release} ended with {how}; what it said stands above"
        )));
    }
    let mut rustc = Command::new(&programs.rustc);
    let toolchain = process::text(rustc.arg("-V").current_dir(tree), interrupt).ok();
    let (binary, sha256) = keep(places, &target.join("release/redline"))?;
    Ok(Built { binary, sha256, toolchain: toolchain.map(|text| text.trim().to_owned()) })
}

/// Has `cargo` work in `tree`, a release's or the user's own, and gives the folder that it leaves
/// programs in. Those of a release stay out of the user's build folder, where a `redline` of another
/// version would lie in place of the user's; what they are made of is shared with it, so that
/// dependencies compile once.
pub fn call_in(cargo: &mut Command, places: &Places, tree: &Path) -> PathBuf {
    for name in FLAG_VARIABLES {
        cargo.env_remove(name);
    }
    cargo.current_dir(tree);
    let target = if tree == places.root() {
        places.cargo_target().to_owned()
    } else {
        cargo.env("CARGO_BUILD_BUILD_DIR", places.cargo_target());
        places.release_target()
    };
    cargo.env("CARGO_TARGET_DIR", &target);
    target
}

/// Copies a built binary to where it stays, so that the next build cannot replace it.
fn keep(places: &Places, built: &Path) -> Result<(PathBuf, String), FileError> {
    let sha256 = sha256_file(built)?;
    let kept = places.binary(&sha256, "redline");
    if !kept.is_file() {
        let mut temp = files::temp_near(&kept)?;
        let mut source = File::open(built).map_err(FileError::at("read", built))?;
        io::copy(&mut source, &mut temp).map_err(FileError::at("write", &kept))?;
        let written = temp.into_temp_path();
        files::set_mode(&written, 0o755).map_err(FileError::at("write", &kept))?;
        fs::rename(&written, &kept).map_err(FileError::at("write", &kept))?;
    }
    Ok((kept, sha256))
}
