//! Request fields for tool calls: `tools`, `tool_choice` and `parallel_tool_calls`.

use serde_json::{Value, json};

use super::error::{ApiError, ErrorKind, Result, shown};
use super::fields::{Fields, wrong_type};
use crate::guide::{Calls, TOOLS_MAX};
use crate::tokenize::CallFormat;
use crate::tools::{NAME_CHARS_MAX, Tool, is_name};

/// Name of the field in errors about the grammar of calls.
pub(super) const FIELD: &str = "tools";

/// Tools of a request that the model may call.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    /// The tools as the client has sent them, for the chat template.
    pub(super) listed: Value,
    /// The tools that the request lets the model call: all, or the one that it names.
    callable: Vec<Tool>,
    is_required: bool,
    may_repeat: bool,
}

impl Tools {
    /// Reads the tools that a request lets the model call; `None` if it lets it call none, in which
    /// case the chat template is not shown any.
    pub(super) fn take(fields: &mut Fields) -> Result<Option<Self>> {
        let listed = match fields.take(FIELD) {
            None => Vec::new(),
            Some(Value::Array(listed)) => listed,
            Some(other) => return Err(wrong_type(FIELD, "a list of tools", &other)),
        };
        if listed.len() > TOOLS_MAX {
            let message =
                format!("`{FIELD}` has {} tools, at most {TOOLS_MAX} are possible", listed.len());
            return Err(ApiError::field(FIELD, message));
        }
        let tools: Result<Vec<Tool>> =
            listed.iter().enumerate().map(|(index, value)| tool(index, value)).collect();
        let mut callable = tools?;
        for (index, tool) in callable.iter().enumerate() {
            if callable[..index].iter().any(|other| other.name == tool.name) {
                let message = format!("`{FIELD}` has two tools with the name `{}`", tool.name);
                return Err(ApiError::field(FIELD, message));
            }
        }
        let mut may_repeat = fields.bool_or("parallel_tool_calls", true)?;
        let choice = choice(fields.take("tool_choice"))?;
        if callable.is_empty() && !matches!(choice, Choice::None | Choice::Auto) {
            let message = "`tool_choice` wants a call, but `tools` is empty";
            return Err(ApiError::field("tool_choice", message));
        }
        if callable.is_empty() || choice == Choice::None {
            return Ok(None);
        }
        if let Choice::Named(name) = &choice {
            callable.retain(|tool| tool.name == *name);
            may_repeat = false;
            if callable.is_empty() {
                let message =
                    format!("`tool_choice` names `{}`, which is not in `tools`", shown(name));
                return Err(ApiError::field("tool_choice", message));
            }
        }
        let is_required = choice != Choice::Auto;
        Ok(Some(Self { listed: listed.into(), callable, is_required, may_repeat }))
    }

    /// Returns the calls of these tools in the model's `format`; it takes the tools' schemas.
    ///
    /// # Errors
    /// The format is not known.
    pub(super) fn calls(&mut self, format: Option<CallFormat>) -> Result<Calls> {
        let Some(CallFormat { format, has_special }) = format else {
            let message = format!(
                "`{FIELD}` is not supported for this model: the format of its tool calls is not known"
            );
            return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(FIELD));
        };
        Ok(Calls {
            format,
            tools: std::mem::take(&mut self.callable),
            is_required: self.is_required,
            may_repeat: self.may_repeat && (format.repeats || format.between.is_some()),
            shows_special: has_special,
            answer: None,
        })
    }
}

/// Value of `tool_choice`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choice {
    None,
    Auto,
    Required,
    /// A call of the tool with this name.
    Named(String),
}

fn choice(value: Option<Value>) -> Result<Choice> {
    let name = "tool_choice";
    let Some(value) = value else { return Ok(Choice::Auto) };
    match (&value, value["function"]["name"].as_str()) {
        (Value::String(text), _) => match text.as_str() {
            "none" => Ok(Choice::None),
            "auto" => Ok(Choice::Auto),
            // Mistral's name for it.
            "required" | "any" => Ok(Choice::Required),
            other => {
                let message = format!("`{name}` is `{}`, not none, auto or required", shown(other));
                Err(ApiError::field(name, message))
            }
        },
        (Value::Object(_), Some(tool)) if value["type"] == "function" => {
            Ok(Choice::Named(tool.to_owned()))
        }
        (Value::Object(_), None) if value["type"].is_string() && value["type"] != "function" => {
            let kind = shown(value["type"].as_str().unwrap_or_default());
            let message = format!("`{name}` of type `{kind}` is not supported");
            Err(ApiError::new(ErrorKind::UnsupportedField, message).at(name))
        }
        _ => Err(wrong_type(name, "a text, or an object with `function.name`", &value)),
    }
}

