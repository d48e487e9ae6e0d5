//! Validator of the JSON schemas that the tests generate, written from the specification (draft
//! 2020-12) and apart from the grammar engine's way: it looks at a finished value.

use serde_json::{Map, Value};

/// Reads a text that a grammar of the seed `seed` has accepted; `None` if it has a number beyond those
/// of 64 bits, which JSON itself does not limit.
///
/// # Panics
/// If the text is no JSON.
pub fn read(text: &str, seed: u64) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) if error.to_string().starts_with("number out of range") => None,
        Err(error) => panic!("seed {seed}: {error}: {text}"),
    }
}

/// Returns true if `value` is valid under `schema`, whose references begin at `root`.
pub fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else { return schema == &Value::Bool(true) };
    keywords.iter().all(|(keyword, wanted)| check(root, keywords, keyword, wanted, value))
}

fn check(
    root: &Value,
    keywords: &Map<String, Value>,
    keyword: &str,
    wanted: &Value,
    value: &Value,
) -> bool {
    let valid = |schema: &Value, value: &Value| is_valid(root, schema, value);
    let count = wanted.as_u64().unwrap_or_default() as usize;
    let all = || wanted.as_array().into_iter().flatten();
    match (keyword, value) {
        ("$ref", _) => {
            let pointer = wanted.as_str().and_then(|text| text.strip_prefix('#'));
            valid(
                root.pointer(pointer.expect("a local reference")).expect("it leads to a schema"),
                value,
            )
        }
        ("type", _) => has_type(wanted, value),
        ("const", _) => wanted == value,
        ("enum", _) => all().any(|constant| constant == value),
        ("anyOf", _) => all().any(|schema| valid(schema, value)),
        ("allOf", _) => all().all(|schema| valid(schema, value)),
        ("oneOf", _) => all().filter(|schema| valid(schema, value)).count() == 1,
        ("minLength", Value::String(text)) => text.chars().count() >= count,
        ("maxLength", Value::String(text)) => text.chars().count() <= count,
        ("pattern", Value::String(text)) => matches(wanted.as_str().unwrap_or_default(), text),
        ("format", Value::String(text)) => is_date(text),
        ("prefixItems", Value::Array(items)) => all().zip(items).all(|(s, item)| valid(s, item)),
        ("items", Value::Array(items)) => {
            let prefix = keywords.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            items.iter().skip(prefix).all(|item| valid(wanted, item))
        }
        ("minItems", Value::Array(items)) => items.len() >= count,
        ("maxItems", Value::Array(items)) => items.len() <= count,
        ("required", Value::Object(map)) => {
            all().all(|name| map.contains_key(name.as_str().unwrap_or_default()))
        }
        ("properties", Value::Object(map)) => map
            .iter()
            .all(|(name, value)| wanted.get(name).is_none_or(|schema| valid(schema, value))),
        ("patternProperties", Value::Object(map)) => {
            let patterns = wanted.as_object().into_iter().flatten();
            let fits = |(pattern, schema): (&String, &Value)| {
                map.iter().all(|(name, value)| !matches(pattern, name) || valid(schema, value))
            };
            patterns.into_iter().all(fits)
        }
        ("additionalProperties", Value::Object(map)) => map.iter().all(|(name, value)| {
            let named = keywords.get("properties").is_some_and(|all| all.get(name).is_some());
            let patterns = keywords.get("patternProperties").and_then(Value::as_object);
            let matched = patterns.is_some_and(|all| all.keys().any(|text| matches(text, name)));
            named || matched || valid(wanted, value)
        }),
        (_, Value::Number(_)) => is_in_range(keyword, wanted, value),
        _ => true,
    }
}

fn has_type(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("the type `{other}` is not generated"),
    }
}

fn is_in_range(keyword: &str, wanted: &Value, value: &Value) -> bool {
    let (Some(limit), Some(number)) = (wanted.as_f64(), value.as_f64()) else { return true };
    match keyword {
        "minimum" => number >= limit,
        "exclusiveMinimum" => number > limit,
        "maximum" => number <= limit,
        "exclusiveMaximum" => number < limit,
        // Beyond 2^53 a number of 64 bits is not exact.
        "multipleOf" => number.abs() > 2f64.powi(53) || number % limit == 0.0,
        _ => true,
    }
}

/// Returns true if a generated regular expression matches somewhere in a text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern {
        "^[a-c]{2,5}(x|yz)?$" => {
            let stem = text.strip_suffix("yz").or(text.strip_suffix('x')).unwrap_or(text);
            (2..=5).contains(&stem.len()) && stem.bytes().all(|byte| b"abc".contains(&byte))
        }
        "b+" => text.contains('b'),
        "^p_" => text.starts_with("p_"),
        other => panic!("the pattern `{other}` is not generated"),
    }
}

/// Returns true if a text is a date such as 2024-02-29, as far as its digits tell.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let digits =
        |part: &&str, count| part.len() == count && part.bytes().all(|b| b.is_ascii_digit());
    parts.len() == 3 && [4, 2, 2].iter().zip(&parts).all(|(count, part)| digits(part, *count))
}
