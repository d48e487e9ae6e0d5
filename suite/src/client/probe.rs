//! Probe of a running server: version, effective configuration, model and metrics, for any engine;
//! and the time of a starting server's first answer.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use schema::canonical::sha256_of;
use schema::engine::{ApiFormat, EngineFile, Info, InfoFormat, ReportedAt, Request};
use schema::probe::{FirstAnswer, Probe, SCHEMA};
use schema::run::{ModelFacts, ServerFacts};
use serde_json::{Map, Value, json};

use super::control::{Bounds, CallError, Caller, ControlError, Server, beginning, read_metrics};
use super::payload::body;

/// Facts that a server reports about itself, as they are printed, and the page size of its prefix
/// cache, which is not printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probed {
    pub probe: Probe,
    /// Page size of the prefix cache, in tokens; `None` if the server does not report it.
    pub page_tokens: Option<u64>,
}

/// Requests facts from a server: version, configuration and metrics from the routes that its engine
/// file names, and the model's name from its list of models if the configuration does not have it.
///
/// # Errors
/// The server does not respond or is not ready. A fact that it does not report is absent from the
/// probe, which is no error.
pub fn probe(server: &Server, id: &str, engine: &EngineFile) -> Result<Probed, ControlError> {
    server.get_text(&engine.ready.route)?;
    let mut probed = configuration(server, &engine.info);
    let probe = &mut probed.probe;
    if let Some(told) = &engine.info.version {
        probe.version = version(server, told);
    }
    probe.schema = SCHEMA.to_owned();
    if probe.engine.is_empty() {
        probe.engine = id.to_owned();
    }
    if probe.model.id.is_empty() {
        let first = server.first_model(&engine.request.models_route());
        probe.model.id = first.ok().flatten().unwrap_or_default();
    }
    probe.metrics = metrics(server, engine).unwrap_or_default();
    Ok(probed)
}

/// Requests the server's configuration route and returns the effective configuration and model that
/// it reports; returns no facts if there is no such route or no response.
fn configuration(server: &Server, info: &Info) -> Probed {
    let answer = info.route.as_ref().and_then(|route| server.get_json(route).ok());
    let Some(answer) = answer else { return Probed::default() };
    match info.dialect {
        InfoFormat::Redline => read_info(&answer),
        InfoFormat::LlamaCpp => read_props(&answer),
        InfoFormat::Fields => read_fields(info, &answer),
    }
}

/// Requests the server's version and returns it without a leading `v`; `None` if the server does
/// not report one.
fn version(server: &Server, told: &ReportedAt) -> Option<String> {
    let answer = server.get_json(&told.route).ok()?;
    let version = answer.pointer(&told.at)?.as_str()?;
    Some(version.trim_start_matches('v').to_owned())
}

/// Route of the list of models of OpenAI-compatible servers.
pub const MODELS: &str = "/v1/models";

/// Requests `/v1/models` from the server and returns the name of the first model in the list;
/// `None` if the list is empty or the server does not respond.
pub fn served_model(server: &Server) -> Option<String> {
    server.first_model(MODELS).ok()?
}

/// Routes on which OpenAI-compatible servers generate text, in the order in which they are tried: the
/// first one adds no chat template to a prompt.
const ROUTES: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];

/// Finds out how a server that no engine file describes is asked: requests one token of `model` on
/// each known route, with and without the field `ignore_eos`, until one succeeds. Writes the result
/// into `request`.
///
/// # Errors
/// The server does not respond, has no known route, or refuses every request for another reason,
/// such as a wrong API key or model name.
pub fn find_route(server: &Server, model: &str, request: &mut Request) -> Result<(), ControlError> {
    let mut refused = None;
    for route in ROUTES {
        for ignore_eos in [true, false] {
            let mut body = body(ApiFormat::of_route(route), json!("Hello"), 1);
            body.insert("model".into(), json!(model));
            if ignore_eos {
                body.insert("ignore_eos".into(), json!(true));
            }
            match server.post_json(route, &Value::Object(body)) {
                Ok(_) => {
                    (request.route, request.ignore_eos) = (route.to_owned(), ignore_eos);
                    return Ok(());
                }
                Err(error) if is_no_route(&error) => break,
                Err(ControlError::Status { status, body, route }) => {
                    // The first route's reason is the one that a reader can act on.
                    refused.get_or_insert(ControlError::Status { status, body, route });
                }
                Err(other) => return Err(other),
            }
        }
    }
    Err(refused.unwrap_or_else(|| ControlError::NoRoute { url: server.url("") }))
}

