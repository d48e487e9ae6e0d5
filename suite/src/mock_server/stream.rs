//! Answer of the paced mock server: its bytes are prepared before the first token is due, and the
//! write times are recorded. Knows no schedule.

use std::io::{self, ErrorKind, Write};

use schema::emitted::Emitted;

use super::generate::GenerateRequest;

/// Maximum number of tokens written to one stream before the next stream's turn, without pacing.
const BURST: usize = 16;
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";

/// Paced answer in progress on one connection.
#[derive(Debug)]
pub(super) struct Stream {
    /// Log entry of the answer so far.
    pub emitted: Emitted,
    /// Number of the answer, from 1, which is part of its events.
    number: u64,
    /// Chunk for every token but the last.
    token: Vec<u8>,
    /// Chunk for the last token; `tail` has the bytes that follow it.
    last: Vec<u8>,
    tail: Vec<u8>,
    written: u64,
    written_ns: u64,
    /// Bytes that the socket did not accept yet.
    rest: Vec<u8>,
}

/// Result of writing to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fired {
    /// A token, or a burst of tokens, was written.
    Written,
    /// The socket is full; the remaining bytes are written first when it accepts data again.
    Full,
    /// The whole answer was written.
    Ended,
}

impl Stream {
    /// Starts answer `number` to a request with this body.
    pub(super) fn begin(body: &[u8], number: u64) -> Self {
        let asked = GenerateRequest::read(body);
        let asks = |key: &str| memchr::memmem::find(body, key.as_bytes()).is_some();
        let ids = if asks("\"return_token_ids\"") { ",\"token_ids\":[100]" } else { "" };
        let event = |finish: &str| {
            format!(
                "data: {{\"id\":\"cmpl-{number:08}\",\"object\":\"text_completion\",\
                 \"created\":1700000000,\"model\":\"emitter\",\
                 \"system_fingerprint\":\"fp_0123456789abcdef0123456789abcdef\",\
                 \"choices\":[{{\"index\":0,\"text\":\" t\",\"logprobs\":null,\
                 \"finish_reason\":{finish}{ids}}}]}}\n\n"
            )
        };
        let (prompt, tokens) = (asked.prompt_tokens, asked.max_tokens);
        let usage = format!(
            "data: {{\"id\":\"cmpl-{number:08}\",\"object\":\"text_completion\",\"choices\":[],\
             \"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{tokens},\
             \"total_tokens\":{}}}}}\n\n",
            prompt + tokens
        );
        let usage = if asks("\"include_usage\"") { chunked(&usage) } else { Vec::new() };
        let emitted = Emitted {
            tag: asked.tag,
            max_tokens: tokens,
            gaps_ns: Vec::with_capacity(usize::try_from(tokens).unwrap_or(0)),
            ..Emitted::default()
        };
        Self {
            emitted,
            number,
            token: chunked(&event("null")),
            last: chunked(&event("\"length\"")),
            tail: [&*usage, &*chunked("data: [DONE]\n\n"), b"0\r\n\r\n"].concat(),
            written: 0,
            written_ns: 0,
            // The response head goes out just before the first token.
            rest: HEAD.as_bytes().to_vec(),
        }
    }

    /// Writes the next token, or a burst of tokens if `saturate` is set.
    ///
    /// # Errors
    /// The client disconnected.
    pub(super) fn fire(&mut self, socket: &mut impl Write, saturate: bool) -> io::Result<Fired> {
        for _ in 0..if saturate { BURST } else { 1 } {
            if !self.flush(socket)? {
                return Ok(Fired::Full);
            }
            if self.written < self.emitted.max_tokens {
                self.stamp();
                let is_last = self.written == self.emitted.max_tokens;
                let bytes = if is_last { &self.last } else { &self.token };
                put(socket, bytes, &mut self.rest)?;
            }
            if self.written >= self.emitted.max_tokens {
                // `tail` is empty after the first time, so the answer has ended once nothing is
                // left to write.
                self.rest.append(&mut self.tail);
                return Ok(if self.flush(socket)? { Fired::Ended } else { Fired::Full });
            }
        }
        Ok(Fired::Written)
    }

    fn stamp(&mut self) {
        let now_ns = crate::clock::monotonic_ns();
        match self.emitted.first_ns {
            None => self.emitted.first_ns = Some(now_ns),
            Some(_) => self.emitted.gaps_ns.push(now_ns - self.written_ns),
        }
        (self.written, self.written_ns) = (self.written + 1, now_ns);
    }

    /// Writes remaining bytes. Returns true when none are left.
    fn flush(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            put(socket, &rest, &mut self.rest)?;
        }
        Ok(self.rest.is_empty())
    }

    /// Returns the answer's index in the log and its entry.
    pub(super) fn end(self) -> (usize, Emitted) {
        (usize::try_from(self.number - 1).unwrap_or(usize::MAX), self.emitted)
    }
}

/// Writes `bytes`, and appends to `rest` what the socket does not accept.
fn put(socket: &mut impl Write, mut bytes: &[u8], rest: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                rest.extend_from_slice(bytes);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn chunked(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Socket that accepts `room` bytes between two calls.
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(room: usize, saturate: bool) -> (String, Emitted) {
        let body = br#"{"prompt":[7,8],"max_tokens":20,"stream_options":{"include_usage":true}}"#;
        let mut stream = Stream::begin(body, 1);
        let mut socket = Narrow { room, taken: Vec::new() };
        while stream.fire(&mut socket, saturate).unwrap() != Fired::Ended {
            socket.room = room;
        }
        let (position, emitted) = stream.end();
        assert_eq!(position, 0);
        (String::from_utf8(socket.taken).unwrap(), emitted)
    }

    #[test]
    fn a_full_socket_changes_no_byte_of_an_answer() {
        let (whole, emitted) = written(usize::MAX, false);
        assert!(emitted.is_whole() && emitted.tag == Some(7));
        assert_eq!(whole.matches("\" t\"").count(), 20);
        assert_eq!(whole.matches("\"finish_reason\":\"length\"").count(), 1);
        assert!(whole.contains("\"completion_tokens\":20") && whole.ends_with("0\r\n\r\n"));
        for (room, saturate) in [(1, false), (100, false), (7, true), (5_000, true)] {
            let (same, emitted) = written(room, saturate);
            assert_eq!(same, whole, "{room} bytes at a time");
            assert!(emitted.is_whole());
        }
    }

    #[test]
    fn an_answer_of_no_token_ends_at_once() {
        let mut stream = Stream::begin(b"{}", 3);
        let mut socket = Vec::new();
        assert_eq!(stream.fire(&mut socket, false).unwrap(), Fired::Ended);
        assert!(socket.ends_with(b"0\r\n\r\n"), "its client need not wait for more");
        assert_eq!(stream.end().0, 2);
    }
}
