//! Tests of what later load generators read from this release: names, types and definitions, seen
//! from outside.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};

use expect_test::expect;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::launched::{Launched, command, end_of, tiny_model};

/// Appends a line with path and type for each value of a document.
fn types(path: &str, value: &Value, out: &mut String) {
    let name = match value {
        Value::Object(map) => {
            for (key, value) in map.iter().collect::<BTreeMap<_, _>>() {
                types(&format!("{path}.{key}"), value, out);
            }
            return;
        }
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
    };
    out.push_str(&format!("{} {name}\n", path.trim_start_matches('.')));
}

#[tokio::test]
async fn server_info_keeps_its_fields_and_their_types() {
    let model = tiny_model();
    let server = Launched::serve(model.path().to_str().unwrap(), &["--threads", "1"]);
    let mut info = server.get("/server_info").await;
    let info = info.as_object_mut().unwrap();
    let config = info.remove("config").unwrap();
    // The commit is set only where the builder passed it.
    let commit = info.remove("commit").unwrap();
    assert!(commit.is_null() || commit.is_string(), "{commit}");
    let mut found = String::new();
    types("", &Value::Object(info.clone()), &mut found);
    expect![[r#"
        config_sha256 string
        device string
        device_name string
        engine string
        kv.bytes integer
        kv.dtype string
        kv.page_tokens integer
        kv.pages integer
        model.architecture string
        model.dtype string
        model.format string
        model.id string
        model.max_seq_len integer
        model.parameters integer
        model.revision null
        model.tokenizer_sha256 string
        model.weights string
        model.weights_sha256 string
        startup_us integer
        version string
        weights_load_us integer
    "#]]
    .assert_eq(&found);
    let mut flags = String::new();
    for (flag, setting) in config.as_object().unwrap() {
        assert_eq!(setting.as_object().unwrap().len(), 2, "{flag}: {setting}");
        let mut value = String::new();
        types(flag, &setting["value"], &mut value);
        flags.push_str(&format!("{} {}\n", value.trim(), setting["source"].as_str().unwrap()));
    }
    expect![[r#"
        allow-origin null default
        api-key-file null default
        cache-max-entry-count number default
        device string flag
        dtype string default
        host string default
        insecure-bind bool default
        kv-dtype string default
        load-format string default
        log-format string default
        max-batch-size integer default
        max-prefill-token-num integer default
        max-seq-len integer model
        model-name string model
        no-prefix-cache bool default
        port integer flag
        profile null default
        speculative-algorithm string default
        threads integer flag
        tp integer default
    "#]]
    .assert_eq(&flags);
}

#[tokio::test]
async fn the_hash_of_the_configuration_is_what_the_contract_says() {
    let model = tiny_model();
    let flags = ["--cache-max-entry-count", "300", "--model-name", "x", "--no-prefix-cache"];
    let server = Launched::serve(model.path().to_str().unwrap(), &flags);
    let info = server.get("/server_info").await;
    let mut values = Map::new();
    for (flag, setting) in info["config"].as_object().unwrap() {
        let unhashed =
            ["allow-origin", "host", "port", "model-name", "api-key-file", "log-format", "profile"];
        // A flag that is newer than the hash is part of it only where it changes something.
        let is_new = flag == "speculative-algorithm";
        if !unhashed.contains(&flag.as_str()) && !is_new {
            values.insert(flag.clone(), setting["value"].clone());
        }
    }
    assert_eq!(values["cache-max-entry-count"].as_f64(), Some(300.0));
    // RFC 8785 writes whole numbers without a fraction.
    values["cache-max-entry-count"] = 300.into();
    let json = serde_json::to_string(&Value::Object(values)).unwrap();
    let hash: String = Sha256::digest(json).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(info["config_sha256"], hash);
}

#[tokio::test]
async fn every_alias_and_a_profile_mean_the_same() {
    let model = tiny_model();
    let model = model.path().to_str().unwrap();
    let profile = tempfile::NamedTempFile::new().unwrap();
    let lines = "server-name = \"127.0.0.1\"\nserver-port = 0\nsession-len = 96\nthreads = 1\n";
    std::fs::write(profile.path(), lines).unwrap();
    let by_flag = [
        "--server-name",
        "127.0.0.1",
        "--server-port",
        "0",
        "--session-len",
        "96",
        "--threads",
        "1",
    ];
    let by_profile = ["--profile", profile.path().to_str().unwrap()];
    let mut hashes = Vec::new();
    for (flags, source) in [(&by_flag[..], "flag"), (&by_profile, "profile")] {
        let server = Launched::spawn(command(&[&["serve", model], flags].concat()));
        let info = server.get("/server_info").await;
        assert_eq!(info["config"]["max-seq-len"], json!({"value": 96, "source": source}));
        assert_eq!(info["config"]["host"], json!({"value": "127.0.0.1", "source": source}));
        assert_eq!(info["config"]["port"]["source"], source);
        let port = &info["config"]["port"]["value"];
        assert_eq!(server.url, format!("http://127.0.0.1:{port}"));
        hashes.push(info["config_sha256"].clone());
    }
    assert_eq!(hashes[0], hashes[1]);
}

#[tokio::test]
async fn metrics_keep_their_names_and_types() {
    let model = tiny_model();
    let server = Launched::serve(model.path().to_str().unwrap(), &[]);
    let page = reqwest::get(format!("{}/metrics", server.url)).await.unwrap().text().await.unwrap();
    let found: String = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|l| l.to_owned() + "\n")
        .collect();
    expect![[r#"
        redline_requests_running gauge
        redline_requests_waiting gauge
        redline_kv_pages_used gauge
        redline_kv_pages_touched gauge
        redline_kv_pages gauge
        redline_prompt_tokens_total counter
        redline_generation_tokens_total counter
        redline_spec_decode_num_draft_tokens_total counter
        redline_spec_decode_num_accepted_tokens_total counter
        redline_prefix_cache_query_tokens_total counter
        redline_prefix_cache_hit_tokens_total counter
        redline_preemptions_total counter
        redline_requests_total counter
        redline_queue_seconds histogram
        redline_ttft_seconds histogram
        redline_tpot_seconds histogram
        redline_step_seconds histogram
        redline_step_tokens histogram
    "#]]
    .assert_eq(&found);
}

#[tokio::test]
async fn a_json_log_has_a_line_for_each_request() {
    let model = tiny_model();
    let args = ["serve", model.path().to_str().unwrap(), "--port", "0", "--log-format", "json"];
    let mut child = command(&args).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let url = loop {
        let line = next();
        assert_eq!(line["level"], "info", "{line}");
        let message = line["message"].as_str().unwrap();
        if let Some(url) = message.strip_prefix("ready ") {
            break url.to_owned();
        }
    };
    let body = json!({"prompt": "x", "max_tokens": 4, "stream": true});
    let client = reqwest::Client::new();
    let sent = client.post(format!("{url}/v1/completions")).json(&body).send().await.unwrap();
    sent.bytes().await.unwrap();
    // Health checks would fill the log.
    client.get(format!("{url}/health")).send().await.unwrap();
    client.get(format!("{url}/nowhere")).send().await.unwrap();
    for (method, path, status) in [("POST", "/v1/completions", 200), ("GET", "/nowhere", 404)] {
        let line = next();
        let request = &line["request"];
        assert_eq!((&request["method"], &request["path"]), (&json!(method), &json!(path)));
        assert_eq!(request["status"], status, "{line}");
        assert!(request["total_us"].as_u64() >= request["head_us"].as_u64(), "{line}");
        let time = line["time"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The error with which a process ends is JSON as well.
    let (code, end) = end_of(&["serve", "nowhere", "--port", "0", "--log-format", "json"]);
    let end: Value = serde_json::from_str(&end).unwrap();
    assert_eq!((code, &end["level"]), (Some(4), &json!("error")));
}
