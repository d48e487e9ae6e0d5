//! Reasons for missing values in a record: every null needs one, and zero never means "unknown".

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Reasons why fields of a record are null: dotted path of the field to one sentence.
pub type Absent = BTreeMap<String, String>;

/// Dotted paths of record fields that may be null or left out without a reason under `absent`.
pub const OPTIONAL: &[&str] = &[
    "failure",
    "source",
    "server.variant",
    "engine.image_digest",
    "model.revision",
    "hardware.evidence",
    "correctness.reference",
];

/// Returns the dotted paths of the nulls in `record` that neither `absent` nor [`OPTIONAL`]
/// explains, in the record's order.
pub fn unexplained_nulls(record: &Value) -> Vec<String> {
    let absent = record.get("absent").and_then(Value::as_object);
    let explained = |path: &str| {
        OPTIONAL.contains(&path) || absent.is_some_and(|reasons| reasons.contains_key(path))
    };
    let mut found = Vec::new();
    collect_nulls(record, &mut String::new(), &explained, &mut found);
    found
}

/// Appends the dotted paths of unexplained nulls in `value` to `found`. `path` is the path of
/// `value`; the recursion extends it and restores it before it returns.
fn collect_nulls(
    value: &Value,
    path: &mut String,
    explained: &dyn Fn(&str) -> bool,
    found: &mut Vec<String>,
) {
    // A finding of a rule that passed has no detail, so nulls under `checks` need no reason.
    if explained(path) || path == "checks" {
        return;
    }
    let length = path.len();
    let mut enter = |part: std::fmt::Arguments<'_>, below: &Value| {
        let dot = if length == 0 { "" } else { "." };
        // Writing to a string cannot fail.
        let _ = write!(path, "{dot}{part}");
        collect_nulls(below, path, explained, found);
        path.truncate(length);
    };
    match value {
        Value::Null => found.push(path.clone()),
        Value::Object(map) => {
            map.iter().for_each(|(key, below)| enter(format_args!("{key}"), below));
        }
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(index, below)| enter(format_args!("{index}"), below));
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Dotted paths of fields that later releases added to run records. A record measured today gives
/// each of them or a reason for its absence; a record from before the field has neither.
pub const FACTS: &[&str] = &[
    "artifacts",
    "client.place",
    "engine.build",
    "hardware.platform",
    "model.chat_template_sha256",
    "model.parameters_active",
    "model.quantization",
    "server.cuda_graphs",
    "server.defaults_sha256",
    "server.parallel",
    "server.scheduler",
];

/// Returns the paths of [`FACTS`] that `record` neither gives nor explains under `absent`, where a
/// reason for a group (`server`) covers all fields of the group.
pub fn unexplained_facts(record: &Value) -> Vec<&'static str> {
    let absent = record.get("absent").and_then(Value::as_object);
    let explained = |path: &str| absent.is_some_and(|reasons| reasons.contains_key(path));
    let silent = |path: &&&str| {
        let mut at = record;
        let mut walked = String::new();
        for key in path.split('.') {
            walked = if walked.is_empty() { key.to_owned() } else { format!("{walked}.{key}") };
            if explained(&walked) {
                return false;
            }
            match at.get(key) {
                Some(below) => at = below,
                // A missing key counts as null, and so does everything below it.
                None => at = &Value::Null,
            }
        }
        at.is_null()
    };
    FACTS.iter().filter(silent).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Counts, RunRecord, SCHEMA};
    use serde_json::json;

    fn value(record: &RunRecord) -> Value {
        serde_json::to_value(record).expect("a record is JSON")
    }

    #[test]
    fn a_null_without_a_reason_is_named_by_its_path() {
        let mut record = RunRecord { schema: SCHEMA.into(), ..RunRecord::default() };
        record.counts = Some(Counts::default());
        let nulls = unexplained_nulls(&value(&record));
        assert!(nulls.contains(&"counts.requests_ok".to_owned()));
        assert!(nulls.contains(&"metrics".to_owned()));
        assert!(!nulls.contains(&"failure".to_owned()), "failure may be null without a reason");
    }

    #[test]
    fn a_reason_covers_everything_below_its_path() {
        let mut record = RunRecord { counts: Some(Counts::default()), ..RunRecord::default() };
        record.absent.insert("counts".into(), "the server never became ready".into());
        let nulls = unexplained_nulls(&value(&record));
        assert!(nulls.iter().all(|path| !path.starts_with("counts")));
    }

    #[test]
    fn a_fact_is_given_or_explained_by_itself_or_by_its_group() {
        let all = unexplained_facts(&json!({}));
        assert_eq!(all, FACTS);
        let record = json!({
            "client": null,
            "engine": {"build": {"profile": "release"}},
            "server": {"scheduler": null},
            "absent": {"client": "x", "server.scheduler": "y", "model": "z"},
        });
        let left = unexplained_facts(&record);
        let expected = [
            "artifacts",
            "hardware.platform",
            "server.cuda_graphs",
            "server.defaults_sha256",
            "server.parallel",
        ];
        assert_eq!(left, expected);
    }
}
