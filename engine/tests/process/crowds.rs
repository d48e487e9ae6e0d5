//! Thousands of clients at the same moment.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use crate::launched::{Launched, command, tiny_model};

const CLIENTS: usize = 2000;
/// Shorter than the second after which a client tries again that the system turned away.
const PATIENCE: Duration = Duration::from_millis(700);

/// Whether this machine lets one process have that many connections, and queue them.
fn possible() -> bool {
    let files = CLIENTS as u64 + 200;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let queue = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    if hard < files || queue.trim().parse().unwrap_or(0) < CLIENTS {
        eprintln!("skipped: the system's limits are below {CLIENTS} connections");
        return false;
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(files), hard).unwrap();
    true
}

#[test]
fn two_thousand_connections_at_once_are_all_taken_at_once() {
    if !possible() {
        return;
    }
    let model = tiny_model();
    // Shells give fewer files than there are clients.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -Sn 256; exec \"$0\" \"$@\""]);
    let serve = command(&["serve", model.path().to_str().unwrap(), "--port", "0"]);
    shell.arg(serve.get_program()).args(serve.get_args());
    shell.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let server = Launched::spawn(shell);
    let address: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();

    // A server that is busy for a moment turns nobody away.
    server.signal(Signal::SIGSTOP);
    let connect = |_| TcpStream::connect_timeout(&address, PATIENCE);
    let clients: Result<Vec<_>, _> = (0..CLIENTS).map(connect).collect();
    server.signal(Signal::SIGCONT);

    for (i, mut client) in clients.expect("all connect").into_iter().enumerate().rev() {
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut start = [0; 15];
        client.read_exact(&mut start).unwrap_or_else(|error| panic!("client {i}: {error}"));
        assert_eq!(&start, b"HTTP/1.1 200 OK");
    }
}
