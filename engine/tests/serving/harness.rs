//! Server with the fake model on a free port, and a client for it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use engine::config::{Config, Flags, Machine};
use engine::http::{
    Access, ConnectionLimits, Key, KvFacts, ModelFacts, Names, Origins, Ready, ServerInfo,
};
use engine::server::{Rules, Server};
use engine::tokenize::Reasoning;
use engine_core::clock::Clock;
use engine_model::Model;
use engine_schedule::{Limits, StateLimits};
use engine_weights::Digest;
use reqwest::{Client, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::fake::{Behavior, ByteText, FakeModel};

/// Configuration of a test's server.
#[derive(Debug, Clone)]
pub struct Setup {
    pub behavior: Behavior,
    pub limits: Limits,
    pub api_key: Option<&'static str>,
    /// Largest number of open requests of the API key.
    pub key_limit: Option<u32>,
    pub origins: Vec<String>,
    pub connections: ConnectionLimits,
    pub grace: Duration,
    pub reasoning: Reasoning,
    pub ready: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let limits = Limits {
            max_batch_size: 64,
            token_budget: 128,
            mixed_budget: 128,
            max_seq_len: 256,
            pages: 1024,
            page_tokens: 4,
            chunk_tokens: 16,
            prefix_cache: true,
            states: None,
            run_ahead: 0,
            max_drafts: 0,
        };
        Self {
            behavior: Behavior::default(),
            limits,
            api_key: None,
            key_limit: None,
            origins: Vec::new(),
            connections: ConnectionLimits::of_files(1024),
            grace: Duration::from_secs(10),
            reasoning: Reasoning::None,
            ready: true,
        }
    }
}

impl Setup {
    /// Model with recurrent state, with fewer state slots than sequences that may run, and little
    /// KV memory.
    pub fn recurrent() -> Self {
        let mut setup = Self::default();
        setup.limits.states = Some(StateLimits { slots: 24, interval: 16 });
        setup.limits.pages = 200;
        setup
    }

    /// The same setup with one step in flight while the next is submitted.
    pub fn ahead(mut self) -> Self {
        (self.behavior.run_ahead, self.limits.run_ahead) = (1, 1);
        self
    }

    /// Model that generates `text` after a prompt's first `>`.
    pub fn script(text: &[u8]) -> Self {
        let script = Some(text.iter().copied().map(u32::from).collect());
        Self { behavior: Behavior { script, ..Behavior::default() }, ..Self::default() }
    }
}

/// Running server with a client for it.
pub struct Running {
    pub address: SocketAddr,
    pub client: Client,
    pub widest: Arc<AtomicUsize>,
    tokenized: Arc<AtomicUsize>,
    stop: mpsc::UnboundedSender<()>,
    pub end: JoinHandle<anyhow::Result<()>>,
    /// Barrier that releases a waiting template.
    pub wake: Arc<Barrier>,
    /// Sender that lets the model finish loading, when it sends or is dropped.
    pub load: std::sync::mpsc::Sender<()>,
}

/// Starts a server, and waits until it is ready if `setup` says so.
pub async fn start(setup: Setup) -> Running {
    let widest = Arc::new(AtomicUsize::new(0));
    let (load, may_load) = std::sync::mpsc::channel::<()>();
    if setup.ready {
        load.send(()).unwrap();
    }
    let seen = Arc::clone(&widest);
    let wake = Arc::new(Barrier::new(2));
    let tokenized = Arc::new(AtomicUsize::new(0));
    let (template, counted) = (Arc::clone(&wake), Arc::clone(&tokenized));
    let loading = move |handle| {
        // An error means that the sender was dropped, which also lets the model load.
        let _ = may_load.recv();
        let mut model = FakeModel::new(setup.behavior, seen);
        model.allocate_kv(setup.limits.pages, setup.limits.page_tokens).unwrap();
        let ready = Ready {
            handle,
            text: Arc::new(ByteText {
                reasoning: setup.reasoning,
                wake: template,
                tokenized: counted,
            }),
            limits: setup.limits,
            vocab_size: model.info().vocab_size,
            embedding_size: model.info().embedding_size,
            model_name: "fake".into(),
            info: info(),
            weights_sha256: Digest::of_files(Vec::new()),
        };
        Ok((Box::new(model) as _, ready))
    };
    let names = Names { host: "127.0.0.1".into(), is_open: false };
    let access = match setup.api_key {
        None => Access::Keyless(names),
        Some(key) => Access::Keys(vec![Key::new("another", None), Key::new(key, setup.key_limit)]),
    };
    let origins = Origins::read(&setup.origins).unwrap();
    let rules = Rules { access, origins, connections: setup.connections, grace: setup.grace };
    let server = Server::start(loading, rules, Clock::start()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stops) = mpsc::unbounded_channel();
    let (ready_sender, ready) = oneshot::channel();
    let announce = move |address| _ = ready_sender.send(address);
    let end = tokio::spawn(server.run(listener, stops, announce));
    if setup.ready {
        assert_eq!(ready.await, Ok(address));
    }
    Running { address, client: Client::new(), widest, tokenized, stop, end, load, wake }
}

