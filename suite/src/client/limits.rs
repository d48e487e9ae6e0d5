//! What the system must allow before a run starts: open files, and ports to connect from.

use std::fs;
use std::net::SocketAddr;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::orders::DriveError;

/// Files that are open beside the connections.
pub(super) const FILES_SPARE: u64 = 64;

/// Raises the soft limit on open files as far as `most`, or at least to `needed`.
pub(super) fn allow_files(most: u64, needed: u64) -> Result<(), DriveError> {
    let what = "its limit on open files";
    let system = |source| DriveError::System { what, source };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(system)?;
    if needed > hard {
        return Err(DriveError::Files { needed, limit: hard });
    }
    if most > soft {
        setrlimit(Resource::RLIMIT_NOFILE, most.min(hard), hard).map_err(system)?;
    }
    Ok(())
}

/// Sees that there are ports for `needed` connections to `address` at one time.
pub(super) fn allow_ports(address: SocketAddr, needed: u64) -> Result<(), DriveError> {
    // Where the system does not tell, connecting will.
    let Ok(range) = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range") else {
        return Ok(());
    };
    match ports_in(&range) {
        Some(limit) if needed > limit => Err(DriveError::Ports { address, needed, limit }),
        _ => Ok(()),
    }
}

/// Ports of a range as the kernel writes it.
fn ports_in(range: &str) -> Option<u64> {
    let mut ends = range.split_whitespace().map(str::parse::<u64>);
    let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
    (last + 1).checked_sub(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_ports_counts_both_ends() {
        assert_eq!(ports_in("32768\t60999\n"), Some(28_232));
        assert_eq!(ports_in("9 3"), None);
        assert_eq!(ports_in(""), None);
    }

    #[test]
    fn what_the_system_cannot_give_is_said_with_the_number_needed() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let ports = allow_ports(address, 70_000).unwrap_err().to_string();
        assert!(ports.contains("70000") && ports.contains("127.0.0.1:9"), "{ports}");
        let files = allow_files(u64::MAX, u64::MAX).unwrap_err().to_string();
        assert!(files.contains(&u64::MAX.to_string()), "{files}");
    }
}
