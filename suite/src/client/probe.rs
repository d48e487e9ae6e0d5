//! Probe of a running server: version, effective configuration, model and metrics, for any engine.

use std::collections::BTreeMap;

use schema::engine::{EngineFile, Info, InfoDialect, Told};
use schema::probe::{Probe, SCHEMA};
use schema::run::{ModelFacts, ServerFacts};
use serde_json::Value;

use super::control::{ControlError, Server, read_metrics};
use super::props::read_props;
use super::told::read_told;

/// Probe of a server, and a fact that only the suite needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probed {
    pub probe: Probe,
    /// Page size of the prefix cache, in tokens.
    pub page_tokens: Option<u64>,
}

/// Requests everything from a server that its engine file knows to request.
///
/// # Errors
/// The server does not respond or is not ready. A value that it does not report is not an error but
/// absent.
pub fn probe(server: &Server, id: &str, engine: &EngineFile) -> Result<Probed, ControlError> {
    server.get_text(&engine.ready.route)?;
    let mut probed = told(server, &engine.info);
    let probe = &mut probed.probe;
    if let Some(told) = &engine.info.version {
        probe.version = version(server, told);
    }
    probe.schema = SCHEMA.to_owned();
    if probe.engine.is_empty() {
        probe.engine = id.to_owned();
    }
    if probe.model.id.is_empty() {
        probe.model.id = served_model(server).unwrap_or_default();
    }
    probe.metrics = metrics(server, engine).unwrap_or_default();
    Ok(probed)
}

/// Returns the server's configuration, as far as it reports it.
fn told(server: &Server, info: &Info) -> Probed {
    let answer = info.route.as_ref().and_then(|route| server.get_json(route).ok());
    let Some(answer) = answer else { return Probed::default() };
    match info.dialect {
        InfoDialect::Redline => read_info(&answer),
        InfoDialect::LlamaCpp => read_props(&answer),
        InfoDialect::Fields => read_told(info, &answer),
    }
}

/// Returns the server's version, without `v`.
fn version(server: &Server, told: &Told) -> Option<String> {
    let answer = server.get_json(&told.route).ok()?;
    let version = answer.pointer(&told.at)?.as_str()?;
    Some(version.trim_start_matches('v').to_owned())
}

/// Returns the name of the first model that the server offers.
pub fn served_model(server: &Server) -> Option<String> {
    let list = server.get_json("/v1/models").ok()?;
    Some(list["data"][0]["id"].as_str()?.to_owned())
}

/// Reads the server's metrics, by the suite's names.
///
/// # Errors
/// The metrics route cannot be read.
pub fn metrics(
    server: &Server,
    engine: &EngineFile,
) -> Result<BTreeMap<String, f64>, ControlError> {
    Ok(read_metrics(&server.get_text(engine.metrics_route())?, &engine.metrics))
}

/// Flags about the server's place (host, port, names) rather than its behavior: they enter no
/// record.
const OF_THE_PLACE: [&str; 7] =
    ["api-key-file", "host", "model-name", "port", "profile", "server-name", "server-port"];

/// Reads the `/server_info` of Redline's contract.
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

/// Normalizes a flag's name: no leading dashes, and dashes inside instead of underscores.
fn flag_name(flag: &str) -> String {
    flag.trim_start_matches('-').replace('_', "-")
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
        assert_eq!(flags, ["max-batch-size", "no-prefix-cache", "tp"], "neither place nor unset");
        assert_eq!(probed.probe.model.parameters, Some(5));
    }
}
