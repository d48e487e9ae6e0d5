//! The benchmark tools that `redline-bench serving` replaces, with each tool's defaults, and the
//! command's flags, grouped as in its help, under the names that the tools use. `scenario` and
//! `results` interpret them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use schema::workload::Pack;
use serde_json::{Map, Value};

use super::super::run::positive;
use crate::client::control::Trust;
use crate::client::headers::Header;
use crate::export::{Format, Quantity};
use crate::measure::rates::Slo;

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
    // The alias is the name in older versions of vLLM's tool.
    #[value(alias = "openai-comp")]
    Openai,
    OpenaiChat,
    OpenaiEmbeddings,
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
    RandomIds,
    #[value(name = "prefix_repetition")]
    PrefixRepetition,
    GeneratedSharedPrefix,
    Hf,
    Sonnet,
}

impl DatasetName {
    /// True for a dataset whose prompts have a drawn length, which is part of a result file's name.
    pub fn is_random(self) -> bool {
        matches!(self, Self::Random | Self::RandomIds)
    }
}

/// Growth of the request rate with the number of the request, by the names of vLLM's tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RampUp {
    Linear,
    Exponential,
}

/// Defaults and formats of a benchmark tool that `redline-bench serving` replaces.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub backend: Backend,
    /// Port to which the tool connects by default.
    pub port: u16,
    pub dataset: DatasetName,
    pub seed: u64,
    /// Default input and output lengths of the dataset `random`, in tokens; `None` for LMDeploy's
    /// tool, which has no default.
    pub random_tokens: Option<(u64, u64)>,
    pub warmup_requests: u64,
    pub warmup_tokens_max: Option<u64>,
    pub ignore_eos: bool,
    /// Default sampling temperature; `None` sends none, so that the server's default applies.
    pub temperature: Option<f64>,
    pub sharegpt: Pack,
    pub random: Pack,
    /// Format of the console block that the tool prints.
    pub block: Format,
    /// Format of the tool's result file without the lists of all requests; `detailed` is the format
    /// with them.
    pub result: Format,
    pub detailed: Format,
    /// True when the tool writes its result file without a flag, appending to an older one.
    pub always_appends: bool,
}

const VLLM: Habits = Habits {
    backend: Backend::Openai,
    port: 8000,
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
    port: 30000,
    dataset: DatasetName::Sharegpt,
    seed: 42,
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

const SGLANG_OLD: Habits = Habits { seed: 1, sharegpt: Pack::SharegptSglangOld, ..SGLANG };

const LMDEPLOY: Habits = Habits {
    port: 23333,
    seed: 1,
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
    /// Returns the defaults and formats of the benchmark tool.
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
    /// Returns the benchmark tool that has the backend; `None` for `vllm`, which several tools have.
    /// vLLM's tool calls its chat backend `openai-chat`, so that `vllm-chat` is SGLang's name.
    pub fn tool_alone(self) -> Option<Tool> {
        Some(match self {
            Self::Vllm => return None,
            Self::VllmChat => Tool::Sglang,
            other => other.tool(),
        })
    }

    /// Returns the benchmark tool of the project whose server the backend is; its defaults include
    /// the server's port.
    pub fn tool(self) -> Tool {
        match self {
            Self::Vllm
            | Self::VllmChat
            | Self::Openai
            | Self::OpenaiChat
            | Self::OpenaiEmbeddings => Tool::Vllm,
            Self::Sglang | Self::SglangNative | Self::SglangOai | Self::SglangOaiChat => {
                Tool::Sglang
            }
            Self::Lmdeploy | Self::LmdeployChat => Tool::Lmdeploy,
        }
    }

    /// Returns the route to which the tool sends requests for the backend.
    pub fn route(self) -> &'static str {
        match self {
            Self::VllmChat | Self::OpenaiChat | Self::SglangOaiChat | Self::LmdeployChat => {
                "/v1/chat/completions"
            }
            Self::Sglang | Self::SglangNative => "/generate",
            Self::OpenaiEmbeddings => "/v1/embeddings",
            _ => "/v1/completions",
        }
    }

    /// True for a backend that is asked for embeddings instead of generated text.
    pub fn embeds(self) -> bool {
        self == Self::OpenaiEmbeddings
    }

    /// Returns the route that resets the prefix cache of the backend's server; `None` if the tools
    /// have none for it.
    pub fn flush_route(self) -> Option<&'static str> {
        matches!(self.tool(), Tool::Sglang | Tool::SglangOld).then_some("/flush_cache")
    }
}

