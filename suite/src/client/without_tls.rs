//! Replacement for `tls` in a build without the `tls` feature: every attempt to use TLS is an
//! error.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nix::errno::Errno;
use schema::run::TlsFacts;

/// Trust settings for a server's TLS certificate.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// File of trusted certificate authorities; the machine's own where left out.
    pub ca_file: Option<PathBuf>,
    /// True to accept any certificate.
    pub insecure: bool,
}

/// Error of a build without TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// TLS is not part of this build.
    #[error(
        "`https://{host}` needs TLS, which this program was built without\n\
         hint: build it with its default features (`tls`)"
    )]
    LeftOut {
        /// Host as it was given.
        host: String,
    },
}

/// TLS configuration, which never exists in this build.
#[derive(Debug)]
pub enum Tls {}

impl Tls {
    /// Refuses to set up TLS for `host`, since this build has none.
    ///
    /// # Errors
    /// Always.
    pub fn new(host: &str, _trust: &Trust) -> Result<Self, TlsError> {
        Err(TlsError::LeftOut { host: host.to_owned() })
    }

    /// Returns TLS parameters, as in `tls`.
    pub fn facts(&self) -> Option<TlsFacts> {
        match *self {}
    }

    /// Creates a connection, as in `tls`.
    pub fn session(&self) -> Session {
        match *self {}
    }

    /// Makes a handshake, as in `tls`.
    ///
    /// # Errors
    /// Never: this type has no value.
    pub fn blocking(&self, _socket: TcpStream) -> io::Result<Blocking> {
        match *self {}
    }
}

/// Blocking TLS connection, which never exists in this build.
#[derive(Debug)]
pub enum Blocking {}

impl Blocking {
    /// Returns the TCP socket, as in `tls`.
    pub fn socket(&self) -> &TcpStream {
        match *self {}
    }
}

impl Read for Blocking {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Write for Blocking {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match *self {}
    }
}

/// Error that ends a connection.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("{}", .0.desc())]
    System(#[from] Errno),
}

/// Non-blocking TLS connection, which never exists in this build.
#[derive(Debug)]
pub enum Session {}

impl Session {
    /// Continues the handshake, as in `tls`.
    ///
    /// # Errors
    /// Never: this type has no value.
    pub fn shake(&mut self, _socket: &OwnedFd) -> Result<bool, Broken> {
        match *self {}
    }

    /// Decrypts data, as in `tls`.
    ///
    /// # Errors
    /// Never: this type has no value.
    pub fn take(&mut self, _wire: &[u8], _plain: &mut [u8]) -> Result<usize, Broken> {
        match *self {}
    }

    pub fn has_ended(&mut self) -> bool {
        match *self {}
    }

    pub fn put(&mut self, _payload: &[u8]) {
        match *self {}
    }

    /// Sends encrypted data, as in `tls`.
    ///
    /// # Errors
    /// Never: this type has no value.
    pub fn flush(&mut self, _socket: &OwnedFd) -> Result<bool, Errno> {
        match *self {}
    }

    pub fn end(&mut self, _socket: &OwnedFd) {
        match *self {}
    }
}

/// Splits a buffer in two, as in `tls`; all of it is the first part.
pub fn split(buffer: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    (buffer, &mut [])
}

/// Returns the text of an error on a connection.
pub fn said(error: &io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secured_address_is_refused_with_the_way_out() {
        let refused = Tls::new("a.example", &Trust::default()).unwrap_err().to_string();
        assert!(refused.contains("`https://a.example` needs TLS"), "{refused}");
        assert!(refused.contains("hint: build it with its default features"), "{refused}");
    }
}
