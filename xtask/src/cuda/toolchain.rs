//! The CUDA toolchain: fetched once from its Python packages, by hash, into the cache.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::Shell;

/// What is fetched, in the form that pip checks hashes by.
const PACKAGES: &str = include_str!("toolchain.txt");

/// Where the packages put their folders.
const ROOT: &str = "nvidia/cu13";

const NO_PACKAGES: &str = "\
hint: it comes from Python packages: connect to the network, and see that `python3 -m pip` works; or
      take the folder `tools/cuda` of another machine's cache";

/// Programs that need no GPU and no driver.
#[derive(Debug)]
pub struct Toolchain {
    root: PathBuf,
}

impl Toolchain {
    /// The toolchain that the cache holds, else a fetched one.
    ///
    /// # Errors
    /// There is no cache folder, or pip could not fetch the packages as they are pinned.
    pub fn obtain(shell: &Shell) -> Result<Self> {
        let cache = shell.cache().context("no cache folder: set `REDLINE_CACHE` to one")?;
        let dir = cache.join("tools/cuda");
        let is_whole =
            fs::read_to_string(dir.join("packages.txt")).is_ok_and(|has| has == PACKAGES);
        if !is_whole {
            eprintln!("fetching the CUDA toolchain, 197 MB, into `{}`", dir.display());
            fetch(shell, &dir)?;
        }
        Ok(Self { root: dir.join(ROOT) })
    }

    pub fn nvcc(&self) -> PathBuf {
        self.root.join("bin/nvcc")
    }

    /// Where the compiler that a driver has at run time lies, as a library.
    pub fn nvrtc(&self) -> PathBuf {
        self.root.join("lib/libnvrtc.so.13")
    }

    /// Reads compiled kernels.
    pub fn cuobjdump(&self) -> PathBuf {
        self.root.join("bin/cuobjdump")
    }
}

/// Installs beside `dir`, and renames what is whole.
fn fetch(shell: &Shell, dir: &Path) -> Result<()> {
    let beside = dir.with_extension(std::process::id().to_string());
    fs::create_dir_all(&beside).with_context(|| format!("cannot write `{}`", beside.display()))?;
    let list = beside.join("packages.txt");
    fs::write(&list, PACKAGES).with_context(|| format!("cannot write `{}`", list.display()))?;
    let fixed = "-m pip install --no-deps --only-binary :all: --require-hashes --no-input --quiet \
                 --disable-pip-version-check --root-user-action ignore";
    let mut words: Vec<OsString> = fixed.split_whitespace().map(OsString::from).collect();
    words.extend(["--requirement".into(), list.into(), "--target".into(), beside.clone().into()]);
    let code = shell.exit_code(Path::new("python3"), &words);
    if !matches!(code, Ok(0)) {
        let _ = fs::remove_dir_all(&beside);
        code?;
        bail!("pip could not fetch the CUDA toolchain; what it said stands above\n{NO_PACKAGES}");
    }
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove `{}`", dir.display()))?;
    }
    fs::rename(&beside, dir).with_context(|| format!("cannot write `{}`", dir.display()))
}
