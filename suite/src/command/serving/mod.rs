//! `redline-bench serving`: replaces the field's serving benchmarks (vLLM's, SGLang's, LMDeploy's)
//! and accepts their flags.

mod conversations;
mod flags;
mod hub;
mod refused;
mod results;
mod scenario;
mod tool;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use schema::exit::Exit;
use schema::untrusted;
use schema::workload::Pack;

use super::files;
use super::files::{Engine, MadeUp, ScenarioFile};
use super::plan::drawn;
use super::progress::Style;
use super::run::exit_of;
use super::run::{Bench, Signals, TELEMETRY_NS, nanoseconds};
use super::table::{failure, verdict};
use super::threshold::ThresholdFlags;
use crate::client::control::{ControlError, Server};
use crate::client::headers::Key;
use crate::client::probe::{Probed, probe, served_model};
use crate::clock::utc_now;
use crate::export::{Quantity, ReportFacts, Selection, name_of};
use crate::session::{Conduct, Finished};
use crate::telemetry::gpu;
use crate::workload::tokenizer::Tokenizer;
use flags::{Backend, DatasetName, Tool, WorkloadFlags};
pub use refused::spelled;
use results::Places;
use scenario::{Wanted, wanted};
use tool::followed;

/// Function that returns the value of an environment variable; `None` if it is not set.
pub type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Pause between two readiness checks of a server that does not answer yet.
const POLL: Duration = Duration::from_millis(500);

/// Measure in place of `vllm bench serve`, SGLang's `bench_serving` or LMDeploy's
/// `profile_restful_api.py`, with their flags, workload and report.
///
/// Requests are drawn bit for bit as the tool draws them, and sent by this client. The tool's
/// console block goes to standard output, and the tool's result file gets the name that the tool
/// would give it. Beside that file are written Redline's own measurement with its verdict, the
/// samples of all requests, and the scenario that the flags define, which `redline-bench run`
/// accepts.
///
/// Flags may be shortened as long as they stay unambiguous. A flag that would change the
/// measurement and is not supported is refused by name. Three things differ on purpose: warm-up
/// prompts are not measured prompts, connections are open before the clock starts, and send times
/// follow the requested arrival process without the tools' drift or rescaling.
///
/// Exit codes: 0 not INVALID and nothing failed; 1 INVALID, a request failed, or a condition of
/// `--fail-if` is met; 2 wrong use; 4 no server, interrupted, a file that cannot be read or
/// written, or a failure of the client's system.
#[derive(Debug, Args)]
// As with Python's `argparse`, the last of several values of a flag counts.
#[command(after_long_help = EXAMPLE, infer_long_args = true, args_override_self = true)]
pub struct ServingFlags {
    // This field comes first: parsing the others takes their flags out of the matches.
    #[command(flatten)]
    own: tool::OwnFlags,
    #[command(flatten)]
    server: flags::ServerFlags,
    #[command(flatten)]
    workload: WorkloadFlags,
    #[command(flatten)]
    sending: flags::SendingFlags,
    #[command(flatten)]
    body: flags::BodyFlags,
    #[command(flatten)]
    results: flags::ResultFlags,
    #[command(flatten)]
    thresholds: ThresholdFlags,
    #[command(flatten)]
    refused: refused::Refused,
}

const EXAMPLE: &str = "\
Examples, each with the flags that the tool itself takes:

  redline-bench serving --backend vllm --model Qwen/Qwen3-8B --dataset-name random \\
    --random-input-len 1024 --random-output-len 128 --request-rate 4 --save-result

  redline-bench serving --backend sglang --dataset-name sharegpt \\
    --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json --num-prompts 1000

  redline-bench serving --backend lmdeploy --dataset-name random --num-prompts 2000 \\
    --random-input-len 1024 --random-output-len 1024 --random-range-ratio 1.0 \\
    --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json

LMDeploy's tool measures other servers too, as on published pages: `--tool lmdeploy --backend vllm`.

