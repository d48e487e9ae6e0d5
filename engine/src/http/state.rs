//! State that all HTTP routes share: the phase of the engine, its metrics, the handle of its worker,
//! and the facts that `/server_info` shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;
use tokio::sync::watch;

use super::access::Access;
use super::error::{ApiError, ErrorKind, Result};
use super::origins::Origins;
use super::responses::Store;
use super::work::{blocking, inline, tokenizing};
use crate::config::Setting;
use crate::metrics::Metrics;
use crate::tokenize::Text;
use crate::worker::Handle;
use engine_core::clock::Clock;
use engine_schedule::Limits;

/// Length in bytes up to which a text is tokenized on the event loop. A longer one would block it
/// for milliseconds and goes to a blocking thread.
const INLINE_BYTES_MAX: usize = 8 * 1024;

/// Number of times that usual tokenizers may make a text longer, as far as their steps tell. For
/// others the length of a text counts that much more often.
const GROWTH_USUAL: usize = 32;

/// Number of bytes per token up to which a text may well fit, so that it is tokenized at once; for
/// a longer one the fewest tokens that it can have are counted first. Texts have 2 to 5 bytes per
/// token.
const LIKELY_BYTES_PER_TOKEN: usize = 4;

/// Number of bytes per token above which no text is tokenized: nobody writes in such words. Long runs
/// of spaces are few tokens and would take the tokenizer seconds.
const BYTES_PER_TOKEN_MAX: usize = 16;
/// Number of bytes up to which a text is tokenized however few tokens a sequence may have.
const TEXT_BYTES_MIN: usize = 64 * 1024;

/// Phase of the engine: loading, ready or failed.
#[derive(Debug, Clone)]
pub enum Phase {
    /// The model is still loading.
    Loading,
    /// The model is loaded and requests are accepted.
    Ready(Arc<Ready>),
    /// The model could not be loaded, or the engine failed while it ran. This is final; the reason
    /// may be shown to clients.
    Failed(String),
}

/// State that HTTP routes need once the model is loaded.
#[derive(Debug)]
pub struct Ready {
    /// Handle that submits requests to the engine loop.
    pub handle: Handle,
    /// Tokenizer of the model, with its chat template.
    pub text: Arc<dyn Text>,
    /// Limits of the scheduler against which routes check requests, such as the longest sequence
    /// and the number of KV pages.
    pub limits: Limits,
    /// Size of the vocabulary; every token id is below it.
    pub vocab_size: usize,
    /// Number of elements of an embedding of a model that embeds texts; `None` for one that
    /// generates.
    pub embedding_size: Option<usize>,
    /// Name of the served model, the only one that the field `model` of a request may have.
    pub model_name: String,
    /// Body of `/server_info`, without the digest of the weights.
    pub info: ServerInfo,
    /// SHA-256 of the weights in hex, which may still be computed in the background; a reason where
    /// it cannot be computed.
    pub weights_sha256: engine_weights::Digest,
}

/// Body of `/server_info`. The digest of the weights is filled in per request, because it may still
/// be computed.
#[derive(Debug, Clone, Serialize)]
pub struct ServerInfo {
    /// Name of the engine: `redline`.
    pub engine: &'static str,
    /// Version of the engine, as in `Cargo.toml`.
    pub version: &'static str,
    /// Commit that the binary was built from, if its builder set the environment variable
    /// `REDLINE_COMMIT`; else `None`.
    pub commit: Option<&'static str>,
    /// Kind of the device: `cpu` or `cuda`.
    pub device: &'static str,
    /// Name of the processor or the GPU.
    pub device_name: String,
    /// Value and origin of every flag, by the flag's name; and on a GPU of the libraries of NVIDIA
    /// that compute.
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
    /// Size in bytes of all KV pages together. On a CPU a page takes memory only once it is used.
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
    /// SHA-256 of the weights' files in hex (for random weights, of their seed and the
    /// configuration), filled in per request; `None` if a file could not be read.
    pub weights_sha256: Option<String>,
    /// Origin of the weights: `real` for the checkpoint's, `random` for generated ones.
    pub weights: &'static str,
    /// File format of the checkpoint: `gguf` or `safetensors`; for random weights that of the
    /// configuration.
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
    /// Number of tokens of the longest sequence that the model supports, as its configuration
    /// states it; 2,048 where it does not. `--max-seq-len` may set a smaller limit.
    pub max_seq_len: usize,
}

