//! Samples on disk: one file a run, one JSON document a line, written while the run goes on.
//!
//! The first line says what the run is, then comes a line for each request as it ends, and the
//! last says how the run ended. A file without its last line is of a run that was cut short.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::Status;

/// The schema name of a file of samples.
pub const SCHEMA: &str = "samples.v1";

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The first.
    Head(Head),
    /// One for each request.
    Sample(Box<Sample>),
    /// The last, unless the run was cut off.
    End(End),
}

/// What the run is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Head {
    /// Always `samples.v1`.
    pub schema: String,
    /// `id@rev`.
    pub scenario: String,
    /// Of every request, as they were drawn.
    pub manifest_sha256: Option<String>,
    /// RFC 3339, UTC.
    pub started_at: Option<String>,
    /// The zero of the samples' times, on the machine's monotonic clock: what another program of
    /// the machine noted is joined with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_ns: Option<u64>,
    /// In the manifest.
    pub requests: u64,
}

/// One request. Times are nanoseconds on the monotonic clock; those that end in `_at_ns` count
/// from one moment shortly before the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Its position in the manifest.
    pub request: u64,
    /// When it was to be sent.
    pub scheduled_at_ns: u64,
    /// Behind the cap on concurrency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ns: Option<u64>,
    /// When the client took it up.
    pub taken_at_ns: Option<u64>,
    /// First byte written, and last.
    pub sent_at_ns: Option<u64>,
    /// See `sent_at_ns`.
    pub written_at_ns: Option<u64>,
    /// How long its connection took to open.
    pub connect_ns: Option<u64>,
    /// Part of this request's time that the handshake of TLS took; left out without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_ns: Option<u64>,
    /// First event of any kind, and first chunk of the answer after any reasoning.
    pub first_event_at_ns: Option<u64>,
    /// See `first_event_at_ns`.
    pub first_content_at_ns: Option<u64>,
    /// When the first token was parsed.
    pub parsed_at_ns: Option<u64>,
    /// End of the stream.
    pub end_at_ns: u64,
    /// When the first chunk with a token arrived, by the kernel's clock where that is known.
    pub first_chunk_at_ns: Option<u64>,
    /// From each such chunk to the next.
    pub gaps_ns: Vec<u64>,
    /// How much later than it arrived the client had each chunk.
    pub lags_ns: Vec<u32>,
    /// Tokens of each chunk, where ids or usage tell.
    pub chunk_tokens: Vec<Option<u32>>,
    /// The server's own counts.
    pub prompt_tokens: Option<u64>,
    /// See `prompt_tokens`.
    pub completion_tokens: Option<u64>,
    /// Of the prompt's, those that the prefix cache had.
    pub cached_tokens: Option<u64>,
    /// Why the answer ended, in the server's words.
    pub finish_reason: Option<String>,
    /// Why there is no whole answer; null where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Class, as `counts.failures` of a record has it.
    pub kind: String,
    /// What was seen.
    pub message: String,
}

/// How the run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct End {
    /// `partial` where it was interrupted.
    pub status: Status,
    /// Samples above.
    pub samples: u64,
    /// Class of failure to number of requests.
    pub failures: BTreeMap<String, u64>,
}
