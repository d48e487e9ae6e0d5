//! `run.v1`: record of one run, which is one server start, one scenario and one repeat.
//!
//! A field that a run may not know is an `Option`: `null` in the file means not known. Zero never
//! means "unknown".

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::correctness::{Correctness, FixedOutput, IdsSource};
pub use crate::figures::{Histograms, Metrics, Slice, Stalls, Summary, TtftParts};
pub use crate::printed::{Printed, PrintedLink, PrintedNote, PrintedRow};
use crate::scenario::{Arrival, CacheProtocol, Connections, Tier, Warmup};
pub use crate::setup::{
    BuildFacts, ClientPlace, EngineFacts, Gpu, GpuState, HardwareFacts, ModelFacts, Parallel,
    Patch, Platform, ServerFacts,
};
pub use crate::telemetry::Telemetry;
use crate::verdict::Stage;

/// Schema name of a run record.
pub const SCHEMA: &str = "run.v1";

/// Record of one run: one scenario measured on one server, or one result of a published report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// Name of this schema, always `run.v1`.
    pub schema: String,
    /// Id of the run: a ULID, assigned when the campaign is planned, so that a resumed campaign
    /// writes the same path; for an imported record, a part of the report's hash, the revision of
    /// the reader and a number.
    pub id: String,
    /// SHA-256 of the record's canonical JSON without this field, lower-case hex.
    pub record_sha256: String,
    /// Origin of the figures: measured, imported or simulated.
    pub kind: Kind,
    /// Status of the run: ok, partial, failed or skipped.
    pub status: Status,
    /// Validity of the run's figures: a verdict with its reasons.
    pub validity: Validity,
    /// Failure that left the run without figures or with only a part of them; null where nothing
    /// failed.
    pub failure: Option<Failure>,
    /// Position of the run in its campaign (block, repeat and stage); null for an imported record.
    pub campaign: Option<CampaignSlot>,
    /// Start, end and durations of the run; null where they are not known.
    pub time: Option<Time>,
    /// Engine under test: release, commit and build.
    pub engine: EngineFacts,
    /// Facts about the server process, such as command line, environment and effective
    /// configuration; null in an imported record whose report states none.
    pub server: Option<ServerFacts>,
    /// Model that the server served.
    pub model: ModelFacts,
    /// Scenario that was measured and the requests drawn from it.
    pub scenario: ScenarioFacts,
    /// Machine that the server ran on.
    pub hardware: HardwareFacts,
    /// Facts about the load generator, such as version, CPU use and timing errors; null where the
    /// run ended before its clock started, and in an imported record.
    pub client: Option<ClientFacts>,
    /// State and hits of the server's prefix cache; null where the run ended before its clock
    /// started, and in an imported record.
    pub cache: Option<CacheFacts>,
    /// Numbers of requests and tokens in the run; null where it ended before its clock started.
    pub counts: Option<Counts>,
    /// Latency histograms: TTFT, TPOT, ITL, E2E, waits and delays; null where no request was
    /// answered or a time is longer than a histogram can hold, and in an imported record.
    pub histograms: Option<Histograms>,
    /// Metrics: throughput, goodput and latency percentiles; null where no request was answered.
    pub metrics: Option<Metrics>,
    /// Peak memory of the server during the run: of its process and on the GPUs; null in an
    /// imported record.
    pub memory: Option<Memory>,
    /// Telemetry of server, machine and GPUs during the run; null where the run ended before its
    /// clock started, in an imported record and in older records.
    pub telemetry: Option<Telemetry>,
    /// Machine calibration: rates of fixed short measurements of the CPU before and after the run's
    /// block, which show drift of the machine, by name such as `gflops_before`. Null where the
    /// machine was not calibrated, as on a GPU.
    pub calibration: Option<BTreeMap<String, Value>>,
    /// Check of the server's outputs: greedy tokens for fixed prompts; null where the check was
    /// switched off or could not be completed.
    pub correctness: Option<Correctness>,
    /// Report that an imported record was read from; null for other records.
    pub source: Option<Source>,
    /// Revision of the quality rules that produced `checks`.
    pub checks_rev: u32,
    /// Results of the quality rules that apply to the run, passed and failed, ordered by the id of
    /// the rule.
    pub checks: Vec<Check>,
    /// Reason for each null field, by its dotted path, in records of suites before v0.11; left out
    /// since.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
}

