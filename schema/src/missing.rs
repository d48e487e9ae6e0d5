//! Fields that are missing in a TOML file, all at once: a parser stops at the first.

use schemars::JsonSchema;
use serde_json::Value;

/// Returns the fields that a file of the type `T` must have and `text` lacks, such as `ready.route`, in
/// alphabetical order; none if `text` is not TOML.
pub(crate) fn missing<T: JsonSchema>(text: &str) -> Vec<String> {
    let Ok(found) = toml::from_str::<Value>(text) else { return Vec::new() };
    let schema = schemars::schema_for!(T).to_value();
    let mut names = Vec::new();
    collect_missing(&schema, &schema, &found, "", &mut names);
    names.sort();
    names
}

/// Adds to `names` the fields that the table schema `of` requires and `found` lacks, with `path` in
/// front. A missing table counts as one without fields, so that those that it needs are named.
fn collect_missing(root: &Value, of: &Value, found: &Value, path: &str, names: &mut Vec<String>) {
    let target = of["$ref"].as_str().and_then(|target| root.pointer(target.strip_prefix('#')?));
    let of = target.unwrap_or(of);
    let required: Vec<&str> =
        of["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, property) in of["properties"].as_object().into_iter().flatten() {
        let (full, inner) = (format!("{path}{name}"), found.get(name));
        let before = names.len();
        if inner.is_some_and(Value::is_object) || inner.is_none() && required.contains(&&**name) {
            let inner = inner.unwrap_or(&Value::Null);
            collect_missing(root, property, inner, &format!("{full}."), names);
        }
        if inner.is_none() && required.contains(&&**name) && names.len() == before {
            names.push(full);
        }
    }
}
