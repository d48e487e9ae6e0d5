//! Differential test of the response decoder: made-up responses, mutated and cut, are read by it and
//! by hyper. What the decoder reads, hyper must read in the same way; it may refuse a little more.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::rt::{Read, ReadBufCursor, Write};
use schema::random::SplitMix64;

use super::ResponseDecoder;

/// Number of responses of the default test.
const RESPONSES: u64 = 20_000;
/// Number of polls after which hyper is stuck.
const POLLS_MAX: usize = 10_000;

/// Status and body of a whole response; `None` for one that is refused or cut off.
type Decoded = Option<(u16, Vec<u8>)>;

/// Connection in memory, on which a server answers the first request with these bytes and closes.
struct Wire {
    bytes: Vec<u8>,
    at: usize,
    is_asked: bool,
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Bytes before the request would be an error of the connection.
        if !self.is_asked {
            return Poll::Pending;
        }
        let length = buffer.remaining().min(self.bytes.len() - self.at);
        buffer.put_slice(&self.bytes[self.at..self.at + length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_asked = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls a future beside hyper's connection until it is ready.
fn finish<T>(
    future: impl Future<Output = T>,
    connection: &mut Option<Pin<Box<dyn Future<Output = ()>>>>,
) -> T {
    let mut context = Context::from_waker(Waker::noop());
    let mut future = pin!(future);
    for _ in 0..POLLS_MAX {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let has_ended = connection.as_mut().is_some_and(|connection| {
            let polled = connection.as_mut().poll(&mut context);
            polled.is_ready()
        });
        if has_ended {
            *connection = None;
        }
    }
    panic!("hyper waits for something that does not come");
}

fn by_hyper(bytes: &[u8]) -> Decoded {
    let wire = Wire { bytes: bytes.to_vec(), at: 0, is_asked: false };
    let (mut sender, connection) = finish(http1::handshake(wire), &mut None).ok()?;
    let mut connection: Option<Pin<Box<dyn Future<Output = ()>>>> = Some(Box::pin(async move {
        // The response or its body reports the same error.
        let _ = connection.await;
    }));
    let request = Request::get("/").header("host", "localhost").body(Empty::<Bytes>::new());
    let sent = sender.send_request(request.expect("a sound request"));
    let response = finish(sent, &mut connection).ok()?;
    let status = response.status().as_u16();
    let body = finish(response.into_body().collect(), &mut connection).ok()?;
    Some((status, body.to_bytes().to_vec()))
}

fn by_us(bytes: &[u8], cut: usize) -> Decoded {
    let (mut decoder, mut body) = (ResponseDecoder::default(), Vec::new());
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    for piece in [first, second] {
        decoder.feed(piece, &mut |_, run| body.extend_from_slice(run)).ok()?;
    }
    let is_whole = decoder.is_done() || decoder.ends_with_connection();
    let status = decoder.head().filter(|_| is_whole)?.status;
    Some((status, body))
}

/// Source of made-up responses.
struct Maker(SplitMix64);

impl Maker {
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.draw() % end as u64).expect("a small number")
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    /// Makes up a response, most often a sound one.
    fn response(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.below(10) == 0 {
            bytes.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n");
        }
        let version = self.pick(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"]);
        let status = self.pick(&["200 OK", "200 OK", "200", "503 Busy", "204 None", "304 Same"]);
        bytes.extend_from_slice(format!("{version} {status}\r\n").as_bytes());
        for _ in 0..self.below(3) {
            let lines = ["X: a", "Content-Type: text/event-stream", "Connection: close", "Y:"];
            bytes.extend_from_slice(format!("{}\r\n", self.pick(&lines)).as_bytes());
        }
        let length = self.below(40);
        let body: Vec<u8> = (0..length).map(|_| b"data: {}\r\n\0"[self.below(11)]).collect();
        match self.below(5) {
            0 => bytes.extend_from_slice(b"\r\n"),
            1 | 2 => {
                let lengths = [
                    format!("{length}"),
                    format!("{length}"),
                    format!("{length}\r\nContent-Length: {}", self.below(40)),
                    format!("{length}\r\nContent-Length: {length}"),
                    format!("+{length}"),
                    format!("0{length}"),
                    format!("{length}, {length}"),
                    "18446744073709551616".to_owned(),
                ];
                let line = &lengths[self.below(lengths.len())];
                bytes.extend_from_slice(format!("Content-Length: {line}\r\n\r\n").as_bytes());
            }
            _ => {
                let names = ["chunked", "chunked", "chunked", "Chunked", "gzip, chunked", "gzip"];
                let name = self.pick(&names);
                let extra = self.pick(&["", "", "Content-Length: 3\r\n"]);
                let head = format!("Transfer-Encoding: {name}\r\n{extra}\r\n");
                bytes.extend_from_slice(head.as_bytes());
                return self.chunked(bytes, &body);
            }
        }
        bytes.extend_from_slice(&body);
        bytes
    }

    fn chunked(&mut self, mut bytes: Vec<u8>, body: &[u8]) -> Vec<u8> {
        for chunk in body.chunks(1 + self.below(12)) {
            let extension = self.pick(&["", "", "", ";x", ";x=\"y\"", " ", "\t;z"]);
            let zeros = self.pick(&["", "", "0", "000"]);
            bytes.extend_from_slice(format!("{zeros}{:X}{extension}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        let end = self.pick(&["0\r\n\r\n", "0\r\n\r\n", "0\r\nT: 1\r\nU: 2\r\n\r\n", "0\r\n", ""]);
        bytes.extend_from_slice(end.as_bytes());
        bytes
    }

    /// Changes a few bytes of a response, or cuts it off.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len().max(1)).min(bytes.len());
            match self.below(5) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] = b"\r\n :;,0aF\x00\xff+-"[self.below(13)],
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 => bytes.insert(at, b"\r\n :;,0aF\x00\xff+-"[self.below(13)]),
                _ => {
                    let copied = bytes[at..(at + self.below(12)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, copied);
                }
            }
        }
    }
}

#[test]
fn hyper_reads_the_same_or_refuses_as_well() {
    let (mut whole, mut refused, mut stricter) = (0, 0, 0);
    for seed in 0..RESPONSES {
        let mut maker = Maker(SplitMix64(seed));
        let mut bytes = maker.response();
        maker.mutate(&mut bytes);
        let cut = maker.below(bytes.len() + 1);
        let (ours, theirs) = (by_us(&bytes, cut), by_hyper(&bytes));
        let text = bytes.escape_ascii();
        if ours.is_some() {
            assert_eq!(ours, theirs, "seed {seed}, cut at {cut}: \"{text}\"");
        }
        whole += u64::from(ours.is_some());
        refused += u64::from(theirs.is_none());
        stricter += u64::from(ours.is_none() && theirs.is_some());
    }
    assert!(whole.min(refused) > RESPONSES / 10, "{whole} whole, {refused} refused");
    // Most of these state a wrong length of a body that their status does not have.
    assert!(stricter < RESPONSES / 20, "{stricter} are refused that hyper reads");
}
