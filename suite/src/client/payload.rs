//! A request as the bytes that go over the wire, written before the clock starts.

use schema::engine::Request;
use schema::manifest::ManifestRequest;
use schema::scenario::Output;
use serde_json::{Map, Value, json};

use super::control::Key;

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// `host:port` for the `Host` header.
    pub authority: String,
    /// Path of the route.
    pub path: String,
    /// The model's name as the server knows it.
    pub model: String,
    pub key: Option<Key>,
}

/// One request, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Head and body.
    pub bytes: Vec<u8>,
    /// Scheduled send from the start of the run, or from the end of the request before.
    pub send_us: u64,
    /// Position of the request before, where this one waits for its end.
    pub after: Option<usize>,
}

/// Writes the request of `entry` for an engine that takes `takes`.
#[must_use]
pub fn payload(
    endpoint: &Endpoint,
    takes: &Request,
    output: &Output,
    entry: &ManifestRequest,
) -> Payload {
    let mut body = Map::new();
    body.insert("model".into(), json!(endpoint.model));
    if endpoint.path.ends_with("/chat/completions") {
        let text = entry.text.as_deref().unwrap_or_default();
        body.insert("messages".into(), json!([{"role": "user", "content": text}]));
    } else {
        let text = entry.text.as_ref().map(|text| json!(text));
        body.insert("prompt".into(), text.unwrap_or_else(|| json!(entry.prompt)));
    }
    body.insert("max_tokens".into(), json!(entry.output_tokens));
    if let Some(temperature) = output.temperature {
        body.insert("temperature".into(), json!(temperature));
    }
    body.insert("stream".into(), json!(true));
    let mut usage = json!({"include_usage": true});
    if takes.usage_per_chunk {
        usage["continuous_usage_stats"] = json!(true);
    }
    body.insert("stream_options".into(), usage);
    if takes.ignore_eos && output.ignore_eos {
        body.insert("ignore_eos".into(), json!(true));
    }
    if takes.return_token_ids {
        body.insert("return_token_ids".into(), json!(true));
    }
    body.extend(output.extra_body.clone());
    body.sort_keys();
    let body = Value::Object(body).to_string();
    let key = endpoint.key.as_ref();
    let authorization =
        key.map_or_else(String::new, |key| format!("Authorization: {}\r\n", key.authorization()));
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: text/event-stream\r\n{}Content-Length: {}\r\n\r\n",
        endpoint.path,
        endpoint.authority,
        authorization,
        body.len()
    );
    Payload {
        bytes: [head.as_bytes(), body.as_bytes()].concat(),
        send_us: entry.send_us,
        after: entry.after.and_then(|before| usize::try_from(before).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn written(path: &str, takes_all: bool, text: Option<&str>, output: &Output) -> String {
        let endpoint = Endpoint {
            authority: "127.0.0.1:8000".into(),
            path: path.into(),
            model: "tiny".into(),
            key: None,
        };
        let takes = Request {
            route: path.into(),
            token_ids: takes_all,
            ignore_eos: takes_all,
            return_token_ids: takes_all,
            usage_per_chunk: false,
        };
        let entry = ManifestRequest {
            prompt: vec![1, 2, 3],
            text: text.map(String::from),
            output_tokens: 5,
            ..ManifestRequest::default()
        };
        let bytes = payload(&endpoint, &takes, output, &entry).bytes;
        String::from_utf8(bytes).unwrap().replace('\r', "")
    }

    #[test]
    fn a_request_carries_what_the_engine_takes() {
        let output = Output { ignore_eos: true, temperature: Some(0.0), ..Output::default() };
        expect![[r#"
            POST /v1/completions HTTP/1.1
            Host: 127.0.0.1:8000
            Content-Type: application/json
            Accept: text/event-stream
            Content-Length: 162

            {"ignore_eos":true,"max_tokens":5,"model":"tiny","prompt":[1,2,3],"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true},"temperature":0.0}"#]]
        .assert_eq(&written("/v1/completions", true, None, &output));
        expect![[r#"
            POST /v1/chat/completions HTTP/1.1
            Host: 127.0.0.1:8000
            Content-Type: application/json
            Accept: text/event-stream
            Content-Length: 147

            {"max_tokens":5,"messages":[{"role":"user","content":"hi"}],"model":"tiny","stream":true,"stream_options":{"include_usage":true},"temperature":0.0}"#]]
        .assert_eq(&written("/v1/chat/completions", false, Some("hi"), &output));
    }

    #[test]
    fn further_fields_stand_beside_the_clients_and_no_temperature_is_the_servers() {
        let extra_body = [("top_p".to_owned(), json!(0.9)), ("min_p".to_owned(), json!(0.1))];
        let output = Output { extra_body: extra_body.into(), ..Output::default() };
        let written = written("/v1/completions", true, None, &output);
        let body: Value = serde_json::from_str(written.lines().last().unwrap()).unwrap();
        assert_eq!((&body["top_p"], &body["min_p"]), (&json!(0.9), &json!(0.1)));
        assert!(body.get("temperature").is_none() && body.get("ignore_eos").is_none(), "{body}");
    }
}
