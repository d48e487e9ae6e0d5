//! Tests of the routes whose answers are lists of blocks: `/v1/responses` and `/v1/messages`.

use engine::tokenize::Reasoning;
use serde_json::{Value, json};

use crate::harness::{Running, Setup, start};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const SCRIPT: &str = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"get\", \
                      \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

fn parameters() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
}

async fn server(script: &str) -> Running {
    start(Setup { reasoning: Reasoning::Think, ..Setup::script(script.as_bytes()) }).await
}

/// Events of a streamed answer; the type of each is also the name of the event.
async fn streamed(server: &Running, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let text = server.post(path, &body).await.text().await.unwrap();
    let events = text.trim_end().split("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), event["type"].as_str(), "{event}");
        event
    });
    events.collect()
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

/// Joins the field `name` of events of a kind.
fn joined(events: &[Value], kind: &str, name: &str) -> String {
    of_kind(events, kind).iter().map(|event| event[name].as_str().unwrap()).collect()
}

fn response_body() -> Value {
    json!({
        "input": "hi", "max_output_tokens": 150, "temperature": 0, "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "get", "parameters": parameters(), "strict": true}],
    })
}

/// Output items without their ids.
fn items(response: &Value) -> Vec<Value> {
    let items = response["output"].as_array().unwrap().iter().cloned();
    let plain = items.map(|mut item| {
        let map = item.as_object_mut().unwrap();
        assert!(map.remove("id").unwrap().is_string());
        map.remove("call_id");
        item
    });
    plain.collect()
}

#[tokio::test]
async fn a_response_is_a_list_of_items() {
    let server = server(SCRIPT).await;
    let value = server.json(RESPONSES, &response_body()).await;
    assert_eq!((&value["object"], &value["status"]), (&json!("response"), &json!("completed")));
    let wanted = json!([
        {"type": "reasoning", "summary": [], "status": "completed",
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []},
        ]},
        {"type": "function_call", "name": "get", "arguments": "{\"city\": \"Rome\"}",
         "status": "completed"},
    ]);
    assert_eq!(Value::from(items(&value)), wanted);
    assert_eq!(value["usage"]["total_tokens"], {
        let usage = &value["usage"];
        usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap()
    });

    let events = streamed(&server, RESPONSES, &response_body()).await;
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    assert_eq!(events[0]["type"], "response.created");
    assert_eq!(joined(&events, "response.output_text.delta", "delta"), "I look.");
    assert_eq!(joined(&events, "response.reasoning_text.delta", "delta"), "Hm.");
    let arguments = joined(&events, "response.function_call_arguments.delta", "delta");
    assert_eq!(arguments, "{\"city\": \"Rome\"}");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(items(&last["response"]), items(&value), "streamed and whole");
    let done = of_kind(&events, "response.output_item.done");
    assert_eq!(done.len(), 3);
}

#[tokio::test]
async fn an_error_names_the_fields_of_its_own_api() {
    let server = server("Yes.").await;
    let tools = json!([{"type": "function", "name": "f", "parameters": 1}]);
    let unnamed = json!([{"type": "function", "name": "a b"}]);
    let schema = json!({"format": {"type": "json_schema", "name": "x", "schema": 5}});
    for (field, value, param, named) in [
        ("tools", tools, "tools.0.parameters", "`tools.0.parameters` must be"),
        ("tools", unnamed, "tools.0", "`tools.0.name` is"),
        ("text", json!({"format": {"type": "xml"}}), "text.format", "`text.format` of type"),
        ("text", schema, "text.format.schema", "`text.format.schema` must be"),
        ("max_output_tokens", json!(-1), "max_output_tokens", "`max_output_tokens` must be"),
    ] {
        let answer = server.post(RESPONSES, &json!({"input": "b", field: value})).await;
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().starts_with(named), "{error}");
    }
}

