//! `run.v1`: one server launch, one scenario, one repeat. The file of a run.
//!
//! Every field that a run may fail to know is an `Option`, and a `null` in the file has a reason
//! under `absent` (dotted paths; a path covers everything below it). Zero is never "unknown".

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::absent::{Absent, OPTIONAL, unexplained_nulls};
pub use crate::figures::{Histograms, Metrics, Slice, Stalls, Summary, TtftParts};
use crate::scenario::{Arrival, CacheProtocol, Connections, Tier, Warmup};
pub use crate::setup::{
    Artifact, BuildFacts, ClientPlace, EngineFacts, Gpu, GpuState, HardwareFacts, ModelFacts,
    Parallel, Patch, Platform, ServerFacts,
};
pub use crate::telemetry::Telemetry;
use crate::verdict::Stage;

/// The schema name that a run record carries.
pub const SCHEMA: &str = "run.v1";

/// One run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// Always `run.v1`.
    pub schema: String,
    /// ULID, fixed when the campaign is planned, so that a resumed campaign writes the same path.
    pub id: String,
    /// SHA-256 over the canonical JSON of the record without this field.
    pub record_sha256: String,
    /// Where its numbers come from.
    pub kind: Kind,
    /// How it ended.
    pub status: Status,
    /// Whether its client may be believed.
    pub validity: Validity,
    /// Why it has no figures, or not all; null where nothing failed.
    pub failure: Option<Failure>,
    /// Its place among other runs; null for an import.
    pub campaign: Option<CampaignSlot>,
    /// When, and for how long.
    pub time: Option<Time>,
    /// The program under test.
    pub engine: EngineFacts,
    /// How that was launched.
    pub server: Option<ServerFacts>,
    /// What was served.
    pub model: ModelFacts,
    /// What was asked.
    pub scenario: ScenarioFacts,
    /// The machine.
    pub hardware: HardwareFacts,
    /// What asked.
    pub client: Option<ClientFacts>,
    /// The server's prefix cache.
    pub cache: Option<CacheFacts>,
    /// Requests and tokens.
    pub counts: Option<Counts>,
    /// Distributions of times.
    pub histograms: Option<Histograms>,
    /// Rates and percentiles.
    pub metrics: Option<Metrics>,
    /// The server's memory.
    pub memory: Option<Memory>,
    /// What server, machine and GPUs told while the clock ran.
    pub telemetry: Option<Telemetry>,
    /// Fixed probe runs before and after a block: evidence that the machine did not drift.
    pub calibration: Option<BTreeMap<String, Value>>,
    /// Whether the outputs were right.
    pub correctness: Option<Correctness>,
    /// Where an import was read; null for any other.
    pub source: Option<Source>,
    /// Files of the run that are kept elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<Artifact>>,
    /// Revision of the quality rules that produced `checks`.
    pub checks_rev: u32,
    /// Findings, in the order of the rules.
    pub checks: Vec<Check>,
    /// Why each null is one.
    pub absent: Absent,
}

/// Where a record's numbers come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// By this suite, on a machine that it saw.
    #[default]
    Measured,
    /// From a report of others.
    Imported,
    /// Made up.
    Simulated,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every planned request was answered.
    #[default]
    Ok,
    /// Some requests failed, or the run was cut short with samples in hand.
    Partial,
    /// No usable figures; `failure` says why.
    Failed,
    /// It was not launched.
    Skipped,
}

/// Whether the client may be believed: was it the bottleneck, did the identities hold? A reason
/// of the load generator begins with its id and a colon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Validity {
    /// The worst that a reason says.
    pub verdict: ValidityVerdict,
    /// Why it is not valid; empty where it is.
    pub reasons: Vec<String>,
}

/// May the figures be believed? The order is from yes to no.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ValidityVerdict {
    /// Yes.
    #[default]
    Valid,
    /// With care: the reasons say with which.
    Degraded,
    /// No.
    Invalid,
}

/// Why and where a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// What went wrong.
    pub class: FailureClass,
    /// When.
    pub phase: Phase,
    /// What was seen, without names of machine and user.
    pub message: String,
}

