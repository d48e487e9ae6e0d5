//! State of one request's answer while it arrives: response head, events, tokens and end. It is fed
//! with bytes and their arrival time and does no I/O.

use schema::engine::ApiFormat;

use super::api_format::{Reader, SoFar};
use super::delta::{Chunk, Event, Usage, parse};
use super::http::{Head, ResponseDecoder, preview};
use super::sample::{ChunkStamp, FailureKind, Moment, Sample};
use super::sse::SseParser;

/// Number of bytes kept of a response body that is not an event stream, for the error message.
const DOCUMENT_MAX: usize = 16 << 10;
/// Number of tokens that an answer may hold or claim beyond twice as many as were asked for, before
/// its request fails: a server that counts a few wrong is measured, and a finding says so.
const TOKENS_SPARE: u64 = 64;
/// Bytes of an answer besides those of its tokens: events that repeat the whole answer, or say
/// anything else.
const BYTES_SPARE: u64 = 4 << 20;
/// Bytes of an answer for each of its tokens. A chunk with twenty log-probabilities takes half.
const BYTES_PER_TOKEN: u64 = 4 << 10;
/// Text that is kept of an answer for each of its tokens, in bytes: the longest token of a vocabulary
/// has about half. With its 32 bytes of times and 4 of its id, no token takes more than 292 bytes.
const TEXT_PER_TOKEN: u64 = 256;
/// Bytes that a token takes in each later event of an API format whose events repeat the answer so
/// far: its text and its id.
const BYTES_REPEATED: u64 = 32;
/// Largest number of prompt tokens that a usage may claim: sums over all requests fit 64 bits.
const PROMPT_MAX: u64 = 1 << 40;
/// Largest number of chunks without text whose arrival is kept of an answer.
const EMPTY_MAX: usize = 4096;
/// Longest part of a finish reason that is kept, in characters.
const REASON_MAX: usize = 64;

/// Limits of one answer, so that a stream without end ends its request.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Number of tokens that the request asks for.
    asked: u64,
    /// Largest number of tokens that the answer may hold or claim.
    tokens: u64,
    /// Largest size of the response in bytes, with its framing.
    bytes: u64,
}

impl Limits {
    /// Returns the limits of an answer in the API format `dialect` of which `asked` tokens are asked
    /// for.
    fn of(asked: u64, dialect: ApiFormat) -> Self {
        let tokens = asked.saturating_mul(2).saturating_add(TOKENS_SPARE);
        let repeated = if dialect == ApiFormat::Generate { BYTES_REPEATED } else { 0 };
        let each = tokens.saturating_mul(repeated).saturating_add(BYTES_PER_TOKEN);
        Self { asked, tokens, bytes: tokens.saturating_mul(each).saturating_add(BYTES_SPARE) }
    }
}

/// Streamed answer of one request, from the send until its end.
#[derive(Debug)]
pub struct Stream {
    /// Sample of the answer's request, filled so far.
    pub sample: Sample,
    limits: Limits,
    /// Number of bytes of the response so far, with its framing.
    bytes: u64,
    decoder: ResponseDecoder,
    reader: EventReader,
}

