//! Servers behind `https://`: the mock server behind a TLS proxy that sends records and segments of
//! any size, with and without a proper end.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection};
use schema::scenario::Connections;
use suite::client::control::Trust;
use suite::client::sample::{FailureKind, Sample};
use suite::client::tls::Tls;
use suite::mock_server::script::{Answer, Framing, Scripted, Shape, Steady, UsageWhen};
use suite::mock_server::server::Logged;
use tempfile::TempDir;

use crate::harness::Exchange;
use crate::workspace::{Workspace, scenario, server, stderr};

const MS: u64 = 1_000_000;

/// Ways in which the TLS proxy ends a connection after the mock server has ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// With TLS's close notification, as the standard requires.
    Notified,
    /// By closing the socket without a close notification.
    CutShort,
    /// With a close notification, but the socket stays open.
    NotifiedOnly,
    /// With bytes that are no TLS record.
    Garbage,
}

/// Behavior of the TLS proxy.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// Longest TLS record, in bytes.
    record: Option<usize>,
    /// Bytes written to the socket at a time.
    piece: usize,
    ending: Ending,
}

const PLAIN: Manner = Manner { record: None, piece: 16 << 10, ending: Ending::Notified };

/// TLS proxy that decrypts requests and forwards them to the mock server.
struct Front {
    address: SocketAddr,
    certificate: String,
}

impl Front {
    fn of(behind: SocketAddr, name: &str, manner: Manner) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())
            .expect("the key is the certificate's");
        config.max_fragment_size = manner.record;
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        thread::spawn(move || {
            for socket in listener.incoming() {
                let config = Arc::clone(&config);
                // An error means that a client went away, which tests do on purpose.
                thread::spawn(move || socket.map(|socket| pass(socket, behind, config, manner)));
            }
        });
        Self { address, certificate: cert.pem() }
    }
}

type Shared = Arc<Mutex<ServerConnection>>;

fn pass(
    socket: TcpStream,
    behind: SocketAddr,
    config: Arc<ServerConfig>,
    manner: Manner,
) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let emitter = TcpStream::connect(behind)?;
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let connection: Shared = Arc::new(Mutex::new(connection));
    let (ours, theirs, shared) = (socket.try_clone()?, emitter.try_clone()?, connection.clone());
    thread::spawn(move || {
        let inward = inward(ours, &theirs, &shared, manner);
        let _ = theirs.shutdown(Shutdown::Both);
        inward
    });
    outward(socket, emitter, &connection, manner)
}

fn inward(
    mut from: TcpStream,
    mut to: &TcpStream,
    connection: &Shared,
    manner: Manner,
) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let count = from.read(&mut buffer)?;
        let mut connection = connection.lock().expect("no other panicked");
        let mut bytes = &buffer[..count];
        let mut plain = Vec::new();
        while !bytes.is_empty() {
            connection.read_tls(&mut bytes)?;
            let taken = connection.process_new_packets();
            send(&mut connection, &from, manner)?;
            let mut run = vec![0; taken.map_err(std::io::Error::other)?.plaintext_bytes_to_read()];
            connection.reader().read_exact(&mut run)?;
            plain.extend(run);
        }
        drop(connection);
        if count == 0 {
            return Ok(());
        }
        to.write_all(&plain)?;
    }
}

fn outward(
    socket: TcpStream,
    mut emitter: TcpStream,
    connection: &Shared,
    manner: Manner,
) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let count = emitter.read(&mut buffer)?;
        let mut connection = connection.lock().expect("no other panicked");
        connection.writer().write_all(&buffer[..count])?;
        if count == 0 && manner.ending != Ending::CutShort {
            if manner.ending == Ending::Garbage {
                (&socket).write_all(b"what is no record at all")?;
            } else {
                connection.send_close_notify();
            }
        }
        send(&mut connection, &socket, manner)?;
        if count == 0 {
            return match manner.ending {
                // The reading thread keeps the socket open until the client closes it.
                Ending::NotifiedOnly => Ok(()),
                _ => socket.shutdown(Shutdown::Both),
            };
        }
    }
}

fn send(
    connection: &mut ServerConnection,
    mut socket: &TcpStream,
    manner: Manner,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes)?;
    }
    bytes.chunks(manner.piece).try_for_each(|piece| socket.write_all(piece))
}

/// Exchange through a TLS proxy whose certificate the client trusts.
fn through(answers: Vec<Answer>, manner: Manner) -> Exchange {
    let mut exchange = Exchange::of(answers);
    let front = Front::of(exchange.address, "localhost", manner);
    let folder = TempDir::new().expect("a folder");
    let ca_file = folder.path().join("ca.pem");
    fs::write(&ca_file, &front.certificate).expect("writable");
    let trust = Trust { ca_file: Some(ca_file), insecure: false };
    exchange.tls = Some(Tls::new("localhost", &trust).expect("a name"));
    exchange.address = front.address;
    exchange
}

