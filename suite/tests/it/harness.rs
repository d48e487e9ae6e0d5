//! A client and a mock server in one process, with the server's log in memory.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Child;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use schema::engine::ApiFormat;
use schema::scenario::{Arrival, Connections};
use suite::client::drive::{Driven, Orders, Unobserved, drive};
use suite::client::payload::Payload;
use suite::client::tls::Tls;
use suite::mock_server::script::{Answer, Script};
use suite::mock_server::server::Line;
use suite::mock_server::server::MockServer;

/// A mock server that plays a script, and the settings of the client that sends requests to it.
pub struct Exchange {
    pub address: SocketAddr,
    /// TLS settings of the client; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// API format in which the client reads the answers.
    pub dialect: ApiFormat,
    pub arrival: Arrival,
    pub connections: Connections,
    pub no_progress_ns: u64,
    log: Memory,
    _emitter: MockServer,
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Exchange {
    pub fn of(requests: Vec<Answer>) -> Self {
        Self::playing(Script { requests, ..Script::default() })
    }

    pub fn playing(script: Script) -> Self {
        let log = Memory::default();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let emitter = MockServer::start(any, script, log.clone()).expect("a free port");
        Self {
            address: emitter.address,
            tls: None,
            dialect: ApiFormat::Completions,
            arrival: Arrival::AllAtOnce,
            connections: Connections::Warm,
            no_progress_ns: 60_000_000_000,
            log,
            _emitter: emitter,
        }
    }

    pub fn run(&self, count: usize) -> Driven {
        self.send(&payloads(count))
    }

    pub fn send(&self, payloads: &[Payload]) -> Driven {
        let orders = Orders {
            address: self.address,
            tls: self.tls.as_ref(),
            payloads,
            dialect: self.dialect,
            arrival: &self.arrival,
            connections: self.connections,
            no_progress_ns: self.no_progress_ns,
            stop: &stop_never(),
            kernel_timestamps: true,
        };
        drive(&orders, &mut Unobserved).expect("the system gives what is asked")
    }

    pub fn log(&self) -> Vec<Line> {
        let bytes = self.log.0.lock().expect("no writer panicked");
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("a line")).collect()
    }
}

pub fn payloads(count: usize) -> Vec<Payload> {
    let body = r#"{"prompt":[1,2,3],"max_tokens":6,"stream":true}"#;
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
    let text = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let bytes = text.into_bytes();
    vec![Payload { bytes, send_us: 0, after: None, output_tokens: 6 }; count]
}

/// Reads the line in which a mock server that was started as a process says that it is ready, and
/// returns its address.
pub fn ready_url(emitter: &mut Child) -> String {
    let mut line = String::new();
    let said = emitter.stderr.as_mut().expect("piped");
    BufReader::new(said).read_line(&mut line).expect("it says that it is ready");
    line.trim().strip_prefix("ready ").expect("ready").to_owned()
}

pub fn stop_never() -> AtomicBool {
    AtomicBool::new(false)
}

pub fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Waits until `done` returns true; fails after a minute.
pub fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "nothing happened for a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Address to which no server listens any more.
pub fn refusing_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound")
}
