//! TLS for `https://` servers: rustls over sockets that the caller owns. It does not interpret
//! HTTP; the caller owns the connections and takes the time stamps.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme, StreamOwned,
};
use schema::run::TlsFacts;
use whole_file::TEXT_MAX;

use super::channel::{Broken, Channel, Session, Trust};

/// Size of the read buffer during a TLS handshake, in bytes.
const HANDSHAKE_BYTES: usize = 8 << 10;
/// Error message for a server that closed the connection during the TLS handshake.
const ENDED: &str = "the server ended the TLS handshake\nhint: try an address with `http://`";
/// Error message for a server that sent application data before a request.
const UNASKED: &str = "the server sent data before it was asked";
const NO_AUTHORITIES: &str = "this machine has no list of certificate authorities to trust\n\
    hint: name a file of them with `--ca-file`";

impl Channel for StreamOwned<ClientConnection, TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref()
    }
}

/// TLS configuration for connections to one server.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    checked: bool,
    agreed: OnceLock<TlsFacts>,
}

impl Tls {
    /// Creates the TLS configuration for connections to `host`; `trust` decides which certificates
    /// are accepted.
    ///
    /// # Errors
    /// There is no trusted authority, the file of authorities cannot be read as certificates,
    /// `host` is not a valid name in a certificate, or the TLS library refuses the configuration.
    pub fn new(host: &str, trust: &Trust) -> Result<Self, String> {
        // An IPv6 address has brackets in a URL.
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare)
            .map_err(|_| format!("`{host}` cannot be the name in a certificate"))?;
        let refused = |error: Error| format!("cannot set up TLS: {error}");
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(refused)?;
        let mut config = if trust.insecure {
            let anyone = Arc::new(Anyone(provider));
            builder.dangerous().with_custom_certificate_verifier(anyone).with_no_client_auth()
        } else {
            builder.with_root_certificates(authorities(trust)?).with_no_client_auth()
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Disable session resumption: every connection makes a full handshake, so that all cost the
        // same.
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);
        // Detect now what would fail on every connection.
        ClientConnection::new(Arc::clone(&config), name.clone()).map_err(refused)?;
        Ok(Self { config, name, checked: !trust.insecure, agreed: OnceLock::new() })
    }

    /// Returns the agreed TLS parameters, once a blocking connection has made a handshake, before
    /// that `None`.
    pub fn facts(&self) -> Option<TlsFacts> {
        self.agreed.get().cloned()
    }

    /// Creates the TLS session of a non-blocking connection, which has yet to make its handshake.
    pub fn session(&self) -> Box<dyn Session> {
        let mut connection = self.connection();
        // A request is encrypted at once, however long it is.
        connection.set_buffer_limit(None);
        Box::new(connection)
    }

    /// Makes the TLS handshake over the blocking `socket` and returns the encrypted connection.
    ///
    /// # Errors
    /// The handshake or the socket fails, such as with a server that does not speak TLS, closes the
    /// connection, or has a certificate that is not accepted.
    pub fn blocking(&self, mut socket: TcpStream) -> io::Result<Box<dyn Channel>> {
        let mut connection = self.connection();
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).map_err(|error| {
                match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
                    Some(error) => io::Error::other(explain(error)),
                    None if error.kind() == io::ErrorKind::UnexpectedEof => io::Error::other(ENDED),
                    None => error,
                }
            })?;
        }
        self.agreed.get_or_init(|| TlsFacts {
            version: connection.protocol_version().map(|v| format!("{v:?}")).unwrap_or_default(),
            cipher: connection
                .negotiated_cipher_suite()
                .map(|suite| format!("{:?}", suite.suite()))
                .unwrap_or_default(),
            certificate_checked: self.checked,
        });
        Ok(Box::new(StreamOwned::new(connection, socket)))
    }

    fn connection(&self) -> ClientConnection {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .expect("`new` made a connection of the same parts")
    }
}

fn authorities(trust: &Trust) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    let Some(path) = &trust.ca_file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if store.is_empty() { Err(NO_AUTHORITIES.to_owned()) } else { Ok(store) };
    };
    let wrong =
        |why: &dyn Display| format!("cannot read certificates from `{}`: {why}", path.display());
    let pem = whole_file::read(path, "certificates", TEXT_MAX);
    let pem = pem.map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        store.add(certificate).map_err(|error| wrong(&error))?;
    }
    if store.is_empty() { Err(wrong(&"the file has no certificate")) } else { Ok(store) }
}

impl Session for ClientConnection {
    fn shake(&mut self, socket: &OwnedFd) -> Result<bool, Broken> {
        let mut wire = [0; HANDSHAKE_BYTES];
        while self.is_handshaking() {
            self.flush(socket)?;
            match recv(socket.as_raw_fd(), &mut wire, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(Broken::Tls(ENDED.to_owned())),
                Ok(count) => {
                    let taken = self.take(&wire[..count], &mut []);
                    // Send the alert that tells the server what was wrong.
                    self.flush(socket)?;
                    taken?;
                }
                Err(Errno::EAGAIN) => return Ok(false),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.flush(socket)?;
        Ok(true)
    }

    fn take(&mut self, mut wire: &[u8], plain: &mut [u8]) -> Result<usize, Broken> {
        let mut length = 0;
        while !wire.is_empty() {
            // Reading from a slice cannot fail, and all decrypted bytes were taken before.
            let count = self.read_tls(&mut wire).unwrap_or(0);
            let state = self.process_new_packets().map_err(|e| Broken::Tls(explain(&e)))?;
            let end = length + state.plaintext_bytes_to_read();
            let room = plain.get_mut(length..end).ok_or_else(|| Broken::Tls(UNASKED.to_owned()))?;
            if self.reader().read_exact(room).is_err() || count == 0 {
                break;
            }
            length = end;
        }
        Ok(length)
    }

    fn has_ended(&mut self) -> bool {
        self.process_new_packets().is_ok_and(|state| state.peer_has_closed())
    }

    fn put(&mut self, payload: &[u8]) {
        // The buffer has no limit, so this cannot fail.
        let _ = self.writer().write_all(payload);
    }

    fn flush(&mut self, socket: &OwnedFd) -> Result<bool, Errno> {
        while self.wants_write() {
            match self.write_tls(&mut Sending(socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Errno::from_raw(error.raw_os_error().unwrap_or(0)));
                }
            }
        }
        Ok(true)
    }

    fn end(&mut self, socket: &OwnedFd) {
        self.send_close_notify();
        // A server that is gone does not need the notice.
        let _ = self.flush(socket);
    }
}

/// Adapter that writes to a non-blocking socket, without raising a signal if the server has closed
/// it.
struct Sending<'a>(&'a OwnedFd);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self.0.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).map_err(io::Error::from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn explain(error: &Error) -> String {
    match error {
        Error::InvalidMessage(_) => {
            "the server does not answer with TLS\nhint: try an address with `http://`".to_owned()
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!("{error}\nhint: `--ca-file` names the authority that signed the certificate")
        }
        other => other.to_string(),
    }
}

/// Certificate verifier for `--insecure-tls` that accepts any certificate. It still checks
/// signatures, so that the handshake costs as much as a secure one.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
