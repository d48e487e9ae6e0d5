//! Black-box tests of `redline-peers`: the real program in the campaign's scratch clone with a tiny
//! engine, and stand-ins for the other tools. No network, no fixed port.

#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with a line number")]

mod gate_bench;
mod gpu_validation;
mod peer;
#[expect(dead_code, reason = "the tests of campaigns use the rest of it")]
#[path = "../../../campaign/tests/it/scratch.rs"]
mod scratch;

/// Path of the tested program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_redline-peers");
