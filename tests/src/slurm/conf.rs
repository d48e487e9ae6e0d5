//! Configuration files of a Slurm cluster. Timeouts are short, so that a test does not wait minutes
//! for a real cluster's reactions.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::run;

/// TCP ports of a cluster's daemons.
#[derive(Debug)]
pub struct Ports {
    /// Port of the controller, `slurmctld`.
    pub controller: u16,
    /// Ports of the nodes' daemons, `slurmd`.
    pub nodes: [u16; 3],
    /// Port of the accounting daemon, `slurmdbd`.
    pub accounting: u16,
    /// Port of the accounting database.
    pub database: u16,
}

impl Ports {
    /// Picks a free TCP port for each daemon, all different.
    pub fn free() -> Self {
        // All ports are held until the last is found, so that no two are the same.
        let held: Vec<TcpListener> =
            (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let port = |at: usize| held[at].local_addr().expect("an address").port();
        let nodes = [port(1), port(2), port(3)];
        Self { controller: port(0), nodes, accounting: port(4), database: port(5) }
    }
}

/// Path of the cluster's `slurm.conf`.
pub fn path(root: &Path) -> PathBuf {
    root.join("slurm.conf")
}

/// Path of the log file that a node's daemon and its job steps write.
pub fn log(root: &Path, node: &str) -> PathBuf {
    root.join("log").join(format!("slurmd-{node}.log"))
}

/// Name of the user who runs the test, and so the daemons and jobs.
pub fn user() -> String {
    said(Command::new("id").arg("-un"))
}

fn said(command: &mut Command) -> String {
    run(command).expect_code(0).stdout.trim().to_owned()
}

/// Writes `slurm.conf` and `gres.conf`: three nodes with four cores and two GPUs each. The GPUs are
/// device files that every machine has.
pub fn write(root: &Path, ports: &Ports, accounts: bool) {
    let host = said(Command::new("hostname").arg("-s"));
    let (at, user) = (root.display(), user());
    let common = COMMON.replace("{at}", &at.to_string()).replace("{user}", &user);
    let nodes: Vec<String> = (0..3)
        .map(|index| {
            let (name, port) = (super::NODES[index], ports.nodes[index]);
            format!("NodeName={name} NodeHostname={host} Port={port} {NODE}\n")
        })
        .collect();
    // Without accounting the controller must remember ended jobs for the whole test. With
    // accounting it forgets them as soon as possible, so that tests cover queries of the accounts.
    let remembered = if accounts {
        format!(
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n\
             AccountingStoragePort={}\nMinJobAge=2\n",
            ports.accounting
        )
    } else {
        "AccountingStorageType=accounting_storage/none\nMinJobAge=600\n".to_owned()
    };
    let text = format!(
        "{common}SlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\n{remembered}{}",
        ports.controller,
        nodes.concat()
    );
    fs::write(path(root), text).expect("writable");
    let gpus = "NodeName=node[1-3] Name=gpu Type=h200 File=/dev/null,/dev/zero\n";
    fs::write(root.join("gres.conf"), gpus).expect("writable");
}

/// Writes a file that only its owner may read, as munge and slurmdbd require.
pub fn write_secret(path: &Path, bytes: &[u8]) {
    let mut open = fs::OpenOptions::new();
    let file = open.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(bytes)).expect("writable");
}

const NODE: &str = "NodeAddr=127.0.0.1 CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 \
                    RealMemory=2000 Gres=gpu:h200:2 State=UNKNOWN";

/// Part of `slurm.conf` that all clusters share. The path of the private munge socket is also
/// needed under the accounting password, even without accounting. A node counts as lost after five
/// seconds of silence.
const COMMON: &str = "ClusterName=redline
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={at}/munge/sock,cred_expire=5
CredType=cred/munge
AccountingStoragePass={at}/munge/sock
SlurmctldPidFile={at}/run/slurmctld.pid
SlurmdPidFile={at}/run/slurmd-%n.pid
SlurmctldLogFile={at}/log/slurmctld.log
SlurmdLogFile={at}/log/slurmd-%n.log
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool/%n
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
JobRequeue=1
SlurmdTimeout=5
KillWait=2
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
SlurmdParameters=config_overrides
GresTypes=gpu
DefMemPerCPU=100
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
";
