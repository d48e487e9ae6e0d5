//! Synchronizes a clone with a remote: fetches others' records, puts this clone's commits behind
//! them, and renders the pages again. The history stays linear: only additions of records are moved.
//! `git fetch` and `git push` run as processes, so that addresses, credentials and proxies are those
//! of the user.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use git2::build::{CheckoutBuilder, TreeUpdateBuilder};
use git2::{Delta, ErrorCode, FileMode, Oid, Repository, Signature, Sort, StatusOptions, Time};
use serde::Serialize;

use crate::commit::{Addition, commit, contention};
use crate::history::short;
use crate::record::{held_records, render};
use crate::repository::{Environment, FETCHED, RESULTS, Unsound, WorkTree};
use crate::turn::Turn;
use crate::undo::take_turn;
use judge::finding::{Finding, HISTORY, ID};
use schema::untrusted::{address, addresses};
use store::folder::read_folder;
use store::layout::FileKind;
use store::storage::{self, examine};

/// Limit on the number of attempts at a push; an attempt fails when another clone pushed first.
const TRIES: u32 = 20;
/// Message of the commit that updates the pages.
const RENDERED: &str = "Render the pages again\n\nThey show the records of both sides.";

/// Result of a sync: the branch and commit reached, and numbers of records, commits and pages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Synced {
    /// Name of the branch that was synchronized.
    pub branch: String,
    /// Hash of the commit that clone and remote have in common after the sync; `None` if neither
    /// has a commit.
    pub commit: Option<String>,
    /// Number of records that the sync took over from the remote, since this clone lacked them.
    pub records_in: usize,
    /// Number of this clone's commits that the sync made again on top of the remote's.
    pub commits_moved: usize,
    /// Number of rendered files (pages and `README.md`) that were out of date and committed again.
    pub pages_rendered: usize,
    /// True when something was pushed to the remote.
    pub pushed: bool,
    /// Notes for the user, such as hooks that were not run.
    pub notes: Vec<String>,
}

/// Parameters of a sync: repository, remote, renderer and clock.
#[derive(Debug, Clone, Copy)]
pub struct Means<'a> {
    /// Root of the repository that is synchronized.
    pub registry: &'a Path,
    /// Name or address of the remote, as git knows it.
    pub remote: &'a str,
    /// Folder with the program that renders pages.
    pub tools: &'a Path,
    /// Committer time of the commits that a sync makes, in seconds since 1970.
    pub unix_s: i64,
}

/// Synchronizes the checked-out branch with the same branch of the remote.
///
/// # Errors
///
/// The repository is not fit for a commit, has changes that are not committed, is locked by another
/// program, or cannot be read or written; the histories cannot be united into a linear one of
/// additions; the remote's records are unsound; `git`, the network or the renderer fails; or others
/// push first at every attempt. No record is lost: commits that were moved stay in the reflog.
pub fn sync(means: Means<'_>) -> Result<Synced> {
    let tree = WorkTree::open(means.registry)?;
    // The lock is held until the push, so that no other command moves this clone's branch.
    let mut turn = take_turn(&tree)?;
    let head = tree.ready()?;
    let shown = &address(means.remote);
    // Git also passes the remote to programs that it starts, and some would take it for an option.
    ensure!(
        !means.remote.starts_with('-'),
        "`{shown}` begins with `-`, so that it is no remote but an option of git"
    );
    let branch = format!("refs/heads/{}", head.branch);
    let network = Network { dir: &tree.root, remote: means.remote, branch };
    let mut synced = Synced { branch: head.branch, notes: head.notes, ..Synced::default() };
    for _ in 0..TRIES {
        let theirs = network.fetch(&tree.repo)?;
        let (branch, ours) = tree.tip()?;
        if let Some(theirs) = theirs.filter(|theirs| Some(*theirs) != ours) {
            let joined = join(&tree, ours, theirs, means, &mut synced)?;
            move_to((&tree, &mut turn), &branch, ours, joined)?;
        }
        // Every attempt renders, because commits are moved without their rendered files.
        synced.pages_rendered += render_pages((&tree, &mut turn), means)?;
        let (_, tip) = tree.tip()?;
        synced.commit = tip.map(|tip| tip.to_string());
        if tip == theirs {
            return Ok(synced);
        }
        if network.push(theirs)? {
            synced.pushed = true;
            return Ok(synced);
        }
    }
    bail!(Environment(format!("others pushed to `{shown}` each time\nhint: sync again")))
}

