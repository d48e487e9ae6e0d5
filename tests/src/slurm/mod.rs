//! A real Slurm cluster for one test: three nodes on this machine, with ports, keys and folders of
//! their own. It knows Slurm's daemons and tools, and must not know which programs submit jobs.

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

/// Names of the nodes of every cluster.
pub const NODES: [&str; 3] = ["node1", "node2", "node3"];

/// Programs that every cluster needs.
const PROGRAMS: [&str; 9] =
    ["munged", "slurmctld", "slurmd", "sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo"];
/// Debian packages that contain Slurm's and munge's programs.
const PACKAGES: &str = "slurm-wlm munge";

/// Running Slurm cluster. Dropping it ends all its processes, jobs included.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    controller: Option<Daemon>,
    nodes: BTreeMap<&'static str, Daemon>,
    // Dropped after the daemons above: munge authenticates their messages to each other.
    accounting: Option<Accounting>,
    munge: Daemon,
}

impl Cluster {
    /// Starts a cluster without accounting, which remembers ended jobs for ten minutes. Prints what
    /// is missing and returns `None` if Slurm is not installed.
    pub fn without_accounting() -> Option<Self> {
        present(&PROGRAMS, PACKAGES).then(|| Self::start(false))
    }

    /// Starts a cluster that stores its jobs in an accounting database and otherwise forgets them
    /// within a minute. Prints what is missing and returns `None` if a program is not installed.
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
        // munged requires that everybody can enter the folder of its socket, whatever the umask is.
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

    /// Folder that all nodes share; jobs may use it.
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Path of the cluster's `slurm.conf`, the value of `SLURM_CONF`.
    pub fn conf(&self) -> PathBuf {
        conf::path(self.root())
    }

    /// Command that runs one of Slurm's tools against this cluster.
    pub fn tool(&self, name: &str, words: &[&str]) -> Command {
        let mut command = Command::new(system(name).expect("it was looked for"));
        command.args(words).env("SLURM_CONF", self.conf());
        command
    }

    /// Runs one of Slurm's tools against this cluster to its end.
    ///
    /// # Panics
    /// The tool ends with an error.
    #[track_caller]
    pub fn run_tool(&self, name: &str, words: &[&str]) -> Ended {
        run(&mut self.tool(name, words)).expect_code(0)
    }

    /// Adds a line to `slurm.conf` and has all daemons read it.
    ///
    /// # Panics
    /// The controller refuses the configuration.
    #[track_caller]
    pub fn configure(&self, line: &str) {
        let text = fs::read_to_string(self.conf()).expect("readable");
        fs::write(self.conf(), format!("{text}{line}\n")).expect("writable");
        self.run_tool("scontrol", &["reconfigure"]);
    }

    /// Starts the controller, which loads the state that it saved before.
    ///
    /// # Panics
    /// The controller ends, or does not answer.
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

    /// Kills the controller, as a crash would: it saves nothing.
    pub fn kill_controller(&mut self) {
        self.controller = None;
    }

    /// Starts the daemon of a node.
    ///
    /// # Panics
    /// The daemon cannot be started.
    #[track_caller]
    pub fn start_node(&mut self, node: &'static str) {
        self.nodes.insert(node, Daemon::start(self.root(), "slurmd", &["-D", "-N", node]));
    }

    /// Kills a node with everything that runs on it, as a power loss would. Without this, a job and
    /// its step daemon would outlive the node's daemon.
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

/// True if all programs are installed; otherwise prints which are missing and what to install.
fn present(programs: &[&str], packages: &str) -> bool {
    let missing = missing(programs);
    if !missing.is_empty() {
        let names = missing.join("`, `");
        fixtures::skip(&format!("`{names}`"), &format!("apt-get install {packages}"));
    }
    missing.is_empty()
}
