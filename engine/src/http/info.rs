//! `GET /server_info`: what runs here, and how each flag came to its value.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;

use super::error::ApiError;
use super::state::App;
use crate::config::Setting;
use engine_weights::Digest;

/// The answer, but for the digest that may still be on its way.
#[derive(Debug, Clone, Serialize)]
pub struct ServerInfo {
    /// `redline`.
    pub engine: &'static str,
    /// As in `Cargo.toml`.
    pub version: &'static str,
    /// Commit that the binary was built from, where its builder said.
    pub commit: Option<&'static str>,
    /// Kind of the device, `cpu` or `cuda`.
    pub device: &'static str,
    /// Name of the processor or the GPU.
    pub device_name: String,
    /// Every flag by its name.
    pub config: BTreeMap<&'static str, Setting<Value>>,
    /// As [`config_sha256`](crate::config::config_sha256) has it of them.
    pub config_sha256: String,
    /// What prompts and outputs are kept in.
    pub kv: KvFacts,
    /// What is served.
    pub model: ModelFacts,
    /// From the start of the process until requests are taken.
    pub startup_us: u64,
    /// From the first look for files until weights and tokenizer were there.
    pub weights_load_us: u64,
}

/// The KV cache.
#[derive(Debug, Clone, Serialize)]
pub struct KvFacts {
    /// Pages of the cache.
    pub pages: usize,
    /// Tokens of a KV page.
    pub page_tokens: usize,
    /// Bytes that all pages take when they are full.
    pub bytes: u64,
    /// Type of keys and values.
    pub dtype: &'static str,
}

/// The model and where it comes from.
#[derive(Debug, Clone, Serialize)]
pub struct ModelFacts {
    /// Hub id, or the name of the folder or file.
    pub id: String,
    /// As the checkpoint names it.
    pub architecture: String,
    /// Filled in when asked for; none if the files could not be read again.
    pub weights_sha256: Option<String>,
    /// Origin of the weights, `real` or `random`.
    pub weights: &'static str,
    /// Container of the weights.
    pub format: &'static str,
    /// Commit of the hub's repository.
    pub revision: Option<String>,
    /// As [`Tokenizer::sha256`](crate::tokenize::Tokenizer::sha256); none where there is no tokenizer.
    pub tokenizer_sha256: Option<String>,
    /// Type of the matrix products.
    pub dtype: &'static str,
    /// Number of weights; an embedding that is also the LM head counts once.
    pub parameters: u64,
    /// Longest sequence that the checkpoint was made for.
    pub max_seq_len: usize,
}

pub(super) async fn server_info(State(app): State<App>) -> Result<Json<ServerInfo>, ApiError> {
    let ready = app.ready()?;
    let mut info = ready.info.clone();
    info.model.weights_sha256 = wait(&ready.weights_sha256).await;
    Ok(Json(info))
}

/// The digest of large weights takes longer than loading them.
async fn wait(digest: &Digest) -> Option<String> {
    let digest = digest.clone();
    let waited = tokio::task::spawn_blocking(move || digest.wait()).await;
    waited.ok()?.ok()
}
