//! Decoder of HTTP/1.1 responses (RFC 9112), independent of how the bytes are split: head, then a
//! body that is chunked, counted, or ends with the connection. It does not interpret the content.

#[cfg(test)]
mod differential;

/// Longest accepted response head, in bytes.
const HEAD_MAX: usize = 64 << 10;
/// Longest accepted chunk-size line (with extensions) or trailer line, in bytes.
const LINE_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 96;

/// Fields of an HTTP response's head that the client needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    /// True when the response's `Content-Type` is JSON: the body is one document, not an event
    /// stream.
    pub json: bool,
    /// True when the connection may carry another request after the response.
    pub keep_alive: bool,
    /// Value of the response's header `Retry-After`, which an overloaded server sends; `None`
    /// without it.
    pub retry_after: Option<String>,
}

/// Error of a response that is not valid HTTP/1, or whose head or a line of its body is too long.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("response head is not HTTP/1.1: {0}")]
    Head(String),
    #[error("response head is longer than {HEAD_MAX} bytes")]
    HeadTooLong,
    #[error("invalid chunk in the response body: {0}")]
    Chunk(&'static str),
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    /// Number of bytes still to come of a body whose length the head states.
    Counted(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    UntilClose,
    Done,
}

/// Closure that is called for each decoded piece of a response's body, with the response's head and
/// the piece.
type Body<'a> = dyn FnMut(&Head, &[u8]) + 'a;

/// Incremental decoder of one HTTP response.
#[derive(Debug, Default)]
pub struct ResponseDecoder {
    state: State,
    /// Bytes of an unfinished head, chunk-size line or trailer line.
    line: Vec<u8>,
    head: Option<Head>,
}

impl ResponseDecoder {
    /// Returns the response's head once it is complete, before that `None`.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// True where the response's body ends only when the server closes the connection.
    pub fn ends_with_connection(&self) -> bool {
        matches!(self.state, State::UntilClose)
    }

    /// True once the response has ended by its stated length, its last chunk, or a status that
    /// allows no body.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Decodes the next bytes of the response and passes each decoded piece of its body to `body`.
    /// Bytes after the end of the response are ignored, since no request is pending that they could
    /// answer.
    ///
    /// # Errors
    /// The bytes are not a valid HTTP/1 response, or its head or a line of its body is too long.
    pub fn feed(&mut self, mut bytes: &[u8], body: &mut Body<'_>) -> Result<(), HttpError> {
        while !bytes.is_empty() && !self.is_done() {
            bytes = self.step(bytes, body)?;
        }
        Ok(())
    }

    fn step<'a>(&mut self, bytes: &'a [u8], body: &mut Body<'_>) -> Result<&'a [u8], HttpError> {
        match self.state {
            State::Head => self.take_head(bytes),
            State::Counted(left) | State::Chunk(left) => {
                let length = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let (run, rest) = bytes.split_at(length);
                self.hand_over(run, body);
                let left = left - length as u64;
                self.state = match (&self.state, left) {
                    (State::Chunk(_), 0) => State::ChunkEnd,
                    (State::Chunk(_), _) => State::Chunk(left),
                    (_, 0) => State::Done,
                    _ => State::Counted(left),
                };
                Ok(rest)
            }
            State::UntilClose => {
                self.hand_over(bytes, body);
                Ok(&[])
            }
            State::ChunkSize | State::ChunkEnd | State::Trailer => self.take_line(bytes),
            State::Done => Ok(&[]),
        }
    }

    fn hand_over(&self, run: &[u8], body: &mut Body<'_>) {
        if let Some(head) = &self.head {
            body(head, run);
        }
    }

    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], HttpError> {
        let before = self.line.len();
        // Copy at most one head: body bytes after it are not copied twice.
        let taken = bytes.len().min(HEAD_MAX + 1 - before.min(HEAD_MAX));
        self.line.extend_from_slice(&bytes[..taken]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let status = response
            .parse(&self.line)
            .map_err(|error| HttpError::Head(format!("{error}: {}", preview(&self.line))))?;
        let httparse::Status::Complete(length) = status else {
            if self.line.len() > HEAD_MAX {
                return Err(HttpError::HeadTooLong);
            }
            return Ok(&bytes[taken..]);
        };
        // An interim response such as `100 Continue` precedes the real one.
        let interim = matches!(response.code, Some(100..=199));
        let (head, state) = read_head(&response)?;
        self.line.clear();
        if !interim {
            self.head = Some(head);
            self.state = state;
        }
        Ok(&bytes[length - before..])
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], HttpError> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.line.extend_from_slice(bytes);
            if self.line.len() > LINE_MAX {
                return Err(HttpError::Chunk("a line is too long"));
            }
            return Ok(&[]);
        };
        let line = if self.line.is_empty() {
            &bytes[..end]
        } else {
            self.line.extend_from_slice(&bytes[..end]);
            &self.line
        };
        // RFC 9112, 2.2: only a head may be read with a bare LF.
        let line =
            line.strip_suffix(b"\r").ok_or(HttpError::Chunk("a line does not end in CRLF"))?;
        if line.contains(&b'\r') {
            return Err(HttpError::Chunk("a line has a CR before its end"));
        }
        self.state = match self.state {
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::ChunkEnd => return Err(HttpError::Chunk("data runs on past its length")),
            State::Trailer if line.is_empty() => State::Done,
            // Trailer fields have nothing that the client needs.
            State::Trailer => {
                let lines = [line, b"\r\n\r\n"].concat();
                let mut one = [httparse::EMPTY_HEADER];
                let parsed = httparse::parse_headers(&lines, &mut one);
                parsed.map_err(|_| HttpError::Chunk("a trailer is malformed"))?;
                State::Trailer
            }
            _ => match chunk_size(line)? {
                0 => State::Trailer,
                size => State::Chunk(size),
            },
        };
        self.line.clear();
        Ok(&bytes[end + 1..])
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, HttpError> {
    const NOT_HEXADECIMAL: HttpError = HttpError::Chunk("size is not hexadecimal");
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if digits.is_empty() {
        return Err(NOT_HEXADECIMAL);
    }
    digits.iter().try_fold(0_u64, |size, digit| {
        let digit = char::from(*digit).to_digit(16).ok_or(NOT_HEXADECIMAL)?;
        let size = size.checked_mul(16).ok_or(HttpError::Chunk("size is beyond 64 bits"))?;
        Ok(size + u64::from(digit))
    })
}

fn read_head(response: &httparse::Response<'_, '_>) -> Result<(Head, State), HttpError> {
    let status = response.code.unwrap_or(0);
    if status < 100 {
        return Err(HttpError::Head(format!("status {status}")));
    }
    // HTTP/1.0 closes the connection by default.
    let keep_alive = response.version == Some(1);
    let mut head = Head { status, json: false, keep_alive, retry_after: None };
    let mut state = State::UntilClose;
    let mut is_encoded = false;
    for header in response.headers.iter() {
        let value = String::from_utf8_lossy(header.value).trim().to_ascii_lowercase();
        match header.name.to_ascii_lowercase().as_str() {
            "content-type" => head.json = value.starts_with("application/json"),
            "retry-after" => head.retry_after = Some(value),
            "connection" => head.keep_alive = head.keep_alive && !value.contains("close"),
            // RFC 9112, 6.1: HTTP/1.0 has no such encoding, so that the end of the body is not known.
            "transfer-encoding" if response.version != Some(1) => {
                return Err(HttpError::Head("HTTP/1.0 with `Transfer-Encoding`".to_owned()));
            }
            // RFC 9112, 6.3: it takes precedence over a content length, and a body whose last encoding
            // is not chunked ends with the connection.
            "transfer-encoding" => {
                is_encoded = true;
                let is_chunked = value.rsplit(',').next().map(str::trim) == Some("chunked");
                state = if is_chunked { State::ChunkSize } else { State::UntilClose };
            }
            "content-length" if !is_encoded => {
                let length = content_length(&value)?;
                if matches!(state, State::Counted(former) if former != length) {
                    return Err(HttpError::Head("two different `Content-Length`".to_owned()));
                }
                state = State::Counted(length);
            }
            _ => {}
        }
    }
    // Statuses 204 and 304 never have a body (RFC 9112, 6.3).
    if matches!(status, 204 | 304) || matches!(state, State::Counted(0)) {
        state = State::Done;
    }
    // A connection that ends the body cannot carry another request.
    if matches!(state, State::UntilClose) {
        head.keep_alive = false;
    }
    Ok((head, state))
}

/// Reads a content length; a list of equal ones counts as one (RFC 9112, 6.3).
fn content_length(value: &str) -> Result<u64, HttpError> {
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    let lengths = value.split(',').map(str::trim).map(|part| {
        let length = Some(part).filter(is_number).and_then(|part| part.parse().ok());
        length.ok_or_else(|| HttpError::Head(format!("`Content-Length: {value}` is not a number")))
    });
    let lengths = lengths.collect::<Result<Vec<u64>, _>>()?;
    match lengths[..] {
        [first, ref rest @ ..] if rest.iter().all(|length| *length == first) => Ok(first),
        _ => Err(HttpError::Head(format!("`Content-Length: {value}` is two lengths"))),
    }
}

/// Returns the first 160 bytes of unexpected data from the server as quoted text, for an error
/// message.
pub fn preview(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(160)]);
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pieces: &[&[u8]]) -> Result<(Option<Head>, String, bool), HttpError> {
        let mut decoder = ResponseDecoder::default();
        let mut body = Vec::new();
        for piece in pieces {
            decoder.feed(piece, &mut |_, run| body.extend_from_slice(run))?;
        }
        let body = String::from_utf8(body).unwrap();
        Ok((decoder.head().cloned(), body, decoder.is_done()))
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
        Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n \r\n5\r\nworld\r\n0\r\nT: 1\r\n\r\n";

    #[test]
    fn framings_differ() {
        let cases = [
            (CHUNKED, 200, "hello world", true),
            ("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusyextra", 503, "busy", true),
            ("HTTP/1.1 200 OK\r\n\r\nuntil close", 200, "until close", false),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                200,
                "ok",
                true,
            ),
            ("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", 200, "short", false),
        ];
        for (text, status, expected, done) in cases {
            let (head, body, ended) = decode(&[text.as_bytes()]).unwrap();
            assert_eq!((head.unwrap().status, body.as_str(), ended), (status, expected, done));
        }
    }

    #[test]
    fn a_cut_at_any_two_bytes_changes_nothing() {
        let bytes = CHUNKED.as_bytes();
        let whole = decode(&[bytes]).unwrap();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(decode(&pieces).unwrap(), whole, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn keep_alive_follows_version_header_and_framing() {
        let head = |text: &str| decode(&[text.as_bytes()]).unwrap().0.unwrap().keep_alive;
        assert!(head("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert!(!head("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert!(!head("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"));
        assert!(!head("HTTP/1.1 200 OK\r\n\r\n"), "the connection's end is the body's");
    }

    #[test]
    fn garbage_is_an_error() {
        for text in [
            "SSH-2.0-OpenSSH_9.2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        ] {
            assert!(decode(&[text.as_bytes()]).is_err(), "{text:?}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(HEAD_MAX));
        assert!(matches!(decode(&[endless.as_bytes()]), Err(HttpError::HeadTooLong)));
    }
}
