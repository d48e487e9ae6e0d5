//! Has the pages of a registry rendered anew by the site's own program, which lies beside this
//! one. Knows no template.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Name of the program that renders.
const SITE: &str = "redline-site";

/// Pages that could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The program that renders is not in the folder.
    #[error("`{SITE}` is not in `{}`\nhint: start this as `cargo xtask`, which builds both", _0.display())]
    Missing(PathBuf),
    /// It cannot be started.
    #[error("cannot start `{}`", program.display())]
    Start {
        /// Where it lies.
        program: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It failed.
    #[error("`{SITE} pages` ended with {status}: {said}")]
    Ended {
        /// With what.
        status: std::process::ExitStatus,
        /// What it wrote to standard error.
        said: String,
    },
}

/// Renders every page and the `README.md` of the registry in `dir`, and of `overlay` where there
/// is one, below `out`.
///
/// # Errors
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
