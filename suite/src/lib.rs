//! The load generator of Redline. Reading order: `workload` draws the requests and their send
//! times, `client` sends them over HTTP and stamps every event, `measure` computes metrics (TTFT,
//! TPOT, ITL, percentiles) and the verdict, `telemetry` samples server and machine meanwhile,
//! `session` is the order of one run, `export` writes reports, and `mock_server` is a mock server to
//! test the client with.

#![warn(missing_docs)]

pub mod client;
pub mod clock;
pub mod command;
mod export;
pub mod measure;
pub mod mock_server;
mod session;
pub mod telemetry;
pub mod workload;

use std::process::ExitCode;
use std::sync::LazyLock;

use schema::exit::Exit;
use schema::untrusted;

/// Returns the release of Redline that this program belongs to, which is that of the engine.
pub fn release() -> &'static str {
    let manifest = include_str!("../../engine/Cargo.toml");
    let versions = manifest.lines().filter_map(|line| line.strip_prefix("version = "));
    versions.map(|version| version.trim_matches('"')).next().unwrap_or("unknown release")
}

/// Returns release and commit of this program, as `--version` prints them. The environment variable
/// `REDLINE_COMMIT` names the commit during a build.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("REDLINE_COMMIT").unwrap_or("unknown commit");
        format!("{} ({commit})", release())
    });
    &VERSION
}

/// Returns the exit code of `redline-emitter` or `redline-floor` for its result; prints an error,
/// which always counts as a failure of the environment.
pub fn exit_code(ended: anyhow::Result<()>) -> ExitCode {
    let exit = match ended {
        Ok(()) => Exit::Well,
        Err(error) => {
            eprintln!("error: {}", untrusted::report(&*error));
            Exit::Environment
        }
    };
    ExitCode::from(exit.code())
}