/// Reads one of the tools.
fn tool(index: usize, value: &Value) -> Result<Tool> {
    let at = format!("{FIELD}.{index}");
    match value["type"].as_str() {
        Some("function") => {}
        Some(other) => {
            let message =
                format!("`{at}.type` is `{}`, only `function` is supported", shown(other));
            return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(&at));
        }
        None => return Err(wrong_type(&at, "an object with a `type`", value)),
    }
    let function = &value["function"];
    let Some(name) = function["name"].as_str() else {
        return Err(wrong_type(&format!("{at}.function.name"), "a text", &function["name"]));
    };
    if !is_name(name) {
        let message = format!(
            "`{at}.function.name` is `{}`, not 1 to {NAME_CHARS_MAX} letters, digits, `_` and `-`",
            shown(name)
        );
        return Err(ApiError::field(&at, message));
    }
    let parameters = match &function["parameters"] {
        Value::Null => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Value::Object(schema) => {
            let mut schema = schema.clone();
            // Arguments are an object; a schema without properties lets the model choose them.
            let kind = schema.entry("type").or_insert("object".into());
            if kind != "object" {
                let message = format!("`{at}.function.parameters` must be the schema of an object");
                return Err(ApiError::field(&at, message));
            }
            Value::Object(schema)
        }
        other => {
            let name = format!("{at}.function.parameters");
            return Err(wrong_type(&name, "a JSON schema of an object", other));
        }
    };
    Ok(Tool { name: name.to_owned(), parameters })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: Value) -> Result<Option<Tools>> {
        let Value::Object(map) = body else { unreachable!() };
        Tools::take(&mut Fields::of(map))
    }

    fn named(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    #[test]
    fn the_choice_decides_what_may_be_called() {
        let tools = json!([named("f"), named("g")]);
        for (choice, wanted) in [
            (Value::Null, Some((2, false, true))),
            (json!("auto"), Some((2, false, true))),
            (json!("required"), Some((2, true, true))),
            (named("g"), Some((1, true, false))),
            (json!("none"), None),
        ] {
            let found = take(json!({"tools": tools, "tool_choice": choice})).unwrap();
            let found =
                found.map(|tools| (tools.callable.len(), tools.is_required, tools.may_repeat));
            assert_eq!(found, wanted, "{choice}");
        }
        assert!(take(json!({"tools": [], "tool_choice": "auto"})).unwrap().is_none());
        let one = take(json!({"tools": tools, "parallel_tool_calls": false})).unwrap().unwrap();
        assert!(!one.may_repeat);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_field() {
        let function = |function: Value| json!([{"type": "function", "function": function}]);
        for (body, param) in [
            (json!({"tools": 1}), "tools"),
            (json!({"tools": [1]}), "tools.0"),
            (json!({"tools": [{"type": "web_search"}]}), "tools.0"),
            (json!({"tools": function(json!({}))}), "tools.0.function.name"),
            (json!({"tools": function(json!({"name": "a b"}))}), "tools.0"),
            (
                json!({"tools": function(json!({"name": "f", "parameters": 1}))}),
                "tools.0.function.parameters",
            ),
            (
                json!({"tools": function(json!({"name": "f", "parameters": {"type": "string"}}))}),
                "tools.0",
            ),
            (json!({"tools": [named("f"), named("f")]}), "tools"),
            (json!({"tools": vec![named("f"); 129]}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [named("f")], "tool_choice": "some"}), "tool_choice"),
            (json!({"tools": [named("f")], "tool_choice": named("g")}), "tool_choice"),
            (
                json!({"tools": [named("f")], "tool_choice": {"type": "allowed_tools"}}),
                "tool_choice",
            ),
            (json!({"tools": [named("f")], "tool_choice": 1}), "tool_choice"),
        ] {
            let error = take(body.clone()).expect_err("nothing sensible");
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
