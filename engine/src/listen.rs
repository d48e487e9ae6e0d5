//! The socket that clients meet, made for thousands of them at once. Knows no HTTP.

use std::io;
use std::net::SocketAddr;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};

/// Connections that may wait to be accepted; the system cuts it to its own limit. What does not
/// fit is dropped, and the client tries again a second later: a workload that sends all requests
/// at once would measure that second.
const BACKLOG: u32 = 65_535;
/// Open files that are asked for, one per connection. Shells give 1,024, and a server at its limit
/// leaves clients waiting without an answer.
const FILES_MAX: u64 = 65_536;

/// Listens on the first address that can be had. Must be called within a tokio runtime.
///
/// # Errors
/// None of them can be had; the reason is that of the last.
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
    // A port whose former owner has just ended is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Raises the soft limit on open files. Where that is not allowed, fewer clients are served.
fn allow_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let wanted = hard.min(FILES_MAX);
        if soft < wanted {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);
        }
    }
}
