//! Settings of a repository that this program does not honor: hooks are reported in a note;
//! signatures and filters are refused with the reason.

use git2::{AttrCheckFlags, AttrValue, Config};

use crate::repository::{RESULTS, RepositoryError, WorkTree};

/// A path of each kind of file, for querying the attributes that git gives it.
const PLACES: &[&str] = &[
    "runs/e/v1/h/m/c/s@1/00000000000000000000000000.json",
    "kernels/e/v1/h/00000000000000000000000000.json",
    "campaigns/2026/00000000000000000000000000.json",
    "events/2026/00000000000000000000000000.toml",
    "imports/s/00000000/0.json",
    "pages/e/v1/h.md",
    "README.md",
];

/// Hooks that git would run around a commit, a fetch or a push.
const HOOKS: &[&str] = &[
    "pre-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-push",
    "pre-rebase",
    "post-rewrite",
    "reference-transaction",
];

/// Returns an error where the repository requires signatures or filters, which a commit by this
/// program would not apply.
pub(crate) fn refuse(tree: &WorkTree) -> Result<(), RepositoryError> {
    let config = tree.repo.config()?.snapshot()?;
    if config.get_bool("commit.gpgsign").unwrap_or(false) {
        return Err(RepositoryError::Signed);
    }
    for place in PLACES {
        let path = format!("{RESULTS}/{place}");
        if let Some(demand) = conversion(tree, &config, &path)? {
            return Err(RepositoryError::Converted { path, demand });
        }
    }
    Ok(())
}

/// Returns the setting by which git would store or check out other bytes than the file's.
fn conversion(
    tree: &WorkTree,
    config: &Config,
    path: &str,
) -> Result<Option<String>, RepositoryError> {
    let value = |name: &str| -> Result<Option<String>, git2::Error> {
        let value = tree.repo.get_attr(path.as_ref(), name, AttrCheckFlags::FILE_THEN_INDEX)?;
        Ok(match AttrValue::from_string(value) {
            AttrValue::String(text) => Some(text.to_owned()),
            AttrValue::True => Some("set".to_owned()),
            AttrValue::False => Some("unset".to_owned()),
            _ => None,
        })
    };
    for name in ["filter", "working-tree-encoding"] {
        if let Some(value) = value(name)?.filter(|value| value != "unset") {
            return Ok(Some(format!("{name}={value}")));
        }
    }
    let text = value("text")?;
    if text.as_deref() == Some("unset") {
        return Ok(None);
    }
    if value("eol")?.as_deref() == Some("crlf") {
        return Ok(Some("eol=crlf".to_owned()));
    }
    let automatic = config.get_string("core.autocrlf").is_ok_and(|value| value == "true");
    Ok(automatic.then(|| "core.autocrlf=true".to_owned()))
}

/// Returns notes on what git would do at a commit and this program does not.
pub(crate) fn notes(tree: &WorkTree) -> Result<Vec<String>, RepositoryError> {
    let config = tree.repo.config()?.snapshot()?;
    let folder = match config.get_path("core.hooksPath") {
        Ok(path) => tree.root.join(path),
        Err(_) => tree.repo.commondir().join("hooks"),
    };
    let present: Vec<&str> =
        HOOKS.iter().copied().filter(|hook| folder.join(hook).is_file()).collect();
    if present.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![format!("hooks are not run: {}", present.join(", "))])
}
