//! Git repository of a registry: checks that it can be written to, and reads the branch and
//! commit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use git2::{ErrorCode, Oid, Repository, RepositoryState, Status, StatusOptions, Tree};
use schema::exit::Exit;
use serde::Serialize;

use crate::demands;

/// Folder of the registry in its repository.
pub const RESULTS: &str = "results";

/// Number of waits for a short-lived lock of another git program; two seconds in all.
const LOCK_TRIES: u32 = 40;
/// Pause between two checks for a lock file.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Error: the repository cannot hold a registry, or cannot take a commit now.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The folder is not in a git repository.
    #[error("`{}` is not a git repository\nhint: `git init` makes one, `--registry` names another", _0.display())]
    NotOne(PathBuf),
    /// The folder is inside a repository, but not its root.
    #[error("`{}` lies inside a git repository\nhint: name its root, `{}`", given.display(), root.display())]
    NotRoot {
        /// Folder that was given as the repository's root.
        given: PathBuf,
        /// Root of the repository around it.
        root: PathBuf,
    },
    /// The repository has no working tree.
    #[error("`{}` is a bare repository\nhint: records are committed on a checked-out branch", _0.display())]
    Bare(PathBuf),
    /// HEAD is detached: no branch is checked out.
    #[error("HEAD is detached\nhint: check out a branch: `git switch BRANCH`")]
    Detached,
    /// A merge, rebase or similar operation is unfinished.
    #[error("{0} is under way\nhint: finish or abort it first")]
    UnderWay(&'static str),
    /// Another git program holds git's lock file.
    #[error("another git program holds `{}`\nhint: wait for it; delete the file if no git program runs", _0.display())]
    Locked(PathBuf),
    /// Rendering would overwrite uncommitted changes of the user.
    #[error("{} with changes that are not committed: `{}`\nhint: commit them, or restore them with `git restore`", if paths.len() == 1 { "a rendered file" } else { "rendered files" }, paths.join("`, `"))]
    RenderedChanged {
        /// Rendered files with uncommitted changes, below the repository's root.
        paths: Vec<String>,
    },
    /// `results` is a link or a file, not a folder.
    #[error("`{}` is a symbolic link or no folder, and records are not written through it", _0.display())]
    NoFolder(PathBuf),
    /// The repository requires signed commits, but this program commits unsigned.
    #[error(
        "the repository asks for signed commits (`commit.gpgsign`), and records are committed unsigned\nhint: `git config commit.gpgsign false` in a clone of the registry's own, or keep it in another repository: `--registry DIR`"
    )]
    Signed,
    /// A git attribute would change the stored bytes.
    #[error(
        "git would not store `{path}` as it is: `{demand}`\nhint: records are kept byte for byte; give `results/** -filter -text` in .gitattributes"
    )]
    Converted {
        /// Path of the file that git would change, below the root.
        path: String,
        /// Attribute or setting that causes the change.
        demand: String,
    },
    /// A file of the repository cannot be read.
    #[error("cannot read `{}`", path.display())]
    File {
        /// Path of the file that cannot be read.
        path: PathBuf,
        /// I/O error of reading the file.
        source: io::Error,
    },
    /// A call of `libgit2` failed.
    #[error("git failed")]
    Git(#[from] git2::Error),
}

impl RepositoryError {
    /// Exit code of a command that ends with this error.
    pub fn exit(&self) -> Exit {
        match self {
            Self::NotOne(_) | Self::NotRoot { .. } | Self::Bare(_) | Self::NoFolder(_) => {
                Exit::Unsound
            }
            _ => Exit::Environment,
        }
    }
}

/// Branch and commit that a repository has checked out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Head {
    /// Name of the branch that is checked out.
    pub branch: String,
    /// Hash of the branch's commit; `None` before the first commit.
    pub commit: Option<String>,
    /// Notes for whoever writes, such as hooks that are not run.
    pub notes: Vec<String>,
}

/// A git repository with its working tree.
pub struct WorkTree {
    pub(crate) repo: Repository,
    pub(crate) root: PathBuf,
}

impl std::fmt::Debug for WorkTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkTree").field("root", &self.root).finish_non_exhaustive()
    }
}

impl WorkTree {
    /// Opens the repository whose working tree is `dir`.
    ///
    /// # Errors
    ///
    /// `dir` is not the root of a repository with a working tree.
    pub fn open(dir: &Path) -> Result<Self, RepositoryError> {
        let given = dir.to_owned();
        let repo = match Repository::open(dir) {
            Ok(repo) => repo,
            Err(error) if error.code() == ErrorCode::NotFound => {
                let above = Repository::discover(dir).ok();
                let root = above.and_then(|repo| repo.workdir().map(Path::to_owned));
                return Err(match root {
                    Some(root) => RepositoryError::NotRoot { given, root },
                    None => RepositoryError::NotOne(given),
                });
            }
            Err(error) => return Err(error.into()),
        };
        let Some(root) = repo.workdir().map(Path::to_owned) else {
            return Err(RepositoryError::Bare(given));
        };
        let same = |path: &Path| {
            let source = |source| RepositoryError::File { path: path.to_owned(), source };
            fs::canonicalize(path).map_err(source)
        };
        // In canonical form, since either path may go through links.
        if same(&root)? != same(dir)? {
            return Err(RepositoryError::NotRoot { given, root });
        }
        Ok(Self { repo, root })
    }

