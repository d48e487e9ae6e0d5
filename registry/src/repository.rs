//! Git repository of a registry: checks that it can be written to, and reads the branch and commit.
//! Errors of commands: a message with its hint, and whether the data or the environment is to blame,
//! which decides the exit code.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use git2::{
    AttrCheckFlags, AttrValue, Config, ErrorCode, Oid, Repository, RepositoryState, Status,
    StatusOptions, Tree,
};
use judge::finding::Finding;
use schema::exit::Exit;
use schema::untrusted;
use serde::Serialize;
use store::StoreError;
use store::layout::FileKind;

/// Name of the registry's folder in the root of its repository.
pub const RESULTS: &str = "results";
/// Reference under which the remote's branch is stored while a sync runs.
pub(crate) const FETCHED: &str = "refs/redline/fetched";

/// Largest number of waits for git's index lock, which git commands hold briefly; two seconds in
/// all.
const LOCK_TRIES: u32 = 40;
/// Pause between two checks whether a lock is free.
pub(crate) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Example path, below `results/`, of each kind of file in a registry, for querying the attributes
/// that git gives such files.
const PLACES: &[&str] = &[
    "runs/e/v1/h/m/c/s@1/00000000000000000000000000.json",
    "kernels/e/v1/h/00000000000000000000000000.json",
    "campaigns/2026/00000000000000000000000000.json",
    "events/2026/00000000000000000000000000.toml",
    "imports/s/00000000/0.json",
    "pages/e/v1/h.md",
    "README.md",
];

/// Names of git hooks that git itself would run where this program commits, fetches, pushes or
/// rebases, and that this program does not run.
const HOOKS: &str = "\
    pre-commit prepare-commit-msg commit-msg post-commit pre-push pre-rebase post-rewrite \
    reference-transaction";

