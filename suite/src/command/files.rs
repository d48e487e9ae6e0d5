//! Files that several commands read or write. Inputs: scenario and engine files, opened, parsed and
//! checked, and the flags for a server. Outputs, each complete or not there, and the files of a run
//! in progress: a measurement that says `partial` until the run has ended, and the samples file, to
//! which each sample is added when its request ends.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use schema::canonical::{sha256_hex, to_canonical, to_file_text};
use schema::engine::{EngineFile, Request, parse};
use schema::measurement::Measurement;
use schema::run::{PromptForm, ScenarioFacts, Status};
use schema::samples::{Head, SCHEMA};
use schema::scenario::{Scenario, id_of};
use schema::untrusted::excerpt;
use serde::Serialize;
use whole_file::TEXT_MAX;

use super::progress::Progress;
use crate::client::control::{Server, Trust};
use crate::client::drive::{DriveError, Observer, Tally};
use crate::client::headers::Key;
use crate::client::sample::Sample;
use crate::clock::utc_now;
use crate::session::journal::Journal;
use crate::session::unfinished;

/// Number of characters that an error quotes of the schema of a file.
const SCHEMA_CHARS_MAX: usize = 40;

/// Scenario file that was read: the scenario, its id (the file name without extension) and the
/// SHA-256 of its text.
#[derive(Debug)]
pub struct ScenarioFile {
    pub id: String,
    pub scenario: Scenario,
    pub sha256: String,
}

/// Scenario that was built from flags instead of a file, with the TOML text that describes it.
#[derive(Debug)]
pub struct MadeUp {
    pub file: ScenarioFile,
    pub text: String,
}

impl ScenarioFile {
    /// Reads and parses the scenario file at `path`; its id is the file name without extension and,
    /// for an older revision, without the revision.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let text = whole_file::read_text(path, "scenario file", TEXT_MAX)?;
        let scenario = Scenario::parse(&text)
            .with_context(|| format!("scenario `{}` cannot be used", path.display()))?;
        let id = id_of(&stem(path)).to_owned();
        Ok(Self { id, scenario, sha256: sha256_hex(text.as_bytes()) })
    }

    /// Builds the scenario file that describes `scenario`, without writing it. Its id is `name` and
    /// the first 8 digits of the text's SHA-256, so that different scenarios have different ids.
    pub fn made_up(scenario: Scenario, name: &str) -> anyhow::Result<MadeUp> {
        let text = scenario.to_toml().context("the scenario cannot be written as TOML")?;
        let sha256 = sha256_hex(text.as_bytes());
        let id = format!("{name}-{}", &sha256[..8]);
        Ok(MadeUp { file: Self { id, scenario, sha256 }, text })
    }

    /// Returns the facts about the scenario for the record; `hash` is the SHA-256 of `manifest`,
    /// its workload manifest, and `request` has the server's route to which the requests are sent.
    pub fn facts(
        &self,
        manifest: &schema::manifest::Manifest,
        hash: String,
        request: &Request,
    ) -> ScenarioFacts {
        let scenario = &self.scenario;
        let mut lengths = manifest.requests.iter().map(|entry| entry.output_tokens);
        // A request for embeddings has no output length.
        let first = lengths.next().filter(|_| request.dialect().generates());
        ScenarioFacts {
            id: self.id.clone(),
            rev: scenario.rev,
            tier: scenario.tier,
            file_sha256: Some(self.sha256.clone()),
            manifest_sha256: Some(hash),
            prompt_form: Some(manifest.prompt_form),
            route: Some(request.route.clone()),
            dataset_sha256: manifest.dataset_sha256.clone(),
            seed: Some(scenario.workload.seed),
            dataset: None,
            requests: Some(scenario.workload.requests),
            output_tokens: first.filter(|first| lengths.all(|next| next == *first)),
            ignore_eos: Some(scenario.output.ignore_eos),
            arrival: Some(scenario.arrival.clone()),
            warmup: Some(scenario.warmup.clone()),
            connections: Some(scenario.connections),
            cache: Some(scenario.cache),
        }
    }
}

/// Engine file that was read, and its id, the file name without extension.
#[derive(Debug)]
pub struct Engine {
    pub id: String,
    pub file: EngineFile,
}

