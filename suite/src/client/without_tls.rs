//! Replacement for `tls` in a build without the `tls` feature: every attempt to use TLS is an
//! error.

use std::io;
use std::net::TcpStream;

use schema::run::TlsFacts;

use super::channel::{Channel, Session, Trust};

/// TLS configuration, which never exists in this build.
#[derive(Debug)]
pub enum Tls {}

impl Tls {
    /// Refuses to set up TLS for `host`, since this build has none.
    ///
    /// # Errors
    /// Always.
    pub fn new(host: &str, _trust: &Trust) -> Result<Self, String> {
        Err(format!(
            "`https://{host}` needs TLS, which this program was built without\n\
             hint: build it with its default features (`tls`)"
        ))
    }

    /// Returns TLS parameters, as in `tls`.
    pub fn facts(&self) -> Option<TlsFacts> {
        match *self {}
    }

    /// Creates a connection, as in `tls`.
    pub fn session(&self) -> Box<dyn Session> {
        match *self {}
    }

    /// Makes a handshake, as in `tls`.
    ///
    /// # Errors
    /// Never: this type has no value.
    pub fn blocking(&self, _socket: TcpStream) -> io::Result<Box<dyn Channel>> {
        match *self {}
    }
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
