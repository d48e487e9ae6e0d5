//! Runs other programs in the workspace's root folder, and finds the target and cache folders.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Workspace that this program belongs to: its root, target and cache folders.
#[derive(Debug)]
pub struct Shell {
    pub root: PathBuf,
    /// Folder that cargo builds into: `CARGO_TARGET_DIR`, else `target/` in the workspace's root.
    pub target: PathBuf,
    /// Folder that inputs and tools are downloaded into: `REDLINE_CACHE`, else `redline` in
    /// `XDG_CACHE_HOME` or `~/.cache`; `None` if none of these variables nor `HOME` is set.
    pub cache: Option<PathBuf>,
}

impl Shell {
    /// Finds the workspace's root, which is the parent of this package's folder, and from the
    /// environment the folders that cargo builds into and that inputs are downloaded into.
    ///
    /// # Errors
    /// The package has no parent folder.
    pub fn at_workspace_root() -> Result<Self> {
        // Cargo sets the variable; the compiled-in path is for a program that is started directly.
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent().context("xtask has no parent folder")?.to_path_buf();
        // Cargo is started in the root, so a relative path counts from there.
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |target| root.join(target));
        Ok(Self { root, target, cache: cache() })
    }

    /// Returns the path of a program that cargo built in the release profile, the only one that the
    /// workspace uses.
    pub fn built(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// Runs a program with this process's standard streams and returns its exit code.
    ///
    /// # Errors
    /// The program cannot be started, or a signal killed it.
    pub fn exit_code<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> Result<u8> {
        let status = self
            .command(program, arguments)
            .status()
            .with_context(|| format!("failed to start `{}`", program.display()))?;
        match status.code() {
            Some(code) => Ok(u8::try_from(code).unwrap_or(101)),
            None => bail!("`{}` was killed: {status}", program.display()),
        }
    }

    /// Runs a program and returns its standard output.
    ///
    /// # Errors
    /// The program cannot be started or ends with an error, or its output is not UTF-8.
    pub fn read<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> Result<String> {
        let output = self
            .command(program, arguments)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("failed to start `{}`", program.display()))?;
        if !output.status.success() {
            bail!("`{}` failed: {}", program.display(), output.status);
        }
        String::from_utf8(output.stdout).context("the output is not UTF-8")
    }

    /// Runs a program and returns its output and exit status.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn output<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> Result<Output> {
        self.command(program, arguments)
            .output()
            .with_context(|| format!("failed to start `{}`", program.display()))
    }

    /// Runs `cargo` with the words of a command line and returns its exit code.
    ///
    /// # Errors
    /// Cargo cannot be started, or a signal killed it.
    pub fn cargo_code(&self, line: &str) -> Result<u8> {
        self.exit_code(&cargo(), &line.split(' ').collect::<Vec<_>>())
    }

    /// Runs `cargo` as [`Shell::cargo_code`] does; an exit code other than zero is an error.
    ///
    /// # Errors
    /// Cargo cannot be started, is killed by a signal, or ends with another exit code than zero.
    pub fn cargo(&self, line: &str) -> Result<()> {
        match self.cargo_code(line)? {
            0 => Ok(()),
            _ => bail!("`cargo {line}` failed"),
        }
    }

    fn command<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).args(arguments);
        // `cargo run` sets variables about this package. Build scripts of dependencies that read
        // them would run again, and all that depends on them be compiled again, whenever `cargo`
        // and `cargo xtask` take turns.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        if let Some(cache) = &self.cache {
            command.env("REDLINE_CACHE", cache);
        }
        command
    }
}

/// Returns the path of the cargo that runs this program, from `CARGO`; without it, the name
/// `cargo`.
pub fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Returns the cache folder: `REDLINE_CACHE`, else `redline` in `XDG_CACHE_HOME` or `~/.cache`;
/// `None` if none of these variables nor `HOME` is set. Every program gets it as `REDLINE_CACHE`,
/// so that tests look where the inputs were downloaded to.
fn cache() -> Option<PathBuf> {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("REDLINE_CACHE").or_else(|| {
        let platform =
            variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
        Some(platform.join("redline"))
    })
}
