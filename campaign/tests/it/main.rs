//! Black box: the real `redline-campaign` over a scratch clone with a tiny engine, and stand-ins
//! for the other tools. No network, no fixed port.

#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with a line number")]

mod early_ends;
mod failures;
mod ingest;
mod journey;
mod kernels;
mod lab;
mod launch_lines;
mod refusals;
mod resume;
mod scratch;
mod slurm;

/// The program that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_redline-campaign");
