//! One exchange: a fresh emitter on one core, a client on another, and what both say of it.

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

/// How long the emitter may take to write its log.
const GRACE: Duration = Duration::from_secs(20);

/// Where exchanges are made.
#[derive(Debug)]
pub struct Desk<'a> {
    pub world: &'a World,
    /// Emptied by nobody: an exchange overwrites the files of the one before.
    pub dir: PathBuf,
    pub emitter_core: usize,
    pub client_core: usize,
    pub peers: Peers,
}

/// What came of an exchange.
#[derive(Debug)]
pub struct Taken {
    pub reported: Reported,
    pub truth: Truth,
    pub cost: Cost,
}

impl Desk<'_> {
    /// Has `tool` send `load`.
    ///
    /// # Errors
    /// A program does not start or fails, or not every request was answered.
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
        // The floor that only sends is cut off in the middle of its answers.
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

/// A running emitter.
struct Emitter {
    group: Group,
    /// `HOST:PORT`.
    address: String,
    log: PathBuf,
}

impl Emitter {
    /// Ends it, and reads what it did.
    fn end(mut self) -> Result<Vec<Emitted>, Stop> {
        self.group.end(GRACE);
        read_lines(&self.log)
    }
}

/// A JSON document a line.
///
/// # Errors
/// The file cannot be read or has another shape.
pub fn read_lines<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Vec<T>, Stop> {
    let text = read_text(path)?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<T>, _>>();
    lines.map_err(|error| {
        let (path, detail) = (path.to_owned(), error.to_string());
        ClientsError::Unreadable { path, detail }.into()
    })
}
