//! State of one request's answer while it arrives: response head, events, tokens and end. It is fed
//! with bytes and their arrival time and does no I/O.

use schema::engine::ApiFormat;

use super::api_format::{Reader, SoFar};
use super::delta::{Chunk, Event, parse};
use super::http::{ResponseDecoder, preview};
use super::sample::{ChunkStamp, FailureKind, Moment, Sample};
use super::sse::SseParser;

/// Number of bytes kept of a response body that is not an event stream, for the error message.
const DOCUMENT_MAX: usize = 16 << 10;

/// Streamed answer of one request, from the send until its end.
#[derive(Debug)]
pub struct Stream {
    /// Sample of the answer's request, filled so far.
    pub sample: Sample,
    decoder: ResponseDecoder,
    reader: EventReader,
}

/// Numbers of events, chunks and tokens that one read from a connection brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Number of server-sent events with data in the read, of any kind.
    pub events: u32,
    /// Number of chunks with a token in the read.
    pub chunks: u32,
    /// Number of tokens in the read's chunks, by the server's count or as one for each chunk.
    pub tokens: u64,
    /// True when the read completed the response head.
    pub head: bool,
    /// True when the read brought the answer's first token.
    pub first: bool,
}

/// State of a streamed answer after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The answer has not ended: more of its events may come.
    Open,
    /// The last event of the answer (such as `[DONE]`) has arrived; the end of the HTTP body has
    /// not.
    Closing,
    /// The answer is over, complete or failed.
    Ended {
        /// True when the answer's connection may carry another request.
        reusable: bool,
    },
}

impl Stream {
    /// Creates the state of an answer in the API format `dialect`, of which nothing has arrived;
    /// results go into `sample`.
    pub fn new(sample: Sample, dialect: ApiFormat) -> Self {
        let reader = EventReader { dialect: Reader::of(dialect), ..EventReader::default() };
        Self { sample, decoder: ResponseDecoder::default(), reader }
    }

    /// True before the first byte of the response has arrived.
    pub fn is_unanswered(&self) -> bool {
        !self.reader.answered
    }

    /// Processes the response's bytes that arrived at `at`, and returns the answer's state and what
    /// the bytes brought.
    pub fn take(&mut self, bytes: &[u8], at: Moment) -> (Standing, Brought) {
        let had_head = self.decoder.head().is_some();
        let (sample, reader) = (&mut self.sample, &mut self.reader);
        reader.answered = true;
        reader.brought = Brought::default();
        let fed = self.decoder.feed(bytes, &mut |head, body| {
            // An error status or a JSON document is not an event stream.
            reader.body(head.status == 200 && !head.json, body, at, sample);
        });
        let mut brought = std::mem::take(&mut reader.brought);
        bound_arrivals(sample, brought.chunks, at);
        brought.head = !had_head && self.decoder.head().is_some();
        sample.end_ns = at.at_ns;
        if let Err(error) = fed {
            sample.fail(FailureKind::BadHttp, error.to_string());
            return (Standing::Ended { reusable: false }, brought);
        }
        (self.standing(), brought)
    }

    fn standing(&mut self) -> Standing {
        if self.decoder.is_done() {
            let reusable = self.decoder.head().is_some_and(|head| head.keep_alive);
            self.conclude();
            return Standing::Ended { reusable };
        }
        // After an error, the rest of the stream has no information.
        if self.sample.failure.is_some() {
            return Standing::Ended { reusable: false };
        }
        if self.reader.done { Standing::Closing } else { Standing::Open }
    }

    /// Handles the end of the connection at `at_ns`, closed by the server or broken with `error`:
    /// decides whether the answer is complete, and else records the failure.
    pub fn close(&mut self, at_ns: u64, error: Option<String>) {
        self.sample.end_ns = at_ns;
        if self.is_unanswered() {
            let message = "the server closed the connection without an answer";
            match error {
                Some(error) => self.sample.fail(FailureKind::Reset, error),
                None => self.sample.fail(FailureKind::Closed, message),
            }
            return;
        }
        match error {
            // A broken connection after a complete answer does no harm.
            Some(error) if !self.has_ended() => self.sample.fail(FailureKind::Reset, error),
            _ => self.conclude(),
        }
    }