impl Ready {
    /// Tokenizes `text` and returns its token ids; with `add_special_tokens` they include those
    /// that the model expects around a text. A long text is tokenized on a blocking thread.
    ///
    /// # Errors
    /// The text must have more tokens than a sequence may have, or has so many bytes that it most
    /// likely does; or the tokenizer fails.
    pub(super) async fn encode(
        self: &Arc<Self>,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>> {
        let bytes = text.len().saturating_mul(self.text.growth().div_ceil(GROWTH_USUAL));
        if bytes <= INLINE_BYTES_MAX {
            let encode = || self.text.encode(&text, add_special_tokens);
            return self.known(inline("the tokenizer", encode)??);
        }
        let longest = self.limits.max_seq_len;
        let most = BYTES_PER_TOKEN_MAX.saturating_mul(longest).max(TEXT_BYTES_MIN);
        if text.len() > most {
            let message = format!(
                "this model's maximum context length is {longest} tokens, but the prompt has {} \
                 bytes, and at most {most} are read for as many tokens",
                text.len()
            );
            let error = ApiError::new(ErrorKind::ContextLengthExceeded, message);
            return Err(error.at("prompt"));
        }
        let text = Arc::new(text);
        if text.len() > LIKELY_BYTES_PER_TOKEN.saturating_mul(longest) {
            let (shared, long) = (Arc::clone(&self.text), Arc::clone(&text));
            let fewest = move || shared.fewest_tokens(&long, longest);
            let fewest = blocking("the tokenizer", fewest).await?;
            if fewest > longest {
                let message = format!(
                    "this model's maximum context length is {longest} tokens, but the prompt has at \
                     least {fewest}"
                );
                let error = ApiError::new(ErrorKind::ContextLengthExceeded, message);
                return Err(error.at("prompt"));
            }
        }
        let shared = Arc::clone(&self.text);
        self.known(tokenizing(bytes, move || shared.encode(&text, add_special_tokens)).await??)
    }

    /// Returns the token ids of a text, all of which the model must have: a tokenizer may have more.
    fn known(&self, ids: Vec<u32>) -> Result<Vec<u32>> {
        match ids.iter().find(|id| **id as usize >= self.vocab_size) {
            None => Ok(ids),
            Some(id) => Err(ApiError::field(
                "prompt",
                format!(
                    "the tokenizer gives the token id {id}, but the model has {} token ids",
                    self.vocab_size
                ),
            )),
        }
    }
}

/// State that the HTTP routes share; a clone refers to the same state.
#[derive(Debug, Clone)]
pub struct App {
    pub(super) phase: watch::Receiver<Phase>,
    draining: Arc<AtomicBool>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
    pub(super) access: Arc<Access>,
    pub(super) origins: Arc<Origins>,
    /// Conversations that a later request may continue.
    pub(super) conversations: Arc<Store>,
    /// Number of unique ids that were issued so far, for answers and for seeds.
    answers: Arc<AtomicU64>,
}

impl App {
    /// Creates the state for the routes of an engine whose phase is published in `phase`.
    pub fn new(
        phase: watch::Receiver<Phase>,
        metrics: Arc<Metrics>,
        clock: Clock,
        access: Access,
        origins: Origins,
    ) -> Self {
        let (access, origins) = (Arc::new(access), Arc::new(origins));
        let (draining, answers, conversations) = Default::default();
        Self { phase, draining, metrics, clock, access, origins, conversations, answers }
    }

    /// Refuses new requests from now on, because the server is shutting down.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Ends all open answers without the rest of their outputs.
    pub fn cut_off(&self) {
        if let Phase::Ready(ready) = &*self.phase.borrow() {
            ready.handle.cut_off();
        }
    }

    /// Returns the number of sequences that are waiting or running; 0 unless the model is loaded.
    pub fn open_sequences(&self) -> usize {
        match &*self.phase.borrow() {
            Phase::Ready(ready) => ready.handle.open(),
            _ => 0,
        }
    }

    /// Returns the state of the loaded engine, or an error while it loads or after it failed.
    pub(super) fn ready(&self) -> Result<Arc<Ready>> {
        match &*self.phase.borrow() {
            Phase::Ready(ready) => Ok(Arc::clone(ready)),
            Phase::Loading => {
                Err(ApiError::new(ErrorKind::Loading, "the model is still being loaded"))
            }
            Phase::Failed(reason) => Err(ApiError::new(ErrorKind::EngineFailed, reason.as_str())),
        }
    }

    /// Returns the state of the loaded engine for a new request, or an error while the engine
    /// loads, after it failed, or while the server shuts down.
    pub(super) fn ready_for_work(&self) -> Result<Arc<Ready>> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(ApiError::new(ErrorKind::Draining, "the server is shutting down"));
        }
        self.ready()
    }

    /// Returns what [`App::ready_for_work`] does, for a request that wants an output; an error if the
    /// model embeds texts.
    pub(super) fn ready_to_generate(&self) -> Result<Arc<Ready>> {
        let ready = self.ready_for_work()?;
        if ready.embedding_size.is_none() {
            return Ok(ready);
        }
        let name = &ready.model_name;
        let message =
            format!("the model `{name}` embeds texts and generates none; hint: `/v1/embeddings`");
        Err(ApiError::field("model", message))
    }

    /// Returns a number that is unique within this process, and most likely among processes. It is
    /// used for ids of answers and for seeds.
    pub(super) fn unique(&self) -> u64 {
        let n = self.answers.fetch_add(1, Ordering::Relaxed);
        self.clock.start_unix_ns().wrapping_add(n)
    }
}