/// What went wrong, as far as it can be told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    /// Out of memory.
    Oom,
    /// The server ended by itself.
    Crash,
    /// It lived and made no progress.
    Hang,
    /// It took longer than it was given.
    Timeout,
    /// It answered something that is no answer.
    BadOutput,
    /// It said that it cannot do what was asked.
    Unsupported,
    /// The machine or its network failed it.
    Infrastructure,
    /// The scheduler wanted the node for another job, as often as it was tried.
    Preempted,
}

/// How far the run had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The program was made.
    Build,
    /// The server started, until it was ready.
    Load,
    /// Before the clock started.
    Warmup,
    /// While the clock ran.
    Measure,
}

/// The run's place in its campaign: pair `block`, `position` within it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CampaignSlot {
    /// ULID of the campaign.
    pub id: String,
    /// From 0; its runs are next to each other in time.
    pub block: u32,
    /// From 0, in the order of launches.
    pub position: u32,
    /// From 1.
    pub repeat: u32,
    /// What put it on its node: `local`, `slurm`.
    pub executor: String,
    /// `confirm` for a launch that confirms what a screen found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
}

/// Wall clock at the ends, durations on the monotonic clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Time {
    /// RFC 3339, UTC.
    pub started_at: Option<String>,
    /// RFC 3339, UTC.
    pub finished_at: Option<String>,
    /// First scheduled send to last token.
    pub wall_us: Option<u64>,
    /// The steady state: running requests at 90 % of their maximum or more; null under 10 s.
    pub window_us: Option<u64>,
    /// From the start to the steady state; null where there is none.
    pub ramp_us: Option<u64>,
    /// From its end to the last token; null where there is none.
    pub drain_us: Option<u64>,
}

/// What was asked and when.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScenarioFacts {
    /// Stem of the file under `suite/scenarios/`, or of a point of it.
    pub id: String,
    /// Revision of that file.
    pub rev: u32,
    /// How much it asks for.
    pub tier: Tier,
    /// Of that file.
    pub file_sha256: Option<String>,
    /// Of every request, as they were drawn.
    pub manifest_sha256: Option<String>,
    /// How prompts went over the wire.
    pub prompt_form: Option<PromptForm>,
    /// Of the file that they were drawn from.
    pub dataset_sha256: Option<String>,
    /// That they were drawn with.
    pub seed: Option<u64>,
    /// How many were drawn.
    pub requests: Option<u64>,
    /// When they were sent.
    pub arrival: Option<Arrival>,
    /// What was sent before.
    pub warmup: Option<Warmup>,
    /// Whether they were kept; left out where they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Connections>,
    /// What the prefix cache was to hold; left out where nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheProtocol>,
}

/// How prompts go over the wire. Runs are compared only within one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptForm {
    /// As ids.
    TokenIds,
    /// As text, which the server tokenizes.
    Text,
}

/// Evidence that the client did not set the number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientFacts {
    /// The program.
    pub name: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// What it was built from.
    pub commit: Option<String>,
    /// Share of one core that the client's loop used, 95th percentile over 100 ms slices.
    pub cpu_share_p95: Option<f64>,
    /// By how much its loop came late to what was due.
    pub loop_lag_us_p99: Option<u64>,
    /// Whether times of arrival are the kernel's; else they are its own.
    pub kernel_timestamps: Option<bool>,
    /// From the kernel's stamp to the client's having the bytes.
    pub kernel_to_user_us_p99: Option<u64>,
    /// Share of reads that brought more than one event.
    pub coalesced_read_share: Option<f64>,
    /// Share of reads that brought more than one event when the client came late to them, so that
    /// the kernel's stamp of the last stands for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_read_share: Option<f64>,
    /// From the scheduled send to its taking the request up, less waits for a cap.
    pub schedule_lag_us_p99: Option<u64>,
    /// Most answers under way at one time.
    pub streams_max: Option<u64>,
    /// Where it sat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ClientPlace>,
    /// How the connections are secured, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFacts>,
}

/// TLS as client and server agreed on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TlsFacts {
    /// `TLSv1_3`, `TLSv1_2`.
    pub version: String,
    /// As IANA names the suite.
    pub cipher: String,
    /// The server's certificate was checked; false where the user asked for that.
    pub certificate_checked: bool,
}