#[tokio::test]
async fn a_response_continues_an_earlier_one() {
    let server = server("Yes.").await;
    let first = server.json(RESPONSES, &json!({"input": "a", "temperature": 0})).await;
    assert_eq!(first["output"][0]["content"][0]["text"], "Yes.");
    let next = json!({"input": "b", "previous_response_id": first["id"], "max_output_tokens": 1});
    let second = server.json(RESPONSES, &next).await;
    let whole = json!({"max_output_tokens": 1, "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"role": "user", "content": "b"},
    ]});
    let same = server.json(RESPONSES, &whole).await;
    assert_eq!(second["usage"]["input_tokens"], same["usage"]["input_tokens"]);
    assert_eq!(
        (&same["status"], &same["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );

    for (body, status, param) in [
        (json!({"input": "b", "previous_response_id": "resp_no"}), 404, "previous_response_id"),
        (json!({"input": "b", "background": true}), 400, "background"),
        (json!({"input": "b", "include": ["message.output_text.logprobs"]}), 400, "include"),
        (json!({"input": [{"type": "image_generation_call"}]}), 400, "input.0"),
        (json!({"input": "b", "max_output_tokens": 0}), 400, "max_output_tokens"),
        (json!({}), 400, "input"),
    ] {
        let answer = server.post(RESPONSES, &body).await;
        assert_eq!(answer.status(), status, "{body}");
        let error: Value = answer.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
    }
    // An item of an earlier answer may be named instead of sent.
    let item = |id: &Value| json!({"type": "item_reference", "id": id});
    let referring = |id: &Value| {
        json!({"max_output_tokens": 1, "input": [
            {"role": "user", "content": "a"}, item(id), {"role": "user", "content": "b"},
        ]})
    };
    let named = server.json(RESPONSES, &referring(&first["output"][0]["id"])).await;
    assert_eq!(named["usage"]["input_tokens"], same["usage"]["input_tokens"]);
    let unknown = server.post(RESPONSES, &referring(&json!("msg_0_0"))).await;
    assert_eq!(unknown.status(), 404);
    let unkept = server.json(RESPONSES, &json!({"input": "a", "store": false})).await;
    let next = json!({"input": "b", "previous_response_id": unkept["id"]});
    assert_eq!(server.post(RESPONSES, &next).await.status(), 404);
}

fn message_body() -> Value {
    json!({
        "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 150, "temperature": 0,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "get", "input_schema": parameters()}],
    })
}

#[tokio::test]
async fn a_message_is_a_list_of_content_blocks() {
    let server = server(SCRIPT).await;
    let value = server.json(MESSAGES, &message_body()).await;
    assert_eq!((&value["type"], &value["stop_reason"]), (&json!("message"), &json!("tool_use")));
    let content = &value["content"];
    assert_eq!(content[0], json!({"type": "thinking", "thinking": "Hm.", "signature": ""}));
    assert_eq!(content[1], json!({"type": "text", "text": "I look."}));
    assert_eq!(
        (&content[2]["type"], &content[2]["input"]),
        (&json!("tool_use"), &json!({"city": "Rome"}))
    );

    let events = streamed(&server, MESSAGES, &message_body()).await;
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events[0]["message"]["usage"]["output_tokens"], 0);
    let deltas = of_kind(&events, "content_block_delta");
    let text = |name: &str| -> String {
        deltas.iter().filter_map(|event| event["delta"][name].as_str()).collect()
    };
    assert_eq!((text("thinking"), text("text")), ("Hm.".into(), "I look.".into()));
    assert_eq!(text("partial_json"), "{\"city\": \"Rome\"}");
    let end = of_kind(&events, "message_delta")[0];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(end["usage"]["output_tokens"], value["usage"]["output_tokens"]);
    assert_eq!(events.last().unwrap()["type"], "message_stop");
}

#[tokio::test]
async fn messages_take_results_of_tools_and_say_what_is_wrong() {
    let server = server("Yes. No.").await;
    let turn = json!({"max_tokens": 20, "stop_sequences": [" No"], "temperature": 0, "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "get", "input": {"city": "Rome"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]},
        ]},
    ]});
    let value = server.json(MESSAGES, &turn).await;
    assert_eq!(value["content"], json!([{"type": "text", "text": "Yes."}]));
    assert_eq!(
        (&value["stop_reason"], &value["stop_sequence"]),
        (&json!("stop_sequence"), &json!(" No"))
    );

    for (body, kind) in [
        (json!({"messages": [{"role": "user", "content": "x"}]}), "invalid_request_error"),
        (json!({"max_tokens": 1, "messages": []}), "invalid_request_error"),
        (
            json!({"max_tokens": 1, "messages": [
                {"role": "user", "content": "x"}, {"role": "assistant", "content": "Ye"},
            ]}),
            "invalid_request_error",
        ),
        (
            json!({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "invalid_request_error",
        ),
        (
            json!({"model": "other", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}),
            "not_found_error",
        ),
    ] {
        let error: Value = server.post(MESSAGES, &body).await.json().await.unwrap();
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!(kind)));
    }
    let keyed = start(Setup { api_key: Some("sesame"), ..Setup::default() }).await;
    let request = keyed.client.post(keyed.url(MESSAGES)).header("x-api-key", "sesame");
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]});
    assert_eq!(request.json(&body).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_message_conforms_to_the_schema_of_output_config() {
    let server = server("Yes.").await;
    let schema = json!({
        "type": "object", "properties": {"sure": {"const": true}}, "required": ["sure"],
        "additionalProperties": false, "x-guidance": {"whitespace_flexible": false},
    });
    let body = |config: Value| {
        json!({
            "max_tokens": 60, "messages": [{"role": "user", "content": "x"}],
            "output_config": config, "temperature": 0,
        })
    };
    let format = json!({"format": {"type": "json_schema", "schema": schema}});
    let value = server.json(MESSAGES, &body(format)).await;
    assert_eq!(value["content"][0]["text"], "{\"sure\":true}");
    for config in [json!({"effort": "high"}), json!({"format": {"type": "xml"}}), json!("json")] {
        let error: Value = server.post(MESSAGES, &body(config)).await.json().await.unwrap();
        assert_eq!(error["error"]["type"], "invalid_request_error", "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains("output_config"), "{error}");
    }
}

#[tokio::test]
async fn the_tokens_of_messages_are_counted() {
    let server = server("Yes.").await;
    let mut body = message_body();
    let answered = server.json(MESSAGES, &body).await;
    body.as_object_mut().unwrap().remove("max_tokens");
    let counted = server.json("/v1/messages/count_tokens", &body).await;
    assert_eq!(counted, json!({"input_tokens": answered["usage"]["input_tokens"]}));
    body["model"] = "other".into();
    let error: Value = server.post("/v1/messages/count_tokens", &body).await.json().await.unwrap();
    assert_eq!(error["error"]["type"], "not_found_error");
}