impl Running {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn get(&self, path: &str) -> Response {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Response {
        self.client.post(self.url(path)).json(body).send().await.unwrap()
    }

    /// JSON answer of a request, which must succeed.
    pub async fn json(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body).await;
        let status = response.status();
        let mut value: Value = response.json().await.unwrap();
        assert!(status.is_success(), "{path} {body}: {value}");
        value.sort_all_objects();
        value
    }

    /// Events of a streamed answer, which must succeed; `[DONE]` is returned as a string.
    pub async fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.post(path, body).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
        events(&response.text().await.unwrap())
    }

    /// Value of a metric in `/metrics`.
    pub async fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").await.text().await.unwrap();
        let line = page.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric has the given value.
    pub async fn wait_for(&self, name: &str, value: f64) {
        let wait = async {
            while self.metric(name).await != value {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(waited.is_ok(), "{name} never became {value}");
    }

    /// Number of bytes that the server has tokenized.
    pub fn tokenized_bytes(&self) -> usize {
        self.tokenized.load(Ordering::Relaxed)
    }

    pub fn widest_step(&self) -> usize {
        self.widest.load(Ordering::Relaxed)
    }

    /// Tells the server to stop: the first time after the open requests, then at once.
    pub fn stop(&self) {
        let _ = self.stop.send(());
    }

    /// Runs `talk`, which may block, with a connection to the server.
    pub async fn talk<T: Send + 'static>(
        &self,
        talk: impl FnOnce(&mut TcpStream) -> T + Send + 'static,
    ) -> T {
        let mut stream = connect(self.address);
        tokio::task::spawn_blocking(move || talk(&mut stream)).await.unwrap()
    }

    /// Sends `bytes`, and returns what the server answers before it closes the connection.
    pub async fn exchange(&self, bytes: impl Into<Vec<u8>>) -> String {
        let bytes = bytes.into();
        self.talk(move |stream| {
            stream.write_all(&bytes).unwrap();
            rest(stream)
        })
        .await
    }
}

/// Connection to a server for bytes that no HTTP library sends.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Head of a POST of JSON with one more header line, and `body`, as bytes on the wire.
pub fn post(path: &str, header: &str, body: &Value) -> String {
    let body = body.to_string();
    format!("{}Content-Length: {}\r\n\r\n{body}", post_head(path, header), body.len())
}

/// Head of a POST of JSON without its last lines.
pub fn post_head(path: &str, header: &str) -> String {
    let host = "Host: localhost\r\nContent-Type: application/json\r\n";
    format!("POST {path} HTTP/1.1\r\n{host}{header}")
}

/// What the server sends until it closes the connection.
pub fn rest(stream: &mut TcpStream) -> String {
    let (mut said, mut buffer) = (Vec::new(), [0; 65_536]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&said)),
        }
    }
    String::from_utf8(said).unwrap()
}

/// One response of the server with the header `Content-Length`.
pub fn response(stream: &mut TcpStream) -> String {
    let mut said = head(stream);
    let lower = said.to_lowercase();
    let (_, length) = lower.split_once("content-length: ").expect("a length");
    let length = length.split("\r\n").next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    said.push_str(&String::from_utf8(body).unwrap());
    said
}

/// Head of a response of the server.
pub fn head(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    while !said.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        said.extend_from_slice(&byte);
    }
    String::from_utf8(said).unwrap()
}

/// Status and error code of a response of the server.
pub fn error_of(said: &str) -> (u16, String) {
    let (head, body) = said.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {said}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let value: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {said}"));
    (status, value["error"]["code"].as_str().unwrap().to_owned())
}

pub fn events(text: &str) -> Vec<Value> {
    text.split_terminator("\n\n")
        .map(|event| {
            let data = event.strip_prefix("data: ").unwrap();
            serde_json::from_str(data).unwrap_or_else(|_| data.into())
        })
        .collect()
}

fn info() -> ServerInfo {
    ServerInfo {
        engine: "redline",
        version: "0.0.0",
        commit: None,
        device: "cpu",
        device_name: "none".into(),
        config: {
            let machine = Machine { cores: 2, processor: "none", gpus: &[] };
            Config::resolve(&Flags::default(), &machine).unwrap().effective()
        },
        config_sha256: String::new(),
        kv: KvFacts { pages: 1024, page_tokens: 4, bytes: 0, dtype: "f32" },
        model: ModelFacts {
            id: "fake".into(),
            architecture: "FakeForCausalLM".into(),
            weights_sha256: None,
            weights: "random",
            format: "none",
            revision: None,
            tokenizer_sha256: None,
            dtype: "f32",
            parameters: 0,
            max_seq_len: 256,
        },
        startup_us: 0,
        weights_load_us: 0,
    }
}
