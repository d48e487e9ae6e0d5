//! Route `GET /server_info`: version, model, device, KV cache, and origin of every flag's value.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::error::{ApiError, blocking};
use super::state::App;
use crate::config::Setting;

/// Body of `/server_info`. The digest of the weights is filled in per request, because it may still
/// be computed.
#[derive(Debug, Clone, Serialize)]
pub struct ServerInfo {
    /// Name of the engine: `redline`.
    pub engine: &'static str,
    /// Version of the engine, as in `Cargo.toml`.
    pub version: &'static str,
    /// Commit that the binary was built from, if its builder passed it in.
    pub commit: Option<&'static str>,
    /// Kind of the device: `cpu` or `cuda`.
    pub device: &'static str,
    /// Name of the processor or the GPU.
    pub device_name: String,
    /// Value and origin of every flag, by the flag's name.
    pub config: BTreeMap<String, Setting>,
    /// Hash of the flags in `config`, as [`config_sha256`](crate::config::config_sha256) computes
    /// it.
    pub config_sha256: String,
    /// Size and data type of the server's KV cache.
    pub kv: KvFacts,
    /// Facts about the served model.
    pub model: ModelFacts,
    /// Microseconds from the start of the process until the server was ready.
    pub startup_us: u64,
    /// Microseconds from the start of the search for the model's files until weights and tokenizer
    /// were loaded.
    pub weights_load_us: u64,
}

/// Size and data type of the server's KV cache.
#[derive(Debug, Clone, Serialize)]
pub struct KvFacts {
    /// Number of KV pages in the cache.
    pub pages: usize,
    /// Number of tokens per KV page.
    pub page_tokens: usize,
    /// Size of all KV pages in bytes. On a CPU a page takes memory only once it is used.
    pub bytes: u64,
    /// Name of the data type of keys and values in the KV cache.
    pub dtype: &'static str,
}

/// Facts about the model and its checkpoint.
#[derive(Debug, Clone, Serialize)]
pub struct ModelFacts {
    /// Id of the model: its hub id, or the name of its folder or file.
    pub id: String,
    /// Name of the model's architecture, as the checkpoint gives it.
    pub architecture: String,
    /// SHA-256 of the weights' files in hex, filled in per request; `None` if a file could not be
    /// read.
    pub weights_sha256: Option<String>,
    /// Origin of the weights: `real` for the checkpoint's, `random` for generated ones.
    pub weights: &'static str,
    /// File format of the weights, such as GGUF.
    pub format: &'static str,
    /// Commit of the hub repository that the model's files are from, if known.
    pub revision: Option<String>,
    /// SHA-256 of the tokenizer, as [`Tokenizer`](crate::tokenize::Tokenizer)
    /// defines it; `None` for a model without a tokenizer.
    pub tokenizer_sha256: Option<String>,
    /// Name of the data type in which matrix multiplications are computed.
    pub dtype: &'static str,
    /// Number of the model's weights (parameters); tied embeddings count once.
    pub parameters: u64,
    /// Longest sequence in tokens that the checkpoint was trained for.
    pub max_seq_len: usize,
}

pub(super) async fn server_info(State(app): State<App>) -> Result<Json<ServerInfo>, ApiError> {
    let ready = app.ready()?;
    let mut info = ready.info.clone();
    // On a blocking thread, because hashing large files takes longer than loading them.
    let digest = ready.weights_sha256.clone();
    info.model.weights_sha256 = blocking("hashing", move || digest.wait()).await?.ok();
    Ok(Json(info))
}
