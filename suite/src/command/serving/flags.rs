//! The flags of the tools, by what they are about, with the spellings of all three. What they mean
//! is said in `scenario` and `results`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

use super::super::bench::positive;
use super::super::trust::TrustFlags;
use super::tool::{Backend, DatasetName, Tool};
use crate::export::{Percentile, Quantity};
use crate::measure::slo::Slo;

/// Who is asked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// The server's kind, which gives port and route, and the tool where `--tool` does not.
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// The tool whose workload, habits and report are followed.
    #[arg(long, value_enum)]
    pub tool: Option<Tool>,
    /// The server; instead of `--host` and `--port`.
    #[arg(long, value_name = "http[s]://HOST:PORT", conflicts_with_all = ["host", "port"])]
    pub base_url: Option<String>,
    #[command(flatten)]
    pub trust: TrustFlags,
    /// The server's host.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// The server's port; by default 8000, 30000 for SGLang, 23333 for LMDeploy.
    #[arg(long)]
    pub port: Option<u16>,
    /// Route that is asked; by default that of the backend.
    #[arg(long, value_name = "ROUTE")]
    pub endpoint: Option<String>,
    /// The model: its name for the server, and where its tokenizer is. By default the first that the
    /// server offers.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The model's name for the server, where it is not that of `--model`.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// File or folder of the tokenizer, or a hub id in the local cache; by default the model's.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    /// Engine file, for what the server tells of itself and its prefix cache.
    #[arg(long, value_name = "FILE")]
    pub engine: Option<PathBuf>,
    /// File with the key that the server wants to be shown; by default OPENAI_API_KEY is.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Wait so long for a server that does not answer yet.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub ready_check_timeout_sec: u64,
}

/// Workload: the requests and how they are drawn.
#[derive(Debug, Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadFlags {
    /// Where prompts come from; by default `random` for vLLM's tool, else `sharegpt`.
    #[arg(long, value_enum)]
    pub dataset_name: Option<DatasetName>,
    /// Conversations in ShareGPT's shape, or for `custom` one request a line.
    #[arg(long, value_name = "FILE")]
    pub dataset_path: Option<PathBuf>,
    /// Requests.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub num_prompts: u64,
    /// By default 0 for vLLM's tool, else 1.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Ask conversations for answers of this length, not those in the data.
    #[arg(long, value_name = "TOKENS")]
    pub sharegpt_output_len: Option<u64>,
    /// Bound or mean of the lengths of random prompts.
    #[arg(long, value_name = "TOKENS", visible_alias = "input-len")]
    pub random_input_len: Option<u64>,
    /// Bound or mean of the lengths of their answers.
    #[arg(long, value_name = "TOKENS")]
    pub random_output_len: Option<u64>,
    /// How far lengths vary: with vLLM's tool 0 fixes them, with the others 1 does.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub random_range_ratio: f64,
    /// Tokens that all random prompts begin with (vLLM).
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub random_prefix_len: u64,
    /// Length of the answers to `custom` prompts.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub custom_output_len: u64,
    /// Length of answers, whatever the data set.
    #[arg(long, value_name = "TOKENS")]
    pub output_len: Option<u64>,
    /// Take `custom` prompts in the order of their file.
    #[arg(long)]
    pub disable_shuffle: bool,
    /// Send `custom` prompts as they are.
    #[arg(long)]
    pub skip_chat_template: bool,
    /// Of `prefix_repetition`: length of a prefix.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub prefix_repetition_prefix_len: u64,
    /// Length of what follows a prefix.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub prefix_repetition_suffix_len: u64,
    /// How many prefixes there are.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub prefix_repetition_num_prefixes: u64,
    /// Length of the answers.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub prefix_repetition_output_len: u64,
    /// Of `generated-shared-prefix`: groups of requests behind one system prompt each.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub gsp_num_groups: u64,
    /// Requests of a group; `--num-prompts` is then without meaning.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub gsp_prompts_per_group: u64,
    /// Length of a system prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048)]
    pub gsp_system_prompt_len: u64,
    /// Length of a question.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub gsp_question_len: u64,
    /// Length of the answers.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub gsp_output_len: u64,
    /// How far these lengths vary: 1 fixes them.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub gsp_range_ratio: f64,
    /// Send prompts as token ids, whose number is exact; by default as text.
    #[arg(long)]
    pub tokenize_prompt: bool,
}