/// Moves the branch, git's index and the working tree from commit `ours` to commit `tip`; an error
/// where tracked files have changes that are not committed, or another program moves the branch.
fn move_to(
    (tree, turn): (&WorkTree, &mut Turn),
    branch: &str,
    ours: Option<Oid>,
    tip: Oid,
) -> Result<()> {
    if ours == Some(tip) {
        return Ok(());
    }
    let mut options = StatusOptions::new();
    // Untracked files do not stop a sync: the safe checkout below refuses to overwrite them.
    options.include_untracked(false).include_ignored(false);
    if let Some(changed) = tree.repo.statuses(Some(&mut options))?.iter().next() {
        let path = String::from_utf8_lossy(changed.path_bytes());
        let hint = "commit or stash them, then sync again";
        bail!(Environment(format!("`{path}` has changes that are not committed\nhint: {hint}")));
    }
    let checkout = |to: Oid| -> Result<(), git2::Error> {
        let target = tree.repo.find_commit(to)?;
        tree.repo.checkout_tree(target.as_object(), Some(CheckoutBuilder::new().safe()))
    };
    // The next writer undoes a checkout during which this one is killed.
    let (before, after) = (tree.tree_of(ours)?, tree.tree_of(Some(tip))?);
    for delta in tree.repo.diff_tree_to_tree(Some(&before), Some(&after), None)?.deltas() {
        let file = delta.new_file();
        let path = file.path().and_then(|path| path.strip_prefix(RESULTS).ok()?.to_str());
        if let Some(path) = path.filter(|_| delta.status() != Delta::Deleted) {
            turn.note(file.id(), path)?;
        }
    }
    // Files change before the branch does: a checkout that fails leaves the branch where it was.
    checkout(tip)?;
    let log = "sync: records of the remote, then those of this clone";
    let moved = match ours {
        // The branch moves only from `ours`, so that no commit of another program is lost.
        Some(ours) => tree.repo.reference_matching(branch, tip, true, ours, log),
        None => tree.repo.reference(branch, tip, false, log),
    };
    match (moved, ours) {
        (Ok(_), _) => Ok(()),
        (Err(error), Some(ours)) => {
            // Another program committed in the meantime, or is about to: go back to where this
            // clone was.
            checkout(ours)?;
            tree.no_lock_stays(branch)?;
            match error.code() {
                ErrorCode::Modified | ErrorCode::Locked => Err(contention()),
                _ => Err(error.into()),
            }
        }
        (Err(error), None) => Err(error.into()),
    }
}

/// Renders the pages and commits those that were out of date; returns their number.
fn render_pages(written: (&WorkTree, &mut Turn), means: Means<'_>) -> Result<usize> {
    let out = tempfile::tempdir().context("cannot make a folder for the pages")?;
    render(means.tools, means.registry, None, out.path())?;
    let files = read_folder(out.path())?.files.into_iter();
    let pages = files.filter(|(path, _)| FileKind::of(path).is_derived());
    let pages: Vec<Addition> =
        pages.map(|(path, bytes)| Addition { path, bytes, derived: true }).collect();
    let (_, changed) = commit(written, &pages, RENDERED, means.unix_s)?;
    Ok(changed.len())
}

/// One branch of one remote, which `git` processes fetch and push.
struct Network<'a> {
    dir: &'a Path,
    remote: &'a str,
    branch: String,
}

