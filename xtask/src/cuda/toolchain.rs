//! CUDA toolchain for `cuda-check`: downloaded once, by hash, from its Python packages into the
//! cache.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::Shell;

/// Text of the list of the CUDA toolchain's Python packages, in pip's requirements format with
/// hashes.
const PACKAGES: &str = include_str!("toolchain.txt");

/// Folder in which pip installs the files of the toolchain's packages, below its target folder.
const ROOT: &str = "nvidia/cu13";

/// Hint for a download of the CUDA toolchain that failed.
const NO_PACKAGES: &str = "\
hint: it comes from Python packages: connect to the network, and see that `python3 -m pip` works; or
      take the folder `tools/cuda` of another machine's cache";

/// Returns the folder of the toolchain in the cache, compilers and a disassembler that need neither
/// GPU nor driver; downloads it if it is missing or outdated.
///
/// # Errors
/// There is no cache folder, it cannot be written, or pip cannot be started or does not install the
/// pinned packages.
pub fn obtain(shell: &Shell) -> Result<PathBuf> {
    let cache = shell.cache.as_ref().context("no cache folder: set `REDLINE_CACHE` to one")?;
    let dir = cache.join("tools/cuda");
    // The folder is renamed into place after pip has succeeded, so its list proves that it is
    // whole.
    let is_whole = fs::read_to_string(dir.join("packages.txt")).is_ok_and(|has| has == PACKAGES);
    if !is_whole {
        eprintln!("fetching the CUDA toolchain, 197 MB, into `{}`", dir.display());
        fetch(shell, &dir)?;
    }
    Ok(dir.join(ROOT))
}

/// Installs the toolchain's packages into a temporary folder beside `dir` and renames it, so that
/// `dir` is always complete.
fn fetch(shell: &Shell, dir: &Path) -> Result<()> {
    // The process id keeps concurrent downloads apart.
    let aside = dir.with_extension(std::process::id().to_string());
    fs::create_dir_all(&aside).with_context(|| format!("cannot write `{}`", aside.display()))?;
    let list = aside.join("packages.txt");
    fs::write(&list, PACKAGES).with_context(|| format!("cannot write `{}`", list.display()))?;
    // With hashes and without dependencies exactly the pinned files are installed.
    let fixed = "-m pip install --no-deps --only-binary :all: --require-hashes --no-input --quiet \
                 --disable-pip-version-check --root-user-action ignore";
    let mut words: Vec<OsString> = fixed.split_whitespace().map(OsString::from).collect();
    words.extend(["--requirement".into(), list.into(), "--target".into(), aside.clone().into()]);
    let code = shell.exit_code(Path::new("python3"), &words);
    if !matches!(code, Ok(0)) {
        let _ = fs::remove_dir_all(&aside);
        code?;
        bail!("pip could not fetch the CUDA toolchain; what it said stands above\n{NO_PACKAGES}");
    }
    // An outdated toolchain is removed, because a folder cannot be renamed onto a full one.
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove `{}`", dir.display()))?;
    }
    fs::rename(&aside, dir).with_context(|| format!("cannot write `{}`", dir.display()))
}
