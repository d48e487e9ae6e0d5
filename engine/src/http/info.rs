//! `GET /server_info`: what runs here, and how each flag came to its value.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;

use super::error::ApiError;
use super::state::App;
use crate::config::Setting;
use crate::weights::Digest;

/// The answer, but for the digest that may still be on its way.
#[derive(Debug, Clone, Serialize)]
pub struct ServerInfo {
    pub engine: &'static str,
    pub version: &'static str,
    /// Commit that the binary was built from, where its builder said.
    pub commit: Option<&'static str>,
    pub device: &'static str,
    pub device_name: String,
    pub config: BTreeMap<&'static str, Setting<Value>>,
    pub config_sha256: String,
    pub kv: KvFacts,
    pub model: ModelFacts,
    /// From the start of the process until requests are taken.
    pub startup_us: u64,
    pub weights_load_us: u64,
}

/// The KV cache.
#[derive(Debug, Clone, Serialize)]
pub struct KvFacts {
    pub pages: usize,
    pub page_tokens: usize,
    pub bytes: u64,
    pub dtype: &'static str,
}

/// The model and where it comes from.
#[derive(Debug, Clone, Serialize)]
pub struct ModelFacts {
    pub id: String,
    pub architecture: String,
    /// Filled in when asked for; none if the files could not be read again.
    pub weights_sha256: Option<String>,
    /// `real` or `random`.
    pub weights: &'static str,
    /// Container of the weights.
    pub format: &'static str,
    /// Commit of the hub's repository.
    pub revision: Option<String>,
    pub tokenizer_sha256: Option<String>,
    /// Type of the matrix products.
    pub dtype: &'static str,
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
