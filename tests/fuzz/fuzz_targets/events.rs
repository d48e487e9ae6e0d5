//! Runs `client::events` under libfuzzer.
#![no_main]

#[path = "../client.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::events(bytes));