/// Flags that select the server, the tool and the model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// Kind of server. It sets port and route, and also the tool unless `--tool` is given; for `vllm`
    /// the other flags decide.
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// Kind of server, by the name that older versions of vLLM's tool have for the flag; replaces
    /// `--backend`.
    #[arg(long, value_enum, hide = true)]
    endpoint_type: Option<Backend>,
    /// Benchmark tool whose workload, defaults and report are used.
    #[arg(long, value_enum)]
    pub tool: Option<Tool>,
    /// URL of the server; replaces `--host` and `--port`. `http://` may be left out, and a path
    /// `/v1` is accepted.
    #[arg(long, value_name = "http[s]://HOST:PORT", conflicts_with_all = ["host", "port"])]
    pub base_url: Option<String>,
    #[command(flatten)]
    pub trust: Trust,
    /// Host name or address of the server.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port of the server; by default 8000, 30000 for SGLang, 23333 for LMDeploy.
    #[arg(long)]
    pub port: Option<u16>,
    /// Route that requests are sent to; by default that of the backend.
    #[arg(long, value_name = "ROUTE")]
    pub endpoint: Option<String>,
    /// Model name that requests carry, which also locates the tokenizer. By default the first model
    /// that the server lists.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Model name that requests carry, if it differs from `--model`.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Tokenizer: a file, a folder, or a hub id in the local cache; by default that of the model.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    /// Engine file, so that the server's configuration, counters and prefix cache can be read.
    #[arg(long, value_name = "FILE")]
    pub engine: Option<PathBuf>,
    /// File with the API key that the server requires; by default the key is the value of
    /// OPENAI_API_KEY.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Header that all requests carry, as NAME=VALUE; several may follow each other.
    #[arg(long, value_name = "NAME=VALUE", num_args = 1..)]
    pub header: Vec<Header>,
    /// Longest time, in seconds, to wait for a server that does not answer yet.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub ready_check_timeout_sec: u64,
}

impl ServerFlags {
    /// Returns the kind of server that a flag names; `None` without such a flag.
    pub fn backend(&self) -> Option<Backend> {
        self.endpoint_type.or(self.backend)
    }
}

/// Flags that select the requests: dataset, number and lengths.
#[derive(Debug, Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadFlags {
    /// Source of the prompts; by default `random` with vLLM's tool, else `sharegpt`.
    #[arg(long, value_enum)]
    pub dataset_name: Option<DatasetName>,
    /// Dataset file: conversations in ShareGPT's format, for `custom` one request per line, for
    /// `sonnet` lines of a poem, for `hf` also a folder or a hub id in the local cache. Without it the
    /// conversations that SGLang's and LMDeploy's tools download are looked for in the local caches.
    #[arg(long, value_name = "FILE")]
    pub dataset_path: Option<PathBuf>,
    /// Id of the dataset `hf`, such as `philschmid/mt-bench`, where `--dataset-path` is another path.
    #[arg(long, value_name = "ID")]
    pub hf_name: Option<String>,
    /// Part of the name of the file to read, where the dataset `hf` has several.
    #[arg(long, value_name = "SPLIT")]
    pub hf_split: Option<String>,
    /// Number of output tokens of each request of the dataset `hf`; by default that of vLLM's tool.
    #[arg(long, value_name = "TOKENS")]
    pub hf_output_len: Option<u64>,
    /// Number of measured requests.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub num_prompts: u64,
    /// Seed of the workload; by default 0 with vLLM's tool, 42 with SGLang's, else
    /// 1.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Number of output tokens to request for each conversation, instead of the length of the
    /// answer in the data.
    #[arg(long, value_name = "TOKENS")]
    pub sharegpt_output_len: Option<u64>,
    /// Bound or mean of the lengths of `random` prompts, as the tool defines it.
    #[arg(long, value_name = "TOKENS", visible_alias = "input-len")]
    pub random_input_len: Option<u64>,
    /// Bound or mean of the output lengths of `random` requests, as the tool defines it.
    #[arg(long, value_name = "TOKENS")]
    pub random_output_len: Option<u64>,
    /// Variation of `random` lengths: 0 fixes them with vLLM's tool, 1 with the others.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = ratio)]
    pub random_range_ratio: f64,
    /// Number of tokens that all `random` prompts begin with (vLLM's tool only).
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub random_prefix_len: u64,
    /// Number of output tokens of each request of the dataset `custom`; -1 takes those of the file.
    #[arg(long, value_name = "TOKENS", default_value_t = 256, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub custom_output_len: i64,
    /// Number of output tokens of every request, in place of the dataset's own flag; not for
    /// `generated-shared-prefix`.
    #[arg(long, value_name = "TOKENS")]
    pub output_len: Option<u64>,
    /// Use the prompts of the datasets `custom` and `hf` in the order of their file.
    #[arg(long)]
    pub disable_shuffle: bool,
    /// Send the prompts of the datasets `custom` and `hf` unchanged. Without this flag the client
    /// writes the model's chat template around them, as vLLM's tool does, except behind `openai-chat`,
    /// where the server does it.
    #[arg(long, alias = "custom-skip-chat-template")]
    pub skip_chat_template: bool,
    /// Write the model's chat template around the prompts of `sharegpt`; not for a backend with
    /// `-chat`, whose server does it. Other datasets get none, as with SGLang's tool.
    #[arg(long)]
    pub apply_chat_template: bool,
    /// Largest number of tokens of each prompt of the dataset `sonnet`.
    #[arg(long, value_name = "TOKENS", default_value_t = 550)]
    pub sonnet_input_len: u64,
    /// Number of output tokens of each request of the dataset `sonnet`.
    #[arg(long, value_name = "TOKENS", default_value_t = 150)]
    pub sonnet_output_len: u64,
    /// Number of tokens with which all prompts of the dataset `sonnet` begin.
    #[arg(long, value_name = "TOKENS", default_value_t = 200)]
    pub sonnet_prefix_len: u64,
    /// Number of tokens of each shared prefix in the dataset `prefix_repetition`.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub prefix_repetition_prefix_len: u64,
    /// Number of tokens after the prefix in each prompt of the dataset `prefix_repetition`.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub prefix_repetition_suffix_len: u64,
    /// Number of different prefixes in the dataset `prefix_repetition`.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub prefix_repetition_num_prefixes: u64,
    /// Number of output tokens of each request of the dataset `prefix_repetition`.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub prefix_repetition_output_len: u64,
    /// Number of groups in the dataset `generated-shared-prefix`; a group's requests share a system
    /// prompt.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub gsp_num_groups: u64,
    /// Number of requests in each group of `generated-shared-prefix`, which ignores
    /// `--num-prompts`.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub gsp_prompts_per_group: u64,
    /// Number of tokens of each system prompt in the dataset `generated-shared-prefix`.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048)]
    pub gsp_system_prompt_len: u64,
    /// Number of tokens of each question in the dataset `generated-shared-prefix`.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub gsp_question_len: u64,
    /// Number of output tokens of each request of the dataset `generated-shared-prefix`.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub gsp_output_len: u64,
    /// Variation of all lengths in the dataset `generated-shared-prefix`: 1 fixes them.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub gsp_range_ratio: f64,
    /// Send prompts as token ids, so that their length is exact; by default as text.
    #[arg(long)]
    pub tokenize_prompt: bool,
}