fn steady(change: impl FnOnce(&mut Steady)) -> Answer {
    let mut steady =
        Steady { tokens: Some(6), first_us: 20_000, gap_us: 3_000, ..Steady::default() };
    change(&mut steady);
    Answer { times: 0, ..Answer::steady(steady) }
}

#[test]
fn streams_are_counted_the_same_however_records_and_segments_are_cut() {
    let streams = [
        steady(|_| ()),
        steady(|s| (s.token_ids, s.usage, s.tokens_per_chunk) = (false, UsageWhen::Every, 3)),
        steady(|s| s.shape = Shape::Chat),
        steady(|s| (s.gap_us, s.crlf) = (0, true)),
        Answer { framing: Framing::Close, ..steady(|_| ()) },
    ];
    let manners = [
        PLAIN,
        // Cases: an event over many records, a record over many segments, and both.
        Manner { record: Some(64), ..PLAIN },
        Manner { piece: 7, ..PLAIN },
        Manner { record: Some(40), piece: 3, ..PLAIN },
    ];
    for answer in streams {
        let plain = Exchange::of(vec![answer.clone()]).run(1).samples.remove(0);
        for manner in manners {
            let sample = through(vec![answer.clone()], manner).run(1).samples.remove(0);
            assert_eq!(sample.failure, None, "{manner:?}");
            assert_eq!((&sample.text, &sample.ids), (&plain.text, &plain.ids), "{manner:?}");
            assert_eq!((sample.chunks.len(), sample.usage), (plain.chunks.len(), plain.usage));
            let tokens = |sample: &Sample| -> Vec<_> {
                sample.chunks.iter().map(|chunk| (chunk.tokens, chunk.text_bytes)).collect()
            };
            assert_eq!(tokens(&sample), tokens(&plain), "{manner:?}");
        }
    }
}

#[test]
fn one_connection_carries_one_request_after_the_other() {
    let mut exchange = through(vec![steady(|_| ())], PLAIN);
    exchange.arrival = schema::scenario::Arrival::Closed { concurrency: 2 };
    let samples = exchange.run(20).samples;
    assert!(samples.iter().all(Sample::is_ok), "{:?}", samples[0].failure);
    let opened: std::collections::BTreeSet<_> =
        samples.iter().filter_map(|sample| sample.connect_ns).collect();
    assert_eq!(opened.len(), 2, "two connections, each opened once");
    assert!(samples.iter().all(|sample| sample.tls_ns == Some(0)), "before the clock started");
}

#[test]
fn the_handshake_is_a_part_of_the_time_to_the_first_token_by_itself() {
    let mut exchange = through(vec![steady(|_| ())], PLAIN);
    exchange.connections = Connections::Cold;
    for sample in exchange.run(3).samples {
        assert_eq!(sample.failure, None);
        let parts = sample.ttft_parts().expect("answered");
        let tls_ns = parts.tls_ns.expect("a handshake");
        assert!(tls_ns > 0 && sample.connect_ns >= Some(tls_ns), "{parts:?}");
        let sum = parts.queue_ns + parts.schedule_lag_ns + parts.connect_ns + tls_ns;
        let sum = sum + parts.send_ns + parts.server_ns;
        assert_eq!(sum, sample.chunks[0].at_ns - sample.scheduled_ns, "they add up");
    }
}

#[test]
fn a_chunk_has_the_stamp_of_the_segment_that_completed_it() {
    let exchange = through(vec![steady(|_| ())], PLAIN);
    let driven = exchange.run(1);
    if driven.load.kernel_timestamps() != Some(true) {
        return fixtures::skip("the kernel's receive stamps", "run it on Linux");
    }
    let log = exchange.log();
    for (index, chunk) in driven.samples[0].chunks.iter().enumerate() {
        let written = log.iter().find(|line| line.event == Logged::Written(index as u64));
        assert!(chunk.at_ns + MS > written.expect("logged").planned_ns, "not before it was due");
        assert!(chunk.at_ns <= driven.samples[0].end_ns);
    }
}

#[test]
fn the_end_of_a_connection_is_the_end_of_an_answer_only_where_that_is_whole() {
    let whole = Answer { framing: Framing::Close, ..steady(|_| ()) };
    let cut = Answer {
        framing: Framing::Close,
        ..Answer::events(vec![Scripted::text(
            0,
            "data: {\"choices\":[{\"index\":0,\"text\":\" t\"}]}\n\n",
        )])
    };
    let length = |ending| Manner { ending, ..PLAIN };
    for (answer, ending, expected) in [
        (&whole, Ending::Notified, None),
        (&whole, Ending::NotifiedOnly, None),
        (&whole, Ending::CutShort, None),
        (&cut, Ending::Notified, Some(FailureKind::Closed)),
        (&cut, Ending::NotifiedOnly, Some(FailureKind::Closed)),
        (&cut, Ending::CutShort, Some(FailureKind::Closed)),
        (&cut, Ending::Garbage, Some(FailureKind::Reset)),
    ] {
        let mut samples = through(vec![answer.clone()], length(ending)).run(1).samples;
        let failure = samples.remove(0).failure;
        assert_eq!(failure.as_ref().map(|f| f.kind), expected, "{ending:?}: {failure:?}");
    }
}

