//! Builds the HTTP requests of a run as bytes, in each API format, before the run's clock starts.

use memchr::memmem;
use schema::engine::{ApiFormat, Request};
use schema::manifest::ManifestRequest;
use schema::scenario::Output;
use serde_json::{Map, Value, json};

use super::headers;

/// Destination of requests: host, path, model and API key.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// `host:port` of the server, for the `Host` header.
    pub authority: String,
    /// Path of the server's route that requests go to.
    pub path: String,
    /// Name of the model that requests ask for.
    pub model: String,
    /// Lines of the head for the API key and further headers, each with its line end; empty for
    /// none.
    pub added_headers: String,
}

/// One request as bytes, with its send time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Bytes of the request: HTTP head and body.
    pub bytes: Vec<u8>,
    /// Scheduled send time of the request in microseconds from the start of the run, or, if `after`
    /// is set, from the end of that request.
    pub send_us: u64,
    /// Index of the request that must end before this one is sent, such as an earlier turn; `None`
    /// if there is none.
    pub after: Option<usize>,
    /// Number of output tokens that the request asks for at most.
    pub output_tokens: u64,
}

impl Payload {
    /// Returns `text`, which the server wrote, without what it repeats of the request's API key and
    /// of the user's other headers.
    pub fn masked(&self, text: &str) -> String {
        let head = memmem::find(&self.bytes, b"\r\n\r\n").map_or(&[][..], |end| &self.bytes[..end]);
        headers::masked(text, &String::from_utf8_lossy(head))
    }
}

/// Sampling fields that OpenAI's routes take at the top level and SGLang's native route within
/// `sampling_params`.
const SAMPLING: [&str; 8] = [
    "frequency_penalty",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "top_k",
    "top_p",
];

/// Builds the HTTP request for the manifest entry `entry` for an engine that accepts the fields in
/// `takes`.
pub fn payload(
    endpoint: &Endpoint,
    takes: &Request,
    output: &Output,
    entry: &ManifestRequest,
) -> Payload {
    let dialect = takes.dialect();
    let prompt = match &entry.text {
        Some(text) => json!(text),
        None if dialect.takes_ids() => json!(entry.prompt),
        // Other API formats take no token ids; their prompts were drawn as text.
        None => json!(""),
    };
    let mut body = body(dialect, prompt, entry.output_tokens);
    let mut sampling = Map::new();
    if let Some(temperature) = output.temperature {
        sampling.insert("temperature".into(), json!(temperature));
    }
    // Only where the engine accepts the field; others may refuse the request.
    if takes.ignore_eos && output.ignore_eos {
        sampling.insert("ignore_eos".into(), json!(true));
    }
    if dialect.generates() {
        body.insert("stream".into(), json!(true));
    }
    if dialect == ApiFormat::Generate {
        sample_natively(&mut body, sampling, output);
    } else {
        body.insert("model".into(), json!(endpoint.model));
        body.extend(sampling);
        if matches!(dialect, ApiFormat::Completions | ApiFormat::Chat) {
            body.extend(usage_and_ids(takes));
        }
        body.extend(output.extra_body.clone());
    }
    // Sorted, so that the bytes of a request do not depend on insertion order.
    body.sort_keys();
    let body = Value::Object(body).to_string();
    Payload {
        bytes: [head(endpoint, dialect, body.len()).as_bytes(), body.as_bytes()].concat(),
        send_us: entry.send_us,
        after: entry.after.and_then(|before| usize::try_from(before).ok()),
        output_tokens: if dialect.generates() { entry.output_tokens } else { 0 },
    }
}

/// Returns the body fields that request at most `tokens` tokens after `prompt`, which is text or
/// ids, or its embedding.
pub(super) fn body(dialect: ApiFormat, prompt: Value, tokens: u64) -> Map<String, Value> {
    let said = |prompt: &Value| json!([{"role": "user", "content": prompt}]);
    let (key, prompt, length, tokens) = match dialect {
        ApiFormat::Completions => ("prompt", prompt, "max_tokens", json!(tokens)),
        ApiFormat::Chat | ApiFormat::Messages => {
            ("messages", said(&prompt), "max_tokens", json!(tokens))
        }
        ApiFormat::Responses => ("input", prompt, "max_output_tokens", json!(tokens)),
        // As vLLM's tool does: a prompt that is too long for the model is cut to what it takes.
        ApiFormat::Embeddings => ("input", prompt, "truncate_prompt_tokens", json!(-1)),
        ApiFormat::Generate => {
            let key = if prompt.is_string() { "text" } else { "input_ids" };
            (key, prompt, "sampling_params", json!({"max_new_tokens": tokens}))
        }
    };
    Map::from_iter([(key.to_owned(), prompt), (length.to_owned(), tokens)])
}

