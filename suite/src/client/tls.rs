//! Connections behind `https://`: rustls over the sockets of others. It secures bytes and knows
//! neither HTTP nor what they are for; reading, and so every time, stays with whoever has the
//! socket.

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

use super::control::Trust;

/// What the wire may bring at one time during a handshake.
const HANDSHAKE_BYTES: usize = 8 << 10;
/// The longest record, decrypted: what was begun by one read may be finished by the next.
const RECORD_MAX: usize = 16 << 10;

/// TLS that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of certificate authorities is none.
    #[error("cannot read certificates from `{path}`: {message}")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Why, in words.
        message: String,
    },
    /// Nobody is there to trust.
    #[error(
        "this machine has no list of certificate authorities that are trusted\n\
         hint: `--ca-file` names a file of them"
    )]
    NoAuthorities,
    /// No certificate could be for such a host.
    #[error("`{host}` cannot be the name in a certificate")]
    Name {
        /// As it was given.
        host: String,
    },
    /// The library does not take these settings.
    #[error("no TLS: {0}")]
    Setup(#[from] Error),
}

/// How connections to one server are secured.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    checked: bool,
    agreed: OnceLock<TlsFacts>,
}

impl Tls {
    /// TLS to `host`, whose certificate has to be good by `trust`.
    ///
    /// # Errors
    /// There is nobody to trust, or `host` is no name.
    pub fn new(host: &str, trust: &Trust) -> Result<Self, TlsError> {
        // An IPv6 address stands in brackets in a URL.
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
        // Every connection makes a handshake of its own, so that one costs what all cost.
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);
        // Tells now what would fail on every connection.
        ClientConnection::new(Arc::clone(&config), name.clone())?;
        Ok(Self { config, name, checked: !trust.insecure, agreed: OnceLock::new() })
    }

    /// What client and server agreed on, once they did.
    #[must_use]
    pub fn facts(&self) -> Option<TlsFacts> {
        self.agreed.get().cloned()
    }

    /// A connection that has yet to shake hands.
    #[must_use]
    pub fn session(&self) -> Session {
        let mut connection = self.connection();
        // A request is encrypted whole, however long it is.
        connection.set_buffer_limit(None);
        Session { connection }
    }

    /// Shakes hands over `socket`, which blocks.
    ///
    /// # Errors
    /// The server does not speak TLS, or is not who it should be; see [`said`].
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
            .expect("one was made of the same parts before")
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
    if store.is_empty() { Err(wrong("it holds none".to_owned())) } else { Ok(store) }
}

/// A connection that blocks.
#[derive(Debug)]
pub struct Blocking(StreamOwned<ClientConnection, TcpStream>);

impl Blocking {
    /// What it goes over.
    #[must_use]
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

/// A connection over a socket that does not block.
#[derive(Debug)]
pub struct Session {
    connection: ClientConnection,
}

/// Why a secured connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The socket failed.
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// The server does not keep to TLS, or is not who it should be.
    #[error("{}", explain(.0))]
    Tls(#[from] Error),
    /// The server ended the connection while hands were shaken.
    #[error("it ended the TLS handshake\nhint: its address may begin with `http://`")]
    Ended,
    /// The server spoke first.
    #[error("the server sent data before it was asked")]
    Unasked,
}

impl Session {
    /// Goes on with the handshake as far as `socket` lets it. True once hands are shaken.
    ///
    /// # Errors
    /// The server does not speak TLS, or is not who it should be.
    pub fn shake(&mut self, socket: &OwnedFd) -> Result<bool, Broken> {
        let mut wire = [0; HANDSHAKE_BYTES];
        while self.connection.is_handshaking() {
            self.flush(socket)?;
            match recv(socket.as_raw_fd(), &mut wire, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(Broken::Ended),
                Ok(count) => {
                    let taken = self.take(&wire[..count], &mut []);
                    // An alert tells the server what was wrong with it.
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

    /// Decrypts what `wire` holds into `plain`, and returns how much that is: nothing where a
    /// record has not ended yet. There is room for it where `plain` is longer than `wire` by a
    /// record; see [`split`].
    ///
    /// # Errors
    /// The bytes are not what the server would send.
    pub fn take(&mut self, mut wire: &[u8], plain: &mut [u8]) -> Result<usize, Broken> {
        let mut length = 0;
        while !wire.is_empty() {
            // A slice has no errors of its own, and no decrypted bytes are left to be taken.
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

    /// The server said that it will send no more.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.connection.process_new_packets().is_ok_and(|state| state.peer_has_closed())
    }

    /// Encrypts `payload`; [`Self::flush`] sends it.
    pub fn put(&mut self, payload: &[u8]) {
        // The buffer has no limit.
        let _ = self.connection.writer().write_all(payload);
    }

    /// Sends what is encrypted. False where `socket` did not take all.
    ///
    /// # Errors
    /// As the socket's.
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

    /// Tells the server that nothing more will be sent.
    pub fn end(&mut self, socket: &OwnedFd) {
        self.connection.send_close_notify();
        // A server that is gone need not know.
        let _ = self.flush(socket);
    }
}

/// One buffer in two: for what the wire will bring, the second, and for what that holds.
pub fn split(buffer: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    buffer.split_at_mut((buffer.len() + RECORD_MAX) / 2)
}

/// The socket as a writer.
struct Sending<'a>(&'a OwnedFd);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self.0.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).map_err(io::Error::from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An error of a blocking connection in words.
#[must_use]
pub fn said(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => explain(error),
        None => error.to_string(),
    }
}

fn explain(error: &Error) -> String {
    match error {
        Error::InvalidMessage(_) => {
            "it does not answer with TLS\nhint: its address may begin with `http://`".to_owned()
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!("{error}\nhint: `--ca-file` names the authority that signed the certificate")
        }
        other => other.to_string(),
    }
}

/// Takes every certificate: what is asked for by `--insecure-tls`. Signatures are checked all the
/// same, so that the handshake does the work of one that is secure.
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
