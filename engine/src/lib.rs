//! Redline's engine: an OpenAI-compatible server for large language models.
//!
//! Read in this order: `worker` is the engine loop, `schedule` forms batches, `model` computes them
//! on a `device`, `sample` picks the tokens, `http` talks to clients. `schedule` and `model` do not
//! know each other; only `http` knows the wire format.

#![warn(missing_docs)]

pub mod bench;
mod capacity;
pub mod cli;
pub mod clock;
pub mod config;
pub mod device;
pub mod fixture;
pub mod http;
pub mod launch;
pub mod listen;
pub mod metrics;
pub mod model;
pub mod perplexity;
pub mod random;
pub mod sample;
pub mod say;
pub mod schedule;
pub mod server;
pub mod text;
pub mod tokenize;
pub mod weights;
pub mod worker;
