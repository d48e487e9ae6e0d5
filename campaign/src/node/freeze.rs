//! How the server of an alternating comparison is frozen while the other one answers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use schema::alternation::FrozenBy;

use crate::node::server::Server;
use crate::server_spec::{Contained, Runtime};

/// Folder below which the kernel shows control groups (version 2).
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns how `server` is frozen, and the value of the load generator's flag that says so; `None`
/// where this user cannot freeze it, as without access to the control group of a container.
pub fn freezer(
    server: &Server,
    container: Option<(&Contained, &str)>,
) -> Option<(FrozenBy, String)> {
    match container {
        Some((Contained { runtime: runtime @ (Runtime::Docker | Runtime::Podman), .. }, name)) => {
            let folder = cgroup_of(process_of(*runtime, name)?)?;
            Some((FrozenBy::Cgroup, format!("cgroup:{}", folder.display())))
        }
        // Containers of Apptainer and Enroot are processes of the user, like other servers.
        _ => Some((FrozenBy::Signal, format!("group:{}", server.id()))),
    }
}

/// Asks the container runtime for the id of the container's first process.
fn process_of(runtime: Runtime, name: &str) -> Option<u32> {
    let mut command = Command::new(runtime.program());
    let answer = command.args(["inspect", "--format", "{{.State.Pid}}", name]).output().ok()?;
    String::from_utf8_lossy(&answer.stdout).trim().parse().ok()
}

/// Returns the folder of the control group of a process, if this user may freeze it.
fn cgroup_of(process: u32) -> Option<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let folder = folder_of(&groups)?;
    let may_write = File::options().write(true).open(folder.join("cgroup.freeze")).is_ok();
    may_write.then_some(folder)
}

/// Returns the folder of the control group in the text of `/proc/<pid>/cgroup`; `None` for version 1
/// and for the root, which cannot be frozen.
fn folder_of(groups: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    (!path.is_empty()).then(|| Path::new(CGROUPS).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_frozen_by_its_own_control_group() {
        let found = folder_of("0::/system.slice/docker-abc.scope\n");
        assert_eq!(found, Some(PathBuf::from("/sys/fs/cgroup/system.slice/docker-abc.scope")));
        assert_eq!(folder_of("0::/\n"), None, "the root holds every process");
        assert_eq!(folder_of("4:memory:/docker/abc\n"), None, "version 1");
    }
}