    /// True when the answer has announced its end, by a last event or a finish reason.
    fn has_ended(&self) -> bool {
        self.reader.done || self.sample.finish_reason.is_some()
    }

    /// Decides whether the answer is complete and else records the failure, once nothing more will
    /// arrive or the server did not end the HTTP body in time after the last event.
    pub(super) fn conclude(&mut self) {
        let end = Moment::at(self.sample.end_ns);
        self.reader.finish(end, &mut self.sample);
        let Some(head) = self.decoder.head() else {
            self.sample.fail(FailureKind::Closed, "the connection ended inside the response head");
            return;
        };
        let document = &self.reader.document;
        if head.status != 200 {
            let mut message = error_in(document).unwrap_or_else(|| preview(document));
            if let Some(retry_after) = &head.retry_after {
                message += &format!(" (`Retry-After: {retry_after}`)");
            }
            self.sample.fail(FailureKind::Http(head.status), message);
        } else if self.reader.events == 0 && !document.is_empty() {
            match error_in(document) {
                Some(message) => self.sample.fail(FailureKind::ErrorEvent, message),
                None => self.sample.fail(
                    FailureKind::BadEvent,
                    format!("the body is not a stream of events: {}", preview(document)),
                ),
            }
        }
        // A body that ends with the connection looks the same whether it is complete or cut off.
        if !self.has_ended() && !self.decoder.is_done() {
            let message = "the connection ended inside the answer";
            self.sample.fail(FailureKind::Closed, message);
        }
        if self.sample.chunks.is_empty() {
            self.sample.fail(FailureKind::NoTokens, "the answer holds no token");
        }
    }
}

/// Stores the error bounds of the arrival times of the last `chunks` chunks of `sample`, which one
/// read brought. The kernel stamps the last chunk of a read however long it waits; the chunks
/// before it, and all chunks without a stamp, may have arrived at any time since the socket had
/// nothing.
fn bound_arrivals(sample: &mut Sample, chunks: u32, at: Moment) {
    let early_ns = at.early_ns(sample.sent_ns.unwrap_or(0));
    let unsure = if at.stamped { chunks.saturating_sub(1) } else { chunks };
    let count = usize::try_from(chunks).unwrap_or(usize::MAX);
    let first = sample.chunks.len().saturating_sub(count);
    for (chunk, _) in sample.chunks[first..].iter_mut().zip(0..unsure) {
        chunk.early_ns = early_ns;
    }
}

/// Returns the message of a response body that is a JSON document which reports an error, else
/// `None`.
fn error_in(document: &[u8]) -> Option<String> {
    match parse(document) {
        Ok(Event::Error(message)) => Some(message),
        _ => None,
    }
}

/// Reader that parses the bytes of a response's body and adds their chunks to a sample.
#[derive(Debug, Default)]
struct EventReader {
    dialect: Reader,
    parser: SseParser,
    /// First bytes of the response's body until its first event, for an error message if the body
    /// is not a stream of events.
    document: Vec<u8>,
    events: u64,
    answered: bool,
    done: bool,
    /// Server's running token count after the previous chunk, `None` until it reports one.
    counted: Option<u64>,
    brought: Brought,
}

