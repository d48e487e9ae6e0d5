//! Resolves a release name to a commit: the tag, else the first commit of the first-parent history
//! whose `engine/Cargo.toml` carries that literal version.
//!
//! [`resolve`] is pure over a [`History`]; [`read_history`] reads one with git.

use std::collections::{BTreeMap, BTreeSet};

use crate::git::Git;
use crate::stop::{Stop, environment, wrong_use};

const MANIFEST: &str = "engine/Cargo.toml";

/// A commit that changed `engine/Cargo.toml`, and the literal version in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub commit: String,
    /// Literal version in the commit's `engine/Cargo.toml`; `None` without one, as where it is
    /// inherited from the workspace.
    pub version: Option<String>,
}

/// Commit that a tag names, and the engine's version in that commit and in the commit's first
/// parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    pub commit: String,
    pub version: Option<String>,
    pub version_before: Option<String>,
}

/// The engine's versions in git's history, from which releases are resolved.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Commits of the first-parent history that changed the engine's manifest, newest first.
    pub edits: Vec<Edit>,
    /// Tags of the requested releases by name, such as `v0.9.2`.
    pub tags: BTreeMap<String, Tag>,
    /// Hashes of the commits whose parents a shallow clone lacks; empty in a complete clone.
    pub boundary: BTreeSet<String>,
}

/// A release of Redline and its commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Name of the release with `v`, such as `v0.9.2`.
    pub name: String,
    pub commit: String,
}

impl Release {
    /// Returns the release's version without `v`, as the engine's own `--version` prints it.
    pub fn version(&self) -> &str {
        let version = self.name.trim_start_matches('v');
        version.split_once('+').map_or(version, |(version, _)| version)
    }
}

/// Finds the commit of the release named `wanted`, with or without `v`.
///
/// # Errors
/// The name is not a version or that of a working tree, no such release is known, its tag points at
/// a commit that has another version or is not the first with it, or a shallow clone lacks the
/// history that would decide.
pub fn resolve(history: &History, wanted: &str) -> Result<Release, Stop> {
    let version = parse_name(wanted)?;
    let name = format!("v{version}");
    let carries = |found: &Option<String>| found.as_deref() == Some(version);
    let shallow = || {
        environment!("this clone is shallow and does not reach back to release `{name}`")
            .with_hint("get the whole history with `git fetch --unshallow`")
    };
    let tag = history.tags.get(&name);
    let doubtful = |tag: &Tag, but: String| {
        let at = short(&tag.commit);
        wrong_use!("tag `{name}` points at {at}, {but}")
            .with_hint("move or delete the tag; numbers under a doubtful name would help nobody")
    };
    // Edits are newest first; later commits may touch the manifest without changing the version.
    let first = history.edits.iter().rev().find(|edit| carries(&edit.version));
    let commit = match (first, tag) {
        (Some(first), Some(tag)) if first.commit == tag.commit => &tag.commit,
        (Some(first), Some(tag)) => {
            let first = short(&first.commit);
            let but = format!("but the first commit with that version is {first}");
            return Err(doubtful(tag, but));
        }
        // At the edge of a shallow clone an older commit, not present here, may be the first with
        // that version.
        (Some(first), None) if history.boundary.contains(&first.commit) => return Err(shallow()),
        (Some(first), None) => &first.commit,
        (None, Some(tag)) if !carries(&tag.version) => {
            let found = tag.version.as_ref().map(|version| format!("`{version}`"));
            let found = found.unwrap_or_else(|| "no literal version".to_owned());
            return Err(doubtful(tag, format!("whose `engine/Cargo.toml` says {found}")));
        }
        // A tag on a later commit of the same version would name code that the release did not
        // have.
        (None, Some(tag)) if carries(&tag.version_before) => {
            let but = "but the commit before it carries that version already";
            return Err(doubtful(tag, but.to_owned()));
        }
        (None, Some(tag)) => &tag.commit,
        (None, None) if !history.boundary.is_empty() => return Err(shallow()),
        (None, None) => {
            let known = known(history);
            let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
            return Err(wrong_use!("release `{name}` is unknown; known are {known}").with_hint(
                "a release is a commit whose `engine/Cargo.toml` carries that literal version; `git \
                 fetch` brings newer ones",
            ));
        }
    };
    let commit = commit.clone();
    Ok(Release { name, commit })
}

/// Returns the name of the newest release in the history; `None` without any.
pub fn newest(history: &History) -> Option<String> {
    known(history).into_iter().next()
}

/// Returns true for the name of a release, with or without `v`, whether or not it exists.
pub fn is_name(text: &str) -> bool {
    parse_name(text).is_ok()
}

