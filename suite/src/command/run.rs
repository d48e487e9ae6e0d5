//! `redline-bench run`: one scenario against one server, one file of results.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Args;
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::run::{Status, ValidityVerdict};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::inputs::{Engine, ScenarioFile};
use super::progress::{Progress, Style};
use super::{plan, write};
use crate::client::control::{ControlError, Server};
use crate::client::drive::DriveError;
use crate::client::probe::{Probed, probe, served_model};
use crate::session::{Assignment, Reference};
use crate::workload::tokenizer::Tokenizer;

/// Run one scenario against one server and write what was measured.
///
/// The order is fixed: draw the requests, warm up with prompts that none of them shares, empty the
/// server's prefix cache and see that it is empty, start the clock, send, wait for every answer,
/// stop the clock, ask a few fixed prompts to see that the outputs are right.
///
/// A failed request is data: it is counted, classified and written, and so is a server that dies
/// or falls silent. The result file is whole or not there at all.
///
/// Exit codes: 0 believable and nothing failed; 1 INVALID, or a request failed; 2 wrong use;
/// 4 no server, interrupted, or the system gave out.
#[derive(Debug, Args)]
pub struct RunFlags {
    /// The server.
    #[arg(long, value_name = "http://HOST:PORT")]
    url: String,
    /// Engine file, which says what this kind of server takes and tells.
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,
    /// Scenario file; its stem is the scenario's id.
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Conversations: a JSON array in ShareGPT's shape.
    #[arg(long, value_name = "FILE")]
    dataset: PathBuf,
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer.
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// The model's name as the server knows it; by default the first that it offers.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Where the measurement goes, as JSON.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Greedy outputs of another program to compare with, as JSON.
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    progress: Style,
    /// Give up when no event comes on any connection for this long.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = seconds)]
    timeout_s: f64,
    /// Take the time after each read even where the kernel would tell when the bytes came.
    #[arg(long)]
    no_kernel_timestamps: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.001..=1e6).contains(&value) { Ok(value) } else { Err("not from 0.001 to 1e6".to_owned()) }
}

/// Runs the command.
///
/// # Errors
/// An input cannot be used, or the result cannot be written.
pub fn execute(flags: &RunFlags) -> anyhow::Result<Exit> {
    let signals = Signals::caught()?;
    let engine = Engine::open(&flags.engine)?;
    let file = ScenarioFile::open(&flags.scenario)?;
    let reference = flags.reference.as_deref().map(Reference::open).transpose()?;
    let tokenizer = Tokenizer::open(&flags.tokenizer)?;
    let server = Server::at(&flags.url)?;
    let probed = match probe(&server, &engine.id, &engine.file) {
        Ok(probed) => probed,
        Err(error) => return Ok(environment(&error)),
    };
    let plan = plan::drawn(&file, &flags.dataset, &tokenizer, engine.prompt_form())?;
    let hash = plan.manifest.sha256()?;
    let planned_tokens = plan.manifest.output_tokens();
    let mut progress =
        Progress::new(flags.progress, plan.manifest.requests.len() as u64, planned_tokens);
    let assignment = Assignment {
        server: &server,
        engine: &engine.file,
        scenario: &file.scenario,
        facts: file.facts(&plan.manifest, hash),
        plan: &plan,
        tokenizer: &tokenizer,
        model: model_name(flags, &server, &probed),
        page_tokens: probed.page_tokens,
        prefix_cache: probed.probe.server.prefix_cache,
        gpus: gpus(&probed),
        reference: reference.as_ref(),
        no_progress_ns: nanoseconds(flags.timeout_s),
        kernel_timestamps: !flags.no_kernel_timestamps,
        stop: &signals.stop,
    };
    signals.at_once.store(false, Ordering::Relaxed);
    let measured = assignment.run(&mut |tally| progress.show(tally));
    progress.finish();
    let measurement = match measured {
        Ok(measurement) => measurement,
        // Whoever sent SIGTERM started this program too, and says so itself.
        Err(DriveError::Interrupted) if signals.told.load(Ordering::Relaxed) => {
            return Ok(Exit::Environment);
        }
        Err(error) => return Ok(environment(&error)),
    };
    write::json(&flags.out, &measurement)?;
    print(&measurement);
    Ok(exit_of(&measurement))
}

