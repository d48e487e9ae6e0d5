//! Samples: times and token counts of one request, including failed ones, and the parts of its
//! TTFT. Times are nanoseconds of the monotonic clock; `measure` evaluates them.

use std::fmt;

use super::delta::Usage;

/// Longest message of a failed request, in characters.
const MESSAGE_MAX: usize = 400;

/// Time at which bytes arrived, and time at which this program had read them, in nanoseconds of the
/// monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Lower bound of the arrival time of the bytes in nanoseconds: the socket had none of them
    /// then.
    pub since_ns: u64,
    /// Arrival time of the bytes by the kernel's time stamp where it is credible, otherwise the
    /// time of the read, in nanoseconds.
    pub at_ns: u64,
    /// Time at which this program had read the bytes, in nanoseconds.
    pub user_ns: u64,
    /// True when `at_ns` is the kernel's time stamp of the last of the bytes, and not the time of
    /// the read.
    pub stamped: bool,
}

impl Moment {
    /// Returns the arrival of bytes without a kernel time stamp, read at `user_ns` and without
    /// delay.
    pub fn at(user_ns: u64) -> Self {
        Self { since_ns: user_ns, at_ns: user_ns, user_ns, stamped: false }
    }

    /// Returns how much earlier than `at_ns` bytes may have arrived that are not the last of the
    /// read, in nanoseconds. They were sent after `sent_ns`.
    pub fn early_ns(&self, sent_ns: u64) -> u64 {
        self.at_ns.saturating_sub(self.since_ns.max(sent_ns))
    }

    /// Returns the delay between the bytes' arrival and their read in nanoseconds, at most
    /// `u32::MAX` (about 4.3 seconds).
    pub fn lag_ns(&self) -> u32 {
        u32::try_from(self.user_ns.saturating_sub(self.at_ns)).unwrap_or(u32::MAX)
    }
}

/// Sample: times, tokens and outcome of one request.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Scheduled send time of the request, in nanoseconds of the monotonic clock.
    pub scheduled_ns: u64,
    /// Time that the request waited for the concurrency limit, in nanoseconds; `None` in a closed
    /// loop and where nothing limits concurrency.
    pub queue_ns: Option<u64>,
    /// Time at which the client took up the request, in nanoseconds; it then opens a connection if
    /// needed. `None` if the request was never taken up.
    pub taken_ns: Option<u64>,
    /// Time at which the first byte of the request was written, in nanoseconds; `None` if never.
    pub sent_ns: Option<u64>,
    /// Duration of the first write of the request in nanoseconds: its first byte was sent at most
    /// this long after `sent_ns`. Zero if nothing was written.
    pub send_ns: u64,
    /// Time at which the last byte of the request was written, in nanoseconds; `None` if never.
    pub written_ns: Option<u64>,
    /// Time to open the request's connection with its TLS handshake, in nanoseconds, before or
    /// after the clock started; `None` if it got no open connection.
    pub connect_ns: Option<u64>,
    /// Time that the TLS handshake took within the request's own time (zero on a connection opened
    /// before), in nanoseconds; `None` without TLS.
    pub tls_ns: Option<u64>,
    /// Arrival time of the stream's first chunk, possibly without a token, in nanoseconds; `None`
    /// if none arrived.
    pub first_event_ns: Option<u64>,
    /// Arrival time of the first chunk with answer text, after any reasoning, in nanoseconds;
    /// `None` if none arrived.
    pub first_content_ns: Option<u64>,
    /// Time at which the first chunk with a token was parsed, in nanoseconds; `None` if none
    /// arrived.
    pub parsed_ns: Option<u64>,
    /// Chunks of the answer with at least one token, in order of arrival. An embedding is one chunk
    /// without tokens, which arrived with the end of the answer.
    pub chunks: Vec<ChunkStamp>,
    /// Arrival times of chunks whose text is empty and that show no number of tokens, in
    /// nanoseconds. They may hold a token without text, such as one that ends the answer; vLLM's
    /// tool counts them as chunks.
    pub empty_ns: Vec<u64>,
    /// Time at which the request ended, in nanoseconds: arrival of the last bytes of its response,
    /// or the time at which it failed or was given up.
    pub end_ns: u64,
    /// Time from the end of the request until the client had handled it, in nanoseconds: its
    /// connection was idle, and nobody waited for the server.
    pub idle_ns: u64,
    /// Output token ids of the answer; empty where the engine sends none.
    pub ids: Vec<u32>,
    /// Text of the answer, with reasoning text and tool calls, in the order of arrival.
    pub text: String,
    /// True when the answer has a tool call, whose text lacks the tokens that the model writes around
    /// name and arguments.
    pub has_tool_call: bool,
    /// Last token usage that the server reported for the request; `None` if it reported none.
    pub usage: Option<Usage>,
    /// True when the server reported usage in every chunk with a token.
    pub usage_per_chunk: bool,
    /// Finish reason of the answer, in the server's words; `None` if it gave none.
    pub finish_reason: Option<String>,
    /// Failure of the request; `None` where it was answered completely.
    pub failure: Option<RequestFailure>,
}