/// Flags that set when requests are sent: rate, concurrency and warm-up.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sending")]
pub struct SendingFlags {
    /// Request rate, in requests per second; `inf` sends all at once.
    #[arg(long, value_name = "RATE", default_value = "inf", value_parser = rate)]
    pub request_rate: f64,
    /// Burstiness, the shape of the gamma distribution of gaps: 1 is a Poisson process, less is
    /// burstier, more is more even, `inf` is constant.
    #[arg(long, value_name = "SHAPE", default_value = "1", value_parser = rate)]
    pub burstiness: f64,
    /// Growth of the request rate from the first request to the last, in place of one rate.
    #[arg(long, value_enum, requires_all = ["ramp_up_start_rps", "ramp_up_end_rps"])]
    pub ramp_up_strategy: Option<RampUp>,
    /// Request rate at the first request of `--ramp-up-strategy`, in requests per second.
    #[arg(long, value_name = "RATE", requires = "ramp_up_strategy")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ramp_up_start_rps: Option<u32>,
    /// Request rate at the last request of `--ramp-up-strategy`, in requests per second.
    #[arg(long, value_name = "RATE", requires = "ramp_up_strategy")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ramp_up_end_rps: Option<u32>,
    /// Maximum number of requests in flight at a time; by default no limit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_concurrency: Option<u64>,
    /// Number of warm-up requests, whose prompts are not measured; by default 0 with vLLM's tool,
    /// else 1.
    #[arg(long, value_name = "N", visible_alias = "warmup-requests")]
    pub num_warmups: Option<u64>,
    /// Send no warm-up requests.
    #[arg(long, conflicts_with = "num_warmups")]
    pub disable_warmup: bool,
    /// Reset the server's prefix cache before the clock starts; by default it is left unchanged.
    #[arg(long)]
    pub flush_cache: bool,
    /// Stop the run if requests are in flight and none makes progress for so many seconds: no
    /// response begins, and no token arrives, on any connection.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = positive)]
    pub timeout_s: f64,
}

