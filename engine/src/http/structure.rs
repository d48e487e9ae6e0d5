//! Request fields for structured output (JSON schema, regex, choice), in the names of OpenAI, vLLM
//! and SGLang.

use serde_json::Value;

use super::error::{ApiError, ErrorKind, Result, shown};
use super::fields::{Fields, wrong_type};
use super::json::Budget;
use crate::guide::Structure;

/// Name of the request field that asks for a structure of the output, and that structure (JSON
/// schema or regular expression).
pub(super) type Wanted = (&'static str, Structure);

/// Function that reads the value of one request field for structured output; it returns `None` if
/// the value asks for no structure. Texts in the value may contain as many JSON values as the budget
/// has left.
type Read = fn(&'static str, Value, &Budget) -> Result<Option<Structure>>;

/// Names of the request fields for structured output, each with the function that reads its value.
const SPELLINGS: [(&str, Read); 7] = [
    ("response_format", response_format),
    ("structured_outputs", structured_outputs),
    ("guided_json", schema),
    ("guided_regex", regex),
    ("guided_choice", choice),
    ("json_schema", schema),
    ("regex", regex),
];

/// Reads the structure that a request wants for its output from any of the fields for structured
/// output. Two fields that both want one are an error, since they could contradict each other.
pub(super) fn take_structure(fields: &mut Fields) -> Result<Option<Wanted>> {
    let mut wanted: Option<Wanted> = None;
    // All fields are read, to notice contradictions.
    for (field, read) in SPELLINGS {
        let Some(value) = fields.take(field) else { continue };
        let Some(structure) = read(field, value, &fields.budget)? else { continue };
        if let Some((first, _)) = &wanted {
            let message = format!("`{field}` cannot be combined with `{first}`");
            return Err(ApiError::field(field, message));
        }
        wanted = Some((field, structure));
    }
    Ok(wanted)
}

fn response_format(field: &'static str, value: Value, _: &Budget) -> Result<Option<Structure>> {
    match value["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Structure::any_object())),
        Some("json_schema") => match &value["json_schema"]["schema"] {
            schema @ (Value::Object(_) | Value::Bool(_)) => {
                Ok(Some(Structure::Json(schema.clone())))
            }
            other => Err(wrong_type("response_format.json_schema.schema", "a JSON schema", other)),
        },
        Some(other) => {
            let kind = shown(other);
            let message = format!("`response_format` of type `{kind}` is not supported");
            Err(ApiError::new(ErrorKind::UnsupportedField, message).at(field))
        }
        None => Err(wrong_type(field, "an object with a `type`", &value)),
    }
}

/// Reads vLLM's `structured_outputs`: `{"json": ..}`, `{"regex": ..}`, `{"choice": ..}` or
/// `{"json_object": true}`.
fn structured_outputs(
    field: &'static str,
    value: Value,
    budget: &Budget,
) -> Result<Option<Structure>> {
    let Value::Object(entries) = value else {
        return Err(wrong_type(field, "an object", &value));
    };
    let mut found = None;
    for (key, value) in entries {
        // Clients send `null` or `false` for entries that are not used.
        if value.is_null() || value == Value::Bool(false) {
            continue;
        }
        let structure = match key.as_str() {
            "json" => schema("structured_outputs.json", value, budget)?,
            "regex" => regex("structured_outputs.regex", value, budget)?,
            "choice" => choice("structured_outputs.choice", value, budget)?,
            "json_object" => Some(Structure::any_object()),
            _ => {
                let message = format!("`{field}.{}` is not supported", shown(&key));
                return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(field));
            }
        };
        if found.is_some() {
            return Err(ApiError::field(field, format!("`{field}` has more than one structure")));
        }
        found = structure;
    }
    Ok(found)
}

/// Reads a JSON schema, given as JSON or as a string that contains JSON.
fn schema(field: &'static str, value: Value, budget: &Budget) -> Result<Option<Structure>> {
    let schema = match value {
        Value::String(text) => budget
            .read_text(field, &text)?
            .map_err(|error| ApiError::field(field, format!("`{field}` is not JSON: {error}")))?,
        other => other,
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Some(Structure::Json(schema))),
        other => Err(wrong_type(field, "a JSON schema", &other)),
    }
}

fn regex(field: &'static str, value: Value, _: &Budget) -> Result<Option<Structure>> {
    match value {
        Value::String(expression) => Ok(Some(Structure::Regex(expression))),
        other => Err(wrong_type(field, "a regular expression", &other)),
    }
}

fn choice(field: &'static str, value: Value, _: &Budget) -> Result<Option<Structure>> {
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    let texts: Option<Vec<_>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
    match texts.filter(|texts| !texts.is_empty()) {
        Some(texts) => Ok(Some(Structure::Choice(texts))),
        None => Err(wrong_type(field, "a list of texts", &value)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_spelling_says_the_same() {
        let schema = json!({"type": "integer"});
        let as_json = Some(Structure::Json(schema.clone()));
        let as_regex = Some(Structure::Regex("a+".into()));
        let as_choice = Some(Structure::Choice(vec!["a".into(), "b.".into()]));
        for (body, wanted) in [
            (json!({}), None),
            (json!({"response_format": {"type": "text"}, "guided_json": null}), None),
            (json!({"structured_outputs": {}}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(Structure::any_object())),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
                as_json.clone(),
            ),
            (json!({"guided_json": schema}), as_json.clone()),
            (json!({"guided_json": schema.to_string()}), as_json.clone()),
            (json!({"json_schema": schema.to_string()}), as_json.clone()),
            (json!({"structured_outputs": {"json": schema, "regex": null}}), as_json),
            (json!({"guided_regex": "a+"}), as_regex.clone()),
            (json!({"regex": "a+"}), as_regex.clone()),
            (json!({"structured_outputs": {"regex": "a+"}}), as_regex),
            (json!({"guided_choice": ["a", "b."]}), as_choice.clone()),
            (json!({"structured_outputs": {"choice": ["a", "b."]}}), as_choice),
        ] {
            let Value::Object(map) = body.clone() else { unreachable!() };
            let found = take_structure(&mut Fields::of(map)).unwrap();
            assert_eq!(found.map(|(_, structure)| structure), wanted, "{body}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_field() {
        for (body, param) in [
            (json!({"response_format": {"type": "xml"}}), "response_format"),
            (json!({"response_format": 1}), "response_format"),
            (
                json!({"response_format": {"type": "json_schema"}}),
                "response_format.json_schema.schema",
            ),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_json": [1]}), "guided_json"),
            (json!({"guided_regex": 1}), "guided_regex"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"structured_outputs": {"grammar": "x"}}), "structured_outputs"),
            (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs"),
            (json!({"guided_regex": "a", "regex": "b"}), "regex"),
        ] {
            let Value::Object(map) = body.clone() else { unreachable!() };
            let error = take_structure(&mut Fields::of(map)).expect_err("nothing sensible");
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
