//! Flags of `redline serve`, as parsed from the command line or a profile.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use engine_weights::read_text;

/// Kind of device to compute on: value of `--device`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print each value's comment")]
pub enum DeviceChoice {
    Auto,
    #[default]
    Cpu,
    Cuda,
}

/// Data type in which matrix multiplications are computed: value of `--dtype`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print each value's comment")]
pub enum DtypeChoice {
    #[default]
    Auto,
    F32,
    Bf16,
    Int8,
    Int4,
}

/// Data type of keys and values in the KV cache: value of `--kv-dtype`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print each value's comment")]
pub enum KvDtypeChoice {
    #[default]
    Auto,
    F32,
    F16,
    Bf16,
    Fp8,
    Int8,
}

/// Method of speculative decoding: value of `--speculative-algorithm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpeculativeAlgorithm {
    /// One token of a sequence in each step
    None,
    /// Drafts are the tokens that followed the same tokens earlier in the prompt or output
    Ngram,
}

/// Origin of the weights, the checkpoint's files or random numbers: value of `--load-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print each value's comment")]
pub enum LoadFormat {
    Auto,
    /// Seeded random weights with the shapes that the model's configuration gives
    Random,
}

/// Form of the log: value of `--log-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print each value's comment")]
pub enum LogFormat {
    Text,
    Json,
}

impl LoadFormat {
    /// Returns the seed of random weights, or `None` where the weights are read from the
    /// checkpoint.
    pub fn random_seed(self) -> Option<u64> {
        // Fixed, so that two starts have equal weights.
        (self == Self::Random).then_some(1)
    }
}

/// Options of `redline serve` as the command line or a profile (TOML file) gives them, with the
/// same names in both: an option that was not given is `None`, a switch `false`.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Flags {
    /// Number of tensor-parallel ranks: groups of CPU threads, or GPUs of this machine, connected
    /// by NCCL (`CUDA_VISIBLE_DEVICES` selects them) [default: 1]
    // Aliases are the names that vLLM and SGLang give to flags with the same meaning, and LMDeploy's
    // `server-name`, `server-port` and `session-len`.
    #[arg(long, visible_aliases = ["tensor-parallel-size", "tp-size"], value_name = "N")]
    pub tp: Option<usize>,
    /// Device to compute on [default: auto]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, visible_alias = "server-name", value_name = "H")]
    #[serde(alias = "server-name")]
    pub host: Option<String>,
    /// Port to listen on; 0 picks one [default: 23333]
    #[arg(long, visible_alias = "server-port", value_name = "P")]
    #[serde(alias = "server-port")]
    pub port: Option<u16>,
    /// Largest number of sequences that run at once [default: by GPU model, 128 on a CPU]
    #[arg(long, visible_aliases = ["max-num-seqs", "max-running-requests"], value_name = "N")]
    pub max_batch_size: Option<usize>,
    /// Share of the free memory, after weights, for the KV cache; above 1 a number of pages
    /// [default: 0.8]
    #[arg(long, value_name = "R")]
    pub cache_max_entry_count: Option<f64>,
    /// Token budget of a step, prefill chunks included [default: 8192 on a GPU, 512 on a CPU]
    #[arg(long, visible_alias = "max-num-batched-tokens", value_name = "N")]
    pub max_prefill_token_num: Option<usize>,
    /// Longest sequence in tokens, prompt and output together [default: the model's]
    #[arg(
        long,
        visible_aliases = ["session-len", "max-model-len", "context-length"],
        value_name = "N"
    )]
    #[serde(alias = "session-len")]
    pub max_seq_len: Option<usize>,
    /// Type of the matrix multiplications; f32 is the reference path [default: auto]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DtypeChoice>,
    /// Type of keys and values in the KV cache [default: auto]
    #[arg(long, visible_alias = "kv-cache-dtype", value_name = "TYPE")]
    pub kv_dtype: Option<KvDtypeChoice>,
    /// Read the weights (auto) or use random ones (random) [default: auto]
    #[arg(long, value_name = "FORMAT")]
    pub load_format: Option<LoadFormat>,
    /// Decode speculatively where few sequences run, with the same output: faster where it repeats
    /// parts of the prompt or of itself; on a CPU, for models without recurrent state [default: none]
    #[arg(long, ignore_case = true, value_name = "METHOD")]
    pub speculative_algorithm: Option<SpeculativeAlgorithm>,
    /// Turn the prefix cache off: compute every prompt from its start
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Number of CPU compute threads, of all ranks together [default: the machine's cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Name of the model in requests and answers [default: hub id, or name of the folder or file]
    #[arg(long, visible_alias = "served-model-name", value_name = "S")]
    pub model_name: Option<String>,
    /// File with API keys, one in each line; each request must send one of them. A number after a
    /// key limits how many of its requests are open at once
    #[arg(long, value_name = "F")]
    pub api_key_file: Option<PathBuf>,
    /// Allow listening without an API key on addresses that other machines can reach
    #[arg(long)]
    pub insecure_bind: bool,
    /// Origin of web pages that may use the server from a browser (CORS), such as
    /// `https://chat.example`, or * with an API key; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Option<Vec<String>>,
    /// Form of the log on standard error: text, or a JSON object in each line. The JSON log also
    /// has a line for each request, except health checks and `/metrics` [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// TOML file with values for these flags; the command line takes precedence
    #[arg(long, value_name = "FILE")]
    #[serde(skip_deserializing)] // A profile cannot name another profile.
    pub profile: Option<PathBuf>,
}

/// Largest size in bytes of a profile.
const PROFILE_BYTES_MAX: u64 = 1 << 20;

impl Flags {
    /// Reads the flags of a profile, a TOML file.
    ///
    /// # Errors
    /// The file cannot be read, is no regular file, is longer than 1 MiB, is not TOML, or has a key or value that no flag takes.
    pub fn read_profile(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = read_text(path, PROFILE_BYTES_MAX).context("the profile cannot be used")?;
        let parsed = toml::from_str(&text).map_err(|error| {
            // The whole error draws the line, which may be that of a file of secrets.
            let line = error.span().map_or(1, |at| 1 + text[..at.start].matches('\n').count());
            anyhow!("line {line}: {}", error.message())
        });
        parsed.with_context(|| format!("the profile `{shown}` is not a TOML table of flags"))
    }
}
