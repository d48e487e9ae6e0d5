//! Tools as harmony shows them to gpt-oss: a namespace of TypeScript types. From the published
//! description (github.com/openai/harmony, docs/format.md, "Function calling").

use std::fmt::Write as _;

use serde_json::Value;

/// Depth at which the types of properties are no longer spelled out: schemas come from strangers.
const DEPTH_MAX: usize = 16;

/// Writes tools, a list in OpenAI's format, as the section of a developer message.
pub(super) fn listed(tools: &Value) -> String {
    let mut out = String::from("# Tools\n\n## functions\n\nnamespace functions {\n");
    for tool in tools.as_array().into_iter().flatten() {
        let function = &tool["function"];
        out.push('\n');
        comment(&function["description"], "", &mut out);
        let name = function["name"].as_str().unwrap_or_default();
        let parameters = &function["parameters"];
        let has_properties =
            parameters["properties"].as_object().is_some_and(|map| !map.is_empty());
        match has_properties {
            true => {
                let _ =
                    writeln!(out, "type {name} = (_: {}) => any;", object(parameters, ["", ""], 0));
            }
            false => {
                let _ = writeln!(out, "type {name} = () => any;");
            }
        }
    }
    out + "\n} // namespace functions"
}

/// Writes a description as comments, one for each of its lines.
fn comment(description: &Value, indent: &str, out: &mut String) {
    for line in description.as_str().unwrap_or_default().lines() {
        let _ = writeln!(out, "{indent}// {line}");
    }
}

/// Writes the properties of an object as a TypeScript type; they are indented by `indent`, and the
/// closing brace by `outer`.
fn object(schema: &Value, [indent, outer]: [&str; 2], depth: usize) -> String {
    let mut out = String::from("{\n");
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        comment(&property["description"], indent, &mut out);
        let mark = if required.iter().any(|one| one == name) { "" } else { "?" };
        let kind = kind(property, indent, depth + 1);
        let default = match &property["default"] {
            Value::Null => String::new(),
            Value::String(text) => format!(" // default: {text}"),
            other => format!(" // default: {other}"),
        };
        let _ = writeln!(out, "{indent}{name}{mark}: {kind},{default}");
    }
    out + outer + "}"
}

/// Writes a schema as a TypeScript type.
fn kind(schema: &Value, indent: &str, depth: usize) -> String {
    if depth > DEPTH_MAX {
        return "any".to_owned();
    }
    let union = |schemas: &[Value]| {
        let kinds: Vec<String> = schemas.iter().map(|one| kind(one, indent, depth + 1)).collect();
        kinds.join(" | ")
    };
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        return values.join(" | ");
    }
    if let Some(schemas) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return union(schemas);
    }
    match &schema["type"] {
        Value::Array(names) => {
            let names: Vec<Value> =
                names.iter().map(|name| serde_json::json!({"type": name})).collect();
            union(&names)
        }
        name => match name.as_str() {
            Some("string") => "string".to_owned(),
            Some("integer" | "number") => "number".to_owned(),
            Some("boolean") => "boolean".to_owned(),
            Some("null") => "null".to_owned(),
            Some("array") => match kind(&schema["items"], indent, depth + 1) {
                union if union.contains(" | ") => format!("({union})[]"),
                items => format!("{items}[]"),
            },
            Some("object") if schema["properties"].is_object() => {
                object(schema, [&format!("{indent}    "), indent], depth)
            }
            Some("object") => "object".to_owned(),
            _ => "any".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_are_written_as_the_format_is_published() {
        let tools = json!([
            {"type": "function", "function": {
                "name": "get_location", "description": "Gets the location of the user.",
            }},
            {"type": "function", "function": {
                "name": "get_current_weather",
                "description": "Gets the current weather in the provided location.",
                "parameters": {"type": "object", "required": ["location"], "properties": {
                    "location": {
                        "type": "string", "description": "The city and state, e.g. San Francisco, CA",
                    },
                    "format": {
                        "type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius",
                    },
                    "days": {"type": "array", "items": {"type": ["integer", "null"]}},
                    "at": {"type": "object", "properties": {"lat": {"type": "number"}}},
                }},
            }},
        ]);
        expect![[r#"
            # Tools

            ## functions

            namespace functions {

            // Gets the location of the user.
            type get_location = () => any;

            // Gets the current weather in the provided location.
            type get_current_weather = (_: {
            // The city and state, e.g. San Francisco, CA
            location: string,
            format?: "celsius" | "fahrenheit", // default: celsius
            days?: (number | null)[],
            at?: {
                lat?: number,
            },
            }) => any;

            } // namespace functions"#]]
        .assert_eq(&listed(&tools));
    }
}