The block is followed by Redline's verdict on its numbers, from checks of the client, the counts
and the cache.";

/// Runs `redline-bench serving` and returns its exit code. `variable` reads environment variables.
///
/// # Errors
/// The flags are not supported, contradict each other or name a file that cannot be used; the
/// requests cannot be drawn; the server does not answer or names no model; the system refuses
/// signal handlers or has no usable date; the run ends without a measurement; or a file or folder
/// cannot be written.
pub fn execute(flags: &ServingFlags, variable: &Variables<'_>) -> anyhow::Result<Exit> {
    // Refused flags are reported before anything is opened or sent.
    flags.refused.check()?;
    let followed = followed(&flags.server, flags.workload.dataset_name, &flags.own)?;
    if flags.server.backend().is_some_and(Backend::embeds) {
        suit_embeddings(flags, followed.tool)?;
    }
    let signals = Signals::caught()?;
    let server = server(flags, followed.tool, variable)?;
    let here = server.address.ip();
    let is_local = here.is_loopback() || here.is_unspecified();
    let found = tools_conversations(flags, followed.tool, variable)?;
    let rows = flags.workload.dataset_path.as_deref().or(found.as_deref());
    let wanted = wanted(flags, followed.tool, rows, is_local)?;
    let engine = engine(flags, &wanted)?;
    let probed = awaited(flags, &server, &engine)?;
    let model = model(flags, &server)?;
    let tokenizer = flags.server.tokenizer.as_deref().unwrap_or(&model);
    let tokenizer = Tokenizer::open(&hub::find_tokenizer(tokenizer, variable)?)?;
    let now = utc_now().context("the system clock has no usable date")?;
    let places = Places::of(&flags.results, &wanted, &model, &now);
    let MadeUp { file, text } = ScenarioFile::made_up(wanted.scenario.clone(), "serving")?;
    let dataset = dataset(flags, &wanted, rows, variable)?;
    let form = engine.prompt_form(&file.scenario)?;
    let plan = drawn(&file, dataset.as_deref(), Some(&tokenizer), form)?;
    places.prepare()?;
    // The scenario is saved so that `redline-bench run` can repeat the measurement.
    files::text(&places.own.with_file_name(format!("{}.toml", file.id)), &text)?;
    eprintln!("{}", followed.note());
    if let Some(path) = &found {
        eprintln!("note: conversations of `{}`, found by their SHA-256", untrusted::path(path));
    }
    notes(&wanted, &file.id, &plan.manifest);
    let asked = report_facts(flags, &wanted, &model);
    let conduct = Conduct {
        no_progress_ns: nanoseconds(flags.sending.timeout_s),
        telemetry_ns: Some(TELEMETRY_NS),
        kernel_timestamps: true,
        check_outputs: true,
        keeps_text: flags.results.save_detailed,
    };
    let bench = Bench {
        signals,
        engine,
        server,
        meter: gpu::open(),
        probed,
        reference: None,
        tokenizer: Some(tokenizer),
        file,
        plan,
        model: Some(flags.server.served_model_name.clone().unwrap_or(model)),
        progress: if flags.results.disable_tqdm { Style::None } else { Style::Auto },
        conduct,
    };
    let measured = bench.measure(&bench.point()?, &flags.results.goodput, &places.own);
    let Finished { measurement, interrupted, .. } = match measured {
        Ok(finished) => finished,
        Err(error) => return bench.unmeasured(error),
    };
    places.report(&asked)?;
    let (own, verdict) = (untrusted::path(&places.own), verdict(&measurement));
    let failure: String = failure(&measurement).iter().map(|line| format!("{line}\n")).collect();
    let broken = flags.thresholds.broken(&measurement);
    whole_file::print(&format!("measurement    {own}\n{failure}{verdict}{broken}"))?;
    Ok(match interrupted {
        true => bench.interrupted(&places.own),
        false if !broken.is_empty() => Exit::Worse,
        false => exit_of(&measurement),
    })
}

