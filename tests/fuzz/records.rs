//! Fuzz targets of what is kept and configured: records, reports of other tools, and TOML files.
//! Shared by cargo-fuzz and the tests of the registry.

use schema::lab;
use schema::scenario::{InvalidFile, Scenario};
use schema::{engine, event, gpu_validation, model, policy, target};
use store::storage::examine;

/// Path of a run record, which `examine` compares with the record.
const PATH: &str =
    "results/runs/redline/v0.10.0/m/h/s/0123456789ab/01ARZ3NDEKTSV4RRFFQ69G5FAV.json";
/// Longest message about a file, in characters.
const MESSAGE_MAX: usize = 4000;

/// Examines a file as a run record, with all rules.
pub fn record(bytes: &[u8]) {
    for finding in examine(PATH, bytes).1 {
        check_message(&finding.detail);
    }
}

/// Reads a report of another tool: a console, JSON or CSV.
pub fn report(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let reading = reports::read("fuzzed", &text);
    assert!(!reading.records.is_empty() || !reading.unread.is_empty(), "nothing is an answer");
    let lines = text.lines().count() as u64 + 1;
    for unread in &reading.unread {
        assert!((1..=lines).contains(&unread.line), "line {} of {lines}", unread.line);
        // It quotes the report; the programs that print it remove what acts on a terminal.
        check_message(&schema::untrusted::one_line(&unread.why));
    }
}

/// Reads a TOML file as each kind of file that people write.
pub fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let found: [Result<(), InvalidFile>; 9] = [
        Scenario::parse(&text).map(drop),
        engine::parse(&text).map(drop),
        event::parse(&text).map(drop),
        gpu_validation::parse(&text).map(drop),
        lab::parse(&text).map(drop),
        model::parse_model(&text).map(drop),
        model::parse_dataset(&text).map(drop),
        policy::parse(&text).map(drop),
        target::parse(&text).map(drop),
    ];
    for error in found.into_iter().filter_map(Result::err) {
        check_message(&error.to_string());
    }
}

/// Panics if a message is empty, long, or acts on a terminal.
fn check_message(message: &str) {
    let acts = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!message.is_empty() && !message.contains(acts), "{message:?}");
    assert!(message.chars().count() <= MESSAGE_MAX, "{message:.200}");
}
