//! Tests of tool calls in answers.

use engine::tokenize::Reasoning;
use serde_json::{Value, json};

use crate::harness::{Running, Setup, start};

const CHAT: &str = "/v1/chat/completions";
const CALL: &str = "I look.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Rome\"}}\n\
                    </tool_call>";

fn body(extra: Value) -> Value {
    let city = json!({"type": "string", "maxLength": 6});
    let parameters = json!({
        "type": "object", "properties": {"city": city}, "required": ["city"],
        "additionalProperties": false,
    });
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 200,
        "tools": [
            {"type": "function", "function": {"name": "get", "parameters": parameters}},
            {"type": "function", "function": {"name": "stop"}},
        ],
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Returns the content, the calls as `name(arguments)` and the reason for the end of an answer.
async fn whole(server: &Running, extra: Value) -> (String, Vec<String>, String) {
    let value = server.json(CHAT, &body(extra)).await;
    let choice = &value["choices"][0];
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| {
        assert_eq!(call["type"], "function");
        assert_eq!(call["id"].as_str().unwrap().len(), 9);
        let function = &call["function"];
        let [name, arguments] = ["name", "arguments"].map(|key| function[key].as_str().unwrap());
        format!("{name}({arguments})")
    });
    let content = message["content"].as_str().unwrap_or_default().to_owned();
    (content, calls.collect(), choice["finish_reason"].as_str().unwrap().to_owned())
}

/// Returns the same of a streamed answer, joined from its events.
async fn streamed(server: &Running, mut extra: Value) -> (String, Vec<String>, String) {
    extra["stream"] = true.into();
    let (mut content, mut calls, mut reason) = (String::new(), Vec::<[String; 2]>::new(), None);
    for event in server.events(CHAT, &body(extra)).await {
        let choice = &event["choices"][0];
        content += choice["delta"]["content"].as_str().unwrap_or_default();
        for part in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(part["index"].as_u64().unwrap()).unwrap();
            if let Some(name) = part["function"]["name"].as_str() {
                assert_eq!(index, calls.len(), "calls come in order");
                assert!(part["id"].is_string() && part["type"] == "function", "{part}");
                calls.push([name.to_owned(), String::new()]);
            }
            calls[index][1] += part["function"]["arguments"].as_str().unwrap();
        }
        reason = choice["finish_reason"].as_str().map(str::to_owned).or(reason);
    }
    let calls = calls.iter().map(|[name, arguments]| format!("{name}({arguments})")).collect();
    (content, calls, reason.unwrap())
}

