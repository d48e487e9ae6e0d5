//! Benchmark tools whose reports are read, and how each tool defines its figures.

use std::collections::BTreeMap;

use schema::run::{TPOT_WEIGHT, TokenSource};
use serde_json::Value;

/// A benchmark tool, recognized by the shape of its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// LMDeploy's benchmark script `benchmark/profile_restful_api.py`.
    Lmdeploy,
    /// SGLang's benchmark script `bench_serving`.
    Sglang,
    /// vLLM's command `vllm bench serve`.
    Vllm,
    /// guidellm, also as GPUStack prints its report.
    Guidellm,
    /// AIPerf, which writes a JSON report.
    Aiperf,
    /// llm-d, whose report format many tools' results are converted to.
    LlmD,
    /// Kubernetes' inference-perf: `summary_lifecycle_metrics.json` and those of stages.
    InferencePerf,
    /// Hugging Face's load generator inference-benchmarker.
    InferenceBenchmarker,
    /// TensorRT-LLM's command `trtllm-bench`.
    TrtllmBench,
    /// MLCommons' endpoints benchmark, which writes `result_summary.json`.
    Endpoints,
}

impl Tool {
    /// Returns the tool that prints console blocks with these labels.
    pub fn of_labels<'a>(labels: impl Iterator<Item = &'a str>) -> Self {
        let labels: Vec<&str> = labels.collect();
        let has = |label: &str| labels.contains(&label);
        if has("Mean Latency(s)") {
            Self::Guidellm
        } else if !has("Backend") {
            Self::Vllm
        } else if has("Concurrency") || has("Total token throughput (tok/s)") {
            Self::Sglang
        } else {
            Self::Lmdeploy
        }
    }

    /// Name of the tool in records and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lmdeploy => "lmdeploy",
            Self::Sglang => "sglang",
            Self::Vllm => "vllm",
            Self::Guidellm => "guidellm",
            Self::Aiperf => "aiperf",
            Self::LlmD => "llm-d",
            Self::InferencePerf => "inference-perf",
            Self::InferenceBenchmarker => "inference-benchmarker",
            Self::TrtllmBench => "trtllm-bench",
            Self::Endpoints => "mlcommons-endpoints",
        }
    }

    /// Source of the tool's output token counts; `None` where its report does not show which
    /// source was used.
    pub fn token_source(self) -> Option<TokenSource> {
        match self {
            Self::Lmdeploy => Some(TokenSource::Requested),
            // Usage if the server reports it, else the requested length or the number of chunks.
            Self::Sglang | Self::Guidellm => None,
            // Usage or the tokenizer's count, as configured; for llm-d, whatever the tool behind
            // it counts.
            Self::Aiperf | Self::LlmD => None,
            // The tool's own tokenizer or usage, by a flag, or whatever its client or engine
            // counts.
            Self::InferencePerf | Self::InferenceBenchmarker => None,
            Self::TrtllmBench | Self::Endpoints => None,
            Self::Vllm => Some(TokenSource::Usage),
        }
    }

    /// True where inter-token latency has one sample per chunk. Otherwise it has one per token, or
    /// one mean per request, weighted by its tokens.
    pub fn gaps_are_chunks(self) -> bool {
        !matches!(self, Self::Guidellm | Self::InferencePerf)
    }

    /// Definitions of the tool's figures, stored in the record for comparisons.
    pub fn definitions(self) -> BTreeMap<String, Value> {
        let (itl, weight, percentiles) = match self {
            Self::Lmdeploy | Self::Sglang | Self::Vllm | Self::Aiperf => {
                ("chunk", "request", "linear")
            }
            Self::LlmD => ("unknown", "unknown", "unknown"),
            Self::InferencePerf => ("token", "request", "linear"),
            Self::InferenceBenchmarker => ("none", "request", "linear"),
            // Reports the sample at rank n * p, rounded down.
            Self::TrtllmBench => ("none", "request", "floor"),
            Self::Endpoints => ("none", "request", "histogram"),
            Self::Guidellm => ("request-mean", "token", "cdf"),
        };
        let tpot_includes_ttft = self == Self::Guidellm;
        BTreeMap::from([
            ("itl".to_owned(), itl.into()),
            (TPOT_WEIGHT.to_owned(), weight.into()),
            ("tpot_includes_ttft".to_owned(), tpot_includes_ttft.into()),
            ("percentiles".to_owned(), percentiles.into()),
        ])
    }
}
