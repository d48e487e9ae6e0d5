//! One measurement of a client: a fresh mock server on one core, the client on another, and the
//! results of both.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use schema::emitted::Emitted;

use crate::clients::load::{Load, Truth};
use crate::clients::pinned::{Cost, run_on, start_on, wait_for};
use crate::clients::tool::{Reported, Tool};
use crate::clients::{ClientsError, Peers};
use campaign::files::{FileError, make_dir, read_text};
use campaign::process::{Group, describe};
use campaign::stop::Stop;
use campaign::tools::EMITTER;
use campaign::world::World;

/// Time that the mock server may take to write its log.
const GRACE: Duration = Duration::from_secs(20);

/// Setting of the measurements: folder, cores, and the installed clients.
#[derive(Debug)]
pub struct Desk<'a> {
    pub world: &'a World,
    /// Working folder. Each measurement overwrites the files of the previous one.
    pub dir: PathBuf,
    pub emitter_core: usize,
    pub client_core: usize,
    pub peers: Peers,
}

/// Result of one measurement: the client's report, the truth in the mock server's log, and the
/// client's cost.
#[derive(Debug)]
pub struct Taken {
    pub reported: Reported,
    pub truth: Truth,
    pub cost: Cost,
}

impl Desk<'_> {
    /// Runs the client `tool` with the requests of `load`.
    ///
    /// # Errors
    /// A program does not start or fails, or a request was not answered.
    pub fn take(&self, tool: Tool, load: &Load) -> Result<Taken, Stop> {
        make_dir(&self.dir)?;
        let emitter = self.emit(load)?;
        let mut command = tool.command(self, load, &emitter.address)?;
        let said = self.dir.join("client.log");
        let log = File::create(&said).map_err(FileError::at("write", &said))?;
        command.stderr(log).stdout(self.create("client.out")?).current_dir(&self.dir);
        let (status, cost) = run_on(self.client_core, &mut command, &self.world.interrupt)?;
        let truth = Truth::of(emitter.end()?, load);
        let failed = |what: String| {
            let log = read_text(&said).unwrap_or_default();
            let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("silent");
            ClientsError::Tool { tool: tool.id(), what, said: last.trim().to_owned() }
        };
        if !tool.may_end_with(status.code()) {
            return Err(failed(format!("ended with {}", describe(status))).into());
        }
        let answered = truth.answers.len() as u64;
        // The raw-socket client in send-only mode ends before its answers are complete.
        if answered != load.requests && !tool.only_sends(load) {
            let what = format!("{answered} of {} requests were answered", load.requests);
            return Err(failed(what).into());
        }
        let reported = tool.read(self, load).map_err(|what| Stop::from(failed(what)))?;
        Ok(Taken { reported, truth, cost })
    }

    fn emit(&self, load: &Load) -> Result<Emitter, Stop> {
        let (log, said) = (self.path("emitted.jsonl"), self.path("emitter.log"));
        let mut command = Command::new(self.world.tools.path(EMITTER));
        command.args(["--detach", "--pace", &format!("{}:{}", load.first_us, load.gap_us)]);
        command.arg("--log").arg(&log).stdout(Stdio::null()).stderr(self.create("emitter.log")?);
        let group = start_on(self.emitter_core, &mut command)?;
        let ready = || {
            let text = read_text(&said).ok()?;
            Some(text.strip_prefix("ready http://")?.strip_suffix('\n')?.to_owned())
        };
        let address = wait_for("the emitter was not ready", &self.world.interrupt, ready)?;
        Ok(Emitter { group, address, log })
    }

    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn create(&self, name: &str) -> Result<File, FileError> {
        let path = self.path(name);
        File::create(&path).map_err(FileError::at("write", &path))
    }
}

/// A running mock server.
struct Emitter {
    group: Group,
    /// Address of the mock server, `HOST:PORT`.
    address: String,
    log: PathBuf,
}

impl Emitter {
    /// Stops the mock server and reads its log.
    fn end(mut self) -> Result<Vec<Emitted>, Stop> {
        self.group.end(GRACE);
        read_lines(&self.log)
    }
}

/// Reads a file with one JSON document per line.
///
/// # Errors
/// The file cannot be read or has another form.
pub fn read_lines<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Vec<T>, Stop> {
    let text = read_text(path)?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<T>, _>>();
    lines.map_err(|error| {
        let (path, detail) = (path.to_owned(), error.to_string());
        ClientsError::Unreadable { path, detail }.into()
    })
}