/// True for the answer of a server that lacks the route. A server that lacks the model answers 404
/// too, and names the model.
fn is_no_route(error: &ControlError) -> bool {
    match error {
        ControlError::Status { status: 404, body, .. } => !body.contains("model"),
        ControlError::Status { status: 405 | 501, .. } => true,
        _ => false,
    }
}

/// Requests the server's metrics and returns them by the suite's names.
///
/// # Errors
/// The metrics route cannot be read.
pub fn metrics(
    server: &Server,
    engine: &EngineFile,
) -> Result<BTreeMap<String, f64>, ControlError> {
    Ok(read_metrics(&server.get_text(engine.metrics_route())?, &engine.metrics))
}

/// Names of flags of Redline's server that do not affect its speed or answers, such as its port and
/// name; they enter no record.
const OF_THE_PLACE: [&str; 7] =
    ["api-key-file", "host", "model-name", "port", "profile", "server-name", "server-port"];

/// Extracts facts about the server from `info`, the parsed response of Redline's server to a
/// request of `/server_info`; a fact that the response lacks is left empty.
fn read_info(info: &Value) -> Probed {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let config: BTreeMap<String, Value> = info["config"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(flag, entry)| (flag_name(flag), entry.get("value").unwrap_or(entry).clone()))
        // A flag that is not set has no value to record.
        .filter(|(flag, value)| !value.is_null() && !OF_THE_PLACE.contains(&flag.as_str()))
        .collect();
    let number = |flag: &str| config.get(flag).and_then(Value::as_u64);
    let (kv, model) = (&info["kv"], &info["model"]);
    // The flag exists in a negative and a positive form.
    let cache_off = config.get("no-prefix-cache").and_then(Value::as_bool);
    let server = ServerFacts {
        tp: number("tp").and_then(|tp| u32::try_from(tp).ok()),
        max_batch_size: number("max-batch-size"),
        prefix_cache: cache_off
            .map(|off| !off)
            .or_else(|| config.get("prefix-cache").and_then(Value::as_bool)),
        config_sha256: text(&info["config_sha256"]),
        device: text(&info["device"]),
        kv_bytes: kv["bytes"].as_u64(),
        kv_dtype: text(&kv["dtype"]),
        startup_us: info["startup_us"].as_u64(),
        weights_load_us: info["weights_load_us"].as_u64(),
        config: (!config.is_empty()).then_some(config),
        ..ServerFacts::default()
    };
    let facts = ModelFacts {
        id: text(&model["id"]).unwrap_or_default(),
        weights: text(&model["weights"]),
        weights_sha256: text(&model["weights_sha256"]),
        format: text(&model["format"]),
        dtype: text(&model["dtype"]),
        parameters: model["parameters"].as_u64(),
        tokenizer_sha256: text(&model["tokenizer_sha256"]),
        ..ModelFacts::default()
    };
    let probe = Probe {
        engine: text(&info["engine"]).unwrap_or_default(),
        version: text(&info["version"]),
        commit: text(&info["commit"]),
        device: server.device.clone(),
        device_name: text(&info["device_name"]),
        server,
        model: facts,
        ..Probe::default()
    };
    Probed { probe, page_tokens: kv["page_tokens"].as_u64() }
}

/// Normalizes the name of a server's flag: no leading dashes, and dashes inside instead of
/// underscores.
fn flag_name(flag: &str) -> String {
    flag.trim_start_matches('-').replace('_', "-")
}

