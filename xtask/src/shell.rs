//! Running other programs from the workspace's root.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// The workspace that this program was started in.
#[derive(Debug)]
pub struct Shell {
    root: PathBuf,
    target: PathBuf,
    cache: Option<PathBuf>,
}

impl Shell {
    /// Finds the workspace's root from the place of this package, and its target folder from the
    /// environment as cargo does.
    ///
    /// # Errors
    /// The folder is gone.
    pub fn at_workspace_root() -> Result<Self> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent().context("xtask has no parent folder")?.to_path_buf();
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |target| root.join(target));
        Ok(Self { root, target, cache: cache() })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where cargo writes what it builds.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The folder that inputs and tools are fetched into, if there is any.
    pub fn cache(&self) -> Option<&Path> {
        self.cache.as_deref()
    }

    /// A program that cargo built with the one profile that the workspace uses.
    pub fn built(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// Runs a program with this process's own streams and gives its exit code.
    ///
    /// # Errors
    /// The program cannot be started, or was killed by a signal.
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

    /// Runs a program and returns what it printed.
    ///
    /// # Errors
    /// The program cannot be started or fails.
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

    /// Runs a program and returns what it printed and how it ended.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn output<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> Result<Output> {
        self.command(program, arguments)
            .output()
            .with_context(|| format!("failed to start `{}`", program.display()))
    }

    /// `cargo` with these arguments; an exit code other than zero is an error.
    ///
    /// # Errors
    /// Cargo cannot be started or fails.
    pub fn cargo(&self, arguments: &[&str]) -> Result<()> {
        let code = self.exit_code(&cargo(), arguments)?;
        if code != 0 {
            bail!("`cargo {}` failed", arguments.join(" "));
        }
        Ok(())
    }

    fn command<S: AsRef<OsStr>>(&self, program: &Path, arguments: &[S]) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).args(arguments);
        if let Some(cache) = &self.cache {
            command.env("REDLINE_CACHE", cache);
        }
        command
    }
}

/// The cargo that runs this program.
pub fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// The folder that inputs are fetched into, named to every program so that the tests look where
/// the fetcher put things: `REDLINE_CACHE`, else the platform's cache folder.
fn cache() -> Option<PathBuf> {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("REDLINE_CACHE").or_else(|| {
        let platform =
            variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
        Some(platform.join("redline"))
    })
}