/// Origin of a record's figures: measured, imported or simulated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Measured: the figures were measured by this suite on a machine that it inspected.
    #[default]
    Measured,
    /// Imported: the figures are from a published report.
    Imported,
    /// Simulated: the figures are made up and no server was measured.
    Simulated,
}

/// Status of a run: how far its requests were answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Ok: every planned request of the run was answered.
    #[default]
    Ok,
    /// Partial: some requests of the run were answered and others failed, or the run was
    /// interrupted.
    Partial,
    /// Failed: the run has no usable figures; `failure` says why.
    Failed,
    /// Skipped: the run was not started.
    Skipped,
}

/// Validity of a run's figures: is the error of the measurement small enough, and do the identities
/// between figures hold? Reasons from the load generator begin with the reason's id and a colon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Validity {
    /// Headline verdict on the run: that of the worst of its release-blocking metrics; in records of
    /// suites before v0.11, that of the worst reason.
    pub verdict: ValidityVerdict,
    /// Reasons for the verdicts on the run's metrics, as sentences; for a VALID run, notes and
    /// reservations about metrics that block no release.
    pub reasons: Vec<String>,
    /// Verdict on each metric that the run measured, by the metric's name such as `ttft_us_p50`;
    /// left out in records of suites before v0.11 and where the run has no figures.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, ValidityVerdict>,
}

/// Verdict on the validity of a run's figures, ordered from best to worst.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ValidityVerdict {
    /// VALID: the figures may be used.
    #[default]
    Valid,
    /// DEGRADED: the figures may be used with the reservations in the reasons.
    Degraded,
    /// INVALID: the figures must not be used.
    Invalid,
}

/// Failure of a run: its class, phase and message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Class of the run's failure, such as out of memory.
    pub class: FailureClass,
    /// Phase of the run in which it failed.
    pub phase: Phase,
    /// Message of the failure, without names of machine and user; it may end with the last lines of
    /// the server's log.
    pub message: String,
}

/// Class of a run's failure, as far as it is visible from outside the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    /// Out of memory: the server, or the job that it ran in, exceeded its memory.
    Oom,
    /// Crash: the server process ended by itself, or refused or broke the connections of requests.
    Crash,
    /// Hang: the server process was alive and made no progress, was not ready in time, or did not
    /// finish its requests in time.
    Hang,
    /// Timeout: the job of the run took longer than its time limit, or the server answered that a
    /// request took too long (status 408 or 504).
    Timeout,
    /// Bad output: the server sent an error, a response without tokens, or data that cannot be
    /// parsed.
    BadOutput,
    /// Unsupported: the server refused a flag or a request as one that it does not support or
    /// allow.
    Unsupported,
    /// Infrastructure: the machine, its network, the job or the load generator failed, the server
    /// was overloaded (status 429 or 503), or it was of another version than the expected one.
    Infrastructure,
    /// Preempted: the scheduler took the node away for another job in every attempt.
    Preempted,
}

/// Phase of a run in which it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Build: the engine's program was being compiled or prepared when the run failed.
    Build,
    /// Load: the run failed before the server was ready, or before a server was started.
    Load,
    /// Warm-up: the run failed before the clock started, in warm-up or while the prefix cache was
    /// primed.
    Warmup,
    /// Measurement: the run failed while the clock ran.
    Measure,
}

/// Position of a run in its campaign: block, position within the block, repeat, executor and stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CampaignSlot {
    /// ULID of the campaign that the run belongs to.
    pub id: String,
    /// Number of the run's block within the campaign, from 0; a block has the runs of all variants
    /// in one repeat, next to each other in time.
    pub block: u32,
    /// Position of the run within its block, from 0, in the order in which servers are started.
    pub position: u32,
    /// Which repeat of its model and scenario the run is, counted from 1 within its stage or, in a
    /// lab, its round of the campaign.
    pub repeat: u32,
    /// Executor that put the run on its node: `local` or `slurm`.
    pub executor: String,
    /// Stage of the comparison: `confirm` for a run that confirms what the screen found; left out
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Number of runs that the run's server had served before, where runs of one model share a
    /// server; left out where each run starts its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_runs_before: Option<u32>,
}

