//! Integration tests of the suite against its mock server and the pinned inputs; one file per
//! promise.

mod arrival;
mod audit;
mod bench;
mod client;
mod desk;
mod dialects;
mod export;
mod first_answer;
mod harness;
mod inputs;
mod kept;
mod paced;
mod packs;
mod serving;
mod telemetry;
#[cfg(feature = "tls")]
mod tls;
mod verdicts;
