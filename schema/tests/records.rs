//! Backward compatibility of records: an example file of every schema version, as it was written at
//! the time, is read by today's types without loss.
//!
//! The example files are never edited. A type change that cannot read one of them needs a new
//! schema version with an example file of its own. Fields that a version gained later have an
//! example in a file with a further word in its name, such as `campaign.v1.gate.json`.

#![expect(clippy::unwrap_used, reason = "a test that unwraps fails with a line number")]

use std::fs;
use std::path::PathBuf;

use schema::canonical::record_sha256;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn text(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/records").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
}

/// The text of a file without its reasons for nulls, which only records keep.
fn unexplained(name: &str) -> String {
    let mut value: Value = serde_json::from_str(&text(name)).unwrap();
    assert!(value.as_object_mut().unwrap().remove("absent").is_some());
    value.to_string()
}

/// Reads `text` as a `T`, writes it again, and asserts that no value was lost.
fn kept<T: DeserializeOwned + Serialize>(text: &str) {
    let before: Value = serde_json::from_str(text).unwrap();
    let read: T = serde_json::from_str(text).unwrap();
    let after = serde_json::to_value(&read).unwrap();
    let mut lost = Vec::new();
    missing("", &before, &after, &mut lost);
    assert!(lost.is_empty(), "not kept: {lost:?}");
}

fn missing(path: &str, before: &Value, after: &Value, lost: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old.iter().filter(|(_, value)| !value.is_null()) {
                let path = format!("{path}.{key}");
                missing(&path, value, new.get(key).unwrap_or(&Value::Null), lost);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                missing(&format!("{path}.{index}"), old, new, lost);
            }
        }
        (Value::Number(old), Value::Number(new)) if old.as_f64() == new.as_f64() => {}
        (old, new) if old == new => {}
        _ => lost.push(path.to_owned()),
    }
}

#[test]
fn records_of_every_version_are_read_and_nothing_is_lost() {
    kept::<schema::run::RunRecord>(&text("run.v1.json"));
    kept::<schema::campaign::CampaignRecord>(&text("campaign.v1.json"));
    kept::<schema::campaign::CampaignRecord>(&text("campaign.v1.gate.json"));
    kept::<schema::kernel::KernelRecord>(&text("kernel.v1.json"));
    kept::<schema::measurement::Measurement>(&unexplained("measurement.v1.json"));
    kept::<schema::measurement::Measurement>(&text("measurement.v1.url.json"));
    kept::<schema::manifest::Manifest>(&text("manifest.v1.json"));
    kept::<schema::plan::PlanFile>(&text("plan.v1.json"));
    kept::<schema::probe::Probe>(&unexplained("probe.v1.json"));
    kept::<schema::alternation::Alternation>(&text("alternation.v1.json"));
    kept::<schema::search::SearchResult>(&text("search.v1.json"));
    kept::<schema::comparison::Diff>(&text("diff.v1.json"));
    kept::<schema::comparison::Diff>(&text("diff.v1.gate.json"));
    kept::<schema::comparison::Diff>(&text("diff.v1.together.json"));
    kept::<schema::trend::Trend>(&text("trend.v1.json"));
    kept::<schema::gpu_validation::ValidationBundle>(&text("proof-box.v1.json"));
    kept::<schema::gpu_validation::ValidationBundle>(&text("proof-box.v1.calls.json"));
    kept::<schema::gpu_validation::StageReport>(&text("proof-stage.v1.json"));
    kept::<schema::submission::SubmissionBundle>(&text("submission.v1.json"));
    kept::<schema::submission::SubmissionManifest>(&text("submission-manifest.v1.json"));
    for line in text("samples.v1.jsonl").lines() {
        kept::<schema::samples::Line>(line);
    }
    let event = schema::event::parse(&text("event.v1.toml")).unwrap();
    assert_eq!(event.problems(), Vec::<String>::new());
}

#[test]
fn every_version_has_a_file_and_none_is_left_over() {
    let versions = schema::schemas::all().into_iter().map(|(name, _)| name);
    let mut due: Vec<String> =
        versions.filter(|name| name.contains(".v")).map(str::to_owned).collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/records");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let version = |name: &str| name.split('.').take(2).collect::<Vec<_>>().join(".");
    let mut found: Vec<String> = names.map(|name| version(&name.into_string().unwrap())).collect();
    due.sort();
    found.sort();
    found.dedup();
    assert_eq!(due, found);
}

#[test]
fn the_hash_of_an_old_record_still_holds() {
    for name in ["run.v1.json", "campaign.v1.json", "campaign.v1.gate.json"] {
        let value: Value = serde_json::from_str(&text(name)).unwrap();
        assert_eq!(value["record_sha256"], record_sha256(&value).unwrap(), "{name}");
    }
}
