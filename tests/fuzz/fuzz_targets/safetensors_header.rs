//! Runs `engine::safetensors_header` under libfuzzer.
#![no_main]

#[path = "../engine.rs"]
#[expect(dead_code, reason = "each target is a program of its own")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::safetensors_header(bytes));
