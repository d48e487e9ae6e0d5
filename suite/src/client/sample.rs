//! A sample: the times and counts of one request, and how it ended. A failed request is a sample
//! too. Times are nanoseconds of the monotonic clock; judging them is `measure`'s work.

use std::fmt;

use super::delta::Usage;

/// One request's times.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// When the schedule wanted it sent.
    pub scheduled_ns: u64,
    /// How long it then waited behind the cap on concurrency; none where there is no cap.
    pub queue_ns: Option<u64>,
    /// When the client took it up; what follows is opening a connection, where none is open.
    pub taken_ns: Option<u64>,
    /// When its first byte was written; none if it never was.
    pub sent_ns: Option<u64>,
    /// When its last byte was written.
    pub written_ns: Option<u64>,
    /// How long its connection took to open, before the clock started or after, with the
    /// handshake of TLS.
    pub connect_ns: Option<u64>,
    /// How much of its time went into that handshake; none without TLS.
    pub tls_ns: Option<u64>,
    /// When the first event of the stream came, such as a chunk with a role alone.
    pub first_event_ns: Option<u64>,
    /// When the first chunk of the answer itself came, after any reasoning.
    pub first_content_ns: Option<u64>,
    /// When the first chunk that carried a token was parsed.
    pub parsed_ns: Option<u64>,
    /// Every chunk that carried a token, in order.
    pub chunks: Vec<ChunkStamp>,
    /// When the stream ended, after trailing usage and the like.
    pub end_ns: u64,
    /// Output ids, where the engine gave them.
    pub ids: Vec<u32>,
    /// The answer, with any reasoning before it.
    pub text: String,
    /// The server's last count.
    pub usage: Option<Usage>,
    /// The server counted in every chunk that carried a token.
    pub usage_per_chunk: bool,
    /// Why the answer ended, in the server's words.
    pub finish_reason: Option<String>,
    /// Why there is no whole answer; none where there is one.
    pub failure: Option<RequestFailure>,
}

/// A chunk that carried at least one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkStamp {
    /// When it arrived, by the kernel's clock where that is known.
    pub at_ns: u64,
    /// How much later this program had it.
    pub lag_ns: u32,
    /// Tokens in it, where ids or usage tell.
    pub tokens: Option<u32>,
    /// Bytes of text in it, in UTF-8.
    pub text_bytes: u32,
}

/// What the time to the first token is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TtftParts {
    /// Behind the cap on concurrency.
    pub queue_ns: u64,
    /// From the scheduled send to the client's taking the request up, less the wait for the cap.
    pub schedule_lag_ns: u64,
    /// For a connection, where none was open; without the handshake of TLS.
    pub connect_ns: u64,
    /// For that handshake; none without TLS.
    pub tls_ns: Option<u64>,
    /// First byte of the request to its last.
    pub send_ns: u64,
    /// Server and network.
    pub server_ns: u64,
    /// From the first token's arrival to its being read and parsed.
    pub parse_ns: u64,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFailure {
    /// Its class.
    pub kind: FailureKind,
    /// What was seen, in words.
    pub message: String,
}

/// The classes that failures are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// No connection.
    Connect,
    /// The connection broke with an error.
    Reset,
    /// The connection ended in the middle of the answer.
    Closed,
    /// A status other than 200.
    Http(u16),
    /// An error inside a response of status 200.
    ErrorEvent,
    /// An answer without a single token.
    NoTokens,
    /// Bytes that are not HTTP.
    BadHttp,
    /// Events that are not JSON chunks.
    BadEvent,
    /// No event on any connection for longer than the limit.
    Stall,
    /// The run ended before its turn came.
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
            Self::Stall => "stall",
            Self::NotSent => "not-sent",
        })
    }
}

impl Sample {
    /// Records a failure unless an earlier one is known: the first is the cause.
    pub fn fail(&mut self, kind: FailureKind, message: impl Into<String>) {
        self.failure.get_or_insert_with(|| RequestFailure { kind, message: message.into() });
    }

    /// From when it was scheduled, and free of the cap on concurrency, to when it was taken up:
    /// what the client itself cost. None if it was not sent.
    #[must_use]
    pub fn schedule_lag_ns(&self) -> Option<u64> {
        let waited_ns = self.taken_ns.or(self.sent_ns)?.saturating_sub(self.scheduled_ns);
        Some(waited_ns.saturating_sub(self.queue_ns.unwrap_or(0)))
    }

    /// The time from the scheduled send to the first token in the client's hands, in parts that
    /// add up to it. None without a token.
    #[must_use]
    pub fn ttft_parts(&self) -> Option<TtftParts> {
        let (sent, (first, _)) = (self.sent_ns?, self.span()?);
        let taken = self.taken_ns.unwrap_or(sent).clamp(self.scheduled_ns, sent);
        // A server may begin its answer before it has the whole question.
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

    /// Gives back the room that was kept for more: many samples are held at one time.
    pub(super) fn shrink(&mut self) {
        self.chunks.shrink_to_fit();
        self.ids.shrink_to_fit();
        self.text.shrink_to_fit();
    }

    /// Whether the request was answered to its end.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.failure.is_none()
    }

    /// First and last chunk that carried a token.
    #[must_use]
    pub fn span(&self) -> Option<(ChunkStamp, ChunkStamp)> {
        self.chunks.first().copied().zip(self.chunks.last().copied())
    }
}
