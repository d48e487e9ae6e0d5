//! `redline-bench probe`: prints version, configuration and model of a running server.

use std::path::PathBuf;

use clap::Args;
use schema::canonical::to_file_text;
use schema::exit::Exit;

use super::inputs::Engine;
use super::inputs::TrustFlags;
use crate::client::control::{Key, Server};
use crate::client::probe::probe;

/// Print what a running server reports about itself, as JSON with Redline's names.
///
/// The output holds version, effective configuration, model and counters, as far as the engine
/// reports them; a value that it does not report is null.
///
/// Exit codes: 0 printed; 2 wrong use; 4 the server is not ready, with the reason on standard
/// error.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct ProbeFlags {
    /// Server to query.
    #[arg(long, value_name = "http[s]://HOST:PORT")]
    url: String,
    #[command(flatten)]
    trust: TrustFlags,
    /// Engine file: the routes and features of this kind of server.
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,
    /// File with the API key that the server requires.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

const EXAMPLE: &str = "\
Example, the version that is running and the size of its KV cache:

  redline-bench probe --url http://127.0.0.1:23333 --engine suite/engines/redline.toml > probe.json
  jq '.version, .server.kv_bytes' probe.json";

/// Runs `redline-bench probe` and returns its exit code.
///
/// # Errors
/// The engine file cannot be read.
pub fn execute(flags: &ProbeFlags) -> anyhow::Result<Exit> {
    let engine = Engine::open(&flags.engine)?;
    let key = flags.api_key_file.as_deref().map(Key::open).transpose()?;
    let server = Server::at(&flags.url, &flags.trust.trust())?.with_key(key);
    match probe(&server, &engine.id, &engine.file) {
        Ok(probed) => {
            print!("{}", to_file_text(&probed.probe)?);
            Ok(Exit::Well)
        }
        Err(error) => {
            eprintln!("error: {error}");
            Ok(Exit::Environment)
        }
    }
}