    /// Path of the folder `results/` in the working tree; it need not exist.
    pub fn results(&self) -> PathBuf {
        self.root.join(RESULTS)
    }

    /// Path of the git folder of this working tree.
    pub fn git_dir(&self) -> &Path {
        self.repo.path()
    }

    /// Checks that a commit can be made on the checked-out branch.
    ///
    /// # Errors
    ///
    /// HEAD is detached, an operation is unfinished, another program holds a lock, git requires
    /// signatures or filters, or rendered files have changes of the user.
    pub fn ready(&self) -> Result<Head, RepositoryError> {
        let head = self.head()?;
        if let Some(name) = under_way(self.repo.state()) {
            return Err(RepositoryError::UnderWay(name));
        }
        demands::refuse(self)?;
        self.wait_for_index()?;
        // A link in place of the folder would lead the writes out of the repository.
        let results = self.results();
        match fs::symlink_metadata(&results) {
            Ok(found) if !found.is_dir() => return Err(RepositoryError::NoFolder(results)),
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(RepositoryError::File { path: results, source });
            }
            _ => {}
        }
        let paths = self.rendered_changed()?;
        if !paths.is_empty() {
            return Err(RepositoryError::RenderedChanged { paths });
        }
        Ok(head)
    }

    /// Returns the checked-out branch and its commit.
    ///
    /// # Errors
    ///
    /// HEAD is detached or cannot be read.
    pub fn head(&self) -> Result<Head, RepositoryError> {
        let (name, commit) = self.tip()?;
        let branch = name.strip_prefix("refs/heads/").unwrap_or(&name).to_owned();
        let commit = commit.map(|commit| commit.to_string());
        Ok(Head { branch, commit, notes: demands::notes(self)? })
    }

    /// Returns the full name of the checked-out branch, and its commit if it has one.
    pub(crate) fn tip(&self) -> Result<(String, Option<Oid>), RepositoryError> {
        if self.repo.head_detached()? {
            return Err(RepositoryError::Detached);
        }
        match self.repo.head() {
            Ok(head) => {
                let name = String::from_utf8_lossy(head.name_bytes()).into_owned();
                Ok((name, Some(head.peel_to_commit()?.id())))
            }
            Err(error) if error.code() == ErrorCode::UnbornBranch => {
                let head = self.repo.find_reference("HEAD")?;
                let target = head.symbolic_target_bytes().unwrap_or(b"refs/heads/main");
                Ok((String::from_utf8_lossy(target).into_owned(), None))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the tree of a commit, or an empty tree for `None`.
    pub(crate) fn tree_of(&self, commit: Option<Oid>) -> Result<Tree<'_>, git2::Error> {
        match commit {
            Some(commit) => self.repo.find_commit(commit)?.tree(),
            None => self.repo.find_tree(self.repo.treebuilder(None)?.write()?),
        }
    }

    /// Waits up to two seconds for a lock that a passing git command holds.
    pub(crate) fn wait_for_index(&self) -> Result<(), RepositoryError> {
        let lock = self.repo.path().join("index.lock");
        for _ in 0..LOCK_TRIES {
            if !lock.exists() {
                return Ok(());
            }
            thread::sleep(LOCK_PAUSE);
        }
        Err(RepositoryError::Locked(lock))
    }

    /// Reports a lock on `branch` as an error. The caller has waited long enough to conclude that
    /// the lock's owner was killed, or will not end soon.
    pub(crate) fn no_lock_stays(&self, branch: &str) -> Result<(), RepositoryError> {
        let of_branch = self.repo.commondir().join(format!("{branch}.lock"));
        let locks = [of_branch, self.repo.path().join("HEAD.lock")];
        match locks.into_iter().find(|lock| lock.exists()) {
            Some(lock) => Err(RepositoryError::Locked(lock)),
            None => Ok(()),
        }
    }

    /// Pages and `README.md` that differ from HEAD: the next rendering would overwrite them.
    fn rendered_changed(&self) -> Result<Vec<String>, RepositoryError> {
        let mut options = StatusOptions::new();
        options.pathspec("results/README.md").pathspec("results/pages");
        options.include_untracked(true).recurse_untracked_dirs(true).include_ignored(false);
        let statuses = self.repo.statuses(Some(&mut options))?;
        let changed = statuses.iter().filter(|entry| entry.status() != Status::CURRENT);
        Ok(changed.map(|e| String::from_utf8_lossy(e.path_bytes()).into_owned()).collect())
    }
}

fn under_way(state: RepositoryState) -> Option<&'static str> {
    Some(match state {
        RepositoryState::Clean => return None,
        RepositoryState::Merge => "a merge",
        RepositoryState::Revert | RepositoryState::RevertSequence => "a revert",
        RepositoryState::CherryPick | RepositoryState::CherryPickSequence => "a cherry-pick",
        RepositoryState::Bisect => "a bisection",
        RepositoryState::Rebase
        | RepositoryState::RebaseInteractive
        | RepositoryState::RebaseMerge => "a rebase",
        RepositoryState::ApplyMailbox | RepositoryState::ApplyMailboxOrRebase => "`git am`",
    })
}
