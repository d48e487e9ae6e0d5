//! Interface of TLS for the rest of the client: the choice of accepted certificates, and
//! connections with TLS, non-blocking under load and blocking for control requests.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use clap::Args;
use nix::errno::Errno;

/// Choice of the certificates that are accepted from a server behind `https://`.
#[derive(Clone, Debug, Default, Args)]
pub struct Trust {
    /// File with PEM certificates of the authorities that may have signed the server's certificate;
    /// by default the authorities that this machine trusts.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Accept any certificate. Anyone on the network path can then read and change the traffic; the
    /// record says so.
    #[arg(long = "insecure-tls", visible_alias = "insecure", conflicts_with = "ca_file")]
    pub insecure: bool,
}

/// Error of an operation on a connection to a server.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// A system call on the connection's socket failed, with this error number; `EAGAIN` means that
    /// there is nothing to read yet.
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// TLS failed, such as with a server that violates the protocol or ends the handshake, or whose
    /// certificate is not accepted.
    #[error("{0}")]
    Tls(String),
}

/// TLS session over a connection's non-blocking socket.
pub trait Session: fmt::Debug {
    /// Continues the TLS handshake as far as `socket` allows. Returns true once it is complete.
    fn shake(&mut self, socket: &OwnedFd) -> Result<bool, Broken>;
    /// Decrypts the received bytes `wire` into `plain` and returns the number of decrypted bytes,
    /// zero while a TLS record is incomplete. `plain` must be longer than `wire` by one TLS record.
    fn take(&mut self, wire: &[u8], plain: &mut [u8]) -> Result<usize, Broken>;
    /// True when the server announced that it will send no more data over TLS.
    fn has_ended(&mut self) -> bool;
    /// Encrypts `payload` and keeps it until `flush` sends it.
    fn put(&mut self, payload: &[u8]);
    /// Sends the encrypted data that is waiting. Returns false where `socket` did not accept all of
    /// it.
    fn flush(&mut self, socket: &OwnedFd) -> Result<bool, Errno>;
    /// Announces to the server, over TLS, that the client will send no more data.
    fn end(&mut self, socket: &OwnedFd);
}

/// Blocking byte stream to a server, plain or with TLS.
pub trait Channel: Read + Write + Send + fmt::Debug {
    /// Returns the TCP socket below the stream, for setting its timeouts.
    fn socket(&self) -> &TcpStream;
}

impl Channel for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}