/// Folder with the certificate of a TLS proxy for `name` in front of a steady mock server.
fn workspace_before(name: &str) -> (Workspace, Exchange, Front) {
    let exchange = server(Vec::new());
    let front = Front::of(exchange.address, name, PLAIN);
    let workspace = Workspace::new();
    workspace.write("ca.pem", &front.certificate);
    (workspace, exchange, front)
}

#[test]
fn a_run_behind_tls_says_how_it_was_secured() {
    let (workspace, _exchange, front) = workspace_before("127.0.0.1");
    let cold = "connections = \"cold\"\n";
    workspace.write("short.toml", &(scenario(4, "{ kind = \"all-at-once\" }") + cold));
    let address = format!("https://{}", front.address);
    for (flags, checked) in [(&["--ca-file", "ca.pem"][..], true), (&["--insecure-tls"], false)] {
        let output = workspace.run_flags(&address).args(flags).output().expect("runs");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = fs::read(workspace.path("out.json")).expect("written");
        let found: schema::measurement::Measurement =
            serde_json::from_slice(&text).expect("a measurement");
        let tls = found.client.as_ref().and_then(|client| client.tls.clone()).expect("secured");
        assert_eq!((tls.version.as_str(), tls.certificate_checked), ("TLSv1_3", checked));
        assert!(tls.cipher.starts_with("TLS13_"), "{}", tls.cipher);
        let parts = found.metrics.as_ref().and_then(|metrics| metrics.ttft_parts_us.clone());
        assert!(parts.expect("answered").tls.is_some_and(|tls| tls.p50 > Some(0)));
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(table.contains("\n  tls "), "{table}");
    }
}

#[test]
fn a_certificate_that_nobody_vouches_for_ends_the_run_before_it_begins() {
    for (name, flags, said, hint) in [
        ("127.0.0.1", &[][..], "UnknownIssuer", "hint: `--ca-file` names"),
        ("other.example", &["--ca-file", "ca.pem"], "certificate not valid for name", ""),
    ] {
        let (workspace, exchange, front) = workspace_before(name);
        let address = format!("https://{}", front.address);
        let output = workspace.run_flags(&address).args(flags).output().expect("runs");
        let message = stderr(&output);
        if message.contains("has no list of certificate authorities") {
            fixtures::skip("certificate authorities", "apt-get install ca-certificates");
            continue;
        }
        assert_eq!(output.status.code(), Some(4), "{message}");
        assert!(message.contains(&format!("no server answers at `{address}/health`: ")));
        assert!(message.contains(said) && message.contains(hint), "{message}");
        assert!(exchange.log().is_empty(), "nothing was sent");
        assert!(!workspace.path("out.json").exists());
    }
}

#[test]
fn https_where_http_is_spoken_and_the_other_way_round_are_told() {
    let (workspace, _exchange, front) = workspace_before("127.0.0.1");
    let output = workspace.run_flags(&format!("http://{}", front.address)).output().expect("runs");
    assert_eq!(output.status.code(), Some(4));
    let message = stderr(&output);
    assert!(
        message.contains("the server expects TLS on this port\nhint: try an address with `https")
    );

    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let _ = (&socket).write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            let _ = (&socket).read(&mut [0; 4096]);
        }
    });
    let address = format!("https://{address}");
    let output = workspace.run_flags(&address).arg("--insecure-tls").output().expect("runs");
    assert_eq!(output.status.code(), Some(4));
    let message = stderr(&output);
    assert!(
        message.contains("the server does not answer with TLS\nhint: try an address with `http:")
    );
}

#[test]
fn certificates_that_cannot_be_read_are_wrong_use() {
    let (workspace, _exchange, front) = workspace_before("127.0.0.1");
    workspace.write("empty.pem", "no certificate\n");
    for (file, said) in [
        ("none.pem", "cannot read certificates `none.pem`: "),
        ("empty.pem", "the file has no certificate"),
    ] {
        let address = format!("https://{}", front.address);
        let output =
            workspace.run_flags(&address).args(["--ca-file", file]).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn a_connection_that_cannot_be_secured_fails_its_request_alone() {
    let mut exchange = Exchange::of(vec![steady(|_| ())]);
    // The server at this address does not speak TLS.
    let trust = Trust { ca_file: None, insecure: true };
    exchange.tls = Some(Tls::new("localhost", &trust).expect("a name"));
    let failure = exchange.run(1).samples.remove(0).failure.expect("no handshake");
    assert_eq!(failure.kind, FailureKind::Connect, "{failure:?}");
}