/// Names the state of the engine at the commit `wanted`, any name by which git finds one, as
/// `v<version>+<commit>`, so that it is no release.
///
/// # Errors
/// git finds no such commit, the engine has no literal version there, git cannot be run, or the
/// wait for it is interrupted.
pub fn at_commit(git: &Git, wanted: &str) -> Result<Release, Stop> {
    let spec = format!("{wanted}^{{commit}}");
    let found = git.try_text(&["rev-parse", "--verify", "--quiet", "--end-of-options", &spec])?;
    let commit = found.map(|found| found.trim().to_owned()).ok_or_else(|| {
        wrong_use!("`{wanted}` is neither a release nor a commit of this clone")
            .with_hint("a release is named like `v0.9.2`, another engine like `llama.cpp@b1234`")
    })?;
    let version = version_at(git, &commit)?
        .ok_or_else(|| wrong_use!("`{MANIFEST}` at `{wanted}` has no literal version"))?;
    let name = format!("v{version}+{}", short(&commit));
    Ok(Release { name, commit })
}

/// Returns the names of all releases in the history, newest first.
fn known(history: &History) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let versions = history.edits.iter().filter_map(|edit| edit.version.as_deref());
    let releases = versions.filter(|version| !is_development(version) && seen.insert(*version));
    releases.map(|version| format!("v{version}")).collect()
}

/// Returns true for the version of a working tree between two releases, such as `0.9.3-dev`.
pub fn is_development(version: &str) -> bool {
    version.ends_with("-dev")
}

/// Returns the literal `package.version` of a Cargo manifest; `None` without one, as where it is
/// inherited or the manifest is not TOML.
pub fn literal_version(manifest: &str) -> Option<String> {
    let table: toml::Table = manifest.parse().ok()?;
    table.get("package")?.get("version")?.as_str().map(str::to_owned)
}

/// Reads the engine's versions along the first-parent history of `HEAD`, and the tags of the
/// `wanted` names, with git.
///
/// # Errors
/// git cannot be run, fails or is interrupted, or the list of commits without parents in a shallow
/// clone cannot be read.
pub fn read_history(git: &Git, wanted: &[&str]) -> Result<History, Stop> {
    let mut history = History::default();
    // A clone without any commit has no HEAD, and no release either.
    if git.try_text(&["rev-parse", "--verify", "--quiet", "HEAD"])?.is_some() {
        let log = git.text(&["log", "--first-parent", "--format=%H", "--", MANIFEST])?;
        for commit in log.lines() {
            let version = version_at(git, commit)?;
            history.edits.push(Edit { commit: commit.to_owned(), version });
        }
    }
    for name in wanted {
        let name = format!("v{}", name.trim_start_matches('v'));
        let spec = format!("refs/tags/{name}^{{commit}}");
        let Some(commit) = git.try_text(&["rev-parse", "--verify", "--quiet", &spec])? else {
            continue;
        };
        let commit = commit.trim().to_owned();
        let version = version_at(git, &commit)?;
        let version_before = version_at(git, &format!("{commit}^"))?;
        history.tags.insert(name, Tag { commit, version, version_before });
    }
    if git.text(&["rev-parse", "--is-shallow-repository"])?.trim() == "true" {
        history.boundary = git.shallow_commits()?;
    }
    Ok(history)
}

fn version_at(git: &Git, commit: &str) -> Result<Option<String>, Stop> {
    let manifest = git.try_text(&["show", &format!("{commit}:{MANIFEST}")])?;
    Ok(manifest.as_deref().and_then(literal_version))
}

fn parse_name(wanted: &str) -> Result<&str, Stop> {
    let version = wanted.strip_prefix('v').unwrap_or(wanted);
    let (numbers, suffix) = match version.find(['-', '+']) {
        Some(at) => version.split_at(at),
        None => (version, ""),
    };
    let parts: Vec<&str> = numbers.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    if parts.len() != 3 || !parts.iter().all(is_number) || !suffix.bytes().all(fit) {
        return Err(wrong_use!("`{wanted}` is not a version, such as `v0.9.2`"));
    }
    if is_development(version) {
        return Err(wrong_use!("`{wanted}` is the version of a working tree between two releases")
            .with_hint("measure the working tree itself with `--worktree`"));
    }
    Ok(version)
}

