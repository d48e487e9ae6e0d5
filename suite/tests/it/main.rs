//! The suite against its own emitter and the pinned inputs; one file per promise.

mod bench;
mod client;
mod first_answer;
mod harness;
mod inputs;