/// Times of a run or of kernel benchmarks: wall-clock start and end, and durations on the monotonic
/// clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Time {
    /// Start of the run, RFC 3339 in UTC.
    pub started_at: Option<String>,
    /// End of the run, RFC 3339 in UTC.
    pub finished_at: Option<String>,
    /// Time from the first scheduled send to the last token of the answered requests, in
    /// microseconds; in a kernel record, the duration of the benchmarks.
    pub wall_us: Option<u64>,
    /// Duration of the steady state, in microseconds: from the first to the last moment at which
    /// the number of requests in flight is at least 90 % of its maximum. Null where that is shorter
    /// than 10 s.
    pub window_us: Option<u64>,
    /// Time from the first scheduled send to the steady state, in microseconds; null without a
    /// steady state.
    pub ramp_us: Option<u64>,
    /// Time from the end of the steady state to the last token of the run, in microseconds; null
    /// without a steady state.
    pub drain_us: Option<u64>,
}

/// Scenario of a run: what was requested and when.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScenarioFacts {
    /// Id of the scenario: stem of its file under `suite/scenarios/`, or the id of a point of a
    /// sweep that varies this scenario.
    pub id: String,
    /// Revision of the scenario file that the run measured.
    pub rev: u32,
    /// Tier of the scenario: full, a quarter, or reduced for machines without a GPU.
    pub tier: Tier,
    /// SHA-256 of the scenario file, lower-case hex.
    pub file_sha256: Option<String>,
    /// SHA-256 of the workload manifest, that is, of all drawn requests, lower-case hex.
    pub manifest_sha256: Option<String>,
    /// Form of the prompts on the wire: token ids or text.
    pub prompt_form: Option<PromptForm>,
    /// HTTP route that the requests were sent to, such as `/v1/completions`; left out in older
    /// records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// SHA-256 of the dataset file that requests were drawn from, lower-case hex; null where the
    /// sampler needs none or it is not known.
    pub dataset_sha256: Option<String>,
    /// Dataset that requests were drawn from: its id in the suite, or its name in a published
    /// report; left out where there is none, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Seed that the requests were drawn with.
    pub seed: Option<u64>,
    /// Number of requests that were drawn.
    pub requests: Option<u64>,
    /// Number of output tokens of each request, where all ask for the same number; left out where
    /// lengths differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// True when answers continue to the requested length, past an end-of-sequence token; left out
    /// in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Arrival process: when the requests were sent.
    pub arrival: Option<Arrival>,
    /// Settings of the warm-up before the clock started: how many requests were sent, with which
    /// prompts and how long answers.
    pub warmup: Option<Warmup>,
    /// Connections: kept open or one for each request; left out where they were kept open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Connections>,
    /// Intended content of the prefix cache when the clock started; left out for an empty one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheProtocol>,
}

/// Form of the prompts on the wire. Comparisons of two releases or engines pair only runs with the
/// same form.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PromptForm {
    /// Token ids: prompts are sent as token ids.
    TokenIds,
    /// Text: prompts are sent as text, which the server tokenizes.
    Text,
}

