//! Harmony, the chat format of gpt-oss: renders a conversation, and defines the marks in its
//! answers. From the published description (github.com/openai/harmony, docs/format.md).
//!
//! gpt-oss's tokenizer files have no chat template. If a checkpoint has one, it is used instead.

mod signatures;

use std::fmt;

use serde_json::Value;

use crate::chat_template::{Chat, strftime};
use crate::guide::TextError;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
pub(super) const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";

/// Special tokens by which a vocabulary shows that its model uses harmony.
pub(super) const MARKS: [&str; 4] = [START, CHANNEL, MESSAGE, RETURN];
/// Special tokens that end an answer in harmony: end of the turn, and a tool call.
pub(super) const ANSWER_ENDS: [&str; 2] = [RETURN, CALL];
/// Marks that end a message within a harmony answer. `<|start|>` of the next message is one of
/// them, since a model may omit the end.
pub(super) const MESSAGE_ENDS: [&str; 4] = [END, RETURN, CALL, START];
/// Texts with which a message header in a harmony answer may begin. The first header continues the
/// prompt, which ends with `<|start|>assistant`.
pub(super) const HEADER_STARTS: [&str; 4] = [CHANNEL, START, "assistant", " to="];
/// Marks in a harmony answer after which the answer proper begins: those that open the final
/// channel.
pub(super) const FINAL: &str = "<|channel|>final<|message|>";

const IDENTITY: &str = "You are ChatGPT, a large language model trained by OpenAI.";
const EFFORTS: [&str; 3] = ["low", "medium", "high"];

/// Returns true if a harmony message with this header is reasoning, that is, on the analysis
/// channel.
pub(super) fn is_reasoning(header: &str) -> bool {
    let channel = header.rsplit_once(CHANNEL).map_or("", |(_, channel)| channel.trim_start());
    channel.starts_with("analysis")
}

/// Returns the name of the function that a harmony message with this header calls; `None` if the
/// message is to no function.
pub(super) fn function(header: &str) -> Option<&str> {
    let (_, rest) = header.split_once(" to=functions.")?;
    let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
    (end > 0).then_some(&rest[..end])
}

/// Renders the prompt for a conversation in the harmony format.
///
/// # Errors
/// A message has an unknown role, a tool message names no tool, or the reasoning effort is unknown.
pub(super) fn render(chat: &Chat<'_>) -> Result<String, TextError> {
    let empty = Vec::new();
    let messages = chat.messages.as_array().unwrap_or(&empty);
    let mut out = String::new();
    push_system(chat, &mut out)?;
    let tools = chat.tools.map(signatures::listed);
    // The tools stand after the instructions, in the first message of the developer.
    let mut tools = tools.as_deref();
    let is_instruction =
        |message: &Value| matches!(message["role"].as_str(), Some("system" | "developer"));
    if let Some(listed) = tools.take_if(|_| !messages.iter().any(is_instruction)) {
        push(&mut out, "developer", listed);
    }
    // The format drops reasoning that led to an answer, but keeps what led to a tool call.
    let last_answer =
        messages.iter().rposition(|m| m["role"] == "assistant" && calls(m).is_empty());
    for (index, message) in messages.iter().enumerate() {
        let content = text(message, "content");
        match message["role"].as_str().unwrap_or_default() {
            "system" | "developer" => {
                let instructions = format!("# Instructions\n\n{content}");
                let parts = [Some(instructions.as_str()), tools.take()];
                let parts: Vec<&str> = parts.into_iter().flatten().collect();
                push(&mut out, "developer", &parts.join("\n\n"));
            }
            "user" => push(&mut out, "user", content),
            "assistant" => {
                let is_open = last_answer.is_none_or(|last| index > last);
                push_assistant(message, is_open, &mut out);
            }
            "tool" => {
                let name = tool_name(message, &messages[..index]).ok_or_else(|| {
                    refused(
                        "a tool message needs a `name`, or the `tool_call_id` of a call before it",
                    )
                })?;
                let header = format!("functions.{name} to=assistant{CHANNEL}commentary");
                push(&mut out, &header, content);
            }
            role => return Err(refused(format!("there is no role `{role}`"))),
        }
    }
    if chat.add_generation_prompt {
        out.push_str(START);
        out.push_str("assistant");
    }
    Ok(out)
}

/// Writes harmony's system message to `out`: identity, date and reasoning effort.
fn push_system(chat: &Chat<'_>, out: &mut String) -> Result<(), TextError> {
    let variable = |name: &str| chat.variables.and_then(|variables| variables[name].as_str());
    let effort = variable("reasoning_effort").unwrap_or("medium");
    if !EFFORTS.contains(&effort) {
        return Err(refused(format!("`reasoning_effort` is one of {}", EFFORTS.join(", "))));
    }
    let identity = variable("model_identity").unwrap_or(IDENTITY);
    let date = strftime("%Y-%m-%d", chat.now_unix_s);
    let calls = match chat.tools {
        Some(_) => "\nCalls to these tools must go to the commentary channel: 'functions'.",
        None => "",
    };
    let system = format!(
        "{identity}\nKnowledge cutoff: 2024-06\nCurrent date: {date}\n\nReasoning: {effort}\n\n\
         # Valid channels: analysis, commentary, final. Channel must be included for every message.{calls}"
    );
    push(out, "system", &system);
    Ok(())
}

