//! The load generator: what is asked (`workload`), the client that asks it and takes the times
//! (`client`), what the times mean (`measure`), what is seen beside it (`telemetry`), and a
//! scripted server to test all that (`emitter`).

#![warn(missing_docs)]

pub mod client;
pub mod clock;
pub mod command;
pub mod emitter;
mod export;
pub mod measure;
mod session;
pub mod telemetry;
pub mod workload;
