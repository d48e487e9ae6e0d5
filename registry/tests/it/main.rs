//! Tests of `redline-results` as a user runs it, on real git repositories.

#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with a line number")]

mod check;
mod detection;
mod disks;
mod events;
mod gate;
mod hostile;
mod import;
mod killed;
mod lab;
mod malformed;
mod queries;
mod read;
mod record;
mod scratch;
mod simulation;
mod submit;
mod sync;
mod tampering;
mod validity;