impl Network<'_> {
    /// Fetches the remote's branch and returns its commit; `None` where the remote does not have it
    /// yet.
    fn fetch(&self, repo: &Repository) -> Result<Option<Oid>> {
        // The tip is requested first, because `git fetch` fails for a branch that the remote lacks.
        if self.tip()?.is_none() {
            return Ok(None);
        }
        // The `+` replaces a reference that an interrupted sync left behind.
        let refspec = format!("+{}:{FETCHED}", self.branch);
        self.must("fetch", &["--quiet", "--no-tags", "--", self.remote, &refspec])?;
        let unreadable =
            || format!("what was fetched from `{}` cannot be read", address(self.remote));
        let mut fetched = repo.find_reference(FETCHED).with_context(unreadable)?;
        let commit = fetched.peel_to_commit().with_context(unreadable)?.id();
        fetched.delete().with_context(unreadable)?;
        Ok(Some(commit))
    }

    /// Pushes the branch to the remote; returns `false` when another clone pushed since `seen` was
    /// fetched, and an error for any other failure.
    fn push(&self, seen: Option<Oid>) -> Result<bool> {
        // The push is not forced: the remote refuses it if its branch has moved on.
        let refspec = format!("{0}:{0}", self.branch);
        let arguments = ["--quiet", "--no-verify", "--", self.remote, &refspec];
        match self.must("push", &arguments) {
            Ok(_) => Ok(true),
            // Git's messages are translated, so the remote's commit tells why the push failed.
            Err(error) => match self.tip()? == seen.map(|oid| oid.to_string()) {
                true => Err(error),
                false => Ok(false),
            },
        }
    }

    /// Returns the hash of the remote branch's commit, in hex; `None` where the remote lacks the
    /// branch.
    fn tip(&self) -> Result<Option<String>> {
        let said = self.must("ls-remote", &["--", self.remote, &self.branch])?;
        let lines = String::from_utf8_lossy(&said.stdout).into_owned();
        Ok(lines.split_whitespace().next().map(str::to_owned))
    }

    fn must(&self, verb: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new("git");
        command.arg("-C").arg(self.dir);
        // Neither hooks nor a program that watches files are run, as in this program's own commits.
        // An address of `ext::` is a command line, which git runs where the user's settings allow it,
        // and one of `fd::` a file that this program has open, for which git waits without end.
        for setting in [
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "protocol.ext.allow=never",
            "protocol.fd.allow=never",
        ] {
            command.args(["-c", setting]);
        }
        command.arg(verb);
        // This variable would overrule the setting.
        command.env_remove("GIT_ALLOW_PROTOCOL");
        // These variables are set when the caller itself runs in a git hook, and would redirect
        // the command to another repository.
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(name);
        }
        let output = command.args(arguments).stdin(Stdio::inherit()).output();
        let output = output
            .context("cannot start `git`\nhint: sync uses the git program for the network")?;
        if output.status.success() {
            return Ok(output);
        }
        // The text stays on one line, because further lines of a message are its hints.
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        let (remote, said) = (address(self.remote), addresses(&said));
        bail!(Environment(format!("`git {verb}` of `{remote}` failed: {said}")))
    }
}

/// Builds the history of `theirs` followed by the commits that only `ours` has, and returns its tip;
/// the fetched records and moved commits are counted in `synced`. No branch is moved yet.
fn join(
    tree: &WorkTree,
    ours: Option<Oid>,
    theirs: Oid,
    means: Means<'_>,
    synced: &mut Synced,
) -> Result<Oid> {
    let base = match ours.map(|ours| tree.repo.merge_base(ours, theirs)) {
        Some(Ok(base)) => Some(base),
        Some(Err(error)) if error.code() == ErrorCode::NotFound => bail!(
            "this branch and `{}` have no commit in common\nhint: clone the registry and record there",
            address(means.remote)
        ),
        Some(Err(error)) => return Err(error.into()),
        None => None,
    };
    let records_in = verify(tree, ours, base, theirs)?;
    // The remote has no commit of its own, so nothing is moved and all commits keep their hashes.
    if let (true, Some(ours)) = (base == Some(theirs), ours) {
        return Ok(ours);
    }
    let mut tip = theirs;
    synced.records_in += records_in;
    for commit in only_here(tree, ours, theirs)? {
        if let Some(moved) = put_behind(tree, &commit, tip, means)? {
            tip = moved;
            synced.commits_moved += 1;
        }
    }
    let held = held_records(tree, Some(tip))?;
    // Ids of imported records come from their file's hash, so two sources may share one.
    let ids = held.keys().filter(|path| !path.starts_with("imports/"));
    let ids = ids.filter_map(|path| Some((path.rsplit('/').next()?.split('.').next()?, &**path)));
    refuse(storage::repeated_ids(ids, ID))?;
    Ok(tip)
}

/// Checks the remote's records: those that this clone lacks must be sound, and those of the last
/// commit that both histories have in common must be unchanged. Returns the number of records that
/// this clone lacks.
fn verify(tree: &WorkTree, ours: Option<Oid>, base: Option<Oid>, theirs: Oid) -> Result<usize> {
    // Its records are compared with those of the common ancestor: the remote never had what
    // only this clone has.
    let (known, now) = (held_records(tree, base)?, held_records(tree, Some(theirs))?);
    let mine = held_records(tree, ours)?;
    let mut findings = Vec::new();
    for (path, blob) in &known {
        let detail = match now.get(path) {
            Some(theirs) if theirs == blob => continue,
            Some(_) => "the remote has another record under this path",
            None => "the remote no longer has it",
        };
        findings.push(Finding::breach(HISTORY, path, detail));
    }
    let new: BTreeMap<&String, &Oid> =
        now.iter().filter(|(path, blob)| mine.get(*path) != Some(blob)).collect();
    for (path, blob) in &new {
        let blob = tree.repo.find_blob(**blob)?;
        findings.extend(examine(path, blob.content()).1.into_iter().filter(|f| f.breach));
    }
    refuse(findings)?;
    Ok(new.len())
}

