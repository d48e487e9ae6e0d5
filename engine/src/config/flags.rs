//! The flags of `redline serve`, as the command line and a profile give them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Device to compute on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print what is said of a value")]
pub enum DeviceChoice {
    Auto,
    #[default]
    Cpu,
    Cuda,
}

/// Type of the matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print what is said of a value")]
pub enum DtypeChoice {
    Auto,
    F32,
    Bf16,
    Int8,
    Int4,
}

/// Type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print what is said of a value")]
pub enum KvDtypeChoice {
    Auto,
    F32,
    F16,
    Bf16,
    Fp8,
    Int8,
}

/// Where the numbers of the weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "`--help` would print what is said of a value")]
pub enum LoadFormat {
    Auto,
    /// Seeded random weights of the shapes that the configuration names.
    Random,
}

/// What was said; nothing has its default yet. The same names hold in a profile.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Flags {
    /// Tensor-parallel ranks: threads of the CPU, or as many GPUs of this machine, which NCCL connects
    /// (`CUDA_VISIBLE_DEVICES` chooses among them) [default: 1]
    #[arg(long, value_name = "N")]
    pub tp: Option<usize>,
    /// Where to compute [default: auto]
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
    /// Sequences that run at once [default: by card]
    #[arg(long, value_name = "N")]
    pub max_batch_size: Option<usize>,
    /// Share of free memory, after weights, for the KV cache; above 1 a number of pages
    /// [default: 0.8]
    #[arg(long, value_name = "R")]
    pub cache_max_entry_count: Option<f64>,
    /// Token budget of a step [default: 8192 on a GPU, 512 on a CPU]
    #[arg(long, value_name = "N")]
    pub max_prefill_token_num: Option<usize>,
    /// Longest sequence, prompt and output together [default: the model's]
    #[arg(long, visible_alias = "session-len", value_name = "N")]
    #[serde(alias = "session-len")]
    pub max_seq_len: Option<usize>,
    /// Type of the matrix products; f32 is the reference path [default: auto]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DtypeChoice>,
    /// Type of the KV cache [default: auto]
    #[arg(long, value_name = "TYPE")]
    pub kv_dtype: Option<KvDtypeChoice>,
    /// Whether to read the weights or to make them up [default: auto]
    #[arg(long, value_name = "FORMAT")]
    pub load_format: Option<LoadFormat>,
    /// Compute every prompt from its start
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Threads to compute with [default: the machine's cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// The name that requests give [default: the model's]
    #[arg(long, value_name = "S")]
    pub model_name: Option<String>,
    /// File with the key that requests must show
    #[arg(long, value_name = "F")]
    pub api_key_file: Option<PathBuf>,
    /// Listen beyond this machine without a key
    #[arg(long)]
    pub insecure_bind: bool,
    /// TOML file of these flags; the command line goes before it
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub profile: Option<PathBuf>,
}

impl Flags {
    /// Reads a profile.
    ///
    /// # Errors
    /// The file cannot be read, or has a line that is no flag.
    pub fn read_profile(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::ReadFile { path: path.to_owned(), source })?;
        toml::from_str(&text)
            .map_err(|source| ConfigError::Profile { path: path.to_owned(), source: source.into() })
    }
}
