//! Accounting of a Slurm cluster: `slurmdbd` with a database of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use super::conf::{Ports, user, write_secret};
use super::daemon::Daemon;
use crate::program::{run, system, until};

/// Programs that accounting needs in addition to a cluster's.
pub const PROGRAMS: [&str; 5] =
    ["slurmdbd", "sacctmgr", "mariadbd", "mariadb", "mariadb-install-db"];
/// Debian packages that contain [`PROGRAMS`].
pub const PACKAGES: &str = "slurmdbd slurm-wlm-mysql-plugin mariadb-server";

/// Running accounting daemon and its database; killed when dropped.
#[derive(Debug)]
pub struct Accounting {
    daemon: Daemon,
    _database: Daemon,
}

impl Accounting {
    /// Starts the database and the accounting daemon.
    ///
    /// # Panics
    /// The database does not start.
    #[track_caller]
    pub fn start(root: &Path, ports: &Ports) -> Self {
        let database = database(root, ports.database);
        let at = root.display();
        let text = format!(
            "AuthType=auth/munge\nAuthInfo=socket={at}/munge/sock\nDbdHost=localhost\n\
             DbdAddr=127.0.0.1\nDbdPort={}\nSlurmUser={}\nPidFile={at}/run/slurmdbd.pid\n\
             LogFile={at}/log/slurmdbd.log\nStorageType=accounting_storage/mysql\n\
             StorageHost=127.0.0.1\nStoragePort={}\nStorageUser=slurm\nStoragePass=slurm\n\
             StorageLoc=slurm\n",
            ports.accounting,
            user(),
            ports.database
        );
        write_secret(&root.join("slurmdbd.conf"), text.as_bytes());
        Self { daemon: Daemon::start(root, "slurmdbd", &["-D"]), _database: database }
    }

    /// Waits until the accounting daemon answers.
    ///
    /// # Panics
    /// The daemon ends, or does not answer.
    #[track_caller]
    pub fn wait_until_it_answers(&mut self, conf: &Path) {
        let program = system("sacctmgr").expect("it was looked for");
        until("slurmdbd's answer", || {
            assert!(self.daemon.runs(), "slurmdbd ended");
            let mut asked = Command::new(&program);
            asked.args(["--noheader", "list", "cluster"]).env("SLURM_CONF", conf);
            (run(&mut asked).code == Some(0)).then_some(())
        });
    }
}

/// Starts a database server on one port of this machine. Its user `slurm` has all rights on one
/// schema.
fn database(root: &Path, port: u16) -> Daemon {
    let data = format!("--datadir={}", root.join("database").display());
    let socket = format!("--socket={}", root.join("run/database").display());
    let user = format!("--user={}", user());
    let mut install = Command::new(system("mariadb-install-db").expect("it was looked for"));
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    run(install.args([&data, &user]).stdin(Stdio::null())).expect_code(0);
    let port = format!("--port={port}");
    let pid = format!("--pid-file={}", root.join("run/database.pid").display());
    let small = ["--no-defaults", "--innodb-buffer-pool-size=32M", "--bind-address=127.0.0.1"];
    let words = [&small[..], &[&data, &socket, &user, &port, &pid]].concat();
    let mut daemon = Daemon::start(root, "mariadbd", &words);
    let grants = "create user if not exists slurm@localhost identified by 'slurm'; \
                  create user if not exists slurm@'127.0.0.1' identified by 'slurm'; \
                  grant all on slurm.* to slurm@localhost; \
                  grant all on slurm.* to slurm@'127.0.0.1';";
    // The first successful statement shows that the database is up.
    until("the database's answer", || {
        assert!(daemon.runs(), "mariadbd ended");
        let mut asked = Command::new(system("mariadb").expect("it was looked for"));
        asked.args(["--no-defaults", &socket, "--user=root", "--execute", grants]);
        (run(&mut asked).code == Some(0)).then_some(())
    });
    daemon
}
