//! The tools whose reports are read, and what each means by its figures.

use std::collections::BTreeMap;

use schema::run::{TPOT_WEIGHT, TokenSource};
use serde_json::Value;

/// A tool by the shape of its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// LMDeploy's `benchmark/profile_restful_api.py`.
    Lmdeploy,
    /// SGLang's `bench_serving`.
    Sglang,
    /// `vllm bench serve`.
    Vllm,
    /// guidellm's report, also as GPUStack prints it.
    Guidellm,
    /// AIPerf's JSON.
    Aiperf,
    /// llm-d's report, which many tools' results are turned into.
    LlmD,
    /// Kubernetes' inference-perf: `summary_lifecycle_metrics.json` and those of stages.
    InferencePerf,
    /// Hugging Face's inference-benchmarker.
    InferenceBenchmarker,
    /// TensorRT-LLM's `trtllm-bench`.
    TrtllmBench,
    /// MLCommons' endpoints: `result_summary.json`.
    Endpoints,
}

impl Tool {
    /// The tool that prints blocks with these labels.
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

    /// The word for it in records and messages.
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

    /// Where the tool's number of output tokens comes from; `None` where one report cannot tell.
    pub fn token_source(self) -> Option<TokenSource> {
        match self {
            Self::Lmdeploy => Some(TokenSource::Requested),
            // Usage if the server gives it, else what was requested or the number of chunks.
            Self::Sglang | Self::Guidellm => None,
            // Usage or the tokenizer's, as it was told; whatever the tool behind it has.
            Self::Aiperf | Self::LlmD => None,
            // Its own tokenizer's or usage, by a flag; or whatever its client or engine counts.
            Self::InferencePerf | Self::InferenceBenchmarker => None,
            Self::TrtllmBench | Self::Endpoints => None,
            Self::Vllm => Some(TokenSource::Usage),
        }
    }

    /// True where inter-token latency has one sample per chunk; else it has one per token, or one
    /// mean per request, weighted by its tokens.
    pub fn gaps_are_chunks(self) -> bool {
        !matches!(self, Self::Guidellm | Self::InferencePerf)
    }

    /// What the tool means by its figures, for whoever compares them.
    pub fn definitions(self) -> BTreeMap<String, Value> {
        let (itl, weight, percentiles) = match self {
            Self::Lmdeploy | Self::Sglang | Self::Vllm | Self::Aiperf => {
                ("chunk", "request", "linear")
            }
            Self::LlmD => ("unknown", "unknown", "unknown"),
            Self::InferencePerf => ("token", "request", "linear"),
            Self::InferenceBenchmarker => ("none", "request", "linear"),
            // The sample at rank n * p, rounded down.
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
