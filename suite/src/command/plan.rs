//! `redline-bench plan`: draws the requests of a scenario without sending them; and
//! `redline-bench verify-manifest`: checks that published samples of a dataset are reproduced to the
//! token.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use schema::exit::Exit;
use schema::manifest::ManifestRequest;
use schema::plan::{PlanFile, SCHEMA};
use schema::run::PromptForm;
use schema::scenario::{Pack, Scenario, from_toml};
use schema::untrusted;
use serde::Deserialize;
use whole_file::{DATA_MAX, TEXT_MAX};

use super::files;
use super::files::{Engine, ScenarioFile};
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
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer. Only the sampler `words`
    /// needs none.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Form in which the planned prompts will be sent; text where the scenario has `output.chat`.
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
/// The scenario, tokenizer or dataset cannot be read, the requests cannot be drawn from them, or
/// the plan cannot be written.
pub fn execute(flags: &PlanFlags) -> anyhow::Result<Exit> {
    let file = ScenarioFile::open(&flags.scenario)?;
    let tokenizer = flags.tokenizer.as_deref().map(Tokenizer::open).transpose()?;
    let plan = drawn(&file, flags.dataset.as_deref(), tokenizer.as_ref(), flags.prompt_form)?;
    let manifest = &plan.manifest;
    let sha256 = manifest.sha256()?;
    // A request that waits for another's answer has no send time of its own.
    let last_us = manifest.requests.iter().filter(|request| request.after.is_none());
    let last_us = last_us.map(|request| request.send_us).max().unwrap_or(0);
    let summary = format!(
        "scenario       {}\nrequests       {}\ninput tokens   {}\noutput tokens  {}\n\
         last send      {}.{:06} s\nmanifest       {sha256}\n",
        manifest.scenario,
        manifest.requests.len(),
        manifest.input_tokens(),
        manifest.output_tokens(),
        last_us / 1_000_000,
        last_us % 1_000_000
    );
    files::print_summary(flags.out.as_deref().unwrap_or(Path::new("")), &summary)?;
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

/// Draws the plan of a scenario (requests, send times, warm-up) from dataset and tokenizer; `form`
/// is the form of its prompts, unless the scenario can only send text. A dataset that the scenario does not use is not opened.
pub fn drawn(
    file: &ScenarioFile,
    dataset: Option<&Path>,
    tokenizer: Option<&Tokenizer>,
    form: PromptForm,
) -> anyhow::Result<Plan> {
    // A dataset that the scenario does not sample from is ignored, else the record would name it.
    let dataset = dataset.filter(|_| file.scenario.workload.dataset.is_some());
    let dataset = dataset.map(Dataset::open).transpose()?;
    // Prompts that are made without a tokenizer have no token ids, and a chat message takes none.
    let Scenario { workload, output, .. } = &file.scenario;
    let as_text = workload.pack.is_without_tokenizer() || output.chat;
    let form = if as_text { PromptForm::Text } else { form };
    plan(&file.id, &file.scenario, dataset.as_ref(), tokenizer, form)
        .with_context(|| format!("cannot draw the requests of `{}`", file.id))
}

/// Reads a saved plan and checks that its scenario is sound, and that it is unchanged, was drawn with
/// `tokenizer`, can be sent to `engine`, and has no request that waits for a later one.
pub fn replayed(
    path: &Path,
    tokenizer: Option<&Tokenizer>,
    engine: &Engine,
) -> anyhow::Result<(ScenarioFile, Plan)> {
    let shown = path.display();
    let text = whole_file::read_text(path, "plan", DATA_MAX)?;
    let saved: PlanFile = serde_json::from_str(&text)
        .with_context(|| format!("`{shown}` is not a plan that `redline-bench plan` saved"))?;
    files::check_schema(path, &saved.schema, SCHEMA)?;
    let scenario = saved.scenario.check();
    scenario.with_context(|| format!("the scenario of plan `{shown}` cannot be used"))?;
    let manifest = &saved.manifest;
    if manifest.sha256()? != saved.manifest_sha256 {
        bail!("plan `{shown}` was changed: its requests do not have the hash that it states");
    }
    // Another tokenizer would count the retokenized output differently.
    let given = tokenizer.map(|tokenizer| &tokenizer.sha256);
    if let Some(wanted) = manifest.tokenizer_sha256.as_ref().filter(|sha256| given != Some(sha256))
    {
        bail!(
            "plan `{shown}` was drawn with another tokenizer\nhint: give the one whose SHA-256 is \
             {wanted} with `--tokenizer`"
        );
    }
    let form = engine.prompt_form(&saved.scenario)?;
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

/// Draw the samples whose token totals were published, and compare the totals.
///
/// Published throughputs rest on a sample of ShareGPT whose input and output tokens are the same
/// for every engine. With the whole dataset and the model's tokenizer this command shows that
/// Redline draws the same sample. Without them, it lists the missing files.
///
/// Exit codes: 0 all totals match; 1 a total differs; 2 wrong use, or no totals were published for
/// the dataset or tokenizer; 4 a file is missing or cannot be read.
#[derive(Debug, Args)]
#[command(after_long_help = VERIFY_EXAMPLE)]
pub struct VerifyManifestFlags {
    /// Whole dataset file of conversations, as its publisher distributes it.
    #[arg(long, value_name = "FILE")]
    dataset: Option<PathBuf>,
    /// `tokenizer.json` of a model for which token totals were published.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Table of published token totals to use instead of the built-in one, as TOML in the format of
    /// `suite/published.toml`.
    #[arg(long, value_name = "FILE")]
    published: Option<PathBuf>,
}

const VERIFY_EXAMPLE: &str = "\
Example:

  redline-bench verify-manifest --dataset ShareGPT_V3_unfiltered_cleaned_split.json \\
    --tokenizer Qwen3-8B/tokenizer.json";

/// Built-in table of published token totals: `suite/published.toml`.
const BUILT_IN: &str = include_str!("../../published.toml");

/// Published token totals of samples that benchmark tools draw from one dataset.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    dataset: PublishedDataset,
    totals: Vec<Totals>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedDataset {
    /// File name under which the dataset's publisher distributes it.
    name: String,
    sha256: String,
}

/// Published token totals of one sample of requests, and the settings with which it was drawn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Totals {
    pack: Pack,
    requests: u64,
    seed: u64,
    /// Common name of the tokenizer with which the sample's tokens were counted.
    tokenizer: String,
    tokenizer_sha256: String,
    input_tokens: u64,
    output_tokens: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pack, tokenizer) = (self.pack.id(), &self.tokenizer);
        write!(formatter, "{pack}, {} requests, seed {}, {tokenizer}", self.requests, self.seed)
    }
}