/// Time stamp and size of a chunk with at least one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkStamp {
    /// Arrival of the chunk in nanoseconds, by the kernel's time stamp where it is known.
    pub at_ns: u64,
    /// Delay between the arrival and this program's read of the chunk, in nanoseconds.
    pub lag_ns: u32,
    /// Error bound in nanoseconds: the chunk may have arrived earlier than `at_ns` by at most this.
    /// Zero for the last chunk of a read that the kernel stamped.
    pub early_ns: u64,
    /// Number of tokens in the chunk, by its ids or the running usage; `None` where neither is
    /// sent.
    pub tokens: Option<u32>,
    /// Length of the chunk's text, in UTF-8 bytes.
    pub text_bytes: u32,
}

/// Parts of a request's TTFT from the scheduled send, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TtftParts {
    /// Time that the request waited for the concurrency limit, in nanoseconds.
    pub queue_ns: u64,
    /// Delay of the client in taking up the request, without the wait for the concurrency limit, in
    /// nanoseconds.
    pub schedule_lag_ns: u64,
    /// Time from taking up the request to sending its first byte, without the TLS handshake, in
    /// nanoseconds: mostly the time to open a connection, if the request needed a new one.
    pub connect_ns: u64,
    /// Time that the TLS handshake took of the TTFT, in nanoseconds; `None` without TLS.
    pub tls_ns: Option<u64>,
    /// Time from sending the first to sending the last byte of the request, in nanoseconds.
    pub send_ns: u64,
    /// Time from the request's last byte sent to the first token's arrival, which server and
    /// network took, in nanoseconds.
    pub server_ns: u64,
    /// Time from the arrival of the first token until it was read and parsed, in nanoseconds.
    pub parse_ns: u64,
}

/// Failure of one request: its class and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFailure {
    /// Class of the request's failure.
    pub kind: FailureKind,
    /// Message of the request's failure.
    pub message: String,
}

/// Class of a request's failure, by which failed requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// No connection could be opened to send the request.
    Connect,
    /// The connection of the request broke with an error of the system or of TLS.
    Reset,
    /// The connection ended without an error, before the answer was complete.
    Closed,
    /// The response to the request has a status other than 200, which is given.
    Http(u16),
    /// The response has status 200, and its stream or JSON body reports an error.
    ErrorEvent,
    /// The answer is complete but contains no token.
    NoTokens,
    /// The response to the request is not valid HTTP.
    BadHttp,
    /// The response's body is not a stream of events, or one of its events is too long or not of
    /// the API format; or a document that must have an embedding has none.
    BadEvent,
    /// The answer goes on beyond what the request asks for, in tokens or in bytes, or claims counts
    /// that no answer has.
    TooLong,
    /// No request made progress for longer than the limit, so those in flight were given up.
    Stall,
    /// The run was stopped while the request was in flight.
    Interrupted,
    /// The run was given up before the request was sent.
    NotSent,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Http(status) => return write!(formatter, "http-{status}"),
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::ErrorEvent => "error-event",
            Self::NoTokens => "no-tokens",
            Self::BadHttp => "bad-http",
            Self::BadEvent => "bad-event",
            Self::TooLong => "too-long",
            Self::Stall => "stall",
            Self::Interrupted => "interrupted",
            Self::NotSent => "not-sent",
        })
    }
}