/// What an interruption does: before the run it ends the program at once, since there is nothing
/// to tidy up; then it asks the client's loop to stop.
struct Signals {
    at_once: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// It was SIGTERM, not Ctrl-C.
    told: Arc<AtomicBool>,
}

impl Signals {
    fn caught() -> anyhow::Result<Self> {
        let at_once = Arc::new(AtomicBool::new(true));
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::new(AtomicBool::new(false));
        flag::register(SIGTERM, Arc::clone(&told)).context("cannot catch signals")?;
        let code = i32::from(Exit::Environment.code());
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, code, Arc::clone(&at_once))
                .and_then(|_| flag::register(signal, Arc::clone(&stop)))
                .context("cannot catch signals")?;
        }
        Ok(Self { at_once, stop, told })
    }
}

fn environment(error: &dyn std::error::Error) -> Exit {
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
    Exit::Environment
}

fn model_name(flags: &RunFlags, server: &Server, probed: &Probed) -> String {
    let told = || Some(probed.probe.model.id.clone()).filter(|id| !id.is_empty());
    flags.model.clone().or_else(|| served_model(server)).or_else(told).unwrap_or_default()
}

/// GPUs that the server uses: its ranks, where its device is a GPU.
fn gpus(probed: &Probed) -> Option<u32> {
    let server = &probed.probe.server;
    server.tp.filter(|_| server.device.as_deref() == Some("cuda"))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked when the flag was read"
)]
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

fn exit_of(measurement: &Measurement) -> Exit {
    let invalid = measurement.validity.verdict == ValidityVerdict::Invalid;
    if invalid || measurement.status != Status::Ok { Exit::Worse } else { Exit::Well }
}

/// The few figures that a person wants at once; the rest is in the file.
fn print(measurement: &Measurement) {
    if let Some(counts) = &measurement.counts {
        let count = |value: Option<u64>| value.unwrap_or(0);
        println!(
            "requests       {} answered, {} failed of {}",
            count(counts.requests_ok),
            count(counts.requests_failed),
            count(counts.requests_planned)
        );
    }
    if let Some(metrics) = &measurement.metrics {
        println!("output         {:.1} tokens/s", metrics.output_tokens_per_s.unwrap_or(0.0));
        for (name, summary) in metrics.summaries() {
            let Some(summary) = summary else { continue };
            let ms = |value: Option<u64>| {
                value.map_or_else(|| "?".to_owned(), |us| format!("{}.{:03}", us / 1000, us % 1000))
            };
            println!(
                "{:<14} p50 {} ms, p99 {} ms",
                name.trim_end_matches("_us"),
                ms(summary.p50),
                ms(summary.p99)
            );
        }
    }
    if let Some(failure) = &measurement.failure {
        println!("failure        {}", failure.message);
    }
    let verdict = format!("{:?}", measurement.validity.verdict).to_uppercase();
    println!("verdict        {verdict}");
    for reason in &measurement.validity.reasons {
        println!("               {reason}");
    }
}

/// The exit code of an error that reached the top.
#[must_use]
pub fn exit_of_error(error: &anyhow::Error) -> Exit {
    let io = |cause: &(dyn std::error::Error + 'static)| cause.is::<std::io::Error>();
    let environment = error.chain().any(|cause| {
        cause.is::<DriveError>()
            || matches!(cause.downcast_ref(), Some(ControlError::Unreachable { .. }))
            || io(cause)
    });
    if environment { Exit::Environment } else { Exit::Unsound }
}
