//! What the routes share: whether the model is there, and how to reach it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::error::{ApiError, ErrorKind};
use super::info::ServerInfo;
use crate::metrics::Metrics;
use crate::text::Text;
use crate::worker::Handle;
use engine_core::clock::Clock;
use engine_schedule::Limits;

/// How far the engine is.
#[derive(Debug, Clone)]
pub enum Phase {
    /// The model is not there yet.
    Loading,
    /// Requests are taken.
    Ready(Arc<Ready>),
    /// It will not come back; the reason is fit for a client.
    Failed(String),
}

/// All that is known once the model is loaded.
#[derive(Debug)]
pub struct Ready {
    /// The way to the worker.
    pub handle: Handle,
    /// The model's tokenizer and its chat template.
    pub text: Arc<dyn Text>,
    /// What requests may ask for at most.
    pub limits: Limits,
    /// Number of token ids; every id is below it.
    pub vocab_size: usize,
    /// The name that requests give.
    pub model_name: String,
    /// What `/server_info` answers.
    pub info: ServerInfo,
    /// Of the weights, which may still be computed.
    pub weights_sha256: engine_weights::Digest,
}

/// What every route can reach.
#[derive(Debug, Clone)]
pub struct App {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    phase: watch::Receiver<Phase>,
    draining: AtomicBool,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// SHA-256 of the key that requests must show.
    api_key: Option<[u8; 32]>,
    answers: AtomicU64,
}

impl App {
    /// Routes over an engine that goes through `phase`.
    pub fn new(
        phase: watch::Receiver<Phase>,
        metrics: Arc<Metrics>,
        clock: Clock,
        api_key: Option<&str>,
    ) -> Self {
        let api_key = api_key.map(|key| Sha256::digest(key).into());
        let (draining, answers) = (AtomicBool::new(false), AtomicU64::new(0));
        let shared = Shared { phase, draining, metrics, clock, api_key, answers };
        Self { shared: Arc::new(shared) }
    }

    /// From now on new requests are refused.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    /// Sequences that have not ended.
    pub fn open_sequences(&self) -> usize {
        match &*self.shared.phase.borrow() {
            Phase::Ready(ready) => ready.handle.open(),
            _ => 0,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.shared.phase.borrow().clone()
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    pub(super) fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// The loaded engine.
    pub(super) fn ready(&self) -> Result<Arc<Ready>, ApiError> {
        match self.phase() {
            Phase::Ready(ready) => Ok(ready),
            Phase::Loading => {
                Err(ApiError::new(ErrorKind::Loading, "the model is still being loaded"))
            }
            Phase::Failed(reason) => Err(ApiError::new(ErrorKind::EngineFailed, reason)),
        }
    }

    /// The loaded engine, for new work.
    pub(super) fn ready_for_work(&self) -> Result<Arc<Ready>, ApiError> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(ApiError::new(ErrorKind::Draining, "the server is shutting down"));
        }
        self.ready()
    }

    /// A number that no other answer of this process has, and hardly one of another.
    pub(super) fn unique(&self) -> u64 {
        let n = self.shared.answers.fetch_add(1, Ordering::Relaxed);
        self.shared.clock.start_unix_ns().wrapping_add(n)
    }

    /// Whether a request may pass. Digests are compared, whole, so that the time taken tells
    /// nothing about the key.
    pub(super) fn authorizes(&self, shown: Option<&str>) -> bool {
        let Some(key) = &self.shared.api_key else { return true };
        let shown: [u8; 32] = Sha256::digest(shown.unwrap_or_default()).into();
        let different = key.iter().zip(&shown).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(different) == 0
    }
}
