//! Instructions about tools for models whose chat template knows none: the conversation is rewritten so
//! that its system message lists the tools, and calls and their results are text.

use serde_json::{Value, json};

/// Returns true if a chat template shows no tools to the model.
pub fn wants_instructions(source: &str) -> bool {
    !source.contains("tools")
}

/// Rewrites the messages of a conversation in which the model may call `tools`, a list in OpenAI's
/// format, for a chat template that knows neither tools nor calls.
pub fn instructed(messages: &Value, tools: &Value) -> Value {
    let mut written: Vec<Value> = Vec::new();
    for message in messages.as_array().into_iter().flatten() {
        let content = message["content"].as_str().unwrap_or_default();
        match message["role"].as_str() {
            Some("tool") => {
                let result = format!("<tool_response>\n{content}\n</tool_response>");
                match written.last_mut().filter(|last| last["role"] == "user") {
                    // Templates want users and assistants in turn.
                    Some(last) => append(last, &result),
                    None => written.push(json!({"role": "user", "content": result})),
                }
            }
            Some("assistant") => {
                let mut message = message.clone();
                let calls = message["tool_calls"].take();
                for call in calls.as_array().into_iter().flatten() {
                    append(&mut message, &written_call(&call["function"]));
                }
                if let Some(map) = message.as_object_mut() {
                    map.remove("tool_calls");
                }
                written.push(message);
            }
            _ => written.push(message.clone()),
        }
    }
    let text = instruction(tools);
    match written.first_mut().filter(|first| first["role"] == "system") {
        Some(system) => append(system, &text),
        None => written.insert(0, json!({"role": "system", "content": text})),
    }
    Value::Array(written)
}

/// Appends a paragraph to the content of a message.
fn append(message: &mut Value, text: &str) {
    let content = message["content"].as_str().unwrap_or_default();
    let gap = if content.is_empty() { "" } else { "\n\n" };
    message["content"] = format!("{content}{gap}{text}").into();
}

fn written_call(function: &Value) -> String {
    // Arguments that are no object are the text that the client sent.
    let arguments = match &function["arguments"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!(
        "<tool_call>\n{{\"name\": {}, \"arguments\": {arguments}}}\n</tool_call>",
        function["name"]
    )
}

fn instruction(tools: &Value) -> String {
    let listed = tools.as_array().into_iter().flatten();
    let listed: Vec<String> = listed.map(|tool| tool["function"].to_string()).collect();
    format!(
        "You may call these functions, each described by a line of JSON:\n{}\n\n\
         To call one, answer with its name and its arguments between tags, in this form:\n\
         <tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{...}}}}\n</tool_call>\n\
         The result follows in the next message.",
        listed.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_conversation_about_tools_becomes_text() {
        let messages = json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "a", "function": {"name": "get", "arguments": {"in": "SF"}}},
            ]},
            {"role": "tool", "tool_call_id": "a", "content": "sunny"},
            {"role": "user", "content": "And?"},
        ]);
        let tools = json!([{"type": "function", "function": {"name": "get", "parameters": {}}}]);
        let mut text = String::new();
        for message in instructed(&messages, &tools).as_array().unwrap() {
            text += &format!("[{}]\n{}\n", message["role"], message["content"].as_str().unwrap());
        }
        expect![[r#"
            ["system"]
            You may call these functions, each described by a line of JSON:
            {"name":"get","parameters":{}}

            To call one, answer with its name and its arguments between tags, in this form:
            <tool_call>
            {"name": "NAME", "arguments": {...}}
            </tool_call>
            The result follows in the next message.
            ["user"]
            Weather?
            ["assistant"]
            <tool_call>
            {"name": "get", "arguments": {"in":"SF"}}
            </tool_call>
            ["user"]
            <tool_response>
            sunny
            </tool_response>
            ["user"]
            And?
        "#]]
        .assert_eq(&text);
    }
}