/// Checks that the flags apply to embeddings.
fn suit_embeddings(flags: &ServingFlags, tool: Tool) -> anyhow::Result<()> {
    ensure!(
        tool == Tool::Vllm,
        "`--backend openai-embeddings` is supported only as in vLLM's tool\nhint: leave out `--tool`"
    );
    flags.own.suit_embeddings()?;
    let mut quantities = flags.results.percentile_metrics.iter();
    ensure!(
        quantities.all(|quantity| *quantity == Quantity::E2el),
        "`--percentile-metrics` names a latency that embeddings do not have\nhint: they have `e2el` \
         alone, which is the default"
    );
    Ok(())
}

fn server(flags: &ServingFlags, tool: Tool, variable: &Variables<'_>) -> anyhow::Result<Server> {
    let limit = Duration::from_secs_f64(flags.sending.timeout_s);
    let flags = &flags.server;
    let url = match &flags.base_url {
        Some(url) => url.clone(),
        None => {
            let project = flags.backend().unwrap_or(tool.habits().backend).tool();
            format!("http://{}:{}", flags.host, flags.port.unwrap_or(project.habits().port))
        }
    };
    let key = match &flags.api_key_file {
        Some(file) => Some(Key::open(file)?),
        None => match variable("OPENAI_API_KEY").filter(|key| !key.is_empty()) {
            Some(key) => Some(Key::of(&key).context(
                "OPENAI_API_KEY is not a key: one line of visible ASCII characters\nhint: unset \
                 it, or give `--api-key-file`",
            )?),
            None => None,
        },
    };
    let server = Server::at(&url, &flags.trust)?.with_key(key);
    Ok(server.with_headers(flags.header.clone()).within(limit))
}

/// Returns the engine file given by `--engine`, else a built-in one with only routes; the route of
/// requests is replaced by that of the flags or the backend. Prompts are sent as text unless
/// `--tokenize-prompt` is given, as the tools do.
fn engine(flags: &ServingFlags, wanted: &Wanted) -> anyhow::Result<Engine> {
    let backend = wanted.backend;
    let mut engine = match &flags.server.engine {
        Some(path) => Engine::open(path)?,
        None => Engine { id: name_of(backend), ..Engine::generic()? },
    };
    let request = &mut engine.file.request;
    request.route = flags.server.endpoint.clone().unwrap_or_else(|| backend.route().to_owned());
    if flags.server.endpoint.is_none() {
        // The file's API format belongs to the file's route; that of the backend's route follows
        // from its name.
        request.dialect = None;
    }
    ensure!(
        request.dialect().generates() != backend.embeds(),
        "`--backend {}` and the route `{}` do not belong together\nhint: embeddings need `--backend \
         openai-embeddings` and a route that ends with `/embeddings`",
        name_of(backend),
        request.route
    );
    ensure!(
        !flags.workload.tokenize_prompt || request.dialect().takes_ids(),
        "`--tokenize-prompt` sends ids, which `{}` does not accept\nhint: leave it out, or choose \
         a backend without `-chat`",
        request.route
    );
    request.chat_route = Some(request.route.clone()).filter(|_| wanted.scenario.output.chat);
    // Without the flag, prompts are sent as text like the tools' own, even if ids are accepted.
    request.token_ids = flags.workload.tokenize_prompt;
    if flags.sending.flush_cache && flags.server.engine.is_none() {
        let route = backend.flush_route().context(
            "`--flush-cache` works only with SGLang\nhint: give `--engine FILE`, whose \
             `cache.reset_route` empties the prefix cache",
        )?;
        engine.file.cache.reset_route = Some(route.to_owned());
    }
    Ok(engine)
}

