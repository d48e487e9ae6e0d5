//! Replacement for `tls` in a build without the `tls` feature: every attempt to use TLS is an
//! error.

use std::io;
use std::net::TcpStream;

use schema::run::TlsFacts;

use super::channel::{Channel, Session, Trust};

/// TLS configuration, of which no value exists in a build without TLS.
#[derive(Debug)]
pub enum Tls {}

impl Tls {
    /// Refuses to set up TLS for `host`, because the program was built without it.
    ///
    /// # Errors
    /// Always.
    pub fn new(host: &str, _trust: &Trust) -> Result<Self, String> {
        Err(format!(
            "`https://{host}` needs TLS, which this program was built without\n\
             hint: build it with its default features (`tls`)"
        ))
    }

    /// Returns the agreed TLS parameters; never called, since a build without TLS has no
    /// configuration.
    pub fn facts(&self) -> Option<TlsFacts> {
        match *self {}
    }

    /// Creates a TLS session; never called, since a build without TLS has no configuration.
    pub fn session(&self) -> Box<dyn Session> {
        match *self {}
    }

    /// Makes a TLS handshake over a blocking socket; never called, since a build without TLS has no
    /// configuration.
    ///
    /// # Errors
    /// Never.
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
