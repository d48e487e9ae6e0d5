//! Tests with requests that are made to exhaust the stack, the memory or the time of a server.

use reqwest::StatusCode;
use serde_json::{Map, Value, json};

use crate::launched::{Launched, tiny_model};

/// Most memory that a request may take beside its server's, in bytes.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// Function that builds a schema of a size.
type Shape = fn(usize) -> Value;

/// Schema whose reference leads through `count` definitions: each is made by `link` from a schema
/// that refers to the next.
fn chain(count: usize, link: impl Fn(Value) -> Value) -> Value {
    let reference = |i: usize| json!({"$ref": format!("#/$defs/d{i}")});
    let mut definitions: Map<String, Value> =
        (0..count).map(|i| (format!("d{i}"), link(reference(i + 1)))).collect();
    definitions.insert(format!("d{count}"), json!({"type": "null"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

fn references(count: usize) -> Value {
    chain(count, |next| next)
}

fn required(count: usize) -> Value {
    chain(count, |next| {
        json!({"type": "object", "properties": {"a": next}, "required": ["a"],
            "additionalProperties": false})
    })
}

fn alternatives(count: usize) -> Value {
    chain(count, |next| json!({"anyOf": [next, {"type": "boolean"}]}))
}

fn nested_intersections(count: usize) -> Value {
    chain(count, |next| json!({"allOf": [next, {"type": ["null", "string"]}]}))
}

fn flat_intersections(count: usize) -> Value {
    let all: Vec<Value> = (0..count)
        .map(|i| json!({"type": "string", "pattern": format!("^x{{0,{}}}$", i + 9)}))
        .collect();
    json!({"allOf": all})
}

fn object(count: usize, is_required: bool) -> Value {
    let names: Vec<String> = (0..count).map(|i| format!("p{i}")).collect();
    let properties: Map<String, Value> =
        names.iter().map(|name| (name.clone(), json!({"type": "null"}))).collect();
    let required = if is_required { names } else { Vec::new() };
    json!({"type": "object", "properties": properties, "required": required,
        "additionalProperties": false})
}

/// Regular expression with 94 alternatives that all match a text whose first character is `a`. Four
/// of them in one schema have 94^4 combinations of alternatives.
fn overlapping(end: char) -> Value {
    let ways = (b'!'..=b'~').map(|code| format!(r"(a|\x{code:02x})\x{code:02x}{end}.*"));
    let pattern = format!("^({})$", ways.collect::<Vec<_>>().join("|"));
    json!({"type": "string", "pattern": pattern})
}

/// Schema of null or a text that two expressions match. The grammar engine tries a hundred million
/// numbers of `a` before it looks at the only text that both match.
fn long_search() -> Value {
    let control = r"\x01".repeat(60);
    let cycle = |count: u32, end: char| format!("^({control}|(a{{{count}}})*{end})$");
    let texts = [cycle(9973, 'b'), cycle(9967, 'c')];
    let texts = texts.map(|pattern| json!({"type": "string", "pattern": pattern}));
    json!({"anyOf": [{"type": "null"}, {"allOf": texts}]})
}

/// Status and body of the answer to a completion request with `field`.
async fn complete(server: &Launched, field: &str, value: &Value) -> (StatusCode, Value) {
    let body = json!({"prompt": "x", "max_tokens": 40, "seed": 1, field: value});
    send(server, "/v1/completions", body.to_string()).await
}

async fn send(server: &Launched, path: &str, body: String) -> (StatusCode, Value) {
    let request = reqwest::Client::new().post(format!("{}{path}", server.url));
    let request = request.header("content-type", "application/json").body(body);
    let response = request.send().await.expect("the server lives");
    (response.status(), response.json().await.unwrap())
}

/// Checks that an answer is a success, or says what is wrong with `field` without the grammar
/// engine's internals.
fn check((status, value): (StatusCode, Value), field: &str, what: &str) {
    if status.is_success() {
        return;
    }
    assert_eq!(status, 400, "{what}: {value}");
    let error = &value["error"];
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["param"], field, "{what}: {value}");
    for internal in ["assertion", "panic", "unwrap", "::", "\n"] {
        assert!(!message.contains(internal), "{what}: {message}");
    }
}

#[tokio::test]
async fn schemas_that_are_deep_or_wide_leave_the_server_alive() {
    let model = tiny_model();
    let server = Launched::serve(model.path().to_str().unwrap(), &["--threads", "1"]);
    let shapes: [(&str, Shape, [usize; 3]); 7] = [
        ("references", references, [659, 9_000, 40_000]),
        ("required properties", required, [239, 4_000, 20_000]),
        ("alternatives", alternatives, [262, 3_000, 20_000]),
        ("nested intersections", nested_intersections, [2_000, 3_000, 20_000]),
        ("flat intersections", flat_intersections, [200, 2_000, 20_000]),
        ("flat properties", |count| object(count, true), [500, 6_750, 50_000]),
        ("optional properties", |count| object(count, false), [600, 6_750, 50_000]),
    ];
    for (name, shape, counts) in shapes {
        for count in counts {
            let answer = complete(&server, "guided_json", &shape(count)).await;
            check(answer, "guided_json", &format!("{count} {name}"));
            assert_eq!(server.get("/health").await["status"], "ok", "after {count} {name}");
        }
    }
}

#[tokio::test]
async fn expressions_and_choices_that_are_too_large_are_the_request_s_fault() {
    let model = tiny_model();
    let server = Launched::serve(model.path().to_str().unwrap(), &["--threads", "1"]);
    let choices: Vec<String> = (0..4000).map(|i| format!("choice{i}")).collect();
    // Each step of their intersection doubles with each of them.
    let suffixes: Vec<Value> = (0..24)
        .map(|i| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{i}}}$")}))
        .collect();
    // Each of these patterns takes seconds: the other case of a million characters is looked up 248
    // times.
    let folded = ["a", "b", "c"].map(|end| {
        let all = vec![r"\x00-\x{10ff00}"; 248].join("&&");
        json!({"type": "string", "pattern": format!("^(?i)[{all}]{end}$")})
    });
    let combined = ['w', 'x', 'y', 'z'].map(overlapping);
    for (field, value) in [
        ("guided_regex", json!("((a{1,99}){1,99}){1,99}")),
        ("guided_regex", json!("(((a|b){1,999}c){1,999}d){1,999}")),
        ("guided_regex", json!("a{4000000000}")),
        ("guided_regex", json!("(".repeat(4000))),
        ("guided_regex", json!("(?i)".to_owned() + &r"\w".repeat(16))),
        ("guided_regex", json!(r"\w".repeat(500))),
        ("guided_regex", json!("x".repeat(20_000))),
        ("guided_choice", json!(choices)),
        ("guided_choice", json!(vec!["x"; 90_000])),
        ("guided_json", json!({"type": vec!["string"; 45_000], "pattern": r"\w".repeat(500)})),
        ("guided_json", json!({"anyOf": folded})),
        ("guided_json", json!({"type": "integer", "multipleOf": 1e-9})),
        ("guided_json", json!({"type": "number", "minimum": 1e-300, "maximum": 1e300})),
        ("guided_json", json!({"type": "string", "minLength": 1_000_000_000})),
        ("guided_json", json!({"type": "array", "minItems": u64::MAX, "items": {"type": "null"}})),
        ("guided_json", json!({"type": "integer", "multipleOf": 0})),
        ("guided_json", json!({"type": "integer", "multipleOf": 5_000_011})),
        ("guided_json", json!({"const": i64::MIN})),
        ("guided_json", json!({"type": "integer", "minimum": i64::MIN, "maximum": -1e30})),
        ("guided_json", json!({"allOf": suffixes})),
        ("guided_json", json!({"allOf": combined})),
        ("guided_json", long_search()),
        ("guided_json", json!({"allOf": [{"multipleOf": 99_991}, {"multipleOf": 99_989}]})),
    ] {
        let what = format!("{field} {:.60}", value.to_string());
        check(complete(&server, field, &value).await, field, &what);
        assert_eq!(server.get("/health").await["status"], "ok", "{what}");
    }
}

#[tokio::test]
async fn no_body_takes_much_memory_before_it_is_refused() {
    let model = tiny_model();
    let server = Launched::serve(model.path().to_str().unwrap(), &["--threads", "1"]);
    let before = server.memory_bytes("VmHWM:");
    let prompt = |text: String| format!(r#"{{"prompt": "{text}"}}"#);
    let list = |field: &str, item: &str, count: usize| {
        format!(r#"{{"prompt": "x", "{field}": [{}{item}]}}"#, format!("{item},").repeat(count))
    };
    let chat = |more: &Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    let long = json!({"a": "m".repeat(15_000_000)});
    let tools = |length: usize| {
        let schema = json!({"type": "object", "description": "d".repeat(length)});
        json!([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    };
    for (path, body, field) in [
        ("/v1/completions", prompt("word ".repeat(2_800_000)), "prompt"),
        ("/v1/completions", prompt(" ".repeat(15_000_000)), "prompt"),
        ("/v1/completions", prompt("字".repeat(5_000_000)), "prompt"),
        ("/v1/completions", list("guided_choice", r#""abcdef""#, 1_400_000), "guided_choice"),
        ("/v1/completions", list("prompt", "1", 8_000_000), "prompt"),
        ("/v1/completions", list("prompt", "[]", 5_000_000), "prompt"),
        ("/v1/completions", list("logit_bias", "[[]]", 3_000_000), "logit_bias"),
        ("/v1/completions", list("metadata", "{}", 5_000_000), "metadata"),
        ("/v1/completions", list("stop", r#""a""#, 4_000_000), "stop"),
        ("/v1/chat/completions", list("messages", r#"{"role":"user"}"#, 900_000), "messages"),
        (
            "/v1/chat/completions",
            format!(
                r#"{{"messages": [{{"role": "user", "content": "{}"}}]}}"#,
                "a b ".repeat(3_500_000)
            ),
            "messages",
        ),
        ("/v1/chat/completions", chat(&json!({"tools": tools(15_300_000)})), "tools"),
        ("/v1/chat/completions", chat(&json!({"tools": tools(4_100_000)})), "prompt"),
        ("/v1/responses", chat(&json!({"input": "x", "metadata": long})), "metadata"),
        ("/v1/responses", chat(&json!({"input": "x", "stream": true, "text": long})), "text"),
        ("/v1/messages", chat(&json!({"max_tokens": 3, "tools": tools(15_000_000)})), ""),
        ("/tokenize", prompt("word ".repeat(2_800_000)), "prompt"),
        ("/detokenize", list("tokens", "1", 8_000_000), "tokens"),
    ] {
        let what = format!("{path} {body:.40}");
        let (status, value) = send(&server, path, body).await;
        assert_eq!(status.as_u16(), 400, "{what}");
        // Anthropic's API names no field.
        let param = value["error"]["param"].as_str().unwrap_or_default();
        assert_eq!(param, field, "{what}");
        let taken = server.memory_bytes("VmHWM:") - before;
        assert!(taken < REQUEST_BYTES_MAX, "{what} took {} MiB", taken >> 20);
    }
}

/// The text of this answer has tens of megabytes; with all choices at once in memory it takes more than the limit.
#[tokio::test]
async fn an_answer_of_two_million_logprobs_takes_little_memory() {
    let model = tiny_model();
    let server = Launched::serve(model.path().to_str().unwrap(), &["--threads", "1"]);
    let before = server.memory_bytes("VmHWM:");
    for stream in [false, true] {
        let body = json!({"prompt": "x".repeat(900), "n": 128, "max_tokens": 1, "logprobs": 20,
            "echo": true, "stream": stream});
        let url = format!("{}/v1/completions", server.url);
        let mut answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let (mut bytes, mut end) = (0, Vec::new());
        while let Some(chunk) = answer.chunk().await.unwrap() {
            bytes += chunk.len();
            end = chunk[chunk.len().saturating_sub(9)..].to_vec();
        }
        assert!(bytes > 2_000_000 * 8, "{bytes} bytes have no two million log-probabilities");
        let expected: &[u8] = if stream { b"[DONE]\n\n" } else { b"}}}" };
        assert!(end.ends_with(expected), "{}", String::from_utf8_lossy(&end));
        let taken = server.memory_bytes("VmHWM:") - before;
        assert!(taken < REQUEST_BYTES_MAX, "stream {stream}: {} MiB", taken >> 20);
    }
}
