//! Cost of parsing an event into a sample, measured by the load generator's criterion benchmark.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::clients::testbed::Testbed;
use campaign::files::read_text;
use campaign::process::{describe, show};
use campaign::stop::Stop;

/// Result file of the benchmark whose chunks have the mock server's form.
const ESTIMATES: &str = "parse/completions/new/estimates.json";
/// Events per iteration of the benchmark.
const EVENTS: f64 = 1000.0;

/// Median cost of parsing an event, in microseconds.
///
/// # Errors
/// The benchmark does not build or leaves no result.
pub fn median_us(testbed: &Testbed<'_>) -> Result<f64, Stop> {
    let home = testbed.path("criterion");
    // An earlier result must not be read if the benchmark writes none.
    let _ = fs::remove_dir_all(&home);
    let mut cargo = Command::new("cargo");
    cargo
        .args(["bench", "--quiet", "--locked", "-p", "suite", "--bench", "parse", "--"])
        .args(["--noplot", "--warm-up-time", "1", "--measurement-time", "3", "completions"])
        .env("CRITERION_HOME", &home);
    let places = &testbed.world.places;
    campaign::build::call_in(&mut cargo, places, &places.root);
    let status = show(&mut cargo, &testbed.world.interrupt)?;
    if !status.success() {
        return Err(Stop::environment(format!("`cargo bench` ended with {}", describe(status))));
    }
    let estimates: Value =
        serde_json::from_str(&read_text(&home.join(ESTIMATES))?).unwrap_or_default();
    let median_ns = estimates.pointer("/median/point_estimate").and_then(Value::as_f64);
    let median_ns = median_ns.ok_or_else(|| Stop::environment("the bench left no median"))?;
    Ok(median_ns / EVENTS / 1e3)
}
