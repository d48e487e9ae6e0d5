//! `samples.v1`: per-request samples of a run on disk, one JSON document per line, written during
//! the run.
//!
//! The first line describes the run, each request adds a line when it ends, and the last line says
//! how the run ended. A file without that last line comes from an interrupted run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::Status;

/// Schema name of a samples file.
pub const SCHEMA: &str = "samples.v1";

/// Line of a samples file: its head, the sample of one request, or its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// Head: the first line of a samples file, which describes the run.
    Head(Head),
    /// Sample: a line of a samples file with the times of one request.
    Sample(Box<Sample>),
    /// End: the last line of a samples file, which is missing after an interruption.
    End(End),
}

/// Head of a samples file: the run that the samples belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Head {
    /// Name of this schema, always `samples.v1`.
    pub schema: String,
    /// Scenario of the run, as `id@rev`.
    pub scenario: String,
    /// SHA-256 of the workload manifest, lower-case hex; null where it is not known.
    pub manifest_sha256: Option<String>,
    /// Start of the run, RFC 3339 in UTC; null where it is not known.
    pub started_at: Option<String>,
    /// Zero of the samples' times: a moment shortly before the run, in nanoseconds of the machine's
    /// monotonic clock, so that times from other programs on the same machine can be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_ns: Option<u64>,
    /// Number of requests in the manifest.
    pub requests: u64,
}

/// Sample: the times of one request. Durations and times are nanoseconds on the monotonic clock;
/// fields that end in `_at_ns` count from one moment shortly before the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Index of the request in the manifest, from 0.
    pub request: u64,
    /// Scheduled send time of the request, in nanoseconds since the file's `origin_ns`.
    pub scheduled_at_ns: u64,
    /// Time that the request waited for the concurrency limit, in nanoseconds; left out
    /// in a closed loop and without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ns: Option<u64>,
    /// Time at which the client took up the request, in nanoseconds since the file's `origin_ns`;
    /// null where it never did.
    pub taken_at_ns: Option<u64>,
    /// Time at which the first byte of the request was written, in nanoseconds since the file's
    /// `origin_ns`; null where it never was.
    pub sent_at_ns: Option<u64>,
    /// Time at which the last byte of the request was written, in nanoseconds since the file's
    /// `origin_ns`; null where it never was.
    pub written_at_ns: Option<u64>,
    /// Time to open the request's connection, with its TLS handshake, in nanoseconds, also where
    /// that was before the request; null without an open connection.
    pub connect_ns: Option<u64>,
    /// Part of the TLS handshake that the request had to wait for, in nanoseconds; left out without
    /// TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_ns: Option<u64>,
    /// Arrival of the first event of the answer stream, of any kind, in nanoseconds since the
    /// file's `origin_ns`; null where none arrived.
    pub first_event_at_ns: Option<u64>,
    /// Arrival of the first chunk with text of the answer itself, after any reasoning, in
    /// nanoseconds since the file's `origin_ns`; null where none arrived.
    pub first_content_at_ns: Option<u64>,
    /// Time at which the client had parsed the first token, in nanoseconds since the file's
    /// `origin_ns`; null where none arrived.
    pub parsed_at_ns: Option<u64>,
    /// Time at which the request ended, answered or failed, in nanoseconds since the file's
    /// `origin_ns`.
    pub end_at_ns: u64,
    /// Arrival of the first chunk with a token, by the kernel's time stamp where it is known, in
    /// nanoseconds since the file's `origin_ns`; null where none arrived.
    pub first_chunk_at_ns: Option<u64>,
    /// Gap from each chunk with tokens to the next one, in nanoseconds.
    pub gaps_ns: Vec<u64>,
    /// Delay between the arrival of each chunk with tokens and the client's read of it, in
    /// nanoseconds.
    pub lags_ns: Vec<u32>,
    /// Number of tokens in each chunk with tokens; null where neither token ids nor running usage
    /// tell it.
    pub chunk_tokens: Vec<Option<u32>>,
    /// Arrival of each chunk whose text is empty and that shows no number of tokens, in nanoseconds
    /// since the file's `origin_ns`; it may hold a token without text. Left out where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub empty_chunks_at_ns: Vec<u64>,
    /// Number of prompt tokens of the request, as the server reports; null where it does not.
    pub prompt_tokens: Option<u64>,
    /// Number of output tokens of the answer, as the server reports; null where it does not.
    pub completion_tokens: Option<u64>,
    /// Number of prompt tokens that the server found in its prefix cache, as it reports; null where
    /// it does not.
    pub cached_tokens: Option<u64>,
    /// Finish reason of the answer, in the server's words; null where it gave none.
    pub finish_reason: Option<String>,
    /// Text of the answer, with reasoning text and tool calls; left out unless a flag asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Failure of the request; left out where the answer is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// Failure of one request: its class and its message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Class of the failure, as in `counts.failures` of a record.
    pub kind: String,
    /// Message of the request's failure, for people to read.
    pub message: String,
}

/// End of a samples file: outcome of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct End {
    /// Status of the run; `partial` where it was interrupted.
    pub status: Status,
    /// Number of samples in the file.
    pub samples: u64,
    /// Number of failed requests by class of failure.
    pub failures: BTreeMap<String, u64>,
}
