//! Machine code of the CUDA kernels in a bundle, so that nothing is compiled on the GPU machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use campaign::build;
use campaign::files::{self, FileError};
use campaign::process::{self, describe};
use campaign::stop::Stop;
use campaign::world::World;

/// Folder, in the clone, of the CUDA kernels.
const KERNELS: &str = "engine/cuda/kernels";
/// Name of the folder of machine code in a bundle.
pub const FOLDER: &str = "cubins";
/// Environment variable from which the server takes the folder of machine code.
pub const VARIABLE: &str = "REDLINE_CUBINS";

/// Returns the machine code (cubins) of all kernels in the source tree `tree` at `commit`, for each
/// GPU generation that `cargo xtask cuda-check` compiles for; none for a release without kernels. It
/// is compiled if there is none, or if it is older than a source.
///
/// # Errors
/// The kernels cannot be listed or do not compile, or the command is interrupted.
pub fn compiled(world: &World, tree: &Path, commit: &str) -> Result<Vec<PathBuf>, Stop> {
    if !tree.join(KERNELS).is_dir() {
        return Ok(Vec::new());
    }
    let mut cargo = Command::new("cargo");
    let folder = build::call_in(&mut cargo, &world.places, tree, commit)?.join("cuda");
    let sources = files_of(&tree.join(KERNELS))?;
    if let Some(cubins) = current(&sources, &folder) {
        return Ok(cubins);
    }
    world.console.step(world.clock.elapsed(), "Compile the kernels");
    let written = process::capture(cargo.args(["xtask", "cuda-check"]), &world.interrupt)?;
    // A kernel that breaks its budget has machine code nevertheless.
    current(&sources, &folder).ok_or_else(|| {
        eprint!("{}", written.stderr);
        let status = describe(written.status);
        Stop::environment(format!("`cargo xtask cuda-check` left kernels without code: {status}"))
    })
}

/// Lists the machine code in `folder`; `None` where a kernel file among `sources` has none, or some
/// is older than a source.
fn current(sources: &[PathBuf], folder: &Path) -> Option<Vec<PathBuf>> {
    let newest = sources.iter().filter_map(|path| modified(path)).max()?;
    let mut cubins = files_of(folder).ok()?;
    cubins.retain(|path| path.extension().is_some_and(|ending| ending == "cubin"));
    let kernel = |path: &Path| path.extension().is_some_and(|ending| ending == "cu");
    let mut all = Vec::new();
    for source in sources.iter().filter(|path| kernel(path)) {
        let name = format!("{}.", source.file_stem()?.to_str()?);
        let own = |path: &&PathBuf| {
            path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name))
        };
        let own: Vec<&PathBuf> = cubins.iter().filter(own).collect();
        let is_current = |path: &&PathBuf| modified(path).is_some_and(|time| time >= newest);
        if own.is_empty() || !own.iter().all(is_current) {
            return None;
        }
        all.extend(own.into_iter().cloned());
    }
    Some(all)
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn files_of(dir: &Path) -> Result<Vec<PathBuf>, FileError> {
    let entries = fs::read_dir(dir).map_err(FileError::at("read the folder", dir))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Copies machine code into the folder [`FOLDER`] of a bundle, which has none without machine code.
///
/// # Errors
/// A file cannot be read or written.
pub fn put(cubins: &[PathBuf], bundle: &Path) -> Result<(), FileError> {
    if cubins.is_empty() {
        return Ok(());
    }
    let folder = bundle.join(FOLDER);
    files::make_dir(&folder)?;
    for cubin in cubins {
        let to = folder.join(cubin.file_name().unwrap_or_default());
        fs::copy(cubin, &to).map_err(FileError::at("copy", cubin))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    #[test]
    fn code_that_is_older_than_a_source_is_compiled_again() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str, second: u64| {
            let path = dir.path().join(name);
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            File::create(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let sources = [at("a.cu", 5), at("b.cu", 1), at("h.cuh", 6)];
        let cubins = [at("a.sm_80.cubin", 7), at("a.sm_90a.cubin", 7), at("b.sm_90a.cubin", 7)];
        at("gone.sm_80.cubin", 7);
        assert_eq!(current(&sources, dir.path()), Some(cubins.to_vec()));
        at("b.sm_90a.cubin", 5);
        assert_eq!(current(&sources, dir.path()), None, "older than a header");
        fs::remove_file(dir.path().join("b.sm_90a.cubin")).unwrap();
        assert_eq!(current(&sources, dir.path()), None, "a kernel has no code");
    }
}