impl Engine {
    /// Returns the built-in engine file, which knows only routes that OpenAI-compatible servers
    /// share.
    pub fn generic() -> anyhow::Result<Self> {
        let file = parse(include_str!("openai.toml")).context("the built-in engine file")?;
        Ok(Self { id: "openai".to_owned(), file })
    }

    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let text = whole_file::read_text(path, "engine file", TEXT_MAX)?;
        let file = parse(&text)
            .with_context(|| format!("engine file `{}` cannot be used", path.display()))?;
        Ok(Self { id: stem(path), file })
    }

    /// Returns the form in which the prompts of `scenario` are sent to the engine: token ids if it
    /// accepts them on the scenario's route, else text.
    ///
    /// # Errors
    /// Those of [`Engine::for_scenario`].
    pub fn prompt_form(&self, scenario: &Scenario) -> anyhow::Result<PromptForm> {
        let sends_ids = self.request(scenario)?.sends_ids();
        Ok(if sends_ids { PromptForm::TokenIds } else { PromptForm::Text })
    }

    /// Returns the engine with the request settings of `scenario`, which may ask for the chat route.
    ///
    /// # Errors
    /// The scenario asks for chat and the engine file names no chat route.
    pub fn for_scenario(mut self, scenario: &Scenario) -> anyhow::Result<Self> {
        self.file.request = self.request(scenario)?;
        Ok(self)
    }

    fn request(&self, scenario: &Scenario) -> anyhow::Result<Request> {
        let request = self.file.for_scenario(scenario);
        request
            .with_context(|| format!("engine file `{}.toml` does not suit the scenario", self.id))
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Command-line flags of `redline-bench` that describe the server to connect to.
#[derive(Debug, Args)]
pub struct ServerFlags {
    /// URL of the server that the command connects to; `http://` may be left out, and a path `/v1`
    /// is accepted.
    #[arg(long, value_name = "http[s]://HOST:PORT")]
    url: String,
    #[command(flatten)]
    trust: Trust,
    /// Engine file: the routes and features of this kind of server, as in `suite/engines`. Without
    /// it the client tries `/v1/completions` and `/v1/chat/completions`, and reads neither version
    /// nor configuration of the server.
    #[arg(long, value_name = "FILE")]
    engine: Option<PathBuf>,
}

/// Command-line flag of `redline-bench` that names the file with a server's API key.
#[derive(Debug, Default, Args)]
pub struct KeyFlag {
    /// File with the API key that the server requires. The key enters no record.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

impl ServerFlags {
    /// Returns the engine file that the flag names, or `None` without the flag.
    pub fn named_engine(&self) -> anyhow::Result<Option<Engine>> {
        self.engine.as_deref().map(Engine::open).transpose()
    }

    /// Returns the engine file that the flag names, else the built-in one.
    pub fn engine(&self) -> anyhow::Result<Engine> {
        self.named_engine()?.map_or_else(Engine::generic, Ok)
    }

    pub fn server(&self, key: &KeyFlag) -> anyhow::Result<Server> {
        let key = key.api_key_file.as_deref().map(Key::open).transpose()?;
        Ok(Server::at(&self.url, &self.trust)?.with_key(key))
    }
}

/// Checks that the saved file at `path`, whose schema is `found`, has the schema `wanted`.
///
/// # Errors
/// It has another one.
pub fn check_schema(path: &Path, found: &str, wanted: &str) -> anyhow::Result<()> {
    let named = excerpt(found, SCHEMA_CHARS_MAX);
    ensure!(found == wanted, "`{}` is a `{named}`, not a `{wanted}`", path.display());
    Ok(())
}

/// Creates the folder at `path` and its parents, if they do not exist.
pub fn make_folder(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make folder `{}`", path.display()))
}

/// Writes `value` to `path` as indented JSON; an interruption leaves no partial file.
pub fn json<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    text(path, &to_file_text(value)?)
}

/// Writes `value` to `path` as one line of canonical JSON, for large values that only programs
/// read; an interruption leaves no partial file.
pub fn compact<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    text(path, &(to_canonical(value)? + "\n"))
}

/// Writes `text` to `path`; an interruption leaves no partial file. A device or pipe is written to as
/// it is.
pub fn text(path: &Path, text: &str) -> anyhow::Result<()> {
    whole_file::write(path, text.as_bytes()).with_context(|| cannot_write(path))
}

/// Prints the summary `text` of the document that a command writes to `out`: on standard output,
/// or on standard error where the document itself is written to standard output.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_summary(out: &Path, text: &str) -> anyhow::Result<()> {
    if whole_file::is_standard_output(out) {
        eprint!("{text}");
        return Ok(());
    }
    Ok(whole_file::print(text)?)
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}

