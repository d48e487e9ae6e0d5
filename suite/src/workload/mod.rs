//! What is asked and when, fixed before anything is sent: data set, tokenizer and scenario in,
//! workload manifest out. Talks to no server and reads no clock.

pub mod arrival;
pub mod dataset;
pub mod generators;
pub mod gguf;
pub mod pack;
pub mod prefix;
pub mod published;
pub mod tokenizer;
