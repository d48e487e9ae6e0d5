//! Workloads: dataset, tokenizer and scenario in, workload manifest out, before anything is sent.
//! Talks to no server and reads no clock.

pub(crate) mod arrival;
pub mod dataset;
mod generators;
mod gguf;
pub mod sampler;
pub mod tokenizer;