/// Flags for the fields of each request other than the prompt: sampling and end of output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Requests")]
pub struct BodyFlags {
    /// Ignore the end-of-sequence token, so that answers reach their full length. This is the
    /// default except with vLLM's tool, which does so only for `random`.
    #[arg(long, conflicts_with = "disable_ignore_eos")]
    pub ignore_eos: bool,
    /// Let answers end at the end-of-sequence token.
    #[arg(long)]
    pub disable_ignore_eos: bool,
    /// Sampling temperature; by default 0, with vLLM's tool the server's own.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Sampling parameter `top_p` of the requests; not sent by default.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Sampling parameter `top_k` of the requests; not sent by default.
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// Sampling parameter `min_p` of the requests; not sent by default.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Sampling parameter `frequency_penalty` of the requests; not sent by default.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f64>,
    /// Sampling parameter `presence_penalty` of the requests; not sent by default.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f64>,
    /// Sampling parameter `repetition_penalty` of the requests; not sent by default.
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f64>,
    /// JSON object with further fields for the body of each request.
    #[arg(long, value_name = "JSON", visible_alias = "extra-request-body", value_parser = object)]
    pub extra_body: Option<Map<String, Value>>,
}

/// Flags for reports and result files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Results")]
pub struct ResultFlags {
    /// Latency metrics in vLLM's report: `ttft`, `tpot`, `itl`, `e2el`; by default the first three,
    /// for embeddings `e2el`.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = quantity)]
    pub percentile_metrics: Vec<Quantity>,
    /// Percentiles in vLLM's report, above 0 and below 100.
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "99")]
    #[arg(value_parser = percentile)]
    pub metric_percentiles: Vec<f64>,
    /// Latency limits for goodput in milliseconds, as `ttft:500 tpot:50 e2el:9000`. TTFT and E2E
    /// count from the scheduled send.
    #[arg(long, value_name = "NAME:MS", num_args = 1.., value_parser = goodput)]
    pub goodput: Vec<Slo>,
    /// Write vLLM's result file; the other tools write theirs by default.
    #[arg(long)]
    pub save_result: bool,
    /// Include lists with the figures of all requests in the result file of vLLM's or SGLang's
    /// tool.
    #[arg(long, visible_alias = "output-details")]
    pub save_detailed: bool,
    /// Append to vLLM's result file instead of replacing it, as the other tools do by default.
    #[arg(long)]
    pub append_result: bool,
    /// Folder for the tool's result file and for Redline's own measurement.
    #[arg(long, value_name = "FOLDER")]
    pub result_dir: Option<PathBuf>,
    /// Name of the tool's result file; by default the name that the tool gives it.
    #[arg(long, value_name = "NAME")]
    pub result_filename: Option<String>,
    /// Path of the tool's result file, in any folder.
    #[arg(long, value_name = "FILE", conflicts_with = "result_filename")]
    pub output_file: Option<PathBuf>,
    /// Label of the run in the tool's result file.
    #[arg(long, value_name = "TEXT", visible_alias = "tag")]
    pub label: Option<String>,
    /// Further entries for vLLM's result file, each as KEY=VALUE.
    #[arg(long, value_name = "KEY=VALUE", num_args = 0.., value_parser = pair)]
    pub metadata: Vec<(String, String)>,
    /// File for Redline's own measurement, with the samples beside it; by default
    /// `redline-BACKEND-DATE.json`.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Show no progress during the run.
    #[arg(long)]
    pub disable_tqdm: bool,
}

/// Parses a request rate or burstiness: a number from 0.001 to 1e6, or `inf`.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value == f64::INFINITY => Ok(value),
        _ => positive(text).map_err(|error| format!("{error}, and not `inf`")),
    }
}

/// Parses the variation of lengths; vLLM's tool also takes one for prompts and one for outputs.
fn ratio(text: &str) -> Result<f64, String> {
    let several = "one number for prompts and outputs is supported, and no object of two";
    let error = if text.starts_with('{') { several } else { "it is no number" };
    text.parse().map_err(|_| error.to_owned())
}

fn quantity(text: &str) -> Result<Quantity, String> {
    Quantity::from_str(text, false).map_err(|_| {
        format!("`{text}` is no quantity that is measured: give `ttft`, `tpot`, `itl`, `e2el`")
    })
}

fn percentile(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let within = value > 0.0 && value < 100.0;
    if within { Ok(value) } else { Err(format!("`{text}` is not between 0 and 100")) }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

/// Parses a latency limit in the form of vLLM's tool: `ttft:MS`, `tpot:MS` or `e2el:MS`.
fn goodput(text: &str) -> Result<Slo, String> {
    let limit = match text.split_once(':') {
        Some(("e2el", limit)) => format!("e2e_ms={limit}"),
        Some((name @ ("ttft" | "tpot"), limit)) => format!("{name}_ms={limit}"),
        _ => return Err("give `ttft:MS`, `tpot:MS` or `e2el:MS`".to_owned()),
    };
    limit.parse().map_err(|_| format!("`{text}` has no limit in milliseconds above 0"))
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give it as `KEY=VALUE`")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
