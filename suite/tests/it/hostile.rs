//! Tests of the client against a hostile server: answers without end, absurd counts, and text that
//! acts on a terminal. The bytes that the client reads from it are counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use schema::measurement::Measurement;
use schema::run::FailureClass;

use crate::workspace::{Workspace, stderr};

/// Largest number of bytes that a connection may take from the server before the client ends it: the
/// largest answer that is read, and what the buffers of both sockets hold.
const BYTES_MAX: u64 = 32 << 20;

/// Answer of the hostile server to one request.
#[derive(Clone)]
enum Reply {
    /// Whole response with this status, content type and body.
    Whole(u16, &'static str, String),
    /// Response head with this status and content type, and this piece again and again, in the
    /// chunked encoding, with a pause after each.
    Endless { status: u16, kind: &'static str, piece: String, pause: Duration },
    /// Response with a content length of that many bytes, all of which are sent.
    Long(u64),
}

fn endless(kind: &'static str, piece: impl Into<String>) -> Reply {
    Reply::Endless { status: 200, kind, piece: piece.into(), pause: Duration::ZERO }
}

fn whole(body: &str) -> Reply {
    Reply::Whole(200, JSON, body.to_owned())
}

const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";

/// Server that answers by path, and the largest number of bytes that a connection took from it.
struct Hostile {
    address: SocketAddr,
    most: Arc<AtomicU64>,
}

impl Hostile {
    /// Starts a server. `replies` has pairs of path and answer; other paths get an empty object.
    fn start(replies: Vec<(&'static str, Reply)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let most = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&most);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (replies, counted) = (replies.clone(), Arc::clone(&counted));
                thread::spawn(move || serve(connection, &replies, &counted));
            }
        });
        Self { address, most }
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Serves one connection until it ends, and counts the bytes that it takes.
fn serve(mut connection: TcpStream, replies: &[(&'static str, Reply)], most: &AtomicU64) {
    while let Some(path) = request(&mut connection) {
        let found = replies.iter().find(|(of, _)| path.starts_with(of));
        let reply = found.map_or_else(|| whole("{}"), |(_, reply)| reply.clone());
        let mut sent = 0;
        let mut send = |bytes: &[u8]| {
            let written = connection.write_all(bytes);
            sent += bytes.len() as u64;
            most.fetch_max(sent, Ordering::Relaxed);
            written.is_ok()
        };
        match reply {
            Reply::Whole(status, kind, body) => {
                let length = body.len();
                let head = format!("HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n");
                send(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes());
            }
            Reply::Endless { status, kind, piece, pause } => {
                let head = format!("HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n");
                send(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes());
                let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
                while send(chunk.as_bytes()) {
                    thread::sleep(pause);
                }
                return;
            }
            Reply::Long(length) => {
                send(format!("HTTP/1.1 200 X\r\nContent-Length: {length}\r\n\r\n").as_bytes());
                let piece = vec![b' '; 1 << 20];
                let whole = (0..length >> 20).all(|_| send(&piece));
                if !whole {
                    return;
                }
            }
        }
    }
}

/// Reads a whole request and returns its path; `None` at the end of the connection.
fn request(connection: &mut TcpStream) -> Option<String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lower = head.to_ascii_lowercase();
            let length = lower.split("content-length:").nth(1);
            let length = length.and_then(|rest| rest.lines().next()?.trim().parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(head.split(' ').nth(1)?.to_owned());
            }
        }
        match connection.read(&mut buffer) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&buffer[..count]),
            _ => return None,
        }
    }
}

