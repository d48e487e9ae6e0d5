//! `run.v1`: one server launch, one scenario, one repeat. The file of a run.
//!
//! Every field that a run may fail to know is an `Option`, and a `null` in the file has a reason
//! under `absent` (dotted paths; a path covers everything below it). Zero is never "unknown".

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::figures::{Histograms, Metrics, Slice, Stalls, Summary, TtftParts};
use crate::scenario::{Arrival, CacheProtocol, Connections, Tier, Warmup};
pub use crate::setup::{Artifact, BuildFacts, ClientPlace, GpuState, Parallel, Patch, Platform};
pub use crate::telemetry::Telemetry;
use crate::verdict::Stage;

/// The schema name that a run record carries.
pub const SCHEMA: &str = "run.v1";

/// Reasons for what a record does not know: dotted path to sentence.
pub type Absent = BTreeMap<String, String>;

/// One run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// Always `run.v1`.
    pub schema: String,
    /// ULID, fixed when the campaign is planned, so that a resumed campaign writes the same path.
    pub id: String,
    /// SHA-256 over the canonical JSON of the record without this field.
    pub record_sha256: String,
    pub kind: Kind,
    pub status: Status,
    pub validity: Validity,
    pub failure: Option<Failure>,
    pub campaign: Option<CampaignSlot>,
    pub time: Option<Time>,
    pub engine: EngineFacts,
    pub server: Option<ServerFacts>,
    pub model: ModelFacts,
    pub scenario: ScenarioFacts,
    pub hardware: HardwareFacts,
    pub client: Option<ClientFacts>,
    pub cache: Option<CacheFacts>,
    pub counts: Option<Counts>,
    pub histograms: Option<Histograms>,
    pub metrics: Option<Metrics>,
    pub memory: Option<Memory>,
    /// What server, machine and GPUs told while the clock ran.
    pub telemetry: Option<Telemetry>,
    /// Fixed probe runs before and after a block: evidence that the machine did not drift.
    pub calibration: Option<BTreeMap<String, Value>>,
    pub correctness: Option<Correctness>,
    pub source: Option<Source>,
    /// Files of the run that are kept elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<Artifact>>,
    /// Revision of the quality rules that produced `checks`.
    pub checks_rev: u32,
    pub checks: Vec<Check>,
    pub absent: Absent,
}

/// Where a record's numbers come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    #[default]
    Measured,
    Imported,
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
    Skipped,
}

/// Whether the client may be believed: was it the bottleneck, did the identities hold? A reason
/// of the load generator begins with its id and a colon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Validity {
    pub verdict: ValidityVerdict,
    pub reasons: Vec<String>,
}

/// May the figures be believed? The order is from yes to no.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ValidityVerdict {
    #[default]
    Valid,
    Degraded,
    Invalid,
}

/// Why and where a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    pub class: FailureClass,
    pub phase: Phase,
    pub message: String,
}

/// What went wrong, as far as it can be told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    Oom,
    Crash,
    Hang,
    Timeout,
    BadOutput,
    Unsupported,
    Infrastructure,
    /// The scheduler wanted the node for another job, as often as it was tried.
    Preempted,
}

/// How far the run had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Build,
    Load,
    Warmup,
    Measure,
}

/// The run's place in its campaign: pair `block`, `position` within it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CampaignSlot {
    pub id: String,
    pub block: u32,
    pub position: u32,
    pub repeat: u32,
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
    pub ramp_us: Option<u64>,
    pub drain_us: Option<u64>,
}

/// The program under test.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineFacts {
    pub name: String,
    /// Version as people write it, with `v`; ends in `-dev` for a working tree.
    pub release: String,
    pub commit: Option<String>,
    pub dirty: Option<bool>,
    pub binary_sha256: Option<String>,
    pub features: Option<Vec<String>>,
    pub toolchain: Option<String>,
    pub image_digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildFacts>,
}

