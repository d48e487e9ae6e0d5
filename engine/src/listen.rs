//! The listening socket, set up for thousands of clients at once. It must not know HTTP.

use std::io;
use std::net::SocketAddr;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};

/// Length of the accept queue; the system lowers it to its own limit. A connection that does not
/// fit is dropped and the client retries a second later: a workload that sends all its requests at
/// once would measure that second.
const BACKLOG: u32 = 65_535;
/// Number of open files to allow, one per connection. Shells allow 1,024, and a server that has
/// reached its limit leaves clients waiting without an answer.
const FILES_MAX: u64 = 65_536;

/// Listens on the first of `addresses` that is available. Must be called within a tokio runtime.
///
/// # Errors
/// No address is available; the error is that of the last one.
pub fn listen(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    allow_files();
    let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in addresses {
        result = listen_on(*address);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Allows a port whose connections of an earlier server are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Raises the soft limit on open files. A failure is ignored: fewer clients are served then.
fn allow_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = hard.min(FILES_MAX);
        if soft < wanted {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);
        }
    }
}