/// Extracts the values of the server's flags from its configuration response `answer`, at the JSON
/// pointers in `info`, and from these values the facts (such as data types) to which `info` maps
/// flags.
pub(super) fn read_fields(info: &Info, answer: &Value) -> Probed {
    // vLLM before 0.11 reports its configuration as one text.
    let answer = spelled_out(answer);
    let found = |pointers: &Vec<String>| {
        pointers.iter().filter_map(|pointer| answer.pointer(pointer)).find_map(plain)
    };
    let config: BTreeMap<String, Value> = info
        .flags
        .iter()
        .filter_map(|(flag, pointers)| Some((flag.clone(), found(pointers)?)))
        .collect();
    let facts = &info.facts;
    let at = |flag: &Option<String>| config.get(flag.as_deref()?);
    let text = |flag: &Option<String>| at(flag)?.as_str().map(str::to_owned);
    let number = |flag: &Option<String>| at(flag)?.as_u64();
    let device = text(&facts.device);
    let server = ServerFacts {
        tp: number(&facts.tp).and_then(|tp| u32::try_from(tp).ok()),
        max_batch_size: number(&facts.max_batch_size),
        kv_dtype: text(&facts.kv_dtype),
        prefix_cache: facts.prefix_cache.as_deref().and_then(|flag| truth(&config, flag)),
        device: device.clone(),
        config_sha256: if config.is_empty() { None } else { sha256_of(&config).ok() },
        config: (!config.is_empty()).then(|| config.clone()),
        ..ServerFacts::default()
    };
    let model = ModelFacts { dtype: text(&facts.dtype), ..ModelFacts::default() };
    Probed {
        page_tokens: number(&facts.page_tokens),
        probe: Probe { device, server, model, ..Probe::default() },
    }
}

