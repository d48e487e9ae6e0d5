//! `redline-results` as a user runs it, on real git repositories.

mod check;
mod read;
mod record;
mod scratch;
