//! Redline's engine: an OpenAI-compatible server for large language models.
//!
//! Read in this order: `worker` is the loop, `engine_schedule` chooses a batch, `engine_model`
//! computes it over a device, `engine_core::sample` picks the tokens, `http` speaks to the world.
//! `load` alone chooses a device; only `http` knows the wire.

#![warn(missing_docs)]

pub mod bench;
mod capacity;
pub mod cli;
pub mod config;
#[cfg(test)]
#[expect(dead_code, reason = "groups of GPUs are for the tests of models")]
#[path = "../cuda/emulated/mod.rs"]
mod emulated;
pub mod guide;
pub mod http;
pub mod launch;
pub mod listen;
pub mod load;
pub mod logprobs;
pub mod metrics;
pub mod perplexity;
pub mod say;
pub mod server;
pub mod text;
pub mod tokenize;
pub mod worker;
