//! Reader of `llama-server`'s `/props`: its version and configuration in the suite's terms.

use std::collections::BTreeMap;

use schema::probe::Probe;
use schema::run::{ModelFacts, ServerFacts};
use serde_json::{Value, json};

use super::probe::Probed;

/// Reads a `/props` response.
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

#[cfg(test)]
mod tests {
    use super::*;

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
