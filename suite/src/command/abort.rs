//! `redline-bench abort`: sends the requests of saved plans and aborts each, to test that a server
//! releases what they held.

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use schema::exit::Exit;

use super::files::{KeyFlag, ServerFlags};
use super::plan::replayed;
use super::probe::answered;
use super::run::{found, model_name};
use crate::client::abort::{Crowd, abort};
use crate::client::payload::{Endpoint, payload};
use crate::workload::tokenizer::Tokenizer;

/// Send requests and abort each of them, to test that the server releases what they held.
///
/// Each client sends one request after the other and closes the connection in the middle of sending
/// it, before reading anything, after the answer's head, or after a few tokens. The seed decides
/// which request is sent and when it is aborted. Nothing is measured: whether memory, connections
/// and KV pages are released is read from the server afterwards, as with `redline-bench probe`. The
/// output is one JSON document with the number of aborted requests.
///
/// Exit codes: 0 all were sent; 2 wrong use; 4 the server refused a request or did not answer, or a
/// file cannot be read.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct AbortFlags {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    key: KeyFlag,
    /// Plan saved by `redline-bench plan --out`, among whose requests the clients choose; may be
    /// given several times.
    #[arg(long = "plan", value_name = "FILE", required = true)]
    plans: Vec<PathBuf>,
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer, with which the plans were
    /// drawn.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Model name that requests carry; by default the first model that the server lists, else the
    /// one that its configuration states.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Number of requests that are sent and aborted.
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    requests: u64,
    /// Number of clients. Each has one request at a time.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// Seed of the clients' choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

const EXAMPLE: &str = "\
Example, after which the server should hold no KV pages:

  redline-bench abort --url http://127.0.0.1:23333 --engine suite/engines/redline.toml \\
    --plan plan.json --tokenizer tokenizer.json --requests 1000
  redline-bench probe --url http://127.0.0.1:23333 --engine suite/engines/redline.toml \\
    | jq .metrics.kv_pages_used";

/// Runs `redline-bench abort` and returns its exit code.
///
/// # Errors
/// A file that the flags name cannot be read or used, the server's URL is not valid, TLS cannot be
/// set up, the server is not ready, or the plans do not suit the engine. A request that fails is no
/// error: only the exit code and standard error tell it.
pub fn execute(flags: &AbortFlags) -> anyhow::Result<Exit> {
    let engine = flags.server.named_engine()?;
    let tokenizer = flags.tokenizer.as_deref().map(Tokenizer::open).transpose()?;
    let server = flags.server.server(&flags.key)?;
    let (engine, probed) = found(engine, &server, flags.model.as_deref())?;
    let model = model_name(flags.model.as_deref(), &server, &probed);
    let mut payloads = Vec::new();
    for path in &flags.plans {
        let (file, plan) = replayed(path, tokenizer.as_ref(), &engine)?;
        let request = engine.file.for_scenario(&file.scenario)?;
        let endpoint = Endpoint {
            authority: server.authority.clone(),
            path: request.route.clone(),
            model: model.clone(),
            added_headers: server.added_headers(),
        };
        let write = |entry| payload(&endpoint, &request, &file.scenario.output, entry);
        payloads.extend(plan.manifest.requests.iter().map(write));
    }
    ensure!(!payloads.is_empty(), "the plans have no requests");
    let crowd = Crowd { requests: flags.requests, clients: flags.clients, seed: flags.seed };
    // The alternate form has the cause of a failed request, too.
    let aborted = abort(&server, &payloads, crowd).map_err(|error| format!("{error:#}"));
    answered(aborted, |aborted| Ok(serde_json::to_string(aborted)? + "\n"))
}
