//! `alternation.v1`: two servers that stand beside each other on one machine and answer a scenario's
//! requests in turns, in short slices, while the other one is frozen. One file is one start of both
//! servers; the starts of a campaign are an [`AlternatingComparison`] in its record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{CacheState, ScenarioFacts};
use crate::scenario::Arrival;
use crate::setup::EngineFacts;

/// Schema name of an alternation.
pub const SCHEMA: &str = "alternation.v1";

/// Variant of a comparison of two.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Baseline: what the candidate is compared with.
    Baseline,
    /// Candidate: what is judged.
    Candidate,
}

impl Side {
    /// Both variants, baseline first.
    pub const BOTH: [Self; 2] = [Self::Baseline, Self::Candidate];

    /// Returns the variant's name: `baseline` or `candidate`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Candidate => "candidate",
        }
    }

    /// Returns the other variant.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Baseline => Self::Candidate,
            Self::Candidate => Self::Baseline,
        }
    }
}

/// Result file of `redline-bench alternate`: the slices of one start of two servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Alternation {
    /// Name of this schema, always `alternation.v1`.
    pub schema: String,
    /// Scenario whose requests the slices consist of.
    pub scenario: ScenarioFacts,
    /// Seed of the order of the variants within pairs.
    pub seed: u64,
    /// Start of the first slice, as RFC 3339 in UTC; null where the clock has no usable date.
    pub started_at: Option<String>,
    /// Number of requests in a slice. A round of the scenario's requests whose number is no multiple
    /// of it leaves its last requests out.
    pub slice_requests: u64,
    /// State of both prefix caches at the start of a round of the scenario's requests: as the
    /// scenario asks, where both were emptied before each round, else `unknown`.
    pub prefix_cache: CacheState,
    /// Slices in the order of time. Two that follow each other are a pair: the same requests, first
    /// to one variant and then to the other.
    pub slices: Vec<Slice>,
    /// Percentiles over all requests that the baseline answered in the slices.
    pub baseline: Tail,
    /// Percentiles over all requests that the candidate answered in the slices.
    pub candidate: Tail,
    /// Comparison of the outputs of both variants.
    pub outputs: OutputsCompared,
}

impl Alternation {
    /// Returns the percentiles over all requests of one side.
    pub const fn tail(&self, side: Side) -> &Tail {
        match side {
            Side::Baseline => &self.baseline,
            Side::Candidate => &self.candidate,
        }
    }

    /// Returns the slices in which one side answered.
    pub fn slices_of(&self, side: Side) -> impl DoubleEndedIterator<Item = &Slice> {
        self.slices.iter().filter(move |slice| slice.variant == side)
    }
}

/// Percentiles over all requests that one variant answered in one start; a slice has too few.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tail {
    /// 99th percentile of TTFT in microseconds; null where no request was answered.
    pub ttft_us_p99: Option<u64>,
    /// 99th percentile of TPOT in microseconds; null where no answer has two tokens.
    pub tpot_us_p99: Option<u64>,
}

/// Comparison of the outputs that both variants gave for the same requests. Only greedy outputs are
/// compared: sampled ones differ anyway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputsCompared {
    /// Number of requests that both variants answered and whose outputs were compared.
    pub compared: u64,
    /// Number of these whose outputs differ: token ids where both variants send them, else text.
    pub differ: u64,
}

impl OutputsCompared {
    /// Returns the sum of both comparisons.
    #[must_use]
    pub const fn with(self, more: Self) -> Self {
        Self { compared: self.compared + more.compared, differ: self.differ + more.differ }
    }
}

/// Slice of an alternation: some requests that one variant answers while the other is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// Number of the slice's pair, from 0.
    pub pair: u32,
    /// Variant that answered.
    pub variant: Side,
    /// Start of the slice in microseconds since the first slice began.
    pub start_us: u64,
    /// Length of the slice in microseconds, from the first send that was due to the last token.
    pub elapsed_us: u64,
    /// Number of requests of the slice that failed.
    pub requests_failed: u64,
    /// Number of output tokens of the answered requests.
    pub output_tokens: u64,
    /// Median TTFT of the slice's answered requests in microseconds; null where none was answered.
    pub ttft_us_p50: Option<u64>,
    /// Median TPOT of the slice's requests with at least two tokens, in microseconds; null where
    /// there is none.
    pub tpot_us_p50: Option<u64>,
    /// 99th percentile of the slice's ITL per token in microseconds; null where the number of tokens
    /// in a chunk is not known.
    pub itl_us_p99: Option<u64>,
    /// CPU time that the other, frozen variant used during the slice, in microseconds; null where
    /// the client does not freeze it.
    pub idle_cpu_us: Option<u64>,
    /// Time during the slice in which the hypervisor ran something else on a core of this machine
    /// that had work, summed over cores, in microseconds; null where the kernel does not report it.
    pub steal_us: Option<u64>,
    /// Memory bandwidth of all cores right before the slice, in megabytes (10^6) per second.
    pub memory_mb_per_s: u64,
    /// Dependent multiplications per microsecond right before the slice, mean over the cores:
    /// proportional to their clock.
    pub multiplications_per_us: f64,
}

