//! Entry point of `redline-bench`: parses the flags and runs one command. Everything else is in the
//! library.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use schema::untrusted;
use suite::command::{abort, alternate, audit, export, manual, plan, probe, run, serving, sweep};

/// Measures an LLM server over its HTTP API.
///
/// A scenario file defines the requests and their send times, an engine file the server's routes
/// and features; a dataset and a tokenizer give the prompts. All four are local files: nothing is
/// downloaded.
#[derive(Debug, Parser)]
#[command(name = "redline-bench", version = suite::version(), after_long_help = EXAMPLE)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "\
Example, against a server on this machine:

  redline-bench run --url http://127.0.0.1:23333 \\
    --engine suite/engines/redline.toml --scenario suite/scenarios/sharegpt-lite.toml \\
    --dataset sharegpt-head.json --tokenizer model.gguf --out measurement.json

A plan can be saved and sent again, also by others:

  redline-bench plan --scenario s.toml --dataset d.json --tokenizer t.json --out plan.json
  redline-bench run --plan plan.json --url URL --engine e.toml --tokenizer t.json --out m.json

A result can be exported in the formats of other tools:

  redline-bench export m.json --format vllm-json --backend vllm --model Qwen/Qwen3-8B

With the flags of other benchmarks, such as `vllm bench serve`, and with their report:

  redline-bench serving --backend vllm --model Qwen/Qwen3-8B --dataset-name random

Published results can be checked for figures that contradict each other:

  redline-bench audit page.md result.json

Exit codes: 0 success; 1 INVALID or failed requests; 2 wrong use or invalid data; 4 environment.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunFlags>),
    Sweep(Box<sweep::SweepFlags>),
    Search(Box<sweep::SearchFlags>),
    Alternate(Box<alternate::AlternateFlags>),
    Serving(Box<serving::ServingFlags>),
    Plan(plan::PlanFlags),
    VerifyManifest(plan::VerifyManifestFlags),
    Probe(probe::ProbeFlags),
    FirstAnswer(probe::FirstAnswerFlags),
    Abort(abort::AbortFlags),
    Export(export::ExportFlags),
    Audit(audit::AuditFlags),
    Completions(manual::CompletionsFlags),
    Man(manual::ManFlags),
}

/// Parses the command line, in which `serving` also takes other tools' spelling of flags.
fn parsed() -> anyhow::Result<Flags> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let is_serving = words.get(1).is_some_and(|command| command == "serving");
    Ok(Flags::parse_from(if is_serving { serving::spelled(words)? } else { words }))
}

fn main() -> ExitCode {
    let done = parsed().and_then(|flags| match flags.command {
        Command::Run(flags) => run::execute(&flags),
        Command::Sweep(flags) => sweep::execute(&flags),
        Command::Search(flags) => sweep::execute_search(&flags),
        Command::Alternate(flags) => alternate::execute(&flags),
        Command::Serving(flags) => serving::execute(&flags, &|name| std::env::var(name).ok()),
        Command::Plan(flags) => plan::execute(&flags),
        Command::VerifyManifest(flags) => plan::execute_verify(&flags),
        Command::Probe(flags) => probe::execute(&flags),
        Command::FirstAnswer(flags) => probe::execute_first_answer(&flags),
        Command::Abort(flags) => abort::execute(&flags),
        Command::Export(flags) => export::execute(&flags),
        Command::Audit(flags) => audit::execute(&flags),
        Command::Completions(flags) => manual::complete(&flags, Flags::command()),
        Command::Man(flags) => manual::write_pages(&flags, Flags::command()),
    });
    let exit = done.unwrap_or_else(|error| {
        eprintln!("error: {}", untrusted::report(&*error));
        run::exit_of_error(&error)
    });
    ExitCode::from(exit.code())
}