#[tokio::test]
async fn calls_come_apart_from_the_text() {
    let rome = "get({\"city\": \"Rome\"})";
    let twice =
        format!("{CALL}\n<tool_call>\n{{\"name\": \"stop\", \"arguments\": {{}}}}\n</tool_call>");
    let harmony = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary \
                   to=functions.get <|constrain|>json<|message|>{\"city\": \"Rome\"}";
    for (reasoning, script, extra, content, calls, reason) in [
        (Reasoning::None, CALL, json!({}), "I look.", vec![rome], "tool_calls"),
        (Reasoning::None, &twice, json!({}), "I look.", vec![rome, "stop({})"], "tool_calls"),
        (
            Reasoning::None,
            &twice,
            json!({"parallel_tool_calls": false}),
            "I look.",
            vec![rome],
            "tool_calls",
        ),
        (Reasoning::None, "No call.", json!({}), "No call.", vec![], "stop"),
        (Reasoning::None, CALL, json!({"tool_choice": "none"}), CALL, vec![], "stop"),
        (Reasoning::None, CALL, json!({"max_tokens": 30}), "I look.", vec![], "length"),
        (Reasoning::Harmony, harmony, json!({}), "", vec![rome], "tool_calls"),
    ] {
        let server = start(Setup { reasoning, ..Setup::script(script.as_bytes()) }).await;
        let calls: Vec<String> = calls.into_iter().map(str::to_owned).collect();
        let wanted = (content.to_owned(), calls, reason.to_owned());
        assert_eq!(whole(&server, extra.clone()).await, wanted, "{script} {extra}");
        assert_eq!(streamed(&server, extra.clone()).await, wanted, "{script} {extra}, streamed");
    }
}

#[tokio::test]
async fn an_answer_is_calls_or_follows_the_schema() {
    let rome = "get({\"city\": \"Rome\"})";
    let schema = json!({
        "type": "object", "properties": {"mark": {"type": "string"}}, "required": ["mark"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let extra = |more: Value| {
        let mut extra = json!({"response_format": format});
        extra.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        extra
    };
    let call = CALL.strip_prefix("I look.\n").unwrap();
    let twice =
        format!("{call}\n<tool_call>\n{{\"name\": \"stop\", \"arguments\": {{}}}}\n</tool_call>");
    // The text of the answer may have the mark of a call.
    let answer = "{\"mark\": \"<tool_call>\"}";
    // Bytes are no special tokens here: reasoning before it would have no end for the grammar.
    let harmony_call = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>\
                        {\"city\": \"Rome\"}";
    let harmony_answer = "<|channel|>final<|message|>{\"mark\": \"x\"}";
    let none = Reasoning::None;
    let harmony = Reasoning::Harmony;
    for (reasoning, script, more, content, calls, reason) in [
        (none, answer, json!({}), answer, vec![], "stop"),
        (none, call, json!({}), "", vec![rome], "tool_calls"),
        (none, &twice, json!({}), "", vec![rome, "stop({})"], "tool_calls"),
        (none, &twice, json!({"parallel_tool_calls": false}), "", vec![rome], "tool_calls"),
        // A call that is required leaves no text that could follow the schema.
        (none, call, json!({"tool_choice": "required"}), "", vec![rome], "tool_calls"),
        (none, answer, json!({"tool_choice": "none"}), answer, vec![], "stop"),
        (harmony, harmony_call, json!({}), "", vec![rome], "tool_calls"),
        (harmony, harmony_answer, json!({}), "{\"mark\": \"x\"}", vec![], "stop"),
    ] {
        let server = start(Setup { reasoning, ..Setup::script(script.as_bytes()) }).await;
        let calls: Vec<String> = calls.into_iter().map(str::to_owned).collect();
        let wanted = (content.to_owned(), calls, reason.to_owned());
        assert_eq!(whole(&server, extra(more.clone())).await, wanted, "{script} {more}");
        assert_eq!(streamed(&server, extra(more.clone())).await, wanted, "{script} {more}");
    }
    // A model that would rather write text writes one of both.
    let server = start(Setup::script(b"I look at the sky, and then I say nothing.")).await;
    let (content, calls, _) = whole(&server, extra(json!({"max_tokens": 150}))).await;
    assert!(content.starts_with('{') || !calls.is_empty(), "{content} {calls:?}");
}

#[tokio::test]
async fn a_call_keeps_to_its_tool_whatever_the_model_wants() {
    let wrong = "<tool_call>\n{\"name\": \"set\", \"arguments\": [1, 2]}\n</tool_call> and on";
    for (script, extra) in [
        (wrong, json!({})),
        ("No call.", json!({"tool_choice": "required"})),
        ("No call.", json!({"tool_choice": {"type": "function", "function": {"name": "get"}}})),
    ] {
        let server = start(Setup::script(script.as_bytes())).await;
        let (content, calls, reason) = whole(&server, extra.clone()).await;
        assert_eq!(reason, "tool_calls", "{content} {calls:?}");
        assert_eq!(streamed(&server, extra).await, (content, calls.clone(), reason));
        let call = &calls[0];
        if call != "stop({})" {
            let arguments = call.strip_prefix("get(").and_then(|rest| rest.strip_suffix(')'));
            let value: Value = serde_json::from_str(arguments.expect("a call of a tool")).unwrap();
            assert!(value["city"].as_str().is_some_and(|city| city.chars().count() <= 6), "{call}");
        }
    }
}

#[tokio::test]
async fn no_text_follows_calls_that_are_required() {
    let call = CALL.strip_prefix("I look.\n").unwrap();
    let server = start(Setup::script(format!("{call}\nAnd on.").as_bytes())).await;
    for (parallel, more) in [(false, false), (true, true)] {
        let extra = json!({"tool_choice": "required", "parallel_tool_calls": parallel});
        let (content, calls, reason) = whole(&server, extra.clone()).await;
        assert_eq!((content.as_str(), reason.as_str()), ("", "tool_calls"), "{calls:?}");
        assert_eq!((calls[0].as_str(), calls.len() > 1), ("get({\"city\": \"Rome\"})", more));
        assert_eq!(streamed(&server, extra).await, (content, calls, reason));
    }
}

#[tokio::test]
async fn tools_are_shown_to_the_chat_template() {
    let server = start(Setup::default()).await;
    for (extra, text) in
        [(json!({}), "<user:hi<tool:get<tool:stop>"), (json!({"tool_choice": "none"}), "<user:hi>")]
    {
        let value = server.json("/tokenize", &body(extra)).await;
        let tokens = value["tokens"].as_array().unwrap();
        let bytes = tokens.iter().map(|token| u8::try_from(token.as_u64().unwrap()).unwrap());
        assert_eq!(String::from_utf8(bytes.collect()).unwrap(), text);
    }
}

#[tokio::test]
async fn tools_that_cannot_be_used_are_refused() {
    let server = start(Setup::default()).await;
    let refused = json!({"tools": [{"type": "function", "function": {
        "name": "f", "parameters": {"type": "object", "properties": {"a": {"$ref": "#/none"}}},
    }}]});
    for (extra, want) in [
        (refused, "`tools` cannot be used"),
        (
            json!({"guided_choice": ["yes", "no"]}),
            "`guided_choice` cannot be combined with `tools`",
        ),
        (json!({"tool_choice": "sometimes"}), "`tool_choice` is `sometimes`"),
    ] {
        let answer = server.post(CHAT, &body(extra)).await;
        assert_eq!(answer.status(), 400);
        let error: Value = answer.json().await.unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(want), "{message}");
    }
}