/// State of the server's prefix cache, and what it did during the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheFacts {
    /// What it held of the measured prompts.
    pub state: CacheState,
    /// Whether it was emptied before the run.
    pub emptied: Option<bool>,
    /// Prompt tokens that were looked up during the run, as the server counts them.
    pub query_tokens: Option<u64>,
    /// Those of them that it held.
    pub hit_tokens: Option<u64>,
    /// Hits that the manifest's own repeated prefixes predict, and what was primed.
    pub expected_hit_tokens: Option<u64>,
    /// Tokens of the measured prompts that were sent ahead, where the scenario asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primed_tokens: Option<u64>,
}

/// What the prefix cache held of the measured prompts when the clock started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// Nothing.
    Cold,
    /// The beginning of each.
    Primed,
    /// Nobody looked, or the server does not tell.
    #[default]
    Unknown,
}

/// Requests, and the tokens of those that were answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// In the manifest.
    pub requests_planned: Option<u64>,
    /// Answered in full.
    pub requests_ok: Option<u64>,
    /// Not answered, or not in full.
    pub requests_failed: Option<u64>,
    /// Class of failure to number of requests.
    pub failures: Option<BTreeMap<String, u64>>,
    /// Reason in the server's words to number of answers.
    pub finish_reasons: Option<BTreeMap<String, u64>>,
    /// Of the prompts.
    pub input_tokens: Option<u64>,
    /// As `max_tokens` asks.
    pub output_tokens_requested: Option<u64>,
    /// As the server's usage has it.
    pub output_tokens_reported: Option<u64>,
    /// As our own tokenizer makes of the text.
    pub output_tokens_retokenized: Option<u64>,
    /// Chunks that carried a token.
    pub output_chunks: Option<u64>,
    /// Which of these is credited, the least trusted of all answers.
    pub token_source: Option<TokenSource>,
    /// Where the number of tokens in each chunk comes from, the least trusted of all answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_token_source: Option<TokenSource>,
}

/// Where the credited number of output tokens comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSource {
    /// The server's usage at the end.
    Usage,
    /// The server's running usage.
    UsagePerChunk,
    /// Our own tokenizer.
    Retokenized,
    /// One for each chunk.
    Chunks,
    /// What was asked for.
    Requested,
}

/// The most memory that the server held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// Resident, of its process.
    pub rss_bytes_max: Option<u64>,
    /// On all GPUs together, by whomever.
    pub gpu_bytes_max: Option<u64>,
}

/// A check that the outputs were right: greedy tokens over fixed prompts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Correctness {
    /// Fixed prompts that were asked.
    pub prompts: Option<u64>,
    /// SHA-256 over all output ids; equal within one binary, instruction set and type.
    pub tokens_sha256: Option<String>,
    /// Whose ids they are; `None` in records from before it was told, whose ids the engine gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids_source: Option<IdsSource>,
    /// What the agreement is measured against.
    pub reference: Option<String>,
    /// Share of output tokens equal to the reference's.
    pub agreement: Option<f64>,
}

/// Whose the output ids of a digest are. Digests of different sources are never equal by right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IdsSource {
    /// The engine's.
    Given,
    /// Those that the text of the answers makes in our own tokenizer: other ids of the same text
    /// are not seen.
    Retokenized,
}

/// Key of [`Source::definitions`] that says what a mean TPOT averages over: `request` or `token`.
pub const TPOT_WEIGHT: &str = "tpot_weight";

/// Where an imported record was read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// What wrote the report.
    pub tool: String,
    /// Its version, where the report says it.
    pub tool_version: Option<String>,
    /// Name of the file, without folders.
    pub file: String,
    /// From 1.
    pub line_first: u64,
    /// The last line that was read for it.
    pub line_last: u64,
    /// Of the file.
    pub sha256: String,
    /// The tool's definitions: what `n` is, whether TPOT contains TTFT, which percentile rule.
    pub definitions: BTreeMap<String, Value>,
}

/// The finding of one quality rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Stable id such as `E06`.
    pub rule: String,
    /// How much it weighs.
    pub level: Level,
    /// The rule holds.
    pub ok: bool,
    /// What was seen where it does not.
    pub detail: Option<String>,
}

/// How much a finding weighs: an error makes figures wrong, a warning asks for care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The figures must not be taken as they stand.
    Error,
    /// A reader has to know.
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
