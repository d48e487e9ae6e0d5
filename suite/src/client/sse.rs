//! Parser of server-sent events, independent of how reads split the bytes.
//!
//! As tolerant as <https://html.spec.whatwg.org/multipage/server-sent-events.html> requires: lines
//! end in LF, CRLF or CR, `data:` needs no space, comments and unknown fields are skipped, several
//! `data:` lines form one event. It does not interpret the events.

/// Longest accepted event in bytes. Events of 1 MB occur; one of 16 MB is a server error.
const EVENT_MAX: usize = 16 << 20;

/// Error of a line or event of a stream that is longer than `EVENT_MAX` bytes.
#[derive(Debug, thiserror::Error)]
#[error("an event is longer than {EVENT_MAX} bytes")]
pub struct EventTooLong;

/// Incremental parser that splits bytes into events. It buffers only an unfinished line or event.
#[derive(Debug, Default)]
pub struct SseParser {
    /// Bytes of the unfinished line; empty when the last read ended with a complete one.
    line: Vec<u8>,
    /// Value of the `data:` lines of the unfinished event so far.
    data: Vec<u8>,
    has_data: bool,
    /// True when the last byte was CR, so that a following LF belongs to it.
    after_cr: bool,
    started: bool,
}

impl SseParser {
    /// Parses the next bytes of the stream and passes the data of each complete event to `event`.
    ///
    /// # Errors
    /// A line, or the data of an event, is longer than `EVENT_MAX` bytes.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        event: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EventTooLong> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.line.is_empty() {
                self.take_line(line, event)?;
            } else {
                self.line.extend_from_slice(line);
                let whole = std::mem::take(&mut self.line);
                self.take_line(&whole, event)?;
                // Keep the allocation for the next split line.
                self.line = whole;
                self.line.clear();
            }
            bytes = match (bytes[end], rest) {
                // An LF at the start of the next read would belong to this CR.
                (b'\r', []) => {
                    self.after_cr = true;
                    rest
                }
                (b'\r', _) => rest.strip_prefix(b"\n").unwrap_or(rest),
                _ => rest,
            };
        }
        self.line.extend_from_slice(bytes);
        bounded(self.line.len())
    }

    /// Passes the data of an event that has no blank line after it to `event`, when the stream has
    /// ended.
    ///
    /// The standard drops such an event. A server that closes right after its last line meant it,
    /// and an event that was cut off fails as JSON, so the caller gets it.
    pub fn finish(&mut self, event: &mut dyn FnMut(&[u8])) -> Result<(), EventTooLong> {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, event)?;
        }
        self.dispatch(event);
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], event: &mut dyn FnMut(&[u8])) -> Result<(), EventTooLong> {
        let line = match self.started {
            // A byte-order mark may precede the first line only.
            false => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line),
            true => line,
        };
        self.started = true;
        if line.is_empty() {
            self.dispatch(event);
            return Ok(());
        }
        let Some(value) = line.strip_prefix(b"data") else { return Ok(()) };
        let value = match value {
            [b':', b' ', value @ ..] | [b':', value @ ..] => value,
            [] => value,
            // Another field whose name begins with `data`, such as `database:`.
            _ => return Ok(()),
        };
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
        bounded(self.data.len())
    }

    fn dispatch(&mut self, event: &mut dyn FnMut(&[u8])) {
        if self.has_data {
            event(&self.data);
            self.data.clear();
            self.has_data = false;
        }
    }
}

fn bounded(length: usize) -> Result<(), EventTooLong> {
    if length > EVENT_MAX { Err(EventTooLong) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<String> {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        let mut take = |data: &[u8]| events.push(String::from_utf8(data.to_vec()).unwrap());
        for piece in pieces {
            parser.feed(piece, &mut take).unwrap();
        }
        parser.finish(&mut take).unwrap();
        events
    }

    #[test]
    fn every_spelling_of_an_event_is_read() {
        let cases: [(&str, &[&str]); 10] = [
            ("data: a\n\n", &["a"]),
            ("data:a\n\n", &["a"]),
            ("data:  a\n\n", &[" a"]),
            ("data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]),
            ("data: a\r\rdata: b\r\r", &["a", "b"]),
            (": keep-alive\n\ndata: a\n: more\n\n", &["a"]),
            ("event: x\nid: 7\nretry: 9\ndata: a\n\n", &["a"]),
            ("data: {\"a\":\ndata: 1}\n\n", &["{\"a\":\n1}"]),
            ("data\n\ndatabase: x\n\n\u{feff}data: y\n\n", &[""]),
            ("\u{feff}data: a\n\ndata: last", &["a", "last"]),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(&[text.as_bytes()]), expected, "{text:?}");
        }
    }

    #[test]
    fn a_cut_at_any_two_bytes_changes_nothing() {
        let text =
            "data: {\"t\":\"h\u{e9}\u{1f600}\"}\r\n\r\n: c\r\n\r\ndata: a\ndata: b\n\ndata:z\r\r";
        let bytes = text.as_bytes();
        let whole = parse(&[bytes]);
        assert_eq!(whole, ["{\"t\":\"h\u{e9}\u{1f600}\"}", "a\nb", "z"]);
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(parse(&pieces), whole, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn an_event_is_handed_over_with_its_last_byte_and_not_later() {
        let mut parser = SseParser::default();
        let mut count = 0;
        for text in ["data: a\r\n", "\r"] {
            parser.feed(text.as_bytes(), &mut |_| count += 1).unwrap();
        }
        assert_eq!(count, 1, "a lone CR ends the blank line; its LF may be long in coming");
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let mut parser = SseParser::default();
        let piece = vec![b'x'; EVENT_MAX];
        parser.feed(&piece, &mut |_| ()).unwrap();
        assert!(parser.feed(&piece, &mut |_| ()).is_err());
    }
}
