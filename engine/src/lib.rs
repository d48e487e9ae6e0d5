//! Redline's engine: an OpenAI-compatible server for large language models.
//!
//! Read in this order: `worker` is the engine loop, `schedule` forms batches, `model` computes them
//! on a `device`, `sample` picks the tokens, `http` talks to clients. `schedule` and `model` do not
//! know each other; only `http` knows the wire format.

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
