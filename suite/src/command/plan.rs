//! `redline-bench plan`: the requests of a scenario, without sending any.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use schema::exit::Exit;
use schema::run::PromptForm;

use super::inputs::ScenarioFile;
use super::write;
use crate::workload::dataset::Dataset;
use crate::workload::pack::{Plan, plan};
use crate::workload::tokenizer::Tokenizer;

/// Draw a scenario's requests and print what they are, without a server.
///
/// The manifest holds every prompt's token ids, output length and send time. Its hash must come
/// out the same on every machine; runs with different hashes are not compared.
#[derive(Debug, Args)]
pub struct PlanFlags {
    /// Scenario file; its stem is the scenario's id.
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Conversations: a JSON array in ShareGPT's shape.
    #[arg(long, value_name = "FILE")]
    dataset: PathBuf,
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer.
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// How prompts would go over the wire.
    #[arg(long, value_enum, default_value_t = Form::TokenIds)]
    prompt_form: Form,
    /// Write the manifest as JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Form {
    TokenIds,
    Text,
}

/// Runs the command.
///
/// # Errors
/// An input cannot be read, or gives too few requests; the manifest cannot be written.
pub fn execute(flags: &PlanFlags) -> anyhow::Result<Exit> {
    let file = ScenarioFile::open(&flags.scenario)?;
    let form = match flags.prompt_form {
        Form::TokenIds => PromptForm::TokenIds,
        Form::Text => PromptForm::Text,
    };
    let plan = drawn(&file, &flags.dataset, &Tokenizer::open(&flags.tokenizer)?, form)?;
    let manifest = &plan.manifest;
    println!("scenario       {}", manifest.scenario);
    println!("requests       {}", manifest.requests.len());
    println!("input tokens   {}", manifest.input_tokens());
    println!("output tokens  {}", manifest.output_tokens());
    println!("manifest       {}", manifest.sha256()?);
    if let Some(path) = &flags.out {
        write::json(path, manifest)?;
    }
    Ok(Exit::Well)
}

/// Draws the plan of a scenario from its files.
pub fn drawn(
    file: &ScenarioFile,
    dataset: &std::path::Path,
    tokenizer: &Tokenizer,
    form: PromptForm,
) -> anyhow::Result<Plan> {
    let dataset = Dataset::open(dataset)?;
    plan(&file.id, &file.scenario, &dataset, tokenizer, form)
        .with_context(|| format!("cannot draw the requests of `{}`", file.id))
}
