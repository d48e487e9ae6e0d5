//! Checkout of a release as a git worktree below `target/`, separate from the user's own files.

use std::fs;
use std::path::Path;

use crate::files::{FileError, make_dir};
use crate::git::{Git, same_folder};
use crate::plan::release::Release;
use crate::stop::Stop;

/// Makes `path` a clean checkout of `release`; an existing checkout is reused.
///
/// # Errors
/// The checkout has changes, or git fails.
pub fn prepare(git: &Git, release: &Release, path: &Path) -> Result<(), Stop> {
    let tree = git.at(path);
    let is_worktree = path.is_dir()
        && tree
            .try_text(&["rev-parse", "--show-toplevel"])?
            .is_some_and(|top| same_folder(Path::new(top.trim()), path));
    if is_worktree {
        if !tree.text(&["status", "--porcelain"])?.trim().is_empty() {
            let (release, path) = (&release.name, path.display());
            let what = format!("the checkout of {release} in `{path}` has changes of its own");
            return Err(Stop::environment(what).with_hint(format!(
                "keep what you need, then `git worktree remove --force {path}`"
            )));
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
