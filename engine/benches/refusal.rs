//! Benchmark of the refusal of bodies that ask for far too much: from the first byte that is sent
//! until the answer has arrived, at a real server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use criterion::{Criterion, criterion_group, criterion_main};
use tiny_gguf::tiny_llama_gguf;

#[path = "../weights/tests/tiny_gguf/mod.rs"]
mod tiny_gguf;

/// Server that ends when this is dropped.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    /// Serves a tiny model on a free port.
    fn start() -> Self {
        let mut model = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a folder");
        model.write_all(&tiny_llama_gguf(1)).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_redline"));
        command.arg("serve").arg(model.path()).args(["--port", "0", "--device", "cpu"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the server starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut said = lines.by_ref().map_while(Result::ok);
        let address = said.find_map(|line| Some(line.strip_prefix("ready http://")?.to_owned()));
        // Without a reader, what the server logs would fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("the server gets ready") }
    }

    /// Sends a body and reads the answer, which refuses it.
    fn refuse(&self, path: &str, body: &str) {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(body.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refusals(criterion: &mut Criterion) {
    let served = Served::start();
    let prompt = |text: String| format!(r#"{{"prompt": "{text}"}}"#);
    let list = |field: &str, item: &str, count: usize| {
        let items = format!("{item},").repeat(count);
        format!(r#"{{"prompt": "x", "{field}": [{items}{item}]}}"#)
    };
    let mut group = criterion.benchmark_group("refusal");
    group.sample_size(10);
    for (what, path, body) in [
        ("14 MB of words", "/v1/completions", prompt("word ".repeat(2_800_000))),
        ("15 MB of spaces", "/v1/completions", prompt(" ".repeat(15_000_000))),
        ("15 MB of Chinese", "/tokenize", prompt("字".repeat(5_000_000))),
        ("1.4 million choices", "/v1/completions", list("guided_choice", r#""abcdef""#, 1_400_000)),
        ("8 million token ids", "/v1/completions", list("prompt", "1", 8_000_000)),
        ("5 million lists", "/v1/completions", list("prompt", "[]", 5_000_000)),
    ] {
        group.bench_function(what, |bencher| bencher.iter(|| served.refuse(path, &body)));
    }
    group.finish();
}

criterion_group!(benches, refusals);
criterion_main!(benches);