/// Load generator during a run: evidence that the client did not limit the figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientFacts {
    /// Name of the load generator that sent the run's requests.
    pub name: Option<String>,
    /// Version of the load generator that sent the run's requests.
    pub version: Option<String>,
    /// Share of one core that the client's loop used: 95th percentile of the shares in slices of
    /// 100 ms of the run.
    pub cpu_share_p95: Option<f64>,
    /// Time from the end of one poll of the client's loop for incoming data to the start of the
    /// next poll: 99th percentile over all polls, in microseconds.
    pub loop_lag_us_p99: Option<u64>,
    /// True when at least 99.9 % of the reads of tokens have the kernel's receive time stamp;
    /// otherwise, receive times are the client's own. Null without reads.
    pub kernel_timestamps: Option<bool>,
    /// Delay between the kernel's receive time stamp and the client's read: 99th percentile over
    /// the reads of tokens, in microseconds; null without kernel time stamps.
    pub kernel_to_user_us_p99: Option<u64>,
    /// Share of the client's reads of tokens that brought more than one chunk with tokens, from 0
    /// to 1.
    pub coalesced_read_share: Option<f64>,
    /// Share of the client's reads of tokens that brought more than one chunk with tokens and may
    /// have come more than 1 ms late, from 0 to 1. Such chunks share the kernel's time stamp of the
    /// last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_read_share: Option<f64>,
    /// Delay of the client in taking up a request after its scheduled send, without waits for the
    /// concurrency limit: 99th percentile over the requests, in microseconds.
    pub schedule_lag_us_p99: Option<u64>,
    /// Bound of the error that the client itself may have caused, for each metric by its name such
    /// as `ttft_us_p50`, in percent of the figure: the error is at most that much up or down. Left
    /// out in records of suites before v0.11 and where no request was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_pct: Option<BTreeMap<String, f64>>,
    /// Largest number of responses that were in flight at the same moment of the run.
    pub streams_max: Option<u64>,
    /// Connection of client and server: whether both ran on one machine, whether responses were
    /// streamed, and how many connections were in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ClientPlace>,
    /// TLS version and cipher of the connections; left out for plain connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFacts>,
}

/// TLS parameters that client and server agreed on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TlsFacts {
    /// TLS version that was agreed on: `TLSv1_3` or `TLSv1_2`.
    pub version: String,
    /// Cipher suite by its IANA name.
    pub cipher: String,
    /// True when the server's certificate was verified; false when the user disabled that.
    pub certificate_checked: bool,
}

/// Prefix cache of the server: its state when the clock started, and its hits during the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheFacts {
    /// State of the prefix cache for the measured prompts when the clock started.
    pub state: CacheState,
    /// True when the prefix cache was emptied before the run and nothing shows that pages were left
    /// in it.
    pub emptied: Option<bool>,
    /// Number of prompt tokens that the server looked up in its prefix cache during the run, as it
    /// reports; null where it does not.
    pub query_tokens: Option<u64>,
    /// Number of prompt tokens that the server found in its prefix cache during the run, as it
    /// reports; null where it does not.
    pub hit_tokens: Option<u64>,
    /// Largest number of prompt tokens that the server can find in its prefix cache during the run:
    /// prefixes that repeat within the manifest, tokens that were sent ahead, and on a chat route all
    /// tokens that the chat template adds. Null where the cache's page size is not known.
    pub expected_hit_tokens: Option<u64>,
    /// Number of prompt tokens that were sent ahead to fill the prefix cache; left out where the
    /// scenario does not prime it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primed_tokens: Option<u64>,
}

/// State of the prefix cache for the measured prompts when the clock started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// Cold: the prefix cache had none of the measured prompts, or the server has no prefix cache.
    Cold,
    /// Primed: the prefix cache had the beginning of each measured prompt, or entries that a reset
    /// left in it.
    Primed,
    /// Unknown: the prefix cache was left as it was, or could not be emptied.
    #[default]
    Unknown,
}

