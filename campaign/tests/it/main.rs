//! Black-box tests of `redline-campaign`: the real program in a scratch clone with a tiny engine,
//! and stand-ins for the other tools. No network, no fixed port.

#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with a line number")]

mod candidates;
mod command_lines;
mod datasets;
mod early_ends;
mod failures;
mod gate;
mod gate_ends;
mod in_turns;
mod ingest;
mod journey;
mod kernels;
mod killed;
mod lab;
mod matrix;
mod refusals;
mod reproduce;
mod resume;
mod scratch;
mod slurm;
mod sources;
mod venvs;

/// Path of the tested program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_redline-campaign");
