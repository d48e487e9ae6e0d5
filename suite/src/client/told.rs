//! Reader of a server's configuration at the JSON pointers of its engine file. Nothing else of the
//! response is kept, so that no path or machine name enters a record.

use std::collections::BTreeMap;

use schema::canonical::sha256_of;
use schema::engine::Info;
use schema::probe::Probe;
use schema::run::{ModelFacts, ServerFacts};
use serde_json::{Map, Value};

use super::probe::Probed;

/// Reads the flags that `info` points at from `answer`.
pub(super) fn read_told(info: &Info, answer: &Value) -> Probed {
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

/// Returns a scalar value, or `None` for a list, object or null. PyTorch types lose their `torch.`
/// prefix.
fn plain(value: &Value) -> Option<Value> {
    match value {
        Value::String(text) => Some(text.strip_prefix("torch.").unwrap_or(text).into()),
        Value::Bool(_) | Value::Number(_) => Some(value.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the boolean value of `flag`, negated where its name begins with `!`.
fn truth(config: &BTreeMap<String, Value>, flag: &str) -> Option<bool> {
    match flag.strip_prefix('!') {
        Some(flag) => config.get(flag)?.as_bool().map(|value| !value),
        None => config.get(flag)?.as_bool(),
    }
}

/// Returns the response with each text of the form `name=value, name=value` converted to an object.
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

/// Splits at commas outside of brackets and quotes.
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

/// Parses a scalar value as Python prints it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        let probed = read_told(&info("vllm"), &json!({"vllm_config": text}));
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
        let probed = read_told(&info("vllm"), &answer);
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
            read_told(&info("sglang"), &json!({"disable_radix_cache": false, "page_size": 1}));
        assert_eq!(probed.probe.server.prefix_cache, Some(true));
        assert_eq!(probed.page_tokens, Some(1));
        assert_eq!(read_told(&info("lmdeploy"), &Value::Null), Probed::default());
    }

    #[test]
    fn a_text_that_is_no_list_of_settings_stays_a_text() {
        for text in ["", "hello, world", "a=1, b", "=1"] {
            assert_eq!(pairs(text), None, "{text:?}");
        }
        assert_eq!(pairs("a=1").map(|pairs| pairs["a"].clone()), Some(json!(1)));
    }
}