/// Returns a scalar value of a server's configuration, or `None` for a list, object or null.
/// PyTorch types lose their `torch.` prefix.
fn plain(value: &Value) -> Option<Value> {
    match value {
        Value::String(text) => Some(text.strip_prefix("torch.").unwrap_or(text).into()),
        Value::Bool(_) | Value::Number(_) => Some(value.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the boolean value of the server's flag `flag`, negated where its name begins with `!`;
/// `None` if the server reports no boolean under that name.
fn truth(config: &BTreeMap<String, Value>, flag: &str) -> Option<bool> {
    match flag.strip_prefix('!') {
        Some(flag) => config.get(flag)?.as_bool().map(|value| !value),
        None => config.get(flag)?.as_bool(),
    }
}

/// Returns a configuration response in which each top-level field with a text of the form
/// `name=value, name=value` is converted to an object.
fn spelled_out(answer: &Value) -> Value {
    let Value::Object(fields) = answer else { return answer.clone() };
    let read = |value: &Value| {
        let pairs = value.as_str().and_then(pairs);
        pairs.map_or_else(|| value.clone(), Value::Object)
    };
    Value::Object(fields.iter().map(|(key, value)| (key.clone(), read(value))).collect())
}

/// Parses `name=value` pairs between commas, as Python programs print settings, or returns `None`
/// for other text.
fn pairs(text: &str) -> Option<Map<String, Value>> {
    let mut pairs = Map::new();
    for part in split_outside(text) {
        let (name, value) = part.trim().split_once('=')?;
        let is_name =
            !name.is_empty() && name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
        if !is_name {
            return None;
        }
        pairs.insert(name.to_owned(), scalar(value));
    }
    (!pairs.is_empty()).then_some(pairs)
}

/// Splits the text of settings at commas outside of brackets and quotes.
fn split_outside(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quote) = (Vec::new(), 0, 0_u32, None);
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(open), _) if open == byte => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            (None, b',') if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Parses a scalar value of a server's configuration as Python prints it.
fn scalar(text: &str) -> Value {
    match text {
        "None" => Value::Null,
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        text => match serde_json::from_str::<Value>(text) {
            Ok(number @ Value::Number(_)) => number,
            _ => Value::String(text.trim_matches(['\'', '"']).to_owned()),
        },
    }
}

/// Extracts facts about the server from `props`, the parsed response of llama.cpp's server to a
/// request of `/props`; a fact that the response lacks is left empty.
///
/// Source: `tools/server/README.md` of llama.cpp b11434.
pub(super) fn read_props(props: &Value) -> Probed {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    // A slot of `llama-server` is one sequence of its batch.
    let slots = props["total_slots"].as_u64();
    let context = props["default_generation_settings"]["n_ctx"].as_u64();
    let config: BTreeMap<String, Value> = [("parallel", slots), ("slot-ctx-size", context)]
        .into_iter()
        .filter_map(|(flag, value)| Some((flag.to_owned(), json!(value?))))
        .collect();
    let server = ServerFacts {
        max_batch_size: slots,
        config: (!config.is_empty()).then_some(config),
        ..ServerFacts::default()
    };
    // Without an alias, the model's name is its file path, and no path may enter a record.
    let name = text(&props["model_alias"]).unwrap_or_default();
    let model = ModelFacts {
        id: name.rsplit('/').next().unwrap_or_default().to_owned(),
        dtype: text(&props["model_ftype"]),
        ..ModelFacts::default()
    };
    let version = text(&props["build_info"]);
    Probed { probe: Probe { version, server, model, ..Probe::default() }, page_tokens: None }
}

/// Pause between two requests to a server that is starting: much shorter than any start-up, and
/// little work for the machine.
const PAUSE: Duration = Duration::from_millis(1);
/// HTTP status of a server that is still loading its model.
const LOADING: u16 = 503;

/// Sends a one-token request on the route of `request` until it succeeds, for at most `limit`, and
/// returns the moment at which the answer's first byte arrived, on the monotonic clock.
///
/// # Errors
/// No answer in time, a status other than 200 (success) and 503 (still loading), or a response that
/// is not HTTP.
pub fn first_answer(
    server: &Server,
    request: &Request,
    limit: Duration,
) -> anyhow::Result<FirstAnswer> {
    let bytes = question(&server.authority, request);
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let bounds = Bounds { time: left.max(PAUSE), ..Bounds::DOCUMENT };
        let asked = Caller::new(server).ask(&bytes, bounds);
        let last = match asked.map(|reply| (reply.status, reply)) {
            Ok((200, reply)) => return Ok(FirstAnswer { first_byte_ns: reply.first_byte_ns }),
            Ok((LOADING, reply)) => words(&reply.body),
            Ok((status, reply)) => {
                bail!("`{}` answered {status}: {}", request.route, words(&reply.body));
            }
            Err(error @ (CallError::Http(_) | CallError::TooLong(_))) => return Err(error.into()),
            // A refused connection is normal while the server starts.
            Err(error) => error.to_string(),
        };
        if left.is_zero() {
            let (authority, limit_s) = (&server.authority, limit.as_secs_f64());
            bail!("no answer from `{authority}` within {limit_s} s: {last}");
        }
        thread::sleep(PAUSE);
    }
}

fn words(body: &[u8]) -> String {
    beginning(String::from_utf8_lossy(body).trim())
}

/// Builds the HTTP request for one token after a short prompt. It names no model: a server with one
/// model needs none, and asking the server for the name would take time.
fn question(authority: &str, request: &Request) -> Vec<u8> {
    let (route, dialect) = (&request.route, request.dialect());
    let mut body = body(dialect, json!("Hello"), 1);
    if dialect == ApiFormat::Completions {
        body.insert("temperature".into(), json!(0));
    }
    let body = Value::Object(body).to_string();
    let head = format!(
        "POST {route} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn server_info_is_read_into_the_suites_words() {
        let info = json!({
            "engine": "redline", "version": "0.10.0", "commit": "abc", "device": "cpu",
            "device_name": "a cpu",
            "config": {
                "tp": {"value": 1, "source": "default"},
                "max-batch-size": {"value": 128, "source": "default"},
                "no-prefix-cache": {"value": false, "source": "default"},
                "profile": {"value": null, "source": "default"},
                "port": {"value": 23333, "source": "flag"},
                "gemm-library": {"value": "cuBLASLt 130101, driver 13000", "source": "machine"},
            },
            "config_sha256": "c0", "kv": {"pages": 9, "page_tokens": 16, "bytes": 77, "dtype": "f16"},
            "model": {"id": "m", "weights": "real", "weights_sha256": "w", "tokenizer_sha256": "t",
                      "dtype": "int8", "parameters": 5},
            "startup_us": 10, "weights_load_us": 4,
        });
        let probed = read_info(&info);
        assert_eq!(probed.page_tokens, Some(16));
        let server = &probed.probe.server;
        assert_eq!(
            (server.tp, server.max_batch_size, server.prefix_cache),
            (Some(1), Some(128), Some(true))
        );
        assert_eq!((server.kv_bytes, server.kv_dtype.as_deref()), (Some(77), Some("f16")));
        let flags: Vec<&str> =
            server.config.iter().flatten().map(|(flag, _)| flag.as_str()).collect();
        let kept = ["gemm-library", "max-batch-size", "no-prefix-cache", "tp"];
        assert_eq!(flags, kept, "neither place nor unset");
        assert_eq!(probed.probe.model.parameters, Some(5));
    }

    fn info(name: &str) -> Info {
        let path = format!("{}/engines/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        schema::engine::parse(&std::fs::read_to_string(path).unwrap()).unwrap().info
    }

    #[test]
    fn settings_told_as_text_are_read_like_an_object() {
        let text = "model='/home/a/m', speculative_config=None, dtype=torch.bfloat16, \
                    max_seq_len=4096, tensor_parallel_size=2, enforce_eager=False, \
                    observability_config=ObservabilityConfig(a=1, b='x, y'), seed=0, \
                    enable_prefix_caching=True";
        let probed = read_fields(&info("vllm"), &json!({"vllm_config": text}));
        let server = probed.probe.server;
        assert_eq!((server.tp, server.prefix_cache), (Some(2), Some(true)));
        assert_eq!((server.max_batch_size, probed.page_tokens), (None, None), "not in the text");
        let config = server.config.unwrap();
        assert_eq!(config["max-model-len"], json!(4096));
        assert!(!config.values().any(|value| value.to_string().contains("home")), "{config:?}");
        assert_eq!(probed.probe.model.dtype.as_deref(), Some("bfloat16"));
    }

    #[test]
    fn the_first_pointer_that_leads_anywhere_counts() {
        let answer = json!({"vllm_config": {
            "parallel_config": {"tensor_parallel_size": 4},
            "cache_config": {"block_size": 16, "cache_dtype": "auto", "enable_prefix_caching": false},
            "scheduler_config": {"max_num_seqs": 256},
            "model_config": {"model": "/home/a/m", "dtype": "torch.bfloat16"},
            "device_config": {"device": "cuda"},
        }});
        let probed = read_fields(&info("vllm"), &answer);
        let server = probed.probe.server;
        assert_eq!((server.tp, server.max_batch_size), (Some(4), Some(256)));
        assert_eq!(probed.probe.model.dtype.as_deref(), Some("bfloat16"));
        assert_eq!(server.device.as_deref(), Some("cuda"));
        assert_eq!((server.prefix_cache, server.kv_dtype.as_deref()), (Some(false), Some("auto")));
        assert_eq!(probed.page_tokens, Some(16));
    }

    #[test]
    fn a_flag_may_say_the_opposite() {
        let probed =
            read_fields(&info("sglang"), &json!({"disable_radix_cache": false, "page_size": 1}));
        assert_eq!(probed.probe.server.prefix_cache, Some(true));
        assert_eq!(probed.page_tokens, Some(1));
        assert_eq!(read_fields(&info("lmdeploy"), &Value::Null), Probed::default());
    }

    #[test]
    fn a_text_that_is_no_list_of_settings_stays_a_text() {
        for text in ["", "hello, world", "a=1, b", "=1"] {
            assert_eq!(pairs(text), None, "{text:?}");
        }
        assert_eq!(pairs("a=1").map(|pairs| pairs["a"].clone()), Some(json!(1)));
    }

    #[test]
    fn props_are_read_into_the_suites_words() {
        let props = json!({
            "default_generation_settings": {"n_ctx": 2048}, "total_slots": 32,
            "model_alias": "/home/a/m.gguf", "model_ftype": "Q4_1", "build_info": "b11434-unknown",
        });
        let probe = read_props(&props).probe;
        assert_eq!(probe.version.as_deref(), Some("b11434-unknown"));
        assert_eq!(probe.server.max_batch_size, Some(32));
        assert_eq!(
            probe.server.config.map(|config| config["slot-ctx-size"].clone()),
            Some(json!(2048))
        );
        assert_eq!(
            (probe.model.id.as_str(), probe.model.dtype.as_deref()),
            ("m.gguf", Some("Q4_1"))
        );
    }

    #[test]
    fn what_is_not_said_stays_unknown() {
        assert_eq!(read_props(&json!({"total_slots": null})), Probed::default());
    }
}
