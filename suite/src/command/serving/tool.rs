//! The benchmark tools that can be replaced, and each tool's defaults. Knows no flag.

use clap::ValueEnum;
use schema::workload::Pack;

use crate::export::Format;

/// Benchmark tool whose flags, workload and report are reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    /// `vllm bench serve` 0.33, formerly `benchmark_serving.py`.
    Vllm,
    /// SGLang's `bench_serving` 0.5, the default for SGLang's backends.
    Sglang,
    /// SGLang's `bench_serving` of older versions, which bounded the lengths of conversations.
    SglangOld,
    /// LMDeploy's `profile_restful_api.py` v0.9.2, the tool of published pages.
    Lmdeploy,
}

/// Kind of server, by the names that the tools' `--backend` flag has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    Vllm,
    VllmChat,
    Openai,
    OpenaiChat,
    Sglang,
    SglangNative,
    SglangOai,
    SglangOaiChat,
    Lmdeploy,
    LmdeployChat,
}

/// Dataset, by the names that the tools' `--dataset-name` flag has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetName {
    Sharegpt,
    Random,
    Custom,
    #[value(name = "prefix_repetition")]
    PrefixRepetition,
    GeneratedSharedPrefix,
}

/// Defaults of a benchmark tool.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub backend: Backend,
    pub dataset: DatasetName,
    pub seed: u64,
    /// Default input and output lengths of `random`, in tokens; LMDeploy's tool has none.
    pub random_tokens: Option<(u64, u64)>,
    pub warmup_requests: u64,
    pub warmup_tokens_max: Option<u64>,
    pub ignore_eos: bool,
    /// Default sampling temperature; `None` sends none, so that the server's default applies.
    pub temperature: Option<f64>,
    pub sharegpt: Pack,
    pub random: Pack,
    /// Format of the tool's console block.
    pub block: Format,
    /// Format of the tool's result file, without and with the lists of all requests.
    pub result: Format,
    pub detailed: Format,
    /// True when the tool writes its result file without a flag, appending to an older one.
    pub always_appends: bool,
}

const VLLM: Habits = Habits {
    backend: Backend::Openai,
    dataset: DatasetName::Random,
    seed: 0,
    random_tokens: Some((1024, 128)),
    warmup_requests: 0,
    warmup_tokens_max: None,
    ignore_eos: false,
    temperature: None,
    sharegpt: Pack::SharegptVllm,
    random: Pack::RandomVllm,
    block: Format::Vllm,
    result: Format::VllmJson,
    detailed: Format::VllmJsonDetailed,
    always_appends: false,
};

const SGLANG: Habits = Habits {
    backend: Backend::Sglang,
    dataset: DatasetName::Sharegpt,
    seed: 1,
    random_tokens: Some((1024, 1024)),
    warmup_requests: 1,
    warmup_tokens_max: Some(32),
    ignore_eos: true,
    temperature: Some(0.0),
    sharegpt: Pack::SharegptSglang,
    random: Pack::RandomSglang,
    block: Format::Sglang,
    result: Format::SglangJsonl,
    detailed: Format::SglangJsonlDetailed,
    always_appends: true,
};

const SGLANG_OLD: Habits = Habits { sharegpt: Pack::SharegptSglangOld, ..SGLANG };

const LMDEPLOY: Habits = Habits {
    random_tokens: None,
    warmup_tokens_max: None,
    sharegpt: Pack::SharegptLmdeploy,
    random: Pack::RandomLmdeploy,
    block: Format::Lmdeploy,
    result: Format::LmdeployCsv,
    detailed: Format::LmdeployCsv,
    ..SGLANG
};

impl Tool {
    /// Defaults of the tool.
    pub fn habits(self) -> &'static Habits {
        match self {
            Self::Vllm => &VLLM,
            Self::Sglang => &SGLANG,
            Self::SglangOld => &SGLANG_OLD,
            Self::Lmdeploy => &LMDEPLOY,
        }
    }
}

impl Backend {
    /// Tool that supports this backend by default.
    pub fn tool(self) -> Tool {
        match self {
            Self::Vllm | Self::VllmChat | Self::Openai | Self::OpenaiChat => Tool::Vllm,
            Self::Sglang | Self::SglangNative | Self::SglangOai | Self::SglangOaiChat => {
                Tool::Sglang
            }
            Self::Lmdeploy | Self::LmdeployChat => Tool::Lmdeploy,
        }
    }

    /// Port that the tool connects to by default.
    pub fn port(self) -> u16 {
        match self.tool() {
            Tool::Vllm => 8000,
            Tool::Sglang | Tool::SglangOld => 30000,
            Tool::Lmdeploy => 23333,
        }
    }

    /// Route that the tool sends requests to.
    pub fn route(self) -> &'static str {
        match self {
            Self::VllmChat | Self::OpenaiChat | Self::SglangOaiChat | Self::LmdeployChat => {
                "/v1/chat/completions"
            }
            Self::Sglang | Self::SglangNative => "/generate",
            _ => "/v1/completions",
        }
    }

    /// Route that resets the server's prefix cache, if the tools know one.
    pub fn flush_route(self) -> Option<&'static str> {
        matches!(self.tool(), Tool::Sglang | Tool::SglangOld).then_some("/flush_cache")
    }
}
