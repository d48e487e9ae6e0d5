//! Workloads: builds the workload manifest of a scenario from dataset and tokenizer before the
//! first request is sent. It contacts no server and reads no clock.

pub(crate) mod arrival;
mod chat_template;
pub mod dataset;
mod generators;
mod gguf;
pub mod sampler;
pub mod tokenizer;