/// Branch and commit that a repository has checked out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Head {
    /// Name of the branch that is checked out.
    pub branch: String,
    /// Hash of the branch's commit; `None` before the first commit.
    pub commit: Option<String>,
    /// Notes for the user who writes to the repository, such as hooks that are not run.
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
    /// `dir` is not the root of a repository with a working tree, or the repository cannot be read.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::find(dir)?.with_context(|| {
            let hint = "`git init` makes one, `--registry` names another";
            format!("`{}` is not a git repository\nhint: {hint}", dir.display())
        })
    }

    /// Opens the repository whose working tree is `dir`; `None` where no repository is.
    ///
    /// # Errors
    ///
    /// `dir` is a folder inside a repository, or the repository is bare or cannot be read.
    pub fn find(dir: &Path) -> Result<Option<Self>> {
        let given = dir.display();
        let not_root = |root: &Path| {
            let root = root.display();
            anyhow!("`{given}` lies inside a git repository\nhint: name its root, `{root}`")
        };
        let repo = match Repository::open(dir) {
            Err(error) if error.code() == ErrorCode::NotFound => {
                let above = Repository::discover(dir).ok();
                return match above.as_ref().and_then(Repository::workdir) {
                    Some(root) => Err(not_root(root)),
                    None => Ok(None),
                };
            }
            opened => opened?,
        };
        let Some(root) = repo.workdir().map(Path::to_owned) else {
            bail!(
                "`{given}` is a bare repository\nhint: records are committed on a checked-out branch"
            );
        };
        let same = |path: &Path| {
            fs::canonicalize(path).with_context(|| format!("cannot read `{}`", path.display()))
        };
        // In canonical form, since either path may go through links.
        if same(&root)? != same(dir)? {
            return Err(not_root(&root));
        }
        Ok(Some(Self { repo, root }))
    }

    /// Returns the name that git's settings give for commits in this clone.
    ///
    /// # Errors
    ///
    /// The settings cannot be read or have no `user.name`.
    pub fn user_name(&self) -> Result<String> {
        let config = self.repo.config()?.snapshot()?;
        let name = config.get_string("user.name");
        name.context(
            "git has no `user.name`\nhint: `--accepted-by` says who accepts the regression",
        )
    }

    /// Returns git's `user.email`, or an error with a hint where git has none.
    pub fn user_email(&self) -> Result<String> {
        let config = self.repo.config()?.snapshot()?;
        let email = config.get_string("user.email");
        email.context("git has no `user.email`\nhint: `--submitter` says who submits the records")
    }

    /// Returns the path of the folder `results/` in the working tree; it need not exist.
    pub fn results(&self) -> PathBuf {
        self.root.join(RESULTS)
    }

    /// Checks that a commit can be made on the checked-out branch.
    ///
    /// # Errors
    ///
    /// HEAD is detached; an operation such as a merge is unfinished; a git program holds the lock
    /// of git's index; git is set to sign commits or to convert the files; `results` is no folder;
    /// a page or `README.md` has uncommitted changes; or the repository cannot be read.
    pub fn ready(&self) -> Result<Head> {
        let head = self.head()?;
        if let Some(name) = under_way(self.repo.state()) {
            bail!(Environment(format!("{name} is under way\nhint: finish or abort it first")));
        }
        self.refuse_settings()?;
        self.wait_for_index()?;
        // A link in place of the folder would lead the writes out of the repository.
        let results = self.results();
        match fs::symlink_metadata(&results) {
            Ok(found) if !found.is_dir() => bail!(
                "`{}` is a symbolic link or no folder, and records are not written through it",
                results.display()
            ),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot read `{}`", results.display()));
            }
            _ => {}
        }
        let paths = self.rendered_changed()?;
        if !paths.is_empty() {
            let what = if paths.len() == 1 { "a rendered file" } else { "rendered files" };
            bail!(Environment(format!(
                "{what} with changes that are not committed: `{}`\nhint: commit them, or restore \
                 them with `git restore`",
                paths.join("`, `")
            )));
        }
        Ok(head)
    }

    /// Returns the checked-out branch and its commit.
    fn head(&self) -> Result<Head> {
        let (name, commit) = self.tip()?;
        let branch = name.strip_prefix("refs/heads/").unwrap_or(&name).to_owned();
        let commit = commit.map(|commit| commit.to_string());
        Ok(Head { branch, commit, notes: self.hooks()? })
    }

    /// Returns the full name of the checked-out branch, and its commit if it has one; an error
    /// where HEAD is detached.
    pub(crate) fn tip(&self) -> Result<(String, Option<Oid>)> {
        if self.repo.head_detached()? {
            let hint = "check out a branch: `git switch BRANCH`";
            bail!(Environment(format!("HEAD is detached\nhint: {hint}")));
        }
        match self.repo.head() {
            Ok(head) => {
                let name = String::from_utf8_lossy(head.name_bytes()).into_owned();
                Ok((name, Some(head.peel_to_commit()?.id())))
            }
            // In a new repository HEAD names a branch that has no commit yet.
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

    /// Waits up to two seconds until no git command holds the lock of git's index; after that
    /// returns an error.
    pub(crate) fn wait_for_index(&self) -> Result<()> {
        let lock = self.index_lock();
        for _ in 0..LOCK_TRIES {
            if !lock.exists() {
                return Ok(());
            }
            thread::sleep(LOCK_PAUSE);
        }
        Err(locked(&lock))
    }

    /// Returns an error if a lock on `branch` or on HEAD exists. The caller has waited long enough
    /// to conclude that the lock's owner was killed, or will not end soon.
    pub(crate) fn no_lock_stays(&self, branch: &str) -> Result<()> {
        let [of_branch, of_head] = self.locks(branch);
        let lock = [of_branch, of_head].into_iter().find(|lock| lock.exists());
        lock.map_or(Ok(()), |lock| Err(locked(&lock)))
    }

    /// Returns the paths at which git's library locks `branch` and HEAD.
    pub(crate) fn locks(&self, branch: &str) -> [PathBuf; 2] {
        // Linked worktrees share their branches, but each has a HEAD of its own.
        let of_branch = self.repo.commondir().join(format!("{branch}.lock"));
        [of_branch, self.repo.path().join("HEAD.lock")]
    }

    /// Returns the path at which git's library locks the index.
    pub(crate) fn index_lock(&self) -> PathBuf {
        self.repo.path().join("index.lock")
    }

    /// Returns the paths of pages and of `README.md` that differ from HEAD: the next rendering
    /// would overwrite them.
    fn rendered_changed(&self) -> Result<Vec<String>> {
        let mut options = StatusOptions::new();
        options.pathspec("results/README.md").pathspec("results/pages");
        options.include_untracked(true).recurse_untracked_dirs(true).include_ignored(false);
        let statuses = self.repo.statuses(Some(&mut options))?;
        let changed = statuses.iter().filter(|entry| entry.status() != Status::CURRENT);
        let paths = changed.map(|entry| String::from_utf8_lossy(entry.path_bytes()).into_owned());
        // A temporary file that a killed program has left is no page.
        Ok(paths.filter(|path| FileKind::of(path) != FileKind::Leftover).collect())
    }

    /// Returns an error where the repository requires signed commits, or is set to store or check
    /// out the registry's files with other bytes: commits by this program do neither.
    fn refuse_settings(&self) -> Result<()> {
        let config = self.repo.config()?.snapshot()?;
        if config.get_bool("commit.gpgsign").unwrap_or(false) {
            bail!(Environment(
                "the repository asks for signed commits (`commit.gpgsign`), and records are \
                 committed unsigned\nhint: `git config commit.gpgsign false` in a clone of the \
                 registry's own, or keep it in another repository: `--registry DIR`"
                    .to_owned()
            ));
        }
        for place in PLACES {
            let path = format!("{RESULTS}/{place}");
            if let Some(demand) = self.conversion(&config, &path)? {
                bail!(Environment(format!(
                    "git would not store `{path}` as it is: `{demand}`\nhint: records are kept \
                     byte for byte; give `results/** -filter -text` in .gitattributes"
                )));
            }
        }
        Ok(())
    }

    /// Returns the setting by which git would store or check out the file at `path` with other
    /// bytes; `None` if no setting does.
    fn conversion(&self, config: &Config, path: &str) -> Result<Option<String>> {
        let value = |name: &str| -> Result<Option<String>, git2::Error> {
            let value = self.repo.get_attr(path.as_ref(), name, AttrCheckFlags::FILE_THEN_INDEX)?;
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
        // `-text` prevents every conversion of line ends, whatever the other settings are.
        if text.as_deref() == Some("unset") {
            return Ok(None);
        }
        if value("eol")?.as_deref() == Some("crlf") {
            return Ok(Some("eol=crlf".to_owned()));
        }
        // The value `input` is accepted: only `true` adds carriage returns at a checkout.
        let automatic = config.get_string("core.autocrlf").is_ok_and(|value| value == "true");
        Ok(automatic.then(|| "core.autocrlf=true".to_owned()))
    }

    /// Returns a note on the hooks that git would run at a commit, a fetch or a push and this
    /// program does not run; empty without such hooks.
    fn hooks(&self) -> Result<Vec<String>> {
        let folder = match self.repo.config()?.snapshot()?.get_path("core.hooksPath") {
            // Git takes a relative path from the root of the working tree.
            Ok(path) => self.root.join(path),
            Err(_) => self.repo.commondir().join("hooks"),
        };
        let present: Vec<&str> =
            HOOKS.split(' ').filter(|hook| folder.join(hook).is_file()).collect();
        let note =
            (!present.is_empty()).then(|| format!("hooks are not run: {}", present.join(", ")));
        Ok(note.into_iter().collect())
    }
}

/// Builds the error of a lock that another program of git holds.
pub(crate) fn locked(lock: &Path) -> anyhow::Error {
    let hint = "wait for it; delete the file if no git program runs";
    Environment(format!("another git program holds `{}`\nhint: {hint}", lock.display())).into()
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

/// Failure of the environment and not of the data: for example, a lock is held, a tool is missing,
/// or a setting of the repository forbids the commit.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Environment(pub String);

/// Refusal of records that break storage rules, with all findings.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Unsound {
    message: String,
    /// Findings of storage rules about the refused files, both breaches and remarks.
    pub findings: Vec<Finding>,
}

impl Unsound {
    /// Builds the error. `whose` says which files were checked, such as `the overlay's files`;
    /// `outcome` says what was not done, such as `nothing was recorded`.
    pub fn new(whose: &str, outcome: &str, findings: Vec<Finding>) -> Self {
        let breaches = findings.iter().filter(|finding| finding.breach);
        let count = breaches.map(|finding| &finding.path).collect::<BTreeSet<_>>().len();
        Self { message: format!("{count} of {whose} are unsound, {outcome}"), findings }
    }
}

/// Returns the exit code of a command that ends with `error`: that of the environment for failures
/// of git, files or tools, else that of unsound data.
pub fn exit_of(error: &anyhow::Error) -> Exit {
    let of_environment = error.is::<Environment>()
        || error.is::<StoreError>()
        || error.is::<git2::Error>()
        || error.chain().any(|cause| cause.is::<io::Error>());
    if of_environment { Exit::Environment } else { Exit::Unsound }
}

/// Formats an error and its causes on one line, with their hints on lines of their own at the end.
pub fn chain(error: &anyhow::Error) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut hints: Vec<String> = Vec::new();
    for cause in error.chain() {
        if cause.is::<git2::Error>() {
            messages.push("git failed".to_owned());
        }
        let text = untrusted::message(cause);
        let mut lines = text.lines();
        messages.push(lines.next().unwrap_or_default().to_owned());
        hints.extend(lines.map(|line| format!("\n{line}")));
    }
    messages.join(": ") + &hints.concat()
}
