//! `redline-bench probe`: what a running server is.

use std::path::PathBuf;

use clap::Args;
use schema::canonical::to_file_text;
use schema::exit::Exit;

use super::inputs::Engine;
use crate::client::control::{Key, Server};
use crate::client::probe::probe;

/// Print what a running server says about itself, as JSON in the suite's words.
///
/// Version, effective configuration, model and counters, as far as the engine tells them; what it
/// does not tell is null, with the reason under `absent`.
///
/// Exit codes: 0 printed; 2 wrong use; 4 the server is not ready, with the reason on standard error.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct ProbeFlags {
    /// The server.
    #[arg(long, value_name = "http://HOST:PORT")]
    url: String,
    /// Engine file, which says what this kind of server can be asked.
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,
    /// File with the key that the server wants to be shown.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

const EXAMPLE: &str = "\
Example, the version that is running and the size of its KV cache:

  redline-bench probe --url http://127.0.0.1:23333 --engine suite/engines/redline.toml > probe.json
  jq '.version, .server.kv_bytes' probe.json";

/// Runs the command.
///
/// # Errors
/// The engine file cannot be read.
pub fn execute(flags: &ProbeFlags) -> anyhow::Result<Exit> {
    let engine = Engine::open(&flags.engine)?;
    let key = flags.api_key_file.as_deref().map(Key::open).transpose()?;
    let server = Server::at(&flags.url)?.with_key(key);
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