fn short(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::exit::Exit;

    fn history(edits: &[(&str, Option<&str>)]) -> History {
        let edits = edits
            .iter()
            .map(|(commit, version)| Edit {
                commit: (*commit).to_owned(),
                version: version.map(str::to_owned),
            })
            .collect();
        History { edits, ..History::default() }
    }

    /// Builds, for tests, a history, newest first: two commits carry 0.9.2, and the oldest manifest
    /// inherits its version.
    fn usual() -> History {
        history(&[
            ("f", Some("0.9.3-dev")),
            ("e", Some("0.9.2")),
            ("d", Some("0.9.2")),
            ("c", Some("0.9.2-dev")),
            ("b", Some("0.9.1")),
            ("a", None),
        ])
    }

    fn tag(commit: &str, version: Option<&str>, before: Option<&str>) -> Tag {
        Tag {
            commit: commit.to_owned(),
            version: version.map(str::to_owned),
            version_before: before.map(str::to_owned),
        }
    }

    #[test]
    fn the_first_commit_with_the_version_is_the_release() {
        for (wanted, commit) in [("v0.9.2", "d"), ("0.9.2", "d"), ("v0.9.1", "b")] {
            let release = resolve(&usual(), wanted).unwrap();
            assert_eq!((release.commit.as_str(), release.version().len()), (commit, 5), "{wanted}");
        }
    }

    #[test]
    fn what_cannot_be_resolved_says_why() {
        for (wanted, message, exit) in [
            ("v9.9.9", "release `v9.9.9` is unknown; known are v0.9.2, v0.9.1", Exit::Unsound),
            (
                "v0.9.2-dev",
                "`v0.9.2-dev` is the version of a working tree between two releases",
                Exit::Unsound,
            ),
            ("main", "`main` is not a version, such as `v0.9.2`", Exit::Unsound),
            ("v1.2", "`v1.2` is not a version, such as `v0.9.2`", Exit::Unsound),
            ("v1.2.3-$(x)", "`v1.2.3-$(x)` is not a version, such as `v0.9.2`", Exit::Unsound),
        ] {
            let error = resolve(&usual(), wanted).unwrap_err();
            assert_eq!((error.cause().0.as_str(), error.exit()), (message, exit));
        }
        let none = resolve(&history(&[]), "v1.0.0").unwrap_err();
        assert_eq!(none.cause().0, "release `v1.0.0` is unknown; known are none yet");
    }

    #[test]
    fn a_tag_must_point_at_the_first_commit() {
        let mut tagged = usual();
        tagged.tags.insert("v0.9.2".into(), tag("d", Some("0.9.2"), Some("0.9.2-dev")));
        assert_eq!(resolve(&tagged, "v0.9.2").unwrap().commit, "d");

        tagged.tags.insert("v0.9.2".into(), tag("e", Some("0.9.2"), Some("0.9.2")));
        let moved = resolve(&tagged, "v0.9.2").unwrap_err();
        assert_eq!(
            moved.cause().0,
            "tag `v0.9.2` points at e, but the first commit with that version is d"
        );
    }

    #[test]
    fn a_tag_off_the_history_is_held_against_its_own_manifest() {
        let mut tagged = usual();
        tagged.tags.insert("v0.8.0".into(), tag("x", Some("0.8.0"), Some("0.8.0-dev")));
        assert_eq!(resolve(&tagged, "v0.8.0").unwrap().commit, "x");
        tagged.tags.insert("v0.8.0".into(), tag("x", Some("0.8.0"), Some("0.8.0")));
        let refused = |tagged: &History| resolve(tagged, "0.8.0").unwrap_err().cause().0;
        assert!(refused(&tagged).ends_with("the commit before it carries that version already"));
        tagged.tags.insert("v0.8.0".into(), tag("x", None, None));
        assert!(refused(&tagged).ends_with("whose `engine/Cargo.toml` says no literal version"));
    }

    #[test]
    fn a_shallow_clone_is_believed_only_inside_its_edge() {
        let mut shallow = usual();
        shallow.boundary.insert("d".into());
        let edge = resolve(&shallow, "v0.9.2").unwrap_err();
        let said = |release: &str| {
            format!("this clone is shallow and does not reach back to release `{release}`")
        };
        assert_eq!(edge.cause().0, said("v0.9.2"));
        assert_eq!(edge.exit(), Exit::Environment);
        assert!(edge.cause().1.is_some_and(|hint| hint.contains("git fetch --unshallow")));
        assert_eq!(resolve(&shallow, "v0.5.0").unwrap_err().cause().0, said("v0.5.0"));
        // With a tag, the release resolves although its commit lies at the clone's edge.
        shallow.tags.insert("v0.9.2".into(), tag("d", Some("0.9.2"), None));
        assert_eq!(resolve(&shallow, "v0.9.2").unwrap().commit, "d");
    }

    #[test]
    fn only_a_literal_version_counts() {
        for (manifest, expected) in [
            ("[package]\nname = \"engine\"\nversion = \"0.9.2\"\n", Some("0.9.2")),
            ("[package]\nversion.workspace = true\n", None),
            ("[package]\nversion = { workspace = true }\n", None),
            ("[dependencies]\nversion = \"1.0.0\"\n", None),
            ("version = \"0.9.2\"\n[package\n", None),
        ] {
            assert_eq!(literal_version(manifest).as_deref(), expected, "{manifest}");
        }
    }
}