/// Writes the harmony messages of one assistant message to `out`: its reasoning if `is_open`, that
/// is, if the message comes after the conversation's last answer, then its text and tool calls.
fn push_assistant(message: &Value, is_open: bool, out: &mut String) {
    let reasoning = ["reasoning_content", "reasoning", "thinking"].map(|name| text(message, name));
    let reasoning = reasoning.into_iter().find(|text| !text.is_empty());
    if let (true, Some(reasoning)) = (is_open, reasoning) {
        push(out, &format!("assistant{CHANNEL}analysis"), reasoning);
    }
    let (content, calls) = (text(message, "content"), calls(message));
    // Text beside tool calls is commentary: the answer proper is still to come.
    if !calls.is_empty() && !content.is_empty() {
        push(out, &format!("assistant{CHANNEL}commentary"), content);
    }
    for call in calls {
        let function = &call["function"];
        // Clients send the arguments as text, which the chat route may have parsed.
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let name = text(function, "name");
        out.push_str(&format!(
            "{START}assistant{CHANNEL}commentary to=functions.{name} <|constrain|>json{MESSAGE}\
             {arguments}{CALL}"
        ));
    }
    if calls.is_empty() {
        push(out, &format!("assistant{CHANNEL}final"), content);
    }
}

/// Writes one harmony message of the prompt to `out`: header and content between their marks.
fn push(out: &mut String, header: &str, content: &str) {
    for part in [START, header, MESSAGE, content, END] {
        out.push_str(part);
    }
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object[name].as_str().unwrap_or_default()
}

/// Returns the tool calls of a message; empty if it has none.
fn calls(message: &Value) -> &[Value] {
    message["tool_calls"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the name of the tool that a tool message is from: its own `name`, or that of the call
/// that it answers, among the messages `before` it.
fn tool_name<'a>(message: &'a Value, before: &'a [Value]) -> Option<&'a str> {
    let called = before.iter().rev().flat_map(calls);
    let mut called = called.filter(|call| call["id"] == message["tool_call_id"]);
    message["name"].as_str().or_else(|| called.next()?["function"]["name"].as_str())
}

fn refused(message: impl fmt::Display) -> TextError {
    TextError(format!("the chat template refused the messages: {message}"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    fn rendered(messages: &Value, variables: &Value) -> Result<String, String> {
        let input = Chat {
            messages,
            add_generation_prompt: true,
            tools: (!variables["tools"].is_null()).then(|| &variables["tools"]),
            variables: Some(variables),
            now_unix_s: 1_751_068_800,
        };
        render(&input).map_err(|error| error.to_string())
    }

    #[test]
    fn a_conversation_is_written_as_the_format_is_published() {
        let messages = json!([
            {"role": "system", "content": "Use a friendly tone."},
            {"role": "user", "content": "What is 2 + 2?"},
            {"role": "assistant", "reasoning_content": "Simple.", "content": "2 + 2 = 4."},
            {"role": "user", "content": "And the weather?"},
            {"role": "assistant", "reasoning": "Need a tool.", "content": "", "tool_calls": [
                {"id": "a", "function": {"name": "get_weather", "arguments": "{\"in\":\"SF\"}"}},
            ]},
            {"role": "tool", "tool_call_id": "a", "content": "{\"sunny\": true}"},
        ]);
        let text = rendered(&messages, &json!({"reasoning_effort": "high"})).unwrap();
        expect![[r##"
            <|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.
            Knowledge cutoff: 2024-06
            Current date: 2025-06-28

            Reasoning: high

            # Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|><|start|>developer<|message|># Instructions

            Use a friendly tone.<|end|><|start|>user<|message|>What is 2 + 2?<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|end|><|start|>user<|message|>And the weather?<|end|><|start|>assistant<|channel|>analysis<|message|>Need a tool.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"in":"SF"}<|call|><|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>{"sunny": true}<|end|><|start|>assistant"##]]
        .assert_eq(&text);
    }

    #[test]
    fn what_the_format_does_not_know_is_refused() {
        for (messages, variables, want) in [
            (json!([{"role": "wizard", "content": "x"}]), json!({}), "no role `wizard`"),
            (json!([{"role": "tool", "content": "x"}]), json!({}), "a tool message needs"),
            (json!([]), json!({"reasoning_effort": "huge"}), "one of low, medium, high"),
        ] {
            let error = rendered(&messages, &variables).unwrap_err();
            assert!(error.contains(want), "{error} should say: {want}");
        }
    }
}