/// Numbers of requests, and of tokens in the answered ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Number of requests in the manifest.
    pub requests_planned: Option<u64>,
    /// Number of requests that were answered completely.
    pub requests_ok: Option<u64>,
    /// Number of requests that were answered partly or not at all.
    pub requests_failed: Option<u64>,
    /// Number of failed requests by class of failure, such as `http-500` or `closed`.
    pub failures: Option<BTreeMap<String, u64>>,
    /// Number of answers by finish reason, in the server's words; `none given` for answers without
    /// one.
    pub finish_reasons: Option<BTreeMap<String, u64>>,
    /// Number of prompt tokens of the answered requests, without those that a chat template adds;
    /// null where prompts were made without a tokenizer and the server does not count those of each
    /// request.
    pub input_tokens: Option<u64>,
    /// Source of the number of prompt tokens where prompts were made without a tokenizer; left out
    /// where the manifest has their lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_token_source: Option<TokenSource>,
    /// Number of output tokens that the answered requests asked for with `max_tokens`.
    pub output_tokens_requested: Option<u64>,
    /// Number of output tokens credited to the answers; `token_source` says by which count.
    pub output_tokens_reported: Option<u64>,
    /// Number of output tokens that the suite's own tokenizer counts in the answers' text; null
    /// where it cannot tokenize one of them, or one is a tool call, of which the text is only a part.
    pub output_tokens_retokenized: Option<u64>,
    /// Number of output tokens whose ids the server returned, in the answers to whose text these ids
    /// decode; ids that stand for no text are not counted. Left out where the server returns no ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_decoded: Option<u64>,
    /// Number of chunks with at least one token, over all answered requests of the run.
    pub output_chunks: Option<u64>,
    /// Source of the credited token count: the least trusted one of all answers.
    pub token_source: Option<TokenSource>,
    /// Source of the token count of each chunk: the least trusted one of all answers; null where
    /// the counts of an answer are only estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_token_source: Option<TokenSource>,
}

/// Source of a number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSource {
    /// Usage: the token count that the server reports at the end of the answer.
    Usage,
    /// Usage per chunk: the running token count that the server reports in its chunks, or the
    /// number of token ids in them.
    UsagePerChunk,
    /// Retokenized: the count of the suite's own tokenizer over the answer's text.
    Retokenized,
    /// Chunks: the number of chunks, counted as one token each.
    Chunks,
    /// Requested: the number of output tokens that the request asked for.
    Requested,
}

/// Peak memory of the server during a run: of its process and on the GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// Peak resident memory of the server process, in bytes; null for a server of several processes
    /// or in a container, and for one that the campaign did not start.
    pub rss_bytes_max: Option<u64>,
    /// Peak memory in use on the GPUs that worked, in bytes, by any process; null where no GPU
    /// worked or one does not report it.
    pub gpu_bytes_max: Option<u64>,
}

/// Key of [`Source::definitions`] that says what a mean TPOT averages over: `request` or `token`.
pub const TPOT_WEIGHT: &str = "tpot_weight";

/// Report that an imported record was read from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// Name of the tool that wrote the report.
    pub tool: String,
    /// Version of the tool, where the report states it.
    pub tool_version: Option<String>,
    /// File name of the report, without folders.
    pub file: String,
    /// First line of the report that was read for this record, from 1.
    pub line_first: u64,
    /// Last line of the report that was read for this record, from 1.
    pub line_last: u64,
    /// SHA-256 of the report file, lower-case hex.
    pub sha256: String,
    /// Definitions of the tool's figures by name, such as the weights of its mean TPOT, whether
    /// TPOT contains TTFT, and the rule for percentiles.
    pub definitions: BTreeMap<String, Value>,
    /// Revision of the reader that read the report, which is part of the record's id and path; left
    /// out by the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reader: Option<u32>,
    /// Facts that the report does not state and whoever imported it did, by name: `engine`, `release`,
    /// `model` or `scenario`. Left out where nobody stated any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stated: Option<BTreeMap<String, String>>,
    /// What the report prints about the result, word by word; left out by the first reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printed: Option<Printed>,
}

/// Result of one quality rule on a record: passed or failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Id of the rule, such as `E06`, which never changes.
    pub rule: String,
    /// Level of the rule: error or warning.
    pub level: Level,
    /// True when the record passes the rule.
    pub ok: bool,
    /// Observation that made the record fail the rule; null where it passed.
    pub detail: Option<String>,
}

/// Level of a quality rule: how serious it is when a record fails the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Error: the figures are wrong and must not be used as they are.
    Error,
    /// Warning: a reader must know of the failed rule to interpret the figures.
    Warning,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_ignores_keys_it_does_not_know() {
        let mut json = serde_json::to_value(RunRecord::default()).expect("JSON");
        json["later"] = Value::from(1);
        json["time"] = serde_json::json!({"wall_us": 5, "later": true});
        let read: RunRecord = serde_json::from_value(json).expect("readable");
        assert_eq!(read.time.and_then(|time| time.wall_us), Some(5));
    }
}
