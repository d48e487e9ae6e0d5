//! Synchronizes a clone with a remote: fetches others' records, puts this clone's commits behind
//! them, and renders the pages again. The history stays linear. The user's own git does the
//! network access.

mod network;
mod replay;

use std::path::Path;

use git2::build::CheckoutBuilder;
use git2::{ErrorCode, Oid, StatusOptions};
use schema::exit::Exit;
use serde::Serialize;

use crate::commit::{Addition, Clock, commit};
use crate::lock::{LockError, WriterLock};
use crate::record::RecordError;
use crate::render::{RenderError, render};
use crate::repository::{RepositoryError, WorkTree};
use judge::finding::Finding;
use network::Network;
pub use network::NetworkError;
use store::folder::{StoreError, read_folder};
use store::layout::FileKind;

/// Number of attempts at a push; one fails when another clone pushed first.
const TRIES: u32 = 20;
/// Message of the commit that updates the pages.
const RENDERED: &str = "Render the pages again\n\nThey show the records of both sides.";

/// Error: two histories could not be united.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The working tree has uncommitted changes.
    #[error(
        "`{0}` has changes that are not committed\nhint: commit or stash them, then sync again"
    )]
    Changes(String),
    /// A commit that would have to be moved changes more than records.
    #[error(
        "commit {commit} is only here and changes `{path}`, and only records are moved\nhint: bring it there yourself, such as by `git pull --rebase`, then sync again"
    )]
    Foreign {
        /// Abbreviated hash of the commit that cannot be moved.
        commit: String,
        /// A path that the commit changes.
        path: String,
    },
    /// A commit that would have to be moved is a merge.
    #[error(
        "commit {0} is only here and joins two histories\nhint: bring it there yourself, such as by `git pull --rebase`, then sync again"
    )]
    Merge(String),
    /// The histories have no commit in common.
    #[error(
        "this branch and `{0}` have no commit in common\nhint: clone the registry and record there"
    )]
    Unrelated(String),
    /// The remote's records break storage rules; contains the findings.
    #[error("{} of the remote's records are unsound, nothing was taken", _0.len())]
    Unsound(Vec<Finding>),
    /// Another clone pushed first at every attempt.
    #[error("others pushed to `{0}` each time\nhint: sync again")]
    Outrun(String),
    /// The remote cannot be reached through git.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The pages cannot be rendered after uniting the histories.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The fetched records cannot be put in place.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The repository cannot take a commit.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// Another process holds the writer lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A folder of rendered pages cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A temporary folder for the pages cannot be created.
    #[error("cannot make a folder for the pages")]
    Folder(#[source] std::io::Error),
    /// A call of `libgit2` failed.
    #[error("git failed")]
    Git(#[from] git2::Error),
}

impl SyncError {
    /// Exit code of a command that ends with this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Foreign { .. } | Self::Merge(_) | Self::Unrelated(_) | Self::Unsound(_) => {
                Exit::Unsound
            }
            Self::Record(error) => error.exit(),
            Self::Repository(error) => error.exit(),
            _ => Exit::Environment,
        }
    }
}

/// Result of a sync: counts of records, commits and pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Synced {
    /// Name of the branch that was synchronized.
    pub branch: String,
    /// Hash of the commit at which clone and remote stand.
    pub commit: Option<String>,
    /// Number of records that were fetched.
    pub records_in: usize,
    /// Number of this clone's commits that were put behind the remote's.
    pub commits_moved: usize,
    /// Number of pages that were out of date and rendered again.
    pub pages_rendered: usize,
    /// True when something was pushed to the remote.
    pub pushed: bool,
    /// Notes for the user, such as hooks that were not run.
    pub notes: Vec<String>,
}

/// Inputs of a sync: repository, remote, renderer and clock.
#[derive(Debug, Clone, Copy)]
pub struct Means<'a> {
    /// Root of the repository that is synchronized.
    pub registry: &'a Path,
    /// Name or address of the remote, as git knows it.
    pub remote: &'a str,
    /// Folder with the program that renders pages.
    pub tools: &'a Path,
    /// Time of the commits that a sync makes.
    pub clock: Clock,
}

/// Synchronizes the checked-out branch with the same branch of the remote.
///
/// # Errors
///
/// The histories cannot be united into a linear one of additions, the remote's records are
/// unsound, or the network fails. No record is lost: commits that were moved stay in the reflog.
pub fn sync(means: Means<'_>) -> Result<Synced, SyncError> {
    let tree = WorkTree::open(means.registry)?;
    let _turn = WriterLock::acquire(tree.git_dir())?;
    let head = tree.ready()?;
    let network = Network::new(&tree.root, means.remote, &head.branch);
    let mut synced = Synced {
        branch: head.branch,
        commit: None,
        records_in: 0,
        commits_moved: 0,
        pages_rendered: 0,
        pushed: false,
        notes: head.notes,
    };
    for _ in 0..TRIES {
        let theirs = network.fetch(&tree.repo)?;
        let (branch, ours) = tree.tip()?;
        if let Some(theirs) = theirs.filter(|theirs| Some(*theirs) != ours) {
            let joined = replay::join(&tree, ours, theirs, means)?;
            synced.records_in += joined.records_in;
            synced.commits_moved += joined.commits_moved;
            move_to(&tree, &branch, ours, joined.tip)?;
        }
        synced.pages_rendered += render_pages(&tree, means)?;
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
    Err(SyncError::Outrun(means.remote.to_owned()))
}

/// Moves branch, git's index and working tree from `ours` to `tip`.
fn move_to(tree: &WorkTree, branch: &str, ours: Option<Oid>, tip: Oid) -> Result<(), SyncError> {
    if ours == Some(tip) {
        return Ok(());
    }
    let mut options = StatusOptions::new();
    options.include_untracked(false).include_ignored(false);
    if let Some(changed) = tree.repo.statuses(Some(&mut options))?.iter().next() {
        return Err(SyncError::Changes(String::from_utf8_lossy(changed.path_bytes()).into_owned()));
    }
    let checkout = |to: Oid| -> Result<(), git2::Error> {
        let target = tree.repo.find_commit(to)?;
        tree.repo.checkout_tree(target.as_object(), Some(CheckoutBuilder::new().safe()))
    };
    checkout(tip)?;
    let log = "sync: records of the remote, then those of this clone";
    let moved = match ours {
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
                ErrorCode::Modified | ErrorCode::Locked => Err(RecordError::Contention.into()),
                _ => Err(error.into()),
            }
        }
        (Err(error), None) => Err(error.into()),
    }
}

/// Commits the pages that are out of date, and returns their number.
fn render_pages(tree: &WorkTree, means: Means<'_>) -> Result<usize, SyncError> {
    let out = tempfile::tempdir().map_err(SyncError::Folder)?;
    render(means.tools, means.registry, None, out.path())?;
    let files = read_folder(out.path())?.files.into_iter();
    let pages = files.filter(|(path, _)| FileKind::of(path).is_derived());
    let pages: Vec<Addition> =
        pages.map(|(path, bytes)| Addition { path, bytes, derived: true }).collect();
    let (_, changed) = commit(tree, &pages, RENDERED, (means.clock, &|_| {}))?;
    Ok(changed.len())
}
