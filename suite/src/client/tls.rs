//! TLS for `https://` servers: rustls over sockets that the caller owns. Knows no HTTP; the caller
//! reads the sockets and takes the time stamps.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
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

/// Size of the read buffer during a handshake, in bytes.
const HANDSHAKE_BYTES: usize = 8 << 10;
/// Longest decrypted record in bytes: one read may complete a record that an earlier read began.
const RECORD_MAX: usize = 16 << 10;

/// Trust settings for a server's TLS certificate.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// File of trusted certificate authorities; the machine's own where left out.
    pub ca_file: Option<PathBuf>,
    /// True to accept any certificate.
    pub insecure: bool,
}

/// Error of setting up TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of certificate authorities cannot be read.
    #[error("cannot read certificates from `{path}`: {message}")]
    CaFile {
        /// Path of the file with certificate authorities.
        path: PathBuf,
        /// Reason why the file cannot be used, as text.
        message: String,
    },
    /// The machine has no trusted certificate authorities.
    #[error(
        "this machine has no list of certificate authorities to trust\n\
         hint: name a file of them with `--ca-file`"
    )]
    NoAuthorities,
    /// The host cannot be a name in a certificate.
    #[error("`{host}` cannot be the name in a certificate")]
    Name {
        /// Host as it was given.
        host: String,
    },
    /// The TLS library rejects the settings.
    #[error("cannot set up TLS: {0}")]
    Setup(#[from] Error),
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
    /// Creates the configuration for `host`, whose certificate must be valid by `trust`.
    ///
    /// # Errors
    /// There is no trusted authority, or `host` is not a valid name.
    pub fn new(host: &str, trust: &Trust) -> Result<Self, TlsError> {
        // An IPv6 address has brackets in a URL.
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name =
            ServerName::try_from(bare).map_err(|_| TlsError::Name { host: host.to_owned() })?;
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
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
        ClientConnection::new(Arc::clone(&config), name.clone())?;
        Ok(Self { config, name, checked: !trust.insecure, agreed: OnceLock::new() })
    }

    /// Returns the agreed TLS parameters, once there has been a handshake.
    pub fn facts(&self) -> Option<TlsFacts> {
        self.agreed.get().cloned()
    }

    /// Creates a non-blocking connection that has yet to make its handshake.
    pub fn session(&self) -> Session {
        let mut connection = self.connection();
        // A request is encrypted at once, however long it is.
        connection.set_buffer_limit(None);
        Session { connection }
    }

    /// Makes the handshake over the blocking `socket`.
    ///
    /// # Errors
    /// The server does not speak TLS, or its certificate is not valid; [`said`] gives the text.
    pub fn blocking(&self, mut socket: TcpStream) -> io::Result<Blocking> {
        let mut connection = self.connection();
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::other(Broken::Ended),
                _ => error,
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
        Ok(Blocking(StreamOwned::new(connection, socket)))
    }

    fn connection(&self) -> ClientConnection {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .expect("`new` made a connection of the same parts")
    }
}

fn authorities(trust: &Trust) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let Some(path) = &trust.ca_file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if store.is_empty() { Err(TlsError::NoAuthorities) } else { Ok(store) };
    };
    let wrong = |message: String| TlsError::CaFile { path: path.clone(), message };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        store.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if store.is_empty() { Err(wrong("the file has no certificate".to_owned())) } else { Ok(store) }
}

/// Blocking TLS connection.
#[derive(Debug)]
pub struct Blocking(StreamOwned<ClientConnection, TcpStream>);

impl Blocking {
    /// Returns the TCP socket of the connection.
    pub fn socket(&self) -> &TcpStream {
        self.0.get_ref()
    }
}

impl Read for Blocking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// TLS connection over a non-blocking socket.
#[derive(Debug)]
pub struct Session {
    connection: ClientConnection,
}

/// Error that ends a TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The socket under the TLS connection failed.
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// The server violates TLS, or its certificate is not valid.
    #[error("{}", explain(.0))]
    Tls(#[from] Error),
    /// The server closed the connection during the handshake.
    #[error("the server ended the TLS handshake\nhint: try an address with `http://`")]
    Ended,
    /// The server sent application data before a request.
    #[error("the server sent data before it was asked")]
    Unasked,
}

impl Session {
    /// Continues the handshake as far as `socket` allows. Returns true once it is complete.
    ///
    /// # Errors
    /// The server does not speak TLS, or its certificate is not valid.
    pub fn shake(&mut self, socket: &OwnedFd) -> Result<bool, Broken> {
        let mut wire = [0; HANDSHAKE_BYTES];
        while self.connection.is_handshaking() {
            self.flush(socket)?;
            match recv(socket.as_raw_fd(), &mut wire, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(Broken::Ended),
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

    /// Decrypts `wire` into `plain` and returns the number of decrypted bytes, zero while a record
    /// is incomplete. `plain` must be longer than `wire` by one record; see [`split`].
    ///
    /// # Errors
    /// The bytes are not valid TLS data.
    pub fn take(&mut self, mut wire: &[u8], plain: &mut [u8]) -> Result<usize, Broken> {
        let mut length = 0;
        while !wire.is_empty() {
            // Reading from a slice cannot fail, and all decrypted bytes were taken before.
            let count = self.connection.read_tls(&mut wire).unwrap_or(0);
            let state = self.connection.process_new_packets()?;
            let end = length + state.plaintext_bytes_to_read();
            let room = plain.get_mut(length..end).ok_or(Broken::Unasked)?;
            if self.connection.reader().read_exact(room).is_err() || count == 0 {
                break;
            }
            length = end;
        }
        Ok(length)
    }

    /// True when the server announced that it will send no more data.
    pub fn has_ended(&mut self) -> bool {
        self.connection.process_new_packets().is_ok_and(|state| state.peer_has_closed())
    }

    /// Encrypts `payload`; [`Self::flush`] sends it.
    pub fn put(&mut self, payload: &[u8]) {
        // The buffer has no limit, so this cannot fail.
        let _ = self.connection.writer().write_all(payload);
    }

    /// Sends encrypted data. Returns false where `socket` did not accept all of it.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn flush(&mut self, socket: &OwnedFd) -> Result<bool, Errno> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Sending(socket)) {
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

    /// Tells the server that this side will send no more data.
    pub fn end(&mut self, socket: &OwnedFd) {
        self.connection.send_close_notify();
        // A server that is gone does not need the notice.
        let _ = self.flush(socket);
    }
}

/// Splits a buffer in two: the second part for encrypted bytes from the wire, the first for the
/// decrypted ones.
pub fn split(buffer: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    buffer.split_at_mut((buffer.len() + RECORD_MAX) / 2)
}

/// Adapter that writes to a socket without blocking.
struct Sending<'a>(&'a OwnedFd);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self.0.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).map_err(io::Error::from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the text of an error on a blocking connection.
pub fn said(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => explain(error),
        None => error.to_string(),
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