impl Slice {
    /// Returns the output tokens per second of the slice; `None` where it has no length.
    #[expect(clippy::cast_precision_loss, reason = "a slice has few tokens and microseconds")]
    pub fn output_tokens_per_s(&self) -> Option<f64> {
        (self.elapsed_us > 0).then(|| self.output_tokens as f64 * 1e6 / self.elapsed_us as f64)
    }
}

/// Alternating comparison of two variants in one model and scenario: fresh starts of both servers,
/// in each of which they answer slices of the scenario's requests in turns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AlternatingComparison {
    /// Id of the model that both variants serve.
    pub model: String,
    /// Scenario of the slices, as `id@rev`.
    pub scenario: String,
    /// Arrival process of the scenario, which decides which metrics are release-blocking; null where
    /// it is not known.
    pub arrival: Option<Arrival>,
    /// Baseline: what the candidate is compared with.
    pub baseline: Contender,
    /// Candidate: what is judged.
    pub candidate: Contender,
    /// Number of equal parts of the error probability, of which each release-blocking metric of a
    /// scenario has one: the number of these metrics in all models and scenarios of the campaign,
    /// doubled where metrics are judged over all scenarios of a model too.
    pub family: u32,
    /// Time that the comparison may take, in microseconds.
    pub budget_us: u64,
    /// Fresh starts of both servers, in the order of time.
    pub starts: Vec<Start>,
}

impl AlternatingComparison {
    /// Returns the baseline or the candidate.
    pub const fn contender(&self, side: Side) -> &Contender {
        match side {
            Side::Baseline => &self.baseline,
            Side::Candidate => &self.candidate,
        }
    }

    /// Returns the baseline or the candidate, to be changed.
    pub const fn contender_mut(&mut self, side: Side) -> &mut Contender {
        match side {
            Side::Baseline => &mut self.baseline,
            Side::Candidate => &mut self.candidate,
        }
    }

    /// True where the time that the comparison may take is spent.
    pub fn is_spent(&self) -> bool {
        self.starts.last().is_some_and(|start| start.end_us >= self.budget_us)
    }
}

impl Start {
    /// Returns the server of one side.
    pub const fn server(&self, side: Side) -> &StartedServer {
        match side {
            Side::Baseline => &self.baseline,
            Side::Candidate => &self.candidate,
        }
    }
}

/// Variant of an alternating comparison.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contender {
    /// Engine of the variant, with its release and build.
    pub engine: EngineFacts,
    /// Name of the variant's configuration; null for the engine's default flags.
    pub variant: Option<String>,
    /// Command line of the server, without paths and ports; null where no server was started.
    pub argv: Option<Vec<String>>,
    /// How the idle server is frozen; null where it stays awake.
    pub frozen_by: Option<FrozenBy>,
}

/// Means by which an idle server is kept from using the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FrozenBy {
    /// Stop signal (`SIGSTOP`) to the server's process group.
    Signal,
    /// Freezer of the control group in which the server's container runs.
    Cgroup,
}

/// Fresh start of both servers of an alternating comparison.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Start {
    /// End of the start in microseconds since the comparison began, without interruptions.
    pub end_us: u64,
    /// Baseline's server in this start.
    pub baseline: StartedServer,
    /// Candidate's server in this start.
    pub candidate: StartedServer,
    /// Slices of the start; null where a server failed before it had answered any.
    pub alternation: Option<Alternation>,
}

/// Server in one start of an alternating comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartedServer {
    /// Time from process start to readiness, in microseconds; null where the server did not become
    /// ready.
    pub startup_us: Option<u64>,
    /// Peak resident memory of the server's process in bytes, at the end of the start; null where
    /// the system does not report it, or the server has several processes.
    pub rss_bytes_max: Option<u64>,
    /// What kept the server from answering; null where nothing did.
    pub failure: Option<String>,
}
