//! A real Slurm of a test's own: three nodes on this machine, with ports, keys and folders that
//! nobody else uses. It knows daemons and Slurm's tools, and nothing of who uses them.

mod accounting;
mod conf;
mod daemon;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use daemon::{Daemon, missing};
use tempfile::TempDir;

use crate::program::{Ended, run, system, until};
use accounting::Accounting;

/// The nodes of every cluster.
pub const NODES: [&str; 3] = ["node1", "node2", "node3"];

/// What every cluster needs, and the packages that bring it.
const PROGRAMS: [&str; 9] =
    ["munged", "slurmctld", "slurmd", "sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo"];
const PACKAGES: &str = "slurm-wlm munge";

/// A running cluster. All that it started, jobs included, ends with it.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    controller: Option<Daemon>,
    nodes: BTreeMap<&'static str, Daemon>,
    // Ended last: the others' words to each other are sealed by it.
    accounting: Option<Accounting>,
    munge: Daemon,
}

impl Cluster {
    /// A cluster that forgets jobs some minutes after their end, or none after saying what is
    /// missing here.
    #[must_use]
    pub fn without_accounting() -> Option<Self> {
        present(&PROGRAMS, PACKAGES).then(|| Self::start(false))
    }

    /// A cluster that keeps accounts of its jobs in a database, and otherwise forgets them within
    /// a minute.
    #[must_use]
    pub fn with_accounting() -> Option<Self> {
        let there =
            present(&PROGRAMS, PACKAGES) && present(&accounting::PROGRAMS, accounting::PACKAGES);
        there.then(|| Self::start(true))
    }

    fn start(accounts: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        for name in ["munge", "run", "log", "state", "spool"] {
            fs::create_dir(root.join(name)).expect("writable");
        }
        // Everybody may reach the socket in it, whatever the umask is; munged insists.
        let open = fs::Permissions::from_mode(0o711);
        fs::set_permissions(root.join("munge"), open).expect("permissions can be set");
        let munge = daemon::munge(root);
        let ports = conf::Ports::free();
        let accounting = accounts.then(|| Accounting::start(root, &ports));
        conf::write(root, &ports, accounts);
        let mut cluster =
            Self { folder, controller: None, nodes: BTreeMap::new(), accounting, munge };
        if let Some(accounting) = &mut cluster.accounting {
            accounting.wait_until_it_answers(&conf::path(cluster.folder.path()));
        }
        cluster.start_controller();
        for node in NODES {
            cluster.start_node(node);
        }
        until("three idle nodes", || {
            let listed = run(&mut cluster.tool("sinfo", &["--noheader", "--Node", "--format=%T"]));
            (listed.stdout.lines().filter(|line| *line == "idle").count() == 3).then_some(())
        });
        cluster
    }

    /// The folder that all nodes see; jobs may have theirs in it.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    /// What says which cluster it is: `SLURM_CONF`.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        conf::path(self.root())
    }

    /// One of Slurm's tools, asked of this cluster.
    #[must_use]
    pub fn tool(&self, name: &str, words: &[&str]) -> Command {
        let mut command = Command::new(system(name).expect("it was looked for"));
        command.args(words).env("SLURM_CONF", self.conf());
        command
    }

    /// The same, run to its end, which is well.
    ///
    /// # Panics
    /// It is not.
    #[track_caller]
    pub fn asked(&self, name: &str, words: &[&str]) -> Ended {
        run(&mut self.tool(name, words)).expect_code(0)
    }

    /// Adds a line to the configuration, and has everybody read it.
    ///
    /// # Panics
    /// The controller refuses it.
    #[track_caller]
    pub fn configure(&self, line: &str) {
        let text = fs::read_to_string(self.conf()).expect("readable");
        fs::write(self.conf(), format!("{text}{line}\n")).expect("writable");
        self.asked("scontrol", &["reconfigure"]);
    }

    /// Starts the controller, with what it had saved.
    ///
    /// # Panics
    /// It ends, or does not answer.
    #[track_caller]
    pub fn start_controller(&mut self) {
        let mut controller = Daemon::start(self.root(), "slurmctld", &["-D"]);
        until("the controller's answer", || {
            assert!(controller.runs(), "slurmctld ended");
            let asked = run(&mut self.tool("scontrol", &["ping"]));
            (asked.code == Some(0)).then_some(())
        });
        self.controller = Some(controller);
    }

    /// Ends the controller as a crash does: it saves nothing.
    pub fn kill_controller(&mut self) {
        self.controller = None;
    }

    /// Starts a node.
    ///
    /// # Panics
    /// The program cannot be started.
    #[track_caller]
    pub fn start_node(&mut self, node: &'static str) {
        self.nodes.insert(node, Daemon::start(self.root(), "slurmd", &["-D", "-N", node]));
    }

    /// Takes a node away with everything that ran on it, as a loss of power does. Left to
    /// themselves a job and the step that watches it would outlive their node's daemon.
    pub fn kill_node(&mut self, node: &str) {
        self.nodes.remove(node);
        daemon::kill_steps(self.root(), &[node]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        self.controller = None;
        daemon::kill_steps(self.root(), &NODES);
        self.accounting = None;
        self.munge.end();
    }
}

/// Whether all programs are there; says which are not, and what to install.
fn present(programs: &[&str], packages: &str) -> bool {
    let missing = missing(programs);
    if !missing.is_empty() {
        let names = missing.join("`, `");
        println!("skipped: `{names}` not found; hint: apt-get install {packages}");
    }
    missing.is_empty()
}