/// Answers of a server that is sound but for `hostile`, which come first.
fn sound_but(hostile: Vec<(&'static str, Reply)>) -> Vec<(&'static str, Reply)> {
    let stream = "data: {\"choices\":[{\"index\":0,\"text\":\" t\",\"finish_reason\":\"length\"}],\
                  \"usage\":{\"prompt_tokens\":8,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";
    let sound = [
        ("/health", whole("{}")),
        ("/v1/models", whole(r#"{"data":[{"id":"m"}]}"#)),
        ("/v1/completions", Reply::Whole(200, STREAM, stream.to_owned())),
    ];
    hostile.into_iter().chain(sound).collect()
}

/// Runs the scenario of the workspace against `server`.
fn run(workspace: &Workspace, server: &Hostile, extra: &[&str]) -> Output {
    workspace.run_flags(&server.url()).args(extra).output().expect("runs")
}

fn measured(workspace: &Workspace) -> Measurement {
    let text = std::fs::read(workspace.path("out.json")).expect("a measurement");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_body_without_end_is_read_to_its_limit_on_every_route() {
    let piece = "x".repeat(1 << 16);
    for route in ["/health", "/server_info", "/v1/models", "/metrics", "/reset_prefix_cache"] {
        for reply in [endless(JSON, piece.as_str()), Reply::Long(200 << 20)] {
            let server = Hostile::start(sound_but(vec![(route, reply)]));
            let output = run(&Workspace::new(), &server, &["--no-output-check"]);
            assert!(output.status.code().is_some(), "{route}: killed by a signal");
            assert!(server.most() < BYTES_MAX, "{route}: {} bytes were taken", server.most());
        }
    }
}

#[test]
fn a_server_that_only_floods_is_named_with_its_route() {
    let piece = "x".repeat(1 << 16);
    let routes = ["/v1/models", "/v1/completions", "/v1/chat/completions"];
    let server =
        Hostile::start(routes.map(|route| (route, endless(JSON, piece.as_str()))).to_vec());
    let workspace = Workspace::new();
    let output = workspace.bench().args(["run", "--url", &server.url()]).output().expect("runs");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("`/v1/completions` answered with more than 1048576 bytes"), "{said}");
    assert!(server.most() < BYTES_MAX, "{} bytes were taken", server.most());
    assert_eq!(workspace.left_over(), [""; 0]);
}

#[test]
fn an_answer_without_end_fails_its_request_and_not_the_run() {
    let token = "data: {\"choices\":[{\"index\":0,\"text\":\"t\"}]}\n\n".repeat(100);
    let comment = format!(": {}\n\n", "p".repeat(1 << 16));
    let document = "x".repeat(1 << 16);
    let flood = |status, kind, piece: &str| Reply::Endless {
        status,
        kind,
        piece: piece.to_owned(),
        pause: Duration::ZERO,
    };
    for (reply, failure) in [
        (flood(200, STREAM, &token), "too-long"),
        (flood(200, STREAM, &comment), "too-long"),
        (flood(200, JSON, &document), "bad-event"),
        (flood(500, JSON, &document), "http-500"),
    ] {
        let server = Hostile::start(sound_but(vec![("/v1/completions", reply)]));
        let workspace = Workspace::new();
        // No warm-up: a failed one would end the run before its clock.
        workspace.write(
            "short.toml",
            &crate::workspace::scenario(4, "{ kind = \"all-at-once\" }")
                .replace("requests = 2,", "requests = 0,"),
        );
        let output = run(&workspace, &server, &[]);
        assert_eq!(output.status.code(), Some(1), "{failure}: {}", stderr(&output));
        let counts = measured(&workspace).counts.expect("counts");
        assert_eq!(counts.failures, Some([(failure.to_owned(), 4)].into()));
        assert!(server.most() < BYTES_MAX, "{failure}: {} bytes were taken", server.most());
    }
}

#[test]
fn text_that_no_token_has_is_not_kept() {
    let (requests, tokens) = (16, 4096);
    let text = "x".repeat(3900);
    let token = format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}\n\n");
    let server =
        Hostile::start(sound_but(vec![("/v1/completions", endless(STREAM, token.repeat(16)))]));
    let workspace = Workspace::new();
    workspace.write(
        "short.toml",
        &format!(
            "question = \"How fast?\"\nrev = 1\ntier = \"lite\"\n\
             workload = {{ pack = \"words\", requests = {requests}, seed = 1, input_tokens = 8, \
             output_tokens = {tokens} }}\nwarmup = {{ requests = 0, from = \"disjoint\" }}\n\
             arrival = {{ kind = \"all-at-once\" }}\ncache = {{ state = \"unknown\" }}\n\
             output = {{ ignore_eos = true, temperature = 0.0 }}\n"
        ),
    );
    let output = run(&workspace, &server, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let counts = measured(&workspace).counts.expect("counts");
    assert_eq!(counts.failures, Some([("too-long".to_owned(), requests)].into()));
    // In KiB: less than what the answers could make the client keep at 4 KiB a token.
    let most = getrusage(UsageWho::RUSAGE_CHILDREN).expect("known").max_rss();
    assert!(most < 160 << 10, "the client took {most} KiB");
}

#[test]
fn a_usage_of_a_trillion_tokens_fails_its_request() {
    let stream = "data: {\"choices\":[{\"index\":0,\"text\":\" t\"}]}\n\n\
                  data: {\"choices\":[{\"index\":0,\"text\":\" t\"}]}\n\n\
                  data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\
                  \"completion_tokens\":1000000000000}}\n\ndata: [DONE]\n\n";
    let answer = Reply::Endless {
        status: 200,
        kind: STREAM,
        piece: stream.to_owned(),
        pause: Duration::from_millis(20),
    };
    let server = Hostile::start(sound_but(vec![("/v1/completions", answer)]));
    let workspace = Workspace::new();
    let output = run(&workspace, &server, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let failure = measured(&workspace).failure.expect("a failure");
    assert_eq!(failure.class, FailureClass::BadOutput);
    assert!(failure.message.contains("the answer has 1000000000000"), "{}", failure.message);
}

#[test]
fn a_silent_server_is_asked_once_and_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    thread::spawn(move || {
        let mut kept = Vec::new();
        for connection in listener.incoming() {
            kept.push(connection);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let workspace = Workspace::new();
    for (flags, route) in [(&[][..], "/v1/models"), (&["--engine", "redline.toml"], "/health")] {
        let begun = Instant::now();
        let mut command = workspace.bench();
        command.args(["run", "--url", &url, "--timeout-s", "2"]).args(flags);
        let output = command.output().expect("runs");
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        let said = format!(
            "error: the server accepts connections, but does not answer `{url}{route}` within 2 s\n"
        );
        assert_eq!(stderr(&output), said);
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[test]
fn events_that_only_keep_a_connection_alive_are_no_progress() {
    for piece in [": ping\n\n", "data: {\"choices\":[]}\n\n"] {
        let alive = Reply::Endless {
            status: 200,
            kind: STREAM,
            piece: piece.to_owned(),
            pause: Duration::from_millis(100),
        };
        let server = Hostile::start(sound_but(vec![("/v1/completions", alive)]));
        let workspace = Workspace::new();
        let output = run(&workspace, &server, &["--timeout-s", "1"]);
        assert_eq!(output.status.code(), Some(1), "{piece:?}: {}", stderr(&output));
        let failure = measured(&workspace).failure.expect("a failure");
        assert_eq!(failure.class, FailureClass::Hang, "{piece:?}");
        assert!(failure.message.contains("no progress on any connection for 1 s"));
    }
}

#[test]
fn nothing_that_a_server_says_acts_on_the_terminal() {
    let hostile = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\r\nhint: run this";
    let told = serde_json::json!({"error": {"message": hostile}}).to_string();
    let models = serde_json::json!({"data": [{"id": hostile}]}).to_string();
    let raw = format!("<h1>{hostile}</h1>");
    let acts = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        let found = text.chars().find(|c| *c != '\n' && (c.is_control() || *c == '\u{202e}'));
        found.map(|c| format!("{c:?} in {text:?}"))
    };
    for (models, refusal) in [(models.clone(), told.clone()), (models.clone(), raw.clone())] {
        let replies = vec![
            ("/v1/models", whole(&models)),
            ("/v1/completions", Reply::Whole(401, JSON, refusal)),
        ];
        let server = Hostile::start(sound_but(replies));
        let workspace = Workspace::new();
        let outputs = [
            workspace.bench().args(["run", "--url", &server.url()]).output().expect("runs"),
            run(&workspace, &server, &[]),
            workspace
                .bench()
                .args(["probe", "--url", &server.url(), "--engine", "redline.toml"])
                .output()
                .expect("runs"),
        ];
        for output in outputs {
            assert_eq!(acts(&output.stdout), None);
            assert_eq!(acts(&output.stderr), None);
            let said = stderr(&output);
            assert!(!said.lines().any(|line| line.starts_with("hint: run this")), "{said}");
        }
    }
}

#[test]
fn a_key_that_the_server_repeats_is_neither_shown_nor_recorded() {
    let key = "s3cret-key-of-a-server";
    let body = format!(r#"{{"error":{{"message":"bad key {key}"}}}}"#);
    let refused = Reply::Whole(401, JSON, body);
    // The second is refused by the probe of the routes, the third by the answers under load.
    for (flags, hostile) in [
        (&["--no-output-check"][..], "/health"),
        (&["--no-output-check"], "/v1/models"),
        (&[], "/v1/completions"),
    ] {
        let server = Hostile::start(sound_but(vec![(hostile, refused.clone())]));
        let workspace = Workspace::new();
        workspace.write("key", key);
        let output = run(&workspace, &server, &[&["--api-key-file", "key"], flags].concat());
        let said = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains(key), "{hostile}: {said}");
        let left = workspace.left_over();
        for file in left.iter().filter(|name| *name != "key") {
            let text = std::fs::read_to_string(workspace.path(file)).expect("text");
            assert!(!text.contains(key), "{hostile}: `{file}` has the key");
        }
        if hostile == "/v1/completions" {
            assert!(said.contains("bad key ***"), "{said}");
            assert!(left.iter().any(|name| name == "out.json"), "{left:?}");
        }
    }
    let routes = ["/v1/completions", "/v1/chat/completions"];
    let server = Hostile::start(sound_but(routes.map(|route| (route, refused.clone())).to_vec()));
    let workspace = Workspace::new();
    workspace.write("key", key);
    let flags = ["run", "--url", &server.url(), "--api-key-file", "key"];
    let output = workspace.bench().args(flags).output().expect("runs");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("`/v1/completions` answered 401: ") && said.contains("bad key ***"));
    assert!(!said.contains(key), "{said}");
}
