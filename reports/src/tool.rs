//! Benchmark tools whose published reports are read, and how each tool defines its figures.

use std::collections::BTreeMap;

use schema::run::{TPOT_WEIGHT, TokenSource};
use serde_json::Value;

/// A benchmark tool, recognized by the form of its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// LMDeploy's benchmark script `benchmark/profile_restful_api.py`.
    Lmdeploy,
    /// SGLang's benchmark script `bench_serving`.
    Sglang,
    /// vLLM's command `vllm bench serve`.
    Vllm,
    /// guidellm, by its own JSON report or by the console block that GPUStack prints.
    Guidellm,
    /// AIPerf, NVIDIA's benchmark tool, which writes a JSON report.
    Aiperf,
    /// llm-d's report format, into which results of several benchmark tools are converted.
    LlmD,
    /// Kubernetes' inference-perf, whose reports are `summary_lifecycle_metrics.json` and one file
    /// per stage.
    InferencePerf,
    /// Hugging Face's load generator inference-benchmarker.
    InferenceBenchmarker,
    /// TensorRT-LLM's command `trtllm-bench`.
    TrtllmBench,
    /// MLCommons' endpoints benchmark, which writes `result_summary.json`.
    Endpoints,
    /// ModelScope's command `evalscope perf`, which writes `benchmark_summary.json` and
    /// `benchmark_percentile.json`.
    Evalscope,
    /// InferenceX, formerly InferenceMAX, by the result that its `utils/process_result.py` writes.
    InferenceX,
    /// A tool that writes PyTorch's benchmark format and is not vLLM.
    PytorchHud,
}

impl Tool {
    /// Returns the tool that prints console blocks with the given labels of figures.
    pub fn of_labels<'a>(labels: impl Iterator<Item = &'a str>) -> Self {
        let labels: Vec<&str> = labels.collect();
        let has = |label: &str| labels.contains(&label);
        if has("Mean Latency(s)") {
            Self::Guidellm
        } else if !has("Backend") {
            // vLLM's blocks do not name the backend.
            Self::Vllm
        } else if has("Concurrency") || has("Total token throughput (tok/s)") {
            Self::Sglang
        } else {
            Self::Lmdeploy
        }
    }

    /// Returns the tool's name in records, what its inter-token latency is a sample of, what weights
    /// its mean TPOT, and its definition of a percentile.
    fn words(self) -> [&'static str; 4] {
        match self {
            Self::Lmdeploy => ["lmdeploy", "chunk", "request", "linear"],
            Self::Sglang => ["sglang", "chunk", "request", "linear"],
            Self::Vllm => ["vllm", "chunk", "request", "linear"],
            Self::Guidellm => ["guidellm", "request-mean", "token", "cdf"],
            Self::Aiperf => ["aiperf", "chunk", "request", "linear"],
            Self::LlmD => ["llm-d", "unknown", "unknown", "unknown"],
            Self::InferencePerf => ["inference-perf", "token", "request", "linear"],
            Self::InferenceBenchmarker => ["inference-benchmarker", "none", "request", "linear"],
            // Its percentile is the sample at rank n * p, rounded down.
            Self::TrtllmBench => ["trtllm-bench", "none", "request", "floor"],
            Self::Endpoints => ["mlcommons-endpoints", "none", "request", "histogram"],
            // `calculate_percentiles` in evalscope 1.14.1, `perf/utils/db_util.py`: the sample at
            // rank n * p, rounded up.
            Self::Evalscope => ["evalscope", "chunk", "request", "nearest-rank"],
            // `calculate_metrics` in InferenceX's `utils/bench_serving/benchmark_serving.py`, a copy
            // of vLLM's script.
            Self::InferenceX => ["inferencex", "chunk", "request", "linear"],
            Self::PytorchHud => ["pytorch-hud", "unknown", "unknown", "unknown"],
        }
    }

    /// Returns the benchmark tool's name in records and messages.
    pub fn name(self) -> &'static str {
        self.words()[0]
    }

    /// Returns from where the tool takes its numbers of output tokens: the requested lengths, or
    /// the server's usage field. `None` where a report does not show which of several sources was
    /// used.
    pub fn token_source(self) -> Option<TokenSource> {
        match self {
            Self::Lmdeploy => Some(TokenSource::Requested),
            Self::Vllm => Some(TokenSource::Usage),
            // Usage if the server reports it, else the requested length, the number of chunks or the
            // count of a tokenizer, as configured, or whatever client or engine count.
            Self::Sglang
            | Self::Guidellm
            | Self::Aiperf
            | Self::LlmD
            | Self::InferencePerf
            | Self::InferenceBenchmarker
            | Self::TrtllmBench
            | Self::Endpoints
            | Self::Evalscope
            | Self::InferenceX
            | Self::PytorchHud => None,
        }
    }

    /// True where the tool's inter-token latencies are stored as gaps between chunks; false for
    /// tools whose inter-token latency has one sample per token, or one mean per request weighted
    /// by its tokens.
    pub fn gaps_are_chunks(self) -> bool {
        !matches!(self, Self::Guidellm | Self::InferencePerf)
    }

    /// Returns the definitions of the tool's figures, stored in the record for comparisons.
    pub fn definitions(self) -> BTreeMap<String, Value> {
        let [_, itl, weight, percentiles] = self.words();
        let mut definitions = BTreeMap::from([
            ("itl".to_owned(), itl.into()),
            (TPOT_WEIGHT.to_owned(), weight.into()),
            ("tpot_includes_ttft".to_owned(), (self == Self::Guidellm).into()),
            ("percentiles".to_owned(), percentiles.into()),
        ]);
        if self == Self::InferenceX {
            // The report prints throughput per GPU; the record has totals where it states how many
            // GPUs there were.
            definitions.insert("throughput".to_owned(), "per-gpu-times-gpus".into());
        }
        definitions
    }
}