/// Waits for the server as long as the flags allow, then probes it if `--engine` gives a file with
/// its routes. Without `--engine`, a server that does not know the usual readiness route counts as
/// ready.
fn awaited(flags: &ServingFlags, server: &Server, engine: &Engine) -> anyhow::Result<Probed> {
    let limit = Duration::from_secs(flags.server.ready_check_timeout_sec);
    let deadline = Instant::now() + limit;
    let told = flags.server.engine.is_some();
    let asked = || match told {
        true => probe(server, &engine.id, &engine.file),
        false => server.get_text(&engine.file.ready.route).map(|_| Probed::default()),
    };
    loop {
        match asked() {
            // Without an engine file the readiness route is a guess, and a server without it may
            // still serve the measured route.
            Err(ControlError::Status { status: 404 | 405, .. }) if !told => {
                return Ok(Probed::default());
            }
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
            answer => return Ok(answer?),
        }
    }
}

/// Returns the file of conversations that the tool would download for its dataset, as the caches have
/// it; `None` if the flags name a file, if the tool downloads none, or if no cache has it.
fn tools_conversations(
    flags: &ServingFlags,
    tool: Tool,
    variable: &Variables<'_>,
) -> anyhow::Result<Option<PathBuf>> {
    let WorkloadFlags { dataset_name, dataset_path, .. } = &flags.workload;
    let dataset = dataset_name.unwrap_or(tool.habits().dataset);
    let of_dataset = matches!(dataset, DatasetName::Sharegpt | DatasetName::Random);
    match dataset_path.is_none() && of_dataset && tool != Tool::Vllm {
        true => conversations::find(variable),
        false => Ok(None),
    }
}

/// Returns the path of the rows in `file`, the dataset's file or, for `hf`, also its folder or its id.
fn dataset(
    flags: &ServingFlags,
    wanted: &Wanted,
    file: Option<&Path>,
    variable: &Variables<'_>,
) -> anyhow::Result<Option<PathBuf>> {
    match file {
        Some(path) if wanted.dataset == DatasetName::Hf => {
            hub::find_rows(path, flags.workload.hf_split.as_deref(), variable).map(Some)
        }
        file => Ok(file.map(Path::to_owned)),
    }
}

/// Returns the model name for reports: that of `--model`, else the first model that the server
/// lists.
fn model(flags: &ServingFlags, server: &Server) -> anyhow::Result<String> {
    let named = flags.server.model.clone().or_else(|| served_model(server));
    named.context("the server names no model at `/v1/models`\nhint: give its name with `--model`")
}

fn report_facts(flags: &ServingFlags, wanted: &Wanted, model: &str) -> ReportFacts {
    let given = &flags.results.percentile_metrics;
    // The report of embeddings has another default.
    let usual = || vec![Quantity::Ttft, Quantity::Tpot, Quantity::Itl];
    ReportFacts {
        backend: Some(name_of(wanted.backend)),
        model: Some(model.to_owned()),
        tokenizer: Some(flags.server.tokenizer.clone().unwrap_or_else(|| model.to_owned())),
        workload: Some(wanted.scenario.workload.clone()),
        selection: Selection {
            quantities: if given.is_empty() { usual() } else { given.clone() },
            percentiles: flags.results.metric_percentiles.clone(),
        },
        label: flags.results.label.clone(),
        metadata: flags.results.metadata.clone(),
    }
}

/// Prints notes about the workload that a reader should know before the run.
fn notes(wanted: &Wanted, id: &str, manifest: &schema::manifest::Manifest) {
    let embeds = wanted.backend.embeds();
    if wanted.scenario.output.temperature.is_none() && !embeds {
        eprintln!("note: no temperature is sent, as in vLLM's tool: the server's default applies");
    }
    if wanted.dataset == DatasetName::Hf && wanted.scenario.workload.pack != Pack::Jsonl {
        eprintln!(
            "note: rows are shuffled as those of `custom`, not as Hugging Face's library does it: they \
             are sent in another order than by vLLM's tool"
        );
    }
    let output = || format!(", {} out", manifest.output_tokens());
    eprintln!(
        "{} `{id}`: {} requests, {} tokens in{}",
        wanted.scenario.workload.pack.id(),
        manifest.requests.len(),
        manifest.input_tokens(),
        if embeds { String::new() } else { output() }
    );
}
