//! `redline-floor`: a raw-socket client that does the least work possible, as the lower bound to
//! which other clients are compared. It counts events without parsing them and judges nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use serde_json::{Value, json};
use suite::client::orders::allow_files;
use suite::clock::monotonic_ns;
use suite::measure::summary::summarize;

/// Bytes with which every event with a token begins; no other event of the answers to this client's
/// requests begins with them.
const EVENT: &[u8] = b"data: {\"id\"";
/// Number of bytes at the end of one read that are searched again with the next read, so that an
/// event whose beginning was cut in two is found.
const CARRY: usize = EVENT.len() - 1;
/// Time without data from the mock server, in milliseconds, after which the run ends with an error.
const SILENCE_MS: u16 = 20_000;
/// Time before a due send, in nanoseconds, during which the program polls the clock instead of
/// sleeping: a sleep wakes too late.
const AWAKE_NS: u64 = 60_000;

/// Requests token streams from `redline-emitter --pace` and prints TTFT and ITL, as JSON.
///
/// It opens all connections, sends all requests, and counts the events it reads. With
/// `--requests-per-s` it sends at that rate, reads nothing, and prints instead the distribution of
/// how late the sends were, which shows how punctual a client can be at best.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Address of the mock server that the client connects to.
    #[arg(long, value_name = "HOST:PORT")]
    address: SocketAddr,
    /// Number of connections to open, each with one request; with `--requests-per-s` the requests
    /// rotate over them.
    #[arg(long)]
    streams: usize,
    /// Number of output tokens that each request asks for.
    #[arg(long)]
    tokens: usize,
    /// Send at this rate, in requests per second, and read no answers.
    #[arg(long, value_name = "RATE", requires = "requests")]
    requests_per_s: Option<u32>,
    /// Number of requests to send at `--requests-per-s`.
    #[arg(long)]
    requests: Option<u64>,
}

fn main() -> ExitCode {
    let answer = run(&Flags::parse());
    suite::exit_code(answer.and_then(|answer| Ok(whole_file::print(&format!("{answer}\n"))?)))
}

fn run(flags: &Flags) -> anyhow::Result<Value> {
    ensure!(flags.streams > 0 && flags.tokens > 0, "`--streams` and `--tokens` must be above zero");
    let body = json!({
        "model": "emitter", "prompt": "t", "stream": true, "max_tokens": flags.tokens,
    });
    let body = body.to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\n", flags.address);
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let open = || -> anyhow::Result<TcpStream> {
        let socket = TcpStream::connect(flags.address)
            .with_context(|| format!("cannot connect to `{}`", flags.address))?;
        // A request is one write, so waiting to merge writes would only delay it.
        socket.set_nodelay(true)?;
        Ok(socket)
    };
    allow_files(u64::MAX, flags.streams as u64)?;
    let sockets = (0..flags.streams).map(|_| open()).collect::<anyhow::Result<Vec<_>>>()?;
    match (flags.requests_per_s, flags.requests) {
        (Some(rate), Some(requests)) => send_in_time(sockets, &request, rate, requests),
        _ => read_all(sockets, &request, flags.tokens),
    }
}

/// Sends `requests` requests in turn over `sockets` at `rate` requests per second and returns the
/// distribution of send lags in microseconds, as JSON.
fn send_in_time(
    mut sockets: Vec<TcpStream>,
    request: &str,
    rate: u32,
    requests: u64,
) -> anyhow::Result<Value> {
    let count = sockets.len() as u64;
    let start_ns = monotonic_ns();
    let mut lags_ns = Vec::new();
    for number in 0..requests {
        let due_ns = start_ns + number * 1_000_000_000 / u64::from(rate.max(1));
        let left_ns = due_ns.saturating_sub(monotonic_ns());
        if left_ns > AWAKE_NS {
            std::thread::sleep(Duration::from_nanos(left_ns - AWAKE_NS));
        }
        while monotonic_ns() < due_ns {
            std::hint::spin_loop();
        }
        let turn = usize::try_from(number % count).unwrap_or(0);
        lags_ns.push(monotonic_ns() - due_ns);
        sockets[turn].write_all(request.as_bytes()).context("the server closed a connection")?;
    }
    Ok(json!({"lag_us": summarize(lags_ns)}))
}

/// One connection of the raw-socket client and the events read from it so far.
struct Reader {
    socket: TcpStream,
    sent_ns: u64,
    last_ns: u64,
    events: usize,
    carried: Vec<u8>,
}

fn read_all(sockets: Vec<TcpStream>, request: &str, tokens: usize) -> anyhow::Result<Value> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut readers = Vec::new();
    for socket in sockets {
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, readers.len() as u64))?;
        readers.push(Reader { socket, sent_ns: 0, last_ns: 0, events: 0, carried: Vec::new() });
    }
    for reader in &mut readers {
        reader.sent_ns = monotonic_ns();
        reader.socket.write_all(request.as_bytes()).context("the server closed a connection")?;
    }
    let (mut ttft_ns, mut gaps_ns, mut open) = (Vec::new(), Vec::new(), readers.len());
    let mut events = vec![EpollEvent::empty(); 256];
    let mut buffer = vec![0; 256 << 10];
    while open > 0 {
        let count = epoll.wait(&mut events, EpollTimeout::from(SILENCE_MS))?;
        ensure!(count > 0, "the server fell silent with {open} answers open");
        for event in &events[..count] {
            let reader = &mut readers[usize::try_from(event.data()).unwrap_or(0)];
            let carried = reader.carried.len();
            // An event prefix that two reads split is found once both parts are joined.
            buffer[..carried].copy_from_slice(&reader.carried);
            let read = reader.socket.read(&mut buffer[carried..])?;
            ensure!(read > 0, "the server closed a connection");
            let now_ns = monotonic_ns();
            let bytes = &buffer[..carried + read];
            for _ in memchr::memmem::find_iter(bytes, EVENT) {
                match reader.events {
                    0 => ttft_ns.push(now_ns - reader.sent_ns),
                    _ => gaps_ns.push(now_ns - reader.last_ns),
                }
                reader.events += 1;
                reader.last_ns = now_ns;
                open -= usize::from(reader.events == tokens);
            }
            // An event cut between two reads is completed by the bytes carried over.
            reader.carried.clear();
            reader.carried.extend_from_slice(&bytes[bytes.len().saturating_sub(CARRY)..]);
        }
    }
    let events = ttft_ns.len() + gaps_ns.len();
    Ok(json!({
        "events": events, "ttft_us": summarize(ttft_ns), "itl_us": summarize(gaps_ns),
    }))
}