impl Totals {
    /// Draws the published sample again and returns its total numbers of input and output tokens.
    ///
    /// # Errors
    /// The requests cannot be drawn: the dataset has another format or is too small, a text cannot
    /// be tokenized, or the published number or seed of requests is invalid.
    fn drawn(&self, dataset: &Dataset, tokenizer: &Tokenizer) -> anyhow::Result<(u64, u64)> {
        let form = PromptForm::TokenIds;
        let scenario = Scenario::parse(&self.scenario()).context("a sample's scenario")?;
        let drawn = plan("published", &scenario, Some(dataset), Some(tokenizer), form)?.manifest;
        Ok((drawn.input_tokens(), drawn.output_tokens()))
    }

    /// Builds the scenario that draws the published sample, as TOML.
    fn scenario(&self) -> String {
        format!(
            "question = \"Is the published sample drawn again?\"\nrev = 1\ntier = \"full\"\n\
             workload = {{ pack = \"{}\", dataset = \"published\", requests = {}, seed = {} }}\n\
             warmup = {{ requests = 0, from = \"disjoint\" }}\n\
             arrival = {{ kind = \"all-at-once\" }}\n\
             output = {{ ignore_eos = true, temperature = 0.0 }}\n",
            self.pack.id(),
            self.requests,
            self.seed
        )
    }
}

