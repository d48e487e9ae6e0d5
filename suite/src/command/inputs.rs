//! Inputs of several commands: scenario and engine files, opened, parsed and checked, and the flags
//! for a server.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use schema::canonical::sha256_hex;
use schema::engine::{EngineFile, parse};
use schema::run::{PromptForm, ScenarioFacts};
use schema::scenario::Scenario;

use crate::client::control::{Key, Server, Trust};

/// A scenario file: the parsed scenario, its id and the SHA-256 of its text.
#[derive(Debug)]
pub struct ScenarioFile {
    pub id: String,
    pub scenario: Scenario,
    pub sha256: String,
}

/// A scenario made from flags instead of a file, with the TOML text that describes it.
#[derive(Debug)]
pub struct MadeUp {
    pub file: ScenarioFile,
    pub text: String,
}

impl ScenarioFile {
    /// Reads and parses the scenario file at `path`.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let text = read(path, "scenario")?;
        let scenario = Scenario::parse(&text)
            .with_context(|| format!("scenario `{}` cannot be used", path.display()))?;
        Ok(Self { id: stem(path), scenario, sha256: sha256_hex(text.as_bytes()) })
    }

    /// Makes the scenario file that describes `scenario`. The id is `name` and the first 8 digits
    /// of the text's SHA-256, so that different scenarios have different ids.
    pub fn made_up(scenario: Scenario, name: &str) -> anyhow::Result<MadeUp> {
        let text = scenario.to_toml().context("the scenario cannot be written as TOML")?;
        let sha256 = sha256_hex(text.as_bytes());
        let id = format!("{name}-{}", &sha256[..8]);
        Ok(MadeUp { file: Self { id, scenario, sha256 }, text })
    }

    /// Facts about the scenario for the record, with the hash of its manifest.
    pub fn facts(&self, manifest: &schema::manifest::Manifest, hash: String) -> ScenarioFacts {
        let scenario = &self.scenario;
        let mut lengths = manifest.requests.iter().map(|request| request.output_tokens);
        let first = lengths.next();
        ScenarioFacts {
            id: self.id.clone(),
            rev: scenario.rev,
            tier: scenario.tier,
            file_sha256: Some(self.sha256.clone()),
            manifest_sha256: Some(hash),
            prompt_form: Some(manifest.prompt_form),
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

/// An engine file and its id, the file name without extension.
#[derive(Debug)]
pub struct Engine {
    pub id: String,
    pub file: EngineFile,
}

impl Engine {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let text = read(path, "engine")?;
        let file = parse(&text)
            .with_context(|| format!("engine file `{}` cannot be used", path.display()))?;
        Ok(Self { id: stem(path), file })
    }

    /// Form in which prompts are sent to this engine: token ids if it accepts them, else text.
    pub fn prompt_form(&self) -> PromptForm {
        if self.file.request.sends_ids() { PromptForm::TokenIds } else { PromptForm::Text }
    }
}

fn read(path: &Path, what: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {what} `{}`", path.display()))
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Flags for the server that a command connects to.
#[derive(Debug, Args)]
pub struct ServerFlags {
    /// URL of the server.
    #[arg(long, value_name = "http[s]://HOST:PORT")]
    url: String,
    #[command(flatten)]
    trust: Trust,
    /// Engine file: the routes and features of this kind of server, as in `suite/engines`.
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,
}

/// Flag for the API key of a server.
#[derive(Debug, Default, Args)]
pub struct KeyFlag {
    /// File with the API key that the server requires. The key enters no record.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

impl ServerFlags {
    pub fn engine(&self) -> anyhow::Result<Engine> {
        Engine::open(&self.engine)
    }

    pub fn server(&self, key: &KeyFlag) -> anyhow::Result<Server> {
        let key = key.api_key_file.as_deref().map(Key::open).transpose()?;
        Ok(Server::at(&self.url, &self.trust)?.with_key(key))
    }
}