/// Returns the body fields that request usage from OpenAI's routes, and, where `takes` says that
/// the engine accepts their fields, usage per chunk and token ids.
fn usage_and_ids(takes: &Request) -> Map<String, Value> {
    let mut told = Map::new();
    let mut usage = json!({"include_usage": true});
    if takes.usage_per_chunk {
        usage["continuous_usage_stats"] = json!(true);
    }
    told.insert("stream_options".into(), usage);
    if takes.return_token_ids {
        told.insert("return_token_ids".into(), json!(true));
    }
    told
}

/// Puts sampling options into `sampling_params`, where SGLang's native route expects them, and the
/// other fields of `extra_body` beside it. The client's own value wins over `extra_body`.
fn sample_natively(body: &mut Map<String, Value>, own: Map<String, Value>, output: &Output) {
    let (mut sampling, beside): (Map<_, _>, Map<_, _>) =
        output.extra_body.clone().into_iter().partition(|(key, _)| SAMPLING.contains(&&**key));
    let length = body.remove("sampling_params");
    body.extend(beside);
    // A later list overrides an earlier one: user, client, length.
    let lists = [body.remove("sampling_params"), Some(Value::Object(own)), length];
    for list in lists.into_iter().flatten() {
        if let Value::Object(list) = list {
            sampling.extend(list);
        }
    }
    sampling.sort_keys();
    body.insert("sampling_params".into(), Value::Object(sampling));
}

fn head(endpoint: &Endpoint, dialect: ApiFormat, length: usize) -> String {
    let mut more = endpoint.added_headers.clone();
    if dialect == ApiFormat::Messages {
        // The only version of this protocol; servers may require the header.
        more += "anthropic-version: 2023-06-01\r\n";
    }
    let accept = if dialect.generates() { "text/event-stream" } else { "application/json" };
    format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: {accept}\r\n{more}Content-Length: {length}\r\n\r\n",
        endpoint.path, endpoint.authority,
    )
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
            added_headers: String::new(),
        };
        let takes = Request {
            route: path.into(),
            chat_route: None,
            dialect: None,
            token_ids: takes_all,
            ignore_eos: takes_all,
            return_token_ids: takes_all,
            usage_per_chunk: false,
            prompt_logprobs: false,
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

    #[test]
    fn each_dialect_has_its_own_words_for_prompt_and_length() {
        let extra_body = [
            ("top_p".to_owned(), json!(0.9)),
            ("sampling_params".to_owned(), json!({"max_new_tokens": 99, "min_new_tokens": 1})),
        ];
        let output = Output { ignore_eos: true, temperature: Some(0.0), ..Output::default() };
        let more = Output { extra_body: extra_body.into(), ..output.clone() };
        let cases = [
            (
                "/generate",
                None,
                &more,
                r#"{"input_ids":[1,2,3],"sampling_params":{"ignore_eos":true,"max_new_tokens":5,"min_new_tokens":1,"temperature":0.0,"top_p":0.9},"stream":true}"#,
            ),
            (
                "/generate",
                Some("hi"),
                &Output::default(),
                r#"{"sampling_params":{"max_new_tokens":5},"stream":true,"text":"hi"}"#,
            ),
            (
                "/v1/responses",
                Some("hi"),
                &output,
                r#"{"ignore_eos":true,"input":"hi","max_output_tokens":5,"model":"tiny","stream":true,"temperature":0.0}"#,
            ),
            (
                "/v1/messages",
                Some("hi"),
                &output,
                r#"{"ignore_eos":true,"max_tokens":5,"messages":[{"role":"user","content":"hi"}],"model":"tiny","stream":true,"temperature":0.0}"#,
            ),
            (
                "/v1/embeddings",
                Some("hi"),
                &Output::default(),
                r#"{"input":"hi","model":"tiny","truncate_prompt_tokens":-1}"#,
            ),
            (
                "/v1/embeddings",
                None,
                &Output::default(),
                r#"{"input":[1,2,3],"model":"tiny","truncate_prompt_tokens":-1}"#,
            ),
        ];
        for (path, text, output, expected) in cases {
            let written = written(path, true, text, output);
            assert_eq!(written.lines().last(), Some(expected), "{path}");
            let versioned = written.contains("\nanthropic-version: 2023-06-01\n");
            assert_eq!(versioned, path == "/v1/messages", "{path}");
        }
    }
}
