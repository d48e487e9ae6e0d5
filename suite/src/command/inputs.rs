//! The files that a command is given, opened and checked.

use std::path::Path;

use anyhow::Context;
use schema::canonical::sha256_hex;
use schema::engine::{EngineFile, parse};
use schema::run::{PromptForm, ScenarioFacts};
use schema::scenario::Scenario;

/// A scenario, its id and the hash of its file.
#[derive(Debug)]
pub struct ScenarioFile {
    pub id: String,
    pub scenario: Scenario,
    pub sha256: String,
}

/// A scenario that comes from elsewhere, as the file that would say it.
#[derive(Debug)]
pub struct MadeUp {
    pub file: ScenarioFile,
    pub text: String,
}

impl ScenarioFile {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let text = read(path, "scenario")?;
        let scenario = Scenario::parse(&text)
            .with_context(|| format!("scenario `{}` cannot be used", path.display()))?;
        Ok(Self { id: stem(path), scenario, sha256: sha256_hex(text.as_bytes()) })
    }

    /// The file that would say `scenario`. Its id begins with `name` and goes on with the text's
    /// hash, so that no two scenarios share one.
    pub fn made_up(scenario: Scenario, name: &str) -> anyhow::Result<MadeUp> {
        let text = scenario.to_toml().context("the scenario cannot be written as TOML")?;
        let sha256 = sha256_hex(text.as_bytes());
        let id = format!("{name}-{}", &sha256[..8]);
        Ok(MadeUp { file: Self { id, scenario, sha256 }, text })
    }

    /// What a record says about the scenario, once its manifest is known.
    pub fn facts(&self, manifest: &schema::manifest::Manifest, hash: String) -> ScenarioFacts {
        let scenario = &self.scenario;
        ScenarioFacts {
            id: self.id.clone(),
            rev: scenario.rev,
            tier: scenario.tier,
            file_sha256: Some(self.sha256.clone()),
            manifest_sha256: Some(hash),
            prompt_form: Some(manifest.prompt_form),
            dataset_sha256: manifest.dataset_sha256.clone(),
            seed: Some(scenario.workload.seed),
            requests: Some(scenario.workload.requests),
            arrival: Some(scenario.arrival.clone()),
            warmup: Some(scenario.warmup.clone()),
            connections: Some(scenario.connections),
            cache: Some(scenario.cache),
        }
    }
}

/// An engine file and its id.
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

    /// How prompts go to this engine: as ids where it takes them on a route that has prompts.
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