/// Observer of a run that writes samples to disk and shows the progress.
pub struct Keeper {
    out: PathBuf,
    /// Files of the run in progress; `None` where `out` is a device or pipe, which takes the
    /// measurement alone, once, at the end.
    files: Option<InProgress>,
    progress: Progress,
}

/// Samples file of a run in progress, beside its measurement.
struct InProgress {
    samples: PathBuf,
    journal: Journal,
    /// Number of requests that ended by themselves, answered or failed.
    ended: u64,
}

impl Keeper {
    /// Creates the files of a run in progress: a placeholder measurement at `out`, and the samples
    /// file with the same stem and the ending `.samples.jsonl`, which gets the texts of the answers
    /// if `keeps_text` is true; no files where `out` is a device or pipe.
    ///
    /// # Errors
    /// `out` is a folder, one of the files cannot be written, or the system refuses to start the
    /// writer thread.
    pub fn begin(
        out: &Path,
        facts: &ScenarioFacts,
        requests: u64,
        keeps_text: bool,
        progress: Progress,
    ) -> anyhow::Result<Self> {
        let is_stream = whole_file::is_stream(out).with_context(|| cannot_write(out))?;
        let begin = || InProgress::begin(out, facts, requests, keeps_text);
        let files = (!is_stream).then(begin).transpose()?;
        Ok(Self { out: out.to_owned(), files, progress })
    }

    /// Completes the measurement file and the samples file after the run has ended with
    /// `measurement`.
    ///
    /// # Errors
    /// One of the files cannot be written, as on a full disk. No placeholder measurement remains
    /// then: it would say that the run ended early, and the run is not to blame.
    pub fn finish(mut self, measurement: &Measurement) -> anyhow::Result<()> {
        self.progress.finish();
        let Some(InProgress { samples, journal, .. }) = self.files else {
            return json(&self.out, measurement);
        };
        let kept =
            journal.finish(measurement.status).with_context(|| cannot_write_samples(&samples));
        let written = kept.and_then(|()| json(&self.out, measurement));
        written.inspect_err(|_| remove_placeholder(&self.out))
    }

    /// Closes the files of a run that ended early with `error`: its samples file is kept if it has
    /// a sample, and the placeholder measurement is deleted. Returns the error, with the path of
    /// the samples file if that is kept.
    pub fn abandon(mut self, error: DriveError) -> anyhow::Error {
        self.progress.finish();
        let Some(InProgress { samples, journal, ended }) = self.files else { return error.into() };
        remove_placeholder(&self.out);
        // The error that ended the run is reported; a failure of the clean-up would hide it.
        let _ = journal.finish(Status::Partial);
        if ended == 0 {
            let _ = fs::remove_file(&samples);
            return error.into();
        }
        let samples = samples.display();
        anyhow::Error::from(error).context(format!("{ended} samples are kept in `{samples}`"))
    }
}

impl InProgress {
    fn begin(
        out: &Path,
        facts: &ScenarioFacts,
        requests: u64,
        keeps_text: bool,
    ) -> anyhow::Result<Self> {
        let samples = out.with_extension("samples.jsonl");
        let head = Head {
            schema: SCHEMA.to_owned(),
            scenario: format!("{}@{}", facts.id, facts.rev),
            manifest_sha256: facts.manifest_sha256.clone(),
            started_at: utc_now(),
            origin_ns: None,
            requests,
        };
        let name = samples.file_name().unwrap_or_default().to_string_lossy();
        // The placeholder is written before anything is sent, so that even a killed run leaves it.
        json(out, &unfinished(facts, &name))?;
        let journal = Journal::create(&samples, head, keeps_text)
            .with_context(|| cannot_write_samples(&samples))
            .inspect_err(|_| remove_placeholder(out))?;
        Ok(Self { samples, journal, ended: 0 })
    }
}

fn cannot_write_samples(path: &Path) -> String {
    format!("cannot write samples `{}`", path.display())
}

/// Removes the placeholder measurement at `out`. A link to it stays, for the next run. A failure is
/// not reported: it would hide the error for which the placeholder is removed.
fn remove_placeholder(out: &Path) {
    let _ = fs::canonicalize(out).and_then(fs::remove_file);
}

impl Observer for Keeper {
    fn stands(&mut self, tally: &Tally) {
        self.progress.show(tally);
        // Flushing here and not per sample gives the writer thread few, larger pieces.
        if let Some(files) = &mut self.files {
            files.journal.flush();
        }
    }

    fn ended(&mut self, index: usize, sample: &Sample) {
        if let Some(files) = &mut self.files {
            files.journal.sample(index, sample);
            files.ended += u64::from(!sample.is_given_up());
        }
    }
}