impl EventReader {
    fn body(&mut self, is_stream: bool, bytes: &[u8], at: Moment, sample: &mut Sample) {
        // Kept until the first event, to report what the body was instead of a stream.
        if self.events == 0 {
            let room = DOCUMENT_MAX.saturating_sub(self.document.len());
            self.document.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        if !is_stream {
            return;
        }
        let mut parser = std::mem::take(&mut self.parser);
        let fed = parser.feed(bytes, &mut |data| self.event(data, at, sample));
        self.parser = parser;
        if let Err(error) = fed {
            sample.fail(FailureKind::BadEvent, error.to_string());
        }
    }

    fn finish(&mut self, at: Moment, sample: &mut Sample) {
        let mut parser = std::mem::take(&mut self.parser);
        // The remaining data are within the parser's limit.
        let _ = parser.finish(&mut |data| self.event(data, at, sample));
    }

    fn event(&mut self, data: &[u8], at: Moment, sample: &mut Sample) {
        self.events += 1;
        self.brought.events += 1;
        let so_far = SoFar { text: &sample.text, tokens: self.counted.unwrap_or(0) };
        match self.dialect.read(data, so_far) {
            Ok(Event::Done) => self.done = true,
            Ok(Event::KeepAlive) => {}
            Ok(Event::Last(chunk)) => {
                self.done = true;
                self.chunk(chunk, at, sample);
            }
            Ok(Event::Error(message)) => sample.fail(FailureKind::ErrorEvent, message),
            Ok(Event::Chunk(chunk)) => self.chunk(chunk, at, sample),
            Err(error) => {
                let message = format!("event is not a JSON chunk: {error}: {}", preview(data));
                sample.fail(FailureKind::BadEvent, message);
            }
        }
    }

    fn chunk(&mut self, chunk: Chunk<'_>, at: Moment, sample: &mut Sample) {
        let text_bytes: usize = chunk.words().map(str::len).sum();
        sample.first_event_ns.get_or_insert(at.at_ns);
        if chunk.content.as_ref().is_some_and(|text| !text.is_empty()) {
            sample.first_content_ns.get_or_insert(at.at_ns);
        }
        let counted_before = self.counted.unwrap_or(0);
        let grown = match chunk.usage {
            Some(usage) if chunk.has_choice => {
                self.counted = Some(usage.completion_tokens);
                Some(usage.completion_tokens.saturating_sub(counted_before))
            }
            _ => None,
        };
        // Ids are the tokens themselves: where an engine sends ids, text without ids is the rest of
        // an earlier token.
        let (bears, tokens) = match &chunk.ids {
            Some(ids) => (!ids.is_empty(), Some(ids.len() as u64)),
            None => {
                let bears = text_bytes > 0
                    || chunk.tool_call.is_some()
                    || grown.is_some_and(|grown| grown > 0);
                (bears, grown)
            }
        };
        if bears {
            let tokens = tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
            let text_bytes = u32::try_from(text_bytes).unwrap_or(u32::MAX);
            // True only as long as every chunk with a token had a count.
            sample.usage_per_chunk =
                grown.is_some() && (sample.usage_per_chunk || sample.chunks.is_empty());
            self.brought.first |= sample.chunks.is_empty();
            let (at_ns, lag_ns) = (at.at_ns, at.lag_ns());
            sample.chunks.push(ChunkStamp { at_ns, lag_ns, early_ns: 0, tokens, text_bytes });
            self.brought.chunks += 1;
            self.brought.tokens += u64::from(tokens.unwrap_or(1));
        }
        chunk.words().for_each(|text| sample.text.push_str(text));
        sample.ids.extend(chunk.ids.into_iter().flatten());
        if let Some(reason) = chunk.finish_reason {
            sample.finish_reason = Some(reason.into_owned());
        }
        sample.usage = chunk.usage.or(sample.usage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error bounds of the chunks of a read that brought `chunks` of them at 100 ns,
    /// where the socket had nothing at 10 ns.
    fn bounds(chunks: usize, stamped: bool) -> Vec<u64> {
        let mut stream = Stream::new(Sample::default(), ApiFormat::Completions);
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        stream.take(head, Moment::at(5));
        let event = "data: {\"choices\":[{\"index\":0,\"text\":\" t\"}]}\n\n".repeat(chunks);
        let at = Moment { since_ns: 10, at_ns: 100, user_ns: 120, stamped };
        stream.take(event.as_bytes(), at);
        stream.sample.chunks.iter().map(|chunk| chunk.early_ns).collect()
    }

    #[test]
    fn the_last_chunk_of_a_stamped_read_is_exact_and_those_before_it_are_bounded() {
        assert_eq!(bounds(1, true), [0]);
        assert_eq!(bounds(3, true), [90, 90, 0]);
        assert_eq!(bounds(2, false), [90, 90]);
    }
}
