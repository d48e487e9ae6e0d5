//! Has the pages of a registry rendered by the site's own program, which lies beside this one.
//! Knows no templates.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Name of the program that renders pages.
const SITE: &str = "redline-site";

/// Error: the pages could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The program that renders pages is not in the folder.
    #[error("`{SITE}` is not in `{}`\nhint: start this as `cargo xtask`, which builds both", _0.display())]
    Missing(PathBuf),
    /// The program that renders pages cannot be started.
    #[error("cannot start `{}`", program.display())]
    Start {
        /// Path of the program that renders pages.
        program: PathBuf,
        /// I/O error of starting the program.
        source: std::io::Error,
    },
    /// The program that renders pages failed.
    #[error("`{SITE} pages` ended with {status}: {said}")]
    Ended {
        /// Exit status of the program that renders pages.
        status: std::process::ExitStatus,
        /// Text that it wrote to standard error.
        said: String,
    },
}

/// Renders every page and the `README.md` of the registry in `dir`, with the records of `overlay`
/// if given, into `out`.
///
/// # Errors
///
/// The program is not in `tools`, or fails.
pub fn render(
    tools: &Path,
    dir: &Path,
    overlay: Option<&Path>,
    out: &Path,
) -> Result<(), RenderError> {
    let program = tools.join(SITE);
    if !program.is_file() {
        return Err(RenderError::Missing(tools.to_owned()));
    }
    let mut command = Command::new(&program);
    command.arg("pages").arg("--registry").arg(dir).arg("--out").arg(out);
    if let Some(overlay) = overlay {
        command.arg("--overlay").arg(overlay);
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| RenderError::Start { program, source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(RenderError::Ended { status: output.status, said })
}