/// Returns the commits that `ours` has and `theirs` lacks, oldest first.
fn only_here(tree: &WorkTree, ours: Option<Oid>, theirs: Oid) -> Result<Vec<git2::Commit<'_>>> {
    let Some(ours) = ours else { return Ok(Vec::new()) };
    let mut walk = tree.repo.revwalk()?;
    walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE)?;
    walk.push(ours)?;
    walk.hide(theirs)?;
    walk.map(|id| Ok(tree.repo.find_commit(id?)?)).collect()
}

/// Commits the records of `commit` again on top of `tip`; `None` when `tip` contains them all. A
/// record of `tip` with other content under the same path is an error.
fn put_behind(
    tree: &WorkTree,
    commit: &git2::Commit<'_>,
    tip: Oid,
    means: Means<'_>,
) -> Result<Option<Oid>> {
    let base = tree.repo.find_commit(tip)?.tree()?;
    let mut update = TreeUpdateBuilder::new();
    let mut count = 0;
    for (path, blob) in records_of(tree, commit)? {
        let place = format!("{RESULTS}/{path}");
        match base.get_path(place.as_ref()) {
            Ok(entry) if entry.id() == blob => {}
            Ok(_) => {
                let detail = "this clone and the remote have different records under this path";
                refuse(vec![Finding::breach(HISTORY, &path, detail)])?;
            }
            Err(error) if error.code() == ErrorCode::NotFound => {
                update.upsert(place, blob, FileMode::Blob);
                count += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if count == 0 {
        return Ok(None);
    }
    let repo = &tree.repo;
    let moved = repo.find_tree(update.create_updated(repo, &base)?)?;
    let author = commit.author();
    let at = Time::new(means.unix_s, 0);
    let name = String::from_utf8_lossy(author.name_bytes()).into_owned();
    let email = String::from_utf8_lossy(author.email_bytes()).into_owned();
    let committer = Signature::new(&name, &email, &at)?;
    let message = String::from_utf8_lossy(commit.message_bytes()).into_owned();
    let parent = repo.find_commit(tip)?;
    Ok(Some(repo.commit(None, &author, &committer, &message, &moved, &[&parent])?))
}

/// Returns the records that a commit adds, by path below `results/` and git blob. A merge, and a
/// commit that changes anything else, except rendered files, are errors.
fn records_of(tree: &WorkTree, commit: &git2::Commit<'_>) -> Result<Vec<(String, Oid)>> {
    let id = short(commit.id());
    ensure!(
        commit.parent_count() <= 1,
        "commit {id} is only here and joins two histories\nhint: bring it there yourself, such as by \
         `git pull --rebase`, then sync again"
    );
    let before = commit.parents().next().map(|parent| parent.tree()).transpose()?;
    let diff = tree.repo.diff_tree_to_tree(before.as_ref(), Some(&commit.tree()?), None)?;
    let mut records = Vec::new();
    for delta in diff.deltas() {
        let file =
            if delta.status() == Delta::Deleted { delta.old_file() } else { delta.new_file() };
        let path = file.path_bytes().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        let below = path.strip_prefix(RESULTS).and_then(|path| path.strip_prefix('/'));
        match below.map(|below| (below, FileKind::of(below))) {
            // Rendered files are left out: they are made again from the records of both sides.
            Some((_, kind)) if kind.is_derived() => {}
            Some((below, kind)) if kind.is_record() && delta.status() == Delta::Added => {
                records.push((below.to_owned(), file.id()));
            }
            _ => bail!(
                "commit {id} is only here and changes `{path}`, and only records are moved\nhint: \
                 bring it there yourself, such as by `git pull --rebase`, then sync again"
            ),
        }
    }
    Ok(records)
}

/// Returns the error by which a sync refuses records because of `findings`; no error if there are
/// no findings.
fn refuse(findings: Vec<Finding>) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    bail!(Unsound::new("the remote's records", "nothing was taken", findings))
}
