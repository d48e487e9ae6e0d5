//! `redline-bench plan`: draws the requests of a scenario without sending them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use schema::exit::Exit;
use schema::manifest::ManifestRequest;
use schema::plan::{PlanFile, SCHEMA};
use schema::run::PromptForm;

use super::files;
use super::inputs::ScenarioFile;
use crate::workload::dataset::Dataset;
use crate::workload::sampler::{Plan, plan};
use crate::workload::tokenizer::Tokenizer;

/// Draw a scenario's requests and print a summary, without a server.
///
/// The plan holds every prompt's token ids, output length and send time. The hash over them is the
/// same on every machine; runs with different hashes are not compared. `redline-bench run --plan`
/// sends a saved plan unchanged.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct PlanFlags {
    /// Scenario file; the file name without extension is the scenario's id.
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Dataset that the scenario samples from: conversations as a JSON array in ShareGPT's format,
    /// or a JSONL file with one request per line. Scenarios that generate their prompts need none.
    #[arg(long, value_name = "FILE")]
    dataset: Option<PathBuf>,
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer.
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// Form in which prompts would be sent.
    #[arg(long, default_value = "token_ids")]
    #[arg(value_parser = PossibleValuesParser::new(["token_ids", "text"]).map(form))]
    prompt_form: PromptForm,
    /// Save the plan as JSON; the bytes are the same on every machine.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

const EXAMPLE: &str = "\
Example:

  redline-bench plan --scenario sharegpt.toml --dataset rows.json --tokenizer tokenizer.json

`input tokens` and `output tokens` are sums over all requests, `last send` is when the last one is
due, and `manifest` is the hash by which runs are compared.";

fn form(name: String) -> PromptForm {
    if name == "text" { PromptForm::Text } else { PromptForm::TokenIds }
}

/// Runs `redline-bench plan` and returns its exit code.
///
/// # Errors
/// An input cannot be read or yields too few requests, or the plan cannot be written.
pub fn execute(flags: &PlanFlags) -> anyhow::Result<Exit> {
    let file = ScenarioFile::open(&flags.scenario)?;
    let tokenizer = Tokenizer::open(&flags.tokenizer)?;
    let plan = drawn(&file, flags.dataset.as_deref(), &tokenizer, flags.prompt_form)?;
    let manifest = &plan.manifest;
    let sha256 = manifest.sha256()?;
    // A request that waits for another's answer has no send time of its own.
    let last_us = manifest.requests.iter().filter(|request| request.after.is_none());
    let last_us = last_us.map(|request| request.send_us).max().unwrap_or(0);
    println!("scenario       {}", manifest.scenario);
    println!("requests       {}", manifest.requests.len());
    println!("input tokens   {}", manifest.input_tokens());
    println!("output tokens  {}", manifest.output_tokens());
    println!("last send      {}.{:06} s", last_us / 1_000_000, last_us % 1_000_000);
    println!("manifest       {sha256}");
    if let Some(path) = &flags.out {
        let saved = PlanFile {
            schema: SCHEMA.to_owned(),
            scenario_id: file.id,
            scenario_sha256: file.sha256,
            scenario: file.scenario,
            manifest_sha256: sha256,
            manifest: plan.manifest,
            warmup: plan.warmup,
        };
        files::compact(path, &saved)?;
    }
    Ok(Exit::Well)
}

/// Draws the plan of a scenario (requests, send times, warm-up) from dataset and tokenizer.
pub fn drawn(
    file: &ScenarioFile,
    dataset: Option<&Path>,
    tokenizer: &Tokenizer,
    form: PromptForm,
) -> anyhow::Result<Plan> {
    // A dataset that the scenario does not sample from is ignored, else the record would name it.
    let dataset = dataset.filter(|_| file.scenario.workload.dataset.is_some());
    let dataset = dataset.map(Dataset::open).transpose()?;
    plan(&file.id, &file.scenario, dataset.as_ref(), tokenizer, form)
        .with_context(|| format!("cannot draw the requests of `{}`", file.id))
}

/// Opens a saved plan and checks that it is unchanged and that this engine can receive it.
pub fn replayed(
    path: &Path,
    tokenizer: &Tokenizer,
    form: PromptForm,
) -> anyhow::Result<(ScenarioFile, Plan)> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read plan `{shown}`"))?;
    let saved: PlanFile = serde_json::from_str(&text)
        .with_context(|| format!("`{shown}` is not a plan that `redline-bench plan` saved"))?;
    ensure!(saved.schema == SCHEMA, "`{shown}` is a `{}`, not a `{SCHEMA}`", saved.schema);
    let manifest = &saved.manifest;
    if manifest.sha256()? != saved.manifest_sha256 {
        bail!("plan `{shown}` was changed: its requests do not have the hash that it states");
    }
    ensure!(
        // Another tokenizer would count the retokenized output differently.
        manifest.tokenizer_sha256 == tokenizer.sha256,
        "plan `{shown}` was drawn with another tokenizer\nhint: give the one whose SHA-256 is {}",
        manifest.tokenizer_sha256
    );
    if manifest.prompt_form == PromptForm::TokenIds && form == PromptForm::Text {
        bail!(
            "plan `{shown}` has prompts as token ids, which this engine does not accept\nhint: draw \
             it with `--prompt-form text`"
        );
    }
    // A request that waits for a later one, or for itself, would never be sent.
    let waits = |(index, request): (usize, &ManifestRequest)| {
        request.after.is_none_or(|before| before < index as u64)
    };
    ensure!(
        manifest.requests.iter().enumerate().all(waits),
        "a request of plan `{shown}` waits for one that does not come before it"
    );
    let file = ScenarioFile {
        id: saved.scenario_id,
        scenario: saved.scenario,
        sha256: saved.scenario_sha256,
    };
    Ok((file, Plan { manifest: saved.manifest, warmup: saved.warmup }))
}