/// Runs `redline-bench verify-manifest` and returns its exit code.
///
/// # Errors
/// The table of totals, the tokenizer or the dataset cannot be read, no totals were published for
/// the tokenizer or the dataset, or the sample cannot be drawn. A missing tokenizer or dataset is
/// no error: it is reported on standard error and by the exit code.
pub fn execute_verify(flags: &VerifyManifestFlags) -> anyhow::Result<Exit> {
    let published = table(flags.published.as_deref())?;
    let missing = missing(flags, &published);
    if !missing.is_empty() {
        eprintln!("error: {}", untrusted::lines(&missing.join("\n")));
        return Ok(Exit::Environment);
    }
    let (Some(dataset), Some(tokenizer)) = (&flags.dataset, &flags.tokenizer) else {
        bail!("neither data set nor tokenizer is given");
    };
    let tokenizer = Tokenizer::open(tokenizer)?;
    let wanted: Vec<&Totals> = published
        .totals
        .iter()
        .filter(|totals| totals.tokenizer_sha256 == tokenizer.sha256)
        .collect();
    if wanted.is_empty() {
        bail!("no totals were published for this tokenizer\nhint: {}", tokenizers(&published));
    }
    let dataset = Dataset::open(dataset)?;
    // Any other file has other totals, which would look like an error of the sampler.
    if dataset.sha256 != published.dataset.sha256 {
        bail!(
            "`{}` is not the file that the totals were published for: its SHA-256 is {}\n\
             hint: `{}` has {}; the head that `cargo xtask fetch` brings is only a part of it",
            dataset.path.display(),
            dataset.sha256,
            published.dataset.name,
            published.dataset.sha256
        );
    }
    let mut exit = Exit::Well;
    for totals in wanted {
        let (input, output) = totals.drawn(&dataset, &tokenizer)?;
        let equal = (input, output) == (totals.input_tokens, totals.output_tokens);
        whole_file::print(&format!(
            "{totals}\n  drawn      {input} in, {output} out\n  published  {} in, {} out\n  {}\n",
            totals.input_tokens,
            totals.output_tokens,
            if equal { "equal" } else { "DIFFERENT" }
        ))?;
        exit = if equal { exit } else { Exit::Worse };
    }
    Ok(exit)
}

fn table(path: Option<&Path>) -> anyhow::Result<Published> {
    let Some(path) = path else { return Ok(toml::from_str(BUILT_IN)?) };
    let shown = path.display();
    let text = whole_file::read_text(path, "table", TEXT_MAX)?;
    from_toml(&text).with_context(|| format!("`{shown}` is not a table of published totals"))
}

/// Returns the messages about files that are missing, each with a hint where to get the file.
fn missing(flags: &VerifyManifestFlags, published: &Published) -> Vec<String> {
    let gone = |path: &Option<PathBuf>| path.as_ref().is_none_or(|path| !path.exists());
    let dataset = gone(&flags.dataset).then(|| {
        format!(
            "the conversations are missing: `{}`, SHA-256 {}\n\
             hint: `cargo xtask fetch sharegpt` finds or downloads it, and prints its path; give it \
             with `--dataset FILE`",
            published.dataset.name, published.dataset.sha256
        )
    });
    let tokenizer = gone(&flags.tokenizer).then(|| {
        format!(
            "a tokenizer is missing: {}\nhint: `cargo xtask fetch` brings them; give one with \
             `--tokenizer FILE`",
            tokenizers(published)
        )
    });
    [dataset, tokenizer].into_iter().flatten().collect()
}

fn tokenizers(published: &Published) -> String {
    let mut known: Vec<String> = published
        .totals
        .iter()
        .map(|totals| format!("{}, SHA-256 {}", totals.tokenizer, totals.tokenizer_sha256))
        .collect();
    // Totals of the same tokenizer are neighbors in the table.
    known.dedup();
    known.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_names_the_published_totals() {
        let published = table(None).unwrap();
        let qwen3 = published.totals.iter().find(|totals| totals.tokenizer == "Qwen3").unwrap();
        assert_eq!((qwen3.input_tokens, qwen3.output_tokens), (2_258_583, 1_992_177));
        assert_eq!(qwen3.to_string(), "sharegpt@lmdeploy, 10000 requests, seed 1, Qwen3");
    }
}
