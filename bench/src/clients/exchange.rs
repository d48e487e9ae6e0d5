//! One measurement of a client: a fresh mock server on one core, the client on another, and the
//! results of both.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use schema::emitted::Emitted;

use crate::RivalError;
use crate::clients::testbed::{Cost, run_on, start_on, wait_for};
use crate::clients::testbed::{Load, Truth};
use crate::clients::testbed::{Testbed, read_lines};
use crate::clients::tool::{Reported, Tool};
use campaign::files::{FileError, make_dir, read_text};
use campaign::process::{Group, describe};
use campaign::stop::Stop;
use campaign::tools::EMITTER;

/// Time that the mock server may take to write its log.
const GRACE: Duration = Duration::from_secs(20);

/// What came of an exchange.
#[derive(Debug)]
pub struct Exchange {
    pub reported: Reported,
    pub truth: Truth,
    pub cost: Cost,
}

/// Has `tool` send `load`.
///
/// # Errors
/// A program does not start or fails, or not every request was answered.
pub fn exchange(testbed: &Testbed<'_>, tool: Tool, load: &Load) -> Result<Exchange, Stop> {
    make_dir(&testbed.dir)?;
    let server = start_mock_server(testbed, load)?;
    let mut command = tool.command(testbed, load, &server.address)?;
    let said = testbed.dir.join("client.log");
    let log = File::create(&said).map_err(FileError::at("write", &said))?;
    command.stderr(log).stdout(testbed.create("client.out")?).current_dir(&testbed.dir);
    let (status, cost) = run_on(testbed.client_core, &mut command, &testbed.world.interrupt)?;
    let truth = Truth::of(server.end()?, load);
    let failed = |what: String| {
        let log = read_text(&said).unwrap_or_default();
        let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("silent");
        let id = tool.id();
        Stop::from(RivalError(format!("{id}: {what}: {}", last.trim())))
            .with_hint(format!("`--skip {id}` leaves it out"))
    };
    if !tool.may_end_with(status.code()) {
        return Err(failed(format!("ended with {}", describe(status))));
    }
    let answered = truth.answers.len() as u64;
    // The raw-socket client in send-only mode ends before its answers are complete.
    if answered != load.requests && !tool.only_sends(load) {
        let what = format!("{answered} of {} requests were answered", load.requests);
        return Err(failed(what));
    }
    let reported = tool.read(testbed, load).map_err(failed)?;
    Ok(Exchange { reported, truth, cost })
}

fn start_mock_server(testbed: &Testbed<'_>, load: &Load) -> Result<MockServer, Stop> {
    let (log, said) = (testbed.path("emitted.jsonl"), testbed.path("emitter.log"));
    let mut command = Command::new(testbed.world.tools.path(EMITTER));
    command.args(["--detach", "--pace", &format!("{}:{}", load.first_us, load.gap_us)]);
    command.arg("--log").arg(&log).stdout(Stdio::null()).stderr(testbed.create("emitter.log")?);
    let group = start_on(testbed.emitter_core, &mut command)?;
    let ready = || {
        let text = read_text(&said).ok()?;
        Some(text.strip_prefix("ready http://")?.strip_suffix('\n')?.to_owned())
    };
    let address = wait_for("the mock server was not ready", &testbed.world.interrupt, ready)?;
    Ok(MockServer { group, address, log })
}

/// A running mock server.
struct MockServer {
    group: Group,
    /// Address of the mock server, `HOST:PORT`.
    address: String,
    log: PathBuf,
}

impl MockServer {
    /// Stops the mock server and reads its log.
    fn end(mut self) -> Result<Vec<Emitted>, Stop> {
        self.group.end(GRACE);
        read_lines(&self.log)
    }
}