/// The server launch; `config` is read from the running server, not from `argv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Arguments with paths and ports replaced by `{model}`, `{port}`: no path enters a record.
    pub argv: Option<Vec<String>>,
    pub env: Option<BTreeMap<String, String>>,
    /// Flag to resolved value.
    pub config: Option<BTreeMap<String, Value>>,
    pub config_sha256: Option<String>,
    pub variant: Option<String>,
    pub tp: Option<u32>,
    pub device: Option<String>,
    pub max_batch_size: Option<u64>,
    pub kv_bytes: Option<u64>,
    pub kv_dtype: Option<String>,
    pub prefix_cache: Option<bool>,
    /// Process start to ready.
    pub startup_us: Option<u64>,
    pub weights_load_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<Parallel>,
    /// Policy by which requests are chosen for a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_graphs: Option<bool>,
    /// Of the configuration that the same program has without flags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults_sha256: Option<String>,
}

/// The model that was served, by its files; what cannot be seen has a reason under `absent`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelFacts {
    pub id: String,
    /// Package and version, hub id, or `path`.
    pub source: Option<String>,
    pub revision: Option<String>,
    /// `real` or `random`.
    pub weights: Option<String>,
    pub weights_sha256: Option<String>,
    pub format: Option<String>,
    pub dtype: Option<String>,
    pub parameters: Option<u64>,
    pub tokenizer_sha256: Option<String>,
    /// Scheme of the weights: `q4_1`, `fp8-block`, `mxfp4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// Parameters that one token meets, in mixtures of experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_active: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template_sha256: Option<String>,
}

/// What was asked and when.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScenarioFacts {
    pub id: String,
    pub rev: u32,
    pub tier: Tier,
    pub file_sha256: Option<String>,
    pub manifest_sha256: Option<String>,
    pub prompt_form: Option<PromptForm>,
    pub dataset_sha256: Option<String>,
    pub seed: Option<u64>,
    pub requests: Option<u64>,
    pub arrival: Option<Arrival>,
    pub warmup: Option<Warmup>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Connections>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheProtocol>,
}

/// How prompts go over the wire. Runs are compared only within one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptForm {
    TokenIds,
    Text,
}

/// The machine that the server ran on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareFacts {
    /// `h200-141g`, or `cpu-<vendor>-<brand slug>-f<family>m<model>s<stepping>-<n>c`.
    pub id: String,
    /// True when an importer states the hardware and this program did not see it.
    pub claimed: bool,
    pub evidence: Option<String>,
    pub gpu: Option<Vec<Gpu>>,
    pub cpu_model: Option<String>,
    pub cpu_features: Option<Vec<String>>,
    pub cores: Option<u32>,
    pub ram_bytes: Option<u64>,
    pub kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// One GPU of it, as its driver tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    pub name: String,
    pub memory_bytes: Option<u64>,
    pub driver: Option<String>,
    pub vbios: Option<String>,
    pub power_limit_mw: Option<u64>,
    pub clocks_locked: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<GpuState>,
}

/// Evidence that the client did not set the number.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientFacts {
    pub name: Option<String>,
    pub version: Option<String>,
    pub commit: Option<String>,
    /// Share of one core that the client's loop used, 95th percentile over 100 ms slices.
    pub cpu_share_p95: Option<f64>,
    pub loop_lag_us_p99: Option<u64>,
    pub kernel_timestamps: Option<bool>,
    pub kernel_to_user_us_p99: Option<u64>,
    /// Share of reads that brought more than one event.
    pub coalesced_read_share: Option<f64>,
    /// Share of reads that brought more than one event when the client came late to them, so that
    /// the kernel's stamp of the last stands for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_read_share: Option<f64>,
    pub schedule_lag_us_p99: Option<u64>,
    pub streams_max: Option<u64>,
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
    pub cipher: String,
    /// The server's certificate was checked; false where the user asked for that.
    pub certificate_checked: bool,
}

/// State of the server's prefix cache, and what it did during the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheFacts {
    pub state: CacheState,
    pub emptied: Option<bool>,
    pub query_tokens: Option<u64>,
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
    Cold,
    Primed,
    #[default]
    Unknown,
}

/// Requests, and the tokens of those that were answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    pub requests_planned: Option<u64>,
    pub requests_ok: Option<u64>,
    pub requests_failed: Option<u64>,
    /// Class of failure to number of requests.
    pub failures: Option<BTreeMap<String, u64>>,
    pub finish_reasons: Option<BTreeMap<String, u64>>,
    pub input_tokens: Option<u64>,
    pub output_tokens_requested: Option<u64>,
    pub output_tokens_reported: Option<u64>,
    pub output_tokens_retokenized: Option<u64>,
    pub output_chunks: Option<u64>,
    pub token_source: Option<TokenSource>,
    /// Where the number of tokens in each chunk comes from, the least trusted of all answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_token_source: Option<TokenSource>,
}

