//! The raw-socket client `redline-floor`: its command line and results. It does the least that a
//! client can do.

use std::process::Command;

use crate::clients::load::Load;
use crate::clients::testbed::Testbed;
use crate::clients::tool::{Reported, document, spread};
use campaign::tools::FLOOR;

/// Number of connections used in turn where only sends are measured: enough that a connection is
/// idle again before its next request.
const TURNS: u64 = 256;

pub(super) fn command(testbed: &Testbed<'_>, load: &Load, address: &str) -> Command {
    let mut command = Command::new(testbed.world.tools.path(FLOOR));
    command.args(["--address", address, "--tokens", &load.tokens.to_string()]);
    match load.requests_per_s {
        None => command.args(["--streams", &load.requests.to_string()]),
        Some(rate) => command.args(["--streams", &load.requests.min(TURNS).to_string()]).args([
            "--requests-per-s",
            &rate.to_string(),
            "--requests",
            &load.requests.to_string(),
        ]),
    };
    command
}

pub(super) fn read(testbed: &Testbed<'_>) -> Result<Reported, String> {
    let document = document(testbed, "client.out")?;
    let of = |name: &str| {
        let pointers = ["mean", "std", "p99"].map(|figure| format!("/{name}/{figure}"));
        spread(&document, pointers.each_ref().map(String::as_str), 1.0)
    };
    let (ttft, gaps, lag) = (of("ttft_us"), of("itl_us"), of("lag_us"));
    Ok(Reported { ttft, gaps, lag, ..Reported::default() })
}