impl Sample {
    /// Records the request's failure, unless there is one already: the first failure is the cause.
    /// A long message, which may be the server's, is cut after its beginning.
    pub fn fail(&mut self, kind: FailureKind, message: impl Into<String>) {
        self.failure.get_or_insert_with(|| {
            let mut message: String = message.into();
            if let Some((end, _)) = message.char_indices().nth(MESSAGE_MAX) {
                message.truncate(end);
                message.push('…');
            }
            RequestFailure { kind, message }
        });
    }

    /// Returns the delay that the client itself caused, in nanoseconds: from the scheduled send,
    /// without the wait for the concurrency limit, until the client took up the request. `None` if
    /// it was never taken up.
    pub fn schedule_lag_ns(&self) -> Option<u64> {
        let waited_ns = self.taken_ns.or(self.sent_ns)?.saturating_sub(self.scheduled_ns);
        Some(waited_ns.saturating_sub(self.queue_ns.unwrap_or(0)))
    }

    /// Returns the parts of the time from the scheduled send to the first parsed token (TTFT),
    /// which add up to the whole, or `None` without a token.
    pub fn ttft_parts(&self) -> Option<TtftParts> {
        let (sent, (first, _)) = (self.sent_ns?, self.span()?);
        // Clamped, so that no part is negative and all parts add up to the whole.
        let taken = self.taken_ns.unwrap_or(sent).clamp(self.scheduled_ns, sent);
        // A server may begin its answer before it has the whole request.
        let written = self.written_ns.unwrap_or(sent).clamp(sent, first.at_ns.max(sent));
        let waited = taken - self.scheduled_ns;
        let queue_ns = self.queue_ns.unwrap_or(0).min(waited);
        let arrived = first.at_ns.max(written);
        let tls_ns = self.tls_ns.map(|tls_ns| tls_ns.min(sent - taken));
        Some(TtftParts {
            queue_ns,
            schedule_lag_ns: waited - queue_ns,
            connect_ns: sent - taken - tls_ns.unwrap_or(0),
            tls_ns,
            send_ns: written - sent,
            server_ns: arrived - written,
            parse_ns: self.parsed_ns.unwrap_or(arrived).saturating_sub(arrived),
        })
    }

    /// Returns the delay of sending that the client itself caused, in nanoseconds: its delay in
    /// taking up the request, and the duration of the first write.
    pub fn send_lag_ns(&self) -> u64 {
        self.schedule_lag_ns().unwrap_or(0) + self.send_ns
    }

    /// Frees unused capacity of the sample's lists, since many samples are held at one time.
    pub(super) fn shrink(&mut self) {
        self.chunks.shrink_to_fit();
        self.ids.shrink_to_fit();
        self.text.shrink_to_fit();
    }

    /// True when the run ended before the request did, or before it was sent.
    pub fn is_given_up(&self) -> bool {
        let kind = self.failure.as_ref().map(|failure| failure.kind);
        matches!(kind, Some(FailureKind::Interrupted | FailureKind::NotSent))
    }

    /// True when the request did not fail, which means that it was answered completely.
    pub fn is_ok(&self) -> bool {
        self.failure.is_none()
    }

    /// Returns the first and the last chunk of the answer with a token; `None` without a token.
    pub fn span(&self) -> Option<(ChunkStamp, ChunkStamp)> {
        self.chunks.first().copied().zip(self.chunks.last().copied())
    }
}
