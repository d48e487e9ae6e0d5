//! The client AIPerf, installed in a virtual environment of the cache: its command line and result
//! file.

use std::fmt::Write;
use std::process::Command;

use crate::clients::ClientsError;
use crate::clients::load::Load;
use crate::clients::testbed::Testbed;
use crate::clients::tool::redline::tokenizer;
use crate::clients::tool::{Reported, document, spread};
use campaign::files::write_whole;
use campaign::stop::Stop;

pub(super) fn command(testbed: &Testbed<'_>, load: &Load, address: &str) -> Result<Command, Stop> {
    let program = testbed.peers.aiperf.as_ref().ok_or(ClientsError::NotHad { tool: "aiperf" })?;
    let class = r#"{"tokenizer_class":"PreTrainedTokenizerFast","model_max_length":4096}"#;
    write_whole(&testbed.path("tokenizer/tokenizer.json"), tokenizer().as_bytes())?;
    write_whole(&testbed.path("tokenizer/tokenizer_config.json"), class.as_bytes())?;
    let mut rows = String::new();
    for _ in 0..load.requests {
        let _ = writeln!(rows, r#"{{"text":"t t t t t t t t"}}"#);
    }
    write_whole(&testbed.path("aiperf.jsonl"), rows.as_bytes())?;
    // Results of an earlier measurement must not be read as this one's.
    let _ = std::fs::remove_dir_all(testbed.path("aiperf"));
    let mut command = Command::new(program);
    command.args(["profile", "--model", "emitter", "--url", &format!("http://{address}")]);
    command.args(["--endpoint-type", "completions", "--streaming", "--tokenizer"]);
    command.arg(testbed.path("tokenizer"));
    command.args(["--input-file", "aiperf.jsonl", "--custom-dataset-type", "single_turn"]);
    command.args(["--extra-inputs", &format!("max_tokens:{}", load.tokens)]);
    command.args(["--request-count", &load.requests.to_string()]);
    command.args(["--use-server-token-count", "--no-server-metrics", "--no-gpu-telemetry"]);
    command.args(["--ui-type", "none", "--output-artifact-dir", "aiperf"]);
    match load.requests_per_s {
        None => command.args(["--concurrency", &load.requests.to_string()]),
        Some(rate) => command.args(["--request-rate", &rate.to_string()]),
    };
    Ok(command)
}

pub(super) fn read(testbed: &Testbed<'_>) -> Result<Reported, String> {
    let document = document(testbed, "aiperf/profile_export_aiperf.json")?;
    let ms = |name: &str| {
        let pointers = ["avg", "std", "p99"].map(|figure| format!("/{name}/{figure}"));
        spread(&document, pointers.each_ref().map(String::as_str), 1000.0)
    };
    // AIPerf's `inter_token_latency` is one mean per request; `inter_chunk_latency` contains every
    // gap.
    let (ttft, gaps) = (ms("time_to_first_token"), ms("inter_chunk_latency"));
    Ok(Reported { ttft, gaps, ..Reported::default() })
}
