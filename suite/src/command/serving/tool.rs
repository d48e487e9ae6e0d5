//! The tools whose flags are taken, and what each does where no flag says otherwise. Knows no flag.

use clap::ValueEnum;
use schema::workload::Pack;

use crate::export::Format;

/// A tool that is stood in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    /// `vllm bench serve` 0.33, before it `benchmark_serving.py`.
    Vllm,
    /// SGLang's `bench_serving` 0.5.
    Sglang,
    /// The same while it bounded the lengths of conversations.
    SglangOld,
    /// LMDeploy's `profile_restful_api.py` v0.9.2.
    Lmdeploy,
}

/// A kind of server, by the names that the tools have for it.
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

/// Data sets by the names that the tools have for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetName {
    Sharegpt,
    Random,
    Custom,
    #[value(name = "prefix_repetition")]
    PrefixRepetition,
    GeneratedSharedPrefix,
}

/// What a tool does by itself.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub backend: Backend,
    pub dataset: DatasetName,
    pub seed: u64,
    /// Lengths of `random`; LMDeploy's tool has none.
    pub random_tokens: Option<(u64, u64)>,
    pub warmup_requests: u64,
    pub warmup_tokens_max: Option<u64>,
    pub ignore_eos: bool,
    /// Sampling temperature; left out for the server's default.
    pub temperature: Option<f64>,
    pub sharegpt: Pack,
    pub random: Pack,
    /// Its console block.
    pub block: Format,
    /// Its result file, and the same with the lists of all requests.
    pub result: Format,
    pub detailed: Format,
    /// It writes its result file unasked, at the end of what is there.
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
    /// What the tool does where no flag says otherwise.
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
    /// The tool that came with it.
    pub fn tool(self) -> Tool {
        match self {
            Self::Vllm | Self::VllmChat | Self::Openai | Self::OpenaiChat => Tool::Vllm,
            Self::Sglang | Self::SglangNative | Self::SglangOai | Self::SglangOaiChat => {
                Tool::Sglang
            }
            Self::Lmdeploy | Self::LmdeployChat => Tool::Lmdeploy,
        }
    }

    /// The port that the tool asks by default.
    pub fn port(self) -> u16 {
        match self.tool() {
            Tool::Vllm => 8000,
            Tool::Sglang | Tool::SglangOld => 30000,
            Tool::Lmdeploy => 23333,
        }
    }

    /// The route that the tool asks on.
    pub fn route(self) -> &'static str {
        match self {
            Self::VllmChat | Self::OpenaiChat | Self::SglangOaiChat | Self::LmdeployChat => {
                "/v1/chat/completions"
            }
            Self::Sglang | Self::SglangNative => "/generate",
            _ => "/v1/completions",
        }
    }

    /// Route that empties the server's prefix cache, where the tools know one.
    pub fn flush_route(self) -> Option<&'static str> {
        matches!(self.tool(), Tool::Sglang | Tool::SglangOld).then_some("/flush_cache")
    }

    /// The name that a flag gives it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl DatasetName {
    /// The name that a flag gives it.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