/// Where the credited number of output tokens comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TokenSource {
    Usage,
    UsagePerChunk,
    Retokenized,
    Chunks,
    Requested,
}

/// The most memory that the server held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    pub rss_bytes_max: Option<u64>,
    pub gpu_bytes_max: Option<u64>,
}

/// A check that the outputs were right: greedy tokens over fixed prompts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Correctness {
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

/// Where an imported record was read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    pub tool: String,
    pub tool_version: Option<String>,
    pub file: String,
    pub line_first: u64,
    pub line_last: u64,
    pub sha256: String,
    /// The tool's definitions: what `n` is, whether TPOT contains TTFT, which percentile rule.
    pub definitions: BTreeMap<String, Value>,
}

/// The finding of one quality rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Stable id such as `E06`.
    pub rule: String,
    pub level: Level,
    pub ok: bool,
    pub detail: Option<String>,
}

/// How much a finding weighs: an error makes figures wrong, a warning asks for care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warning,
}

/// Fields that may be null or left out without a reason under `absent`.
pub const OPTIONAL: &[&str] = &[
    "failure",
    "source",
    "server.variant",
    "engine.image_digest",
    "model.revision",
    "hardware.evidence",
    "correctness.reference",
];

/// Dotted paths of a record's nulls that neither `absent` nor [`OPTIONAL`] explains, in order.
#[must_use]
pub fn unexplained_nulls(record: &Value) -> Vec<String> {
    let absent = record.get("absent").and_then(Value::as_object);
    let explained = |path: &str| {
        OPTIONAL.contains(&path) || absent.is_some_and(|reasons| reasons.contains_key(path))
    };
    let mut found = Vec::new();
    collect_nulls(record, &mut String::new(), &explained, &mut found);
    found
}

/// `path` is that of `value`, and is again afterwards.
fn collect_nulls(
    value: &Value,
    path: &mut String,
    explained: &dyn Fn(&str) -> bool,
    found: &mut Vec<String>,
) {
    if explained(path) || path == "checks" {
        return;
    }
    let length = path.len();
    let mut enter = |part: std::fmt::Arguments<'_>, below: &Value| {
        let dot = if length == 0 { "" } else { "." };
        // Writing to a string cannot fail.
        let _ = write!(path, "{dot}{part}");
        collect_nulls(below, path, explained, found);
        path.truncate(length);
    };
    match value {
        Value::Null => found.push(path.clone()),
        Value::Object(map) => {
            map.iter().for_each(|(key, below)| enter(format_args!("{key}"), below));
        }
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(index, below)| enter(format_args!("{index}"), below));
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(record: &RunRecord) -> Value {
        serde_json::to_value(record).expect("a record is JSON")
    }

    #[test]
    fn a_null_without_a_reason_is_named_by_its_path() {
        let mut record = RunRecord { schema: SCHEMA.into(), ..RunRecord::default() };
        record.counts = Some(Counts::default());
        let nulls = unexplained_nulls(&value(&record));
        assert!(nulls.contains(&"counts.requests_ok".to_owned()));
        assert!(nulls.contains(&"metrics".to_owned()));
        assert!(!nulls.contains(&"failure".to_owned()), "failure may be null without a reason");
    }

    #[test]
    fn a_reason_covers_everything_below_its_path() {
        let mut record = RunRecord { counts: Some(Counts::default()), ..RunRecord::default() };
        record.absent.insert("counts".into(), "the server never became ready".into());
        let nulls = unexplained_nulls(&value(&record));
        assert!(nulls.iter().all(|path| !path.starts_with("counts")));
    }

    #[test]
    fn a_reader_ignores_keys_it_does_not_know() {
        let mut json = value(&RunRecord::default());
        json["later"] = Value::from(1);
        json["time"] = serde_json::json!({"wall_us": 5, "later": true});
        let read: RunRecord = serde_json::from_value(json).expect("readable");
        assert_eq!(read.time.and_then(|time| time.wall_us), Some(5));
    }
}