/// When it is asked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sending")]
pub struct SendingFlags {
    /// Requests a second; `inf` sends all at once.
    #[arg(long, value_name = "RATE", default_value = "inf", value_parser = rate)]
    pub request_rate: f64,
    /// Shape of the gaps between them: 1 is Poisson, below in bursts, above more even, `inf` even.
    #[arg(long, value_name = "SHAPE", default_value = "1", value_parser = rate)]
    pub burstiness: f64,
    /// Most requests under way at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_concurrency: Option<u64>,
    /// Requests that warm up, with prompts that are not measured; by default 0 for vLLM's tool,
    /// else 1.
    #[arg(long, value_name = "N", visible_alias = "warmup-requests")]
    pub num_warmups: Option<u64>,
    /// Send no request that warms up.
    #[arg(long, conflicts_with = "num_warmups")]
    pub disable_warmup: bool,
    /// Empty the server's prefix cache before the clock starts; by default it is left as it is.
    #[arg(long)]
    pub flush_cache: bool,
    /// Give up when no event comes on any connection for this long.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = positive)]
    pub timeout_s: f64,
}

/// What a request carries beside its prompt.
#[derive(Debug, Args)]
#[command(next_help_heading = "Requests")]
pub struct BodyFlags {
    /// Have answers go on to their full length. All but vLLM's tool do so by themselves, and it does
    /// for `random`.
    #[arg(long, conflicts_with = "disable_ignore_eos")]
    pub ignore_eos: bool,
    /// Let answers end where the model ends them.
    #[arg(long)]
    pub disable_ignore_eos: bool,
    /// By default the server's own with vLLM's tool, else 0.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Sampling, as the server has it; not sent unless it is given.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// As `--top-p`.
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<i64>,
    /// As `--top-p`.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// As `--top-p`.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f64>,
    /// As `--top-p`.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f64>,
    /// As `--top-p`.
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f64>,
    /// Further fields of each request.
    #[arg(long, value_name = "JSON", visible_alias = "extra-request-body", value_parser = object)]
    pub extra_body: Option<Map<String, Value>>,
}

/// What is written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Results")]
pub struct ResultFlags {
    /// Quantities in vLLM's report: `ttft`, `tpot`, `itl`, `e2el`.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "ttft,tpot,itl")]
    pub percentile_metrics: Vec<Quantity>,
    /// Percentiles in vLLM's report.
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "99")]
    pub metric_percentiles: Vec<Percentile>,
    /// Count the requests within limits in milliseconds, as `ttft:500 tpot:50 e2el:9000`. TTFT and
    /// E2E count from the scheduled send.
    #[arg(long, value_name = "NAME:MS", num_args = 1.., value_parser = goodput)]
    pub goodput: Vec<Slo>,
    /// Write vLLM's result file; the other tools' are written unasked.
    #[arg(long)]
    pub save_result: bool,
    /// With lists of all requests.
    #[arg(long, visible_alias = "output-details")]
    pub save_detailed: bool,
    /// Write at the end of the result file, as the other tools do unasked.
    #[arg(long)]
    pub append_result: bool,
    /// Folder of the result file and of Redline's own.
    #[arg(long, value_name = "FOLDER")]
    pub result_dir: Option<PathBuf>,
    /// By default as the tool names it.
    #[arg(long, value_name = "NAME")]
    pub result_filename: Option<String>,
    /// The result file, wherever it is.
    #[arg(long, value_name = "FILE", conflicts_with = "result_filename")]
    pub output_file: Option<PathBuf>,
    /// Named in the result file.
    #[arg(long, value_name = "TEXT", visible_alias = "tag")]
    pub label: Option<String>,
    /// Added to vLLM's result file.
    #[arg(long, value_name = "KEY=VALUE", num_args = 0.., value_parser = pair)]
    pub metadata: Vec<(String, String)>,
    /// Redline's own measurement, its samples beside it; by default `redline-BACKEND-DATE.json`.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Show nothing while the run goes.
    #[arg(long)]
    pub disable_tqdm: bool,
}

/// A rate or a shape; `inf` is one.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value == f64::INFINITY => Ok(value),
        _ => positive(text).map_err(|error| format!("{error}, and not `inf`")),
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

/// A limit as vLLM's tool has it.
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
