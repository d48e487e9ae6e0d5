//! The Rust client inside SGLang's wheel: an extension module that CPython 3.11 loads without
//! SGLang's other packages.

use std::process::Command;

use crate::clients::ClientsError;
use crate::clients::load::Load;
use crate::clients::testbed::Testbed;
use crate::clients::tool::{Reported, document, spread};
use campaign::stop::Stop;

/// Python script that loads the module and calls it as SGLang's own package does.
const LOADER: &str = "\
import importlib.machinery as m, importlib.util as u, sys
loader = m.ExtensionFileLoader('_bench', sys.argv[1])
module = u.module_from_spec(u.spec_from_file_location('_bench', sys.argv[1], loader=loader))
loader.exec_module(module)
module.run_argv(['sglang-bench'] + sys.argv[2:])
";

pub(super) fn command(testbed: &Testbed<'_>, load: &Load, address: &str) -> Result<Command, Stop> {
    let missing = || ClientsError::NotHad { tool: "sglang-bench" };
    let client = testbed.peers.sglang.as_ref().ok_or_else(missing)?;
    // The client appends to an existing result file.
    let _ = std::fs::remove_file(testbed.path("sglang.json"));
    let mut command = Command::new(&client.python);
    command.args(["-c", LOADER]).arg(&client.module);
    command.args(["--backend", "sglang-oai", "--base-url", &format!("http://{address}")]);
    command.args(["--dataset-name", "random-ids", "--random-range-ratio", "1"]);
    command.args(["--random-input-len", "8", "--random-output-len", &load.tokens.to_string()]);
    command.args(["--num-prompts", &load.requests.to_string(), "--warmup-requests", "0"]);
    // Without a tokenizer the client does not tokenize the answers again.
    command.args(["--model", "emitter", "--tokenizer", "none", "--vocab-size", "1000"]);
    command.args(["--tokenize-prompt", "--disable-tqdm", "--output-file", "sglang.json"]);
    if let Some(rate) = load.requests_per_s {
        command.args(["--request-rate", &rate.to_string()]);
    }
    Ok(command)
}

pub(super) fn read(testbed: &Testbed<'_>) -> Result<Reported, String> {
    let document = document(testbed, "sglang.json")?;
    let ms = |pointers| spread(&document, pointers, 1000.0);
    Ok(Reported {
        ttft: ms(["/mean_ttft_ms", "/std_ttft_ms", "/p99_ttft_ms"]),
        gaps: ms(["/mean_itl_ms", "/std_itl_ms", "/p99_itl_ms"]),
        ..Reported::default()
    })
}
