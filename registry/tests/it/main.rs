//! `redline-results` as a user runs it, on real git repositories.

#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with a line number")]

mod check;
mod events;
mod gate;
mod read;
mod record;
mod scratch;
mod simulation;