/// Numbers of chunks and tokens that one read from a connection brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
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
    /// Creates the state of an answer in the API format `dialect`, of which nothing has arrived and
    /// `asked` tokens are asked for; results go into `sample`.
    pub fn new(sample: Sample, dialect: ApiFormat, asked: u64) -> Self {
        let reader = EventReader { dialect: Reader::of(dialect), ..EventReader::default() };
        let limits = Limits::of(asked, dialect);
        Self { sample, limits, bytes: 0, decoder: ResponseDecoder::default(), reader }
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
        // A document arrives with its last byte.
        if self.decoder.is_done() && self.decoder.head().is_some_and(|head| head.status == 200) {
            reader.end_document(at, sample);
        }
        let mut brought = std::mem::take(&mut reader.brought);
        bound_arrivals(sample, brought.chunks, at);
        brought.head = !had_head && self.decoder.head().is_some();
        sample.end_ns = at.at_ns;
        if let Err(error) = fed {
            sample.fail(FailureKind::BadHttp, error.to_string());
            return (Standing::Ended { reusable: false }, brought);
        }
        self.bytes += bytes.len() as u64;
        if let Some(excess) = self.excess() {
            // A document instead of a stream fails by its status and its beginning.
            let is_stream = !self.reader.dialect.is_document();
            let is_other = |head: &Head| head.status != 200 || (head.json && is_stream);
            if self.decoder.head().is_some_and(is_other) {
                self.conclude();
            }
            self.sample.fail(FailureKind::TooLong, excess);
            return (Standing::Ended { reusable: false }, brought);
        }
        (self.standing(), brought)
    }

    /// Returns in words which of its limits the answer exceeds, or `None`.
    fn excess(&self) -> Option<String> {
        let Limits { asked, tokens, bytes } = self.limits;
        if self.bytes > bytes {
            return Some(format!("an answer of {asked} tokens goes on after {bytes} bytes"));
        }
        let text = self.sample.text.len() as u64;
        if text > tokens.saturating_mul(TEXT_PER_TOKEN) {
            return Some(format!("an answer of {asked} tokens has {text} bytes of text"));
        }
        let usage = self.sample.usage.unwrap_or_default();
        let held = self.sample.chunks.len().max(self.sample.ids.len()) as u64;
        let found = held.max(usage.completion_tokens);
        if found > tokens {
            return Some(format!("{asked} tokens were asked for, and the answer has {found}"));
        }
        let prompt = usage.prompt_tokens.max(usage.cached_tokens.unwrap_or(0));
        (prompt > PROMPT_MAX).then(|| format!("the usage claims {prompt} prompt tokens"))
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
        if head.status == 200 && self.decoder.ends_with_connection() {
            self.reader.end_document(end, &mut self.sample);
        }
        let is_stream = !self.reader.dialect.is_document();
        let document = &self.reader.document;
        if head.status != 200 {
            let mut message = error_in(document).unwrap_or_else(|| preview(document));
            if let Some(retry_after) = &head.retry_after {
                message += &format!(" (`Retry-After: {retry_after}`)");
            }
            self.sample.fail(FailureKind::Http(head.status), message);
        } else if is_stream && self.reader.events == 0 && !document.is_empty() {
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
    /// is not a stream of events; the whole body where an answer is one document.
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
        // Kept until the first event, to report what the body was instead of a stream. The limit of
        // the answer bounds a document.
        let is_document = self.dialect.is_document();
        if self.events == 0 {
            let most = if is_document { usize::MAX } else { DOCUMENT_MAX };
            let room = most.saturating_sub(self.document.len());
            self.document.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        if is_document || !is_stream {
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

    /// Reads the body of an API format whose answers are documents, once it is whole. Does nothing
    /// for a stream of events, and for a document that was read.
    fn end_document(&mut self, at: Moment, sample: &mut Sample) {
        if self.dialect.is_document() && self.events == 0 {
            let document = std::mem::take(&mut self.document);
            self.event(&document, at, sample);
        }
    }

    fn event(&mut self, data: &[u8], at: Moment, sample: &mut Sample) {
        self.events += 1;
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
            Ok(Event::Embedding(usage)) => self.embedding(usage, at, sample),
            Err(error) => {
                let is_document = self.dialect.is_document();
                let what =
                    if is_document { "body has no embedding" } else { "event is not a JSON chunk" };
                let message = format!("{what}: {error}: {}", preview(data));
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
        } else if chunk.is_empty_text() && grown.is_none() && sample.empty_ns.len() < EMPTY_MAX {
            sample.empty_ns.push(at.at_ns);
        }
        sample.has_tool_call |= chunk.tool_call.is_some();
        chunk.words().for_each(|text| sample.text.push_str(text));
        sample.ids.extend(chunk.ids.into_iter().flatten());
        if let Some(reason) = chunk.finish_reason {
            sample.finish_reason = Some(reason.chars().take(REASON_MAX).collect());
        }
        sample.usage = chunk.usage.or(sample.usage);
    }

    fn embedding(&mut self, usage: Option<Usage>, at: Moment, sample: &mut Sample) {
        self.done = true;
        sample.usage = usage;
        let (at_ns, lag_ns) = (at.at_ns, at.lag_ns());
        let tokens = Some(0);
        sample.chunks.push(ChunkStamp { at_ns, lag_ns, early_ns: 0, tokens, text_bytes: 0 });
        self.brought = Brought { chunks: 1, first: true, ..self.brought };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error bounds of the chunks of a read that brought `chunks` of them at 100 ns,
    /// where the socket had nothing at 10 ns.
    fn bounds(chunks: usize, stamped: bool) -> Vec<u64> {
        let mut stream = Stream::new(Sample::default(), ApiFormat::Completions, 3);
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

    /// Returns the failure of an answer of one token in `dialect` of which `piece` comes again and
    /// again, and the number of bytes after which it failed.
    fn endless(head: &str, piece: &str, dialect: ApiFormat) -> (Option<FailureKind>, u64) {
        let mut stream = Stream::new(Sample::default(), dialect, 1);
        let head = format!("HTTP/1.1 {head}\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.take(head.as_bytes(), Moment::at(0));
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        for _ in 0..1 << 20 {
            if let (Standing::Ended { reusable: false }, _) =
                stream.take(chunk.as_bytes(), Moment::at(1))
            {
                break;
            }
        }
        (stream.sample.failure.map(|failure| failure.kind), stream.bytes)
    }

    #[test]
    fn a_stream_without_end_fails_by_its_tokens_or_its_bytes() {
        let token = "data: {\"choices\":[{\"index\":0,\"text\":\"t\"}]}\n\n";
        let empty = format!("data: {{\"choices\":[],\"x\":\"{}\"}}\n\n", "x".repeat(1 << 16));
        let comment = format!(": {}\n\n", "p".repeat(1 << 16));
        let unnamed = "x".repeat(1 << 16);
        let ids = "data: {\"text\":\"\",\"output_ids\":[1],\"meta_info\":{}}\n\n";
        let too_long = Some(FailureKind::TooLong);
        for (head, piece, dialect, kind) in [
            ("200 OK", token, ApiFormat::Completions, too_long),
            ("200 OK", empty.as_str(), ApiFormat::Chat, too_long),
            ("200 OK", comment.as_str(), ApiFormat::Responses, too_long),
            ("200 OK", ids, ApiFormat::Generate, too_long),
            ("503 Busy", unnamed.as_str(), ApiFormat::Completions, Some(FailureKind::Http(503))),
            (
                "200 OK\r\nContent-Type: application/json",
                unnamed.as_str(),
                ApiFormat::Completions,
                Some(FailureKind::BadEvent),
            ),
        ] {
            let (found, bytes) = endless(head, piece, dialect);
            assert_eq!(found, kind, "{head} {dialect:?}");
            let most = Limits::of(1, dialect).bytes + (1 << 17);
            assert!(bytes <= most, "{bytes} bytes were read of {head} {dialect:?}");
        }
    }

    #[test]
    fn the_memory_of_an_answer_is_bounded_for_each_of_its_tokens() {
        assert_eq!(size_of::<ChunkStamp>(), 32);
        let mut stream = Stream::new(Sample::default(), ApiFormat::Completions, 1000);
        stream.take(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", Moment::at(0));
        let text = "x".repeat(3900);
        let event = format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}\n\n");
        while stream.sample.failure.is_none() {
            stream.take(event.as_bytes(), Moment::at(1));
        }
        let most = Limits::of(1000, ApiFormat::Completions).tokens * TEXT_PER_TOKEN;
        assert!((stream.sample.text.len() as u64) < most + 4000, "{}", stream.sample.text.len());
        let failure = stream.sample.failure.expect("ended");
        assert_eq!(failure.kind, FailureKind::TooLong, "{}", failure.message);
    }

    #[test]
    fn a_count_that_no_answer_has_fails_its_request() {
        for usage in [
            r#"{"prompt_tokens":1,"completion_tokens":1000000000000}"#,
            r#"{"prompt_tokens":18446744073709551615,"completion_tokens":1}"#,
        ] {
            let mut stream = Stream::new(Sample::default(), ApiFormat::Completions, 1);
            let body = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n");
            stream.take(b"HTTP/1.1 200 OK\r\n\r\n", Moment::at(0));
            stream.take(body.as_bytes(), Moment::at(1));
            let kind = stream.sample.failure.map(|failure| failure.kind);
            assert_eq!(kind, Some(FailureKind::TooLong), "{usage}");
        }
    }
}
