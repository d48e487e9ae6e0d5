//! Opens the inputs of a measuring command (server, engine file, plan, tokenizer and others) and
//! measures one run or several with it, for `sweep`, `search` and `serving` too; and `redline-bench
//! run`, which runs one scenario against one server and writes one measurement.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use schema::correctness::ReferenceOutputs;
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::run::{PromptForm, ScenarioFacts, Status, ValidityVerdict};
use schema::scenario::{Arrival, CacheState, Scenario};
use schema::untrusted;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::export::{ExportTo, export_all};
use super::files;
use super::files::{Engine, Keeper, KeyFlag, ScenarioFile, ServerFlags};
use super::plan::{drawn, replayed};
use super::progress::{Progress, Style};
use super::table::table;
use super::threshold::ThresholdFlags;
use crate::client::control::{ControlError, Server, is_name};
use crate::client::drive::DriveError;
use crate::client::probe::{MODELS, Probed, find_route, probe, served_model};
use crate::clock::{realtime_ns, utc_now};
use crate::export::ReportFacts;
use crate::measure::rates::Slo;
use crate::measure::summary::whole;
use crate::session::alternation::AlternationError;
use crate::session::{Assignment, Conduct, Finished, open_reference};
use crate::telemetry::gpu;
use crate::telemetry::gpu::Meter;
use crate::workload::arrival::reschedule;
use crate::workload::sampler::Plan;
use crate::workload::tokenizer::Tokenizer;

/// Flags shared by `run`, `sweep` and `search`: server, workload and conduct of the runs.
#[derive(Debug, Args)]
pub struct BenchFlags {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    key: KeyFlag,
    /// Scenario file, as in `suite/scenarios`; the file name without extension is the scenario's
    /// id. Without it, `run` sends 40 prompts of 128 common words, 4 at a time.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Dataset that the scenario samples from: conversations as a JSON array in ShareGPT's format,
    /// or a JSONL file with one request per line. Scenarios that generate their prompts need none.
    #[arg(long, value_name = "FILE")]
    dataset: Option<PathBuf>,
    /// Plan saved by `redline-bench plan --out`, sent unchanged; replaces scenario and dataset.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "dataset"])]
    plan: Option<PathBuf>,
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer. Scenarios of the sampler
    /// `words`, such as the one that is built in, need none; with one, it counts their tokens in
    /// place of the server.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Model name that requests carry; by default the first model that the server lists, else the
    /// one that its configuration states.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Reference outputs to compare greedy outputs with, as JSON.
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Style of the progress report on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    progress: Style,
    /// Stop a run if requests are in flight and none makes progress for so many seconds: no response
    /// begins, and no token arrives, on any connection. Comments and other events that only keep a
    /// connection alive are no progress. It is also the limit of a request beside the load, such as
    /// for the list of models, of at most 30 seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = positive)]
    timeout_s: f64,
    /// Interval, in seconds, at which the server's counters, this machine and its GPUs are sampled
    /// during the run; 0 samples only before and after it.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    telemetry_s: f64,
    /// Take the time after each read even if the kernel can stamp when the bytes arrived.
    #[arg(long)]
    no_kernel_timestamps: bool,
    /// Skip the correctness check (the fixed prompts sent after the run), for example if the server
    /// is a mock without a language model.
    #[arg(long)]
    no_output_check: bool,
}

impl BenchFlags {
    /// True when the flags name neither a scenario nor a plan.
    fn is_scenario_built_in(&self) -> bool {
        self.scenario.is_none() && self.plan.is_none()
    }
}

/// Parses a rate per second or a duration in seconds given as a flag; it must be from 0.001 to 1e6.
///
/// # Errors
/// The text is no number, or is outside that range.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.001..=1e6).contains(&value) { Ok(value) } else { Err("not from 0.001 to 1e6".to_owned()) }
}

/// Parses a sampling interval in seconds: 0, or from 0.1 to 3600.
fn interval(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // Shorter intervals would take noticeable CPU time from client and server.
    let kept = value == 0.0 || (0.1..=3600.0).contains(&value);
    if kept { Ok(value) } else { Err("neither 0 nor from 0.1 to 3600".to_owned()) }
}

/// Default time between two samples of server, machine and GPUs, in nanoseconds.
pub(super) const TELEMETRY_NS: u64 = 1_000_000_000;

/// Function that makes the scenario of a command where no flag names one, for the given engine.
pub(super) type DefaultScenario = fn(&Engine) -> anyhow::Result<ScenarioFile>;

const NO_SCENARIO: &str = "neither scenario nor plan is given\nhint: give `--scenario FILE`, such as \
                           one of `suite/scenarios`";

/// Inputs of a measuring command that are opened before the first request is sent: server, engine,
/// plan, tokenizer and settings.
pub(super) struct Bench {
    pub signals: Signals,
    pub engine: Engine,
    pub server: Server,
    pub meter: Meter,
    pub probed: Probed,
    pub reference: Option<ReferenceOutputs>,
    /// Tokenizer, if one is given.
    pub tokenizer: Option<Tokenizer>,
    pub file: ScenarioFile,
    pub plan: Plan,
    /// Model name that requests carry, if a flag gave one; `None` uses the server's.
    pub model: Option<String>,
    pub progress: Style,
    pub conduct: Conduct,
}

/// Run to perform: the plan of a scenario, sent at its own times or at those of another arrival
/// process.
pub(super) struct Point {
    pub id: String,
    pub scenario: Scenario,
    pub plan: Plan,
    facts: ScenarioFacts,
}

impl Bench {
    /// Reads the files that the flags name, probes the server, and draws the plan of requests or
    /// reads a saved one. `default` makes the scenario where the flags name neither scenario nor
    /// plan.
    ///
    /// # Errors
    /// Neither scenario nor plan is given and there is no default; a file that the flags name cannot
    /// be read or used, the server's URL is not valid, TLS cannot be set up, the server does not
    /// answer or is not ready, the requests cannot be drawn or do not suit the engine, or the system
    /// refuses signal handlers.
    pub fn open(flags: &BenchFlags, default: Option<DefaultScenario>) -> anyhow::Result<Self> {
        // The handlers come first, so that an interruption while inputs load has the documented
        // exit code.
        let signals = Signals::caught()?;
        let engine = flags.server.named_engine()?;
        let file = flags.scenario.as_deref().map(ScenarioFile::open).transpose()?;
        let reference = flags.reference.as_deref().map(open_reference).transpose()?;
        let tokenizer = flags.tokenizer.as_deref().map(Tokenizer::open).transpose()?;
        let server = flags.server.server(&flags.key)?;
        let server = server.within(Duration::from_secs_f64(flags.timeout_s));
        // The server is probed before the requests are drawn, so that a wrong URL fails early.
        let (engine, probed) = found(engine, &server, flags.model.as_deref())?;
        let (file, plan) = match (file, &flags.plan, default) {
            (None, Some(path), _) => replayed(path, tokenizer.as_ref(), &engine)?,
            (file, _, default) => {
                let made = || default.context(NO_SCENARIO)?(&engine);
                let file = file.map_or_else(made, Ok)?;
                let form = engine.prompt_form(&file.scenario)?;
                let plan = drawn(&file, flags.dataset.as_deref(), tokenizer.as_ref(), form)?;
                (file, plan)
            }
        };
        can_be_primed(&file.scenario, plan.manifest.prompt_form)?;
        let engine = engine.for_scenario(&file.scenario)?;
        let conduct = Conduct {
            no_progress_ns: nanoseconds(flags.timeout_s),
            telemetry_ns: Some(nanoseconds(flags.telemetry_s)).filter(|pause| *pause > 0),
            kernel_timestamps: !flags.no_kernel_timestamps,
            check_outputs: !flags.no_output_check,
            keeps_text: false,
        };
        let (meter, model, progress) = (gpu::open(), flags.model.clone(), flags.progress);
        Ok(Self {
            signals,
            engine,
            server,
            meter,
            probed,
            reference,
            tokenizer,
            file,
            plan,
            model,
            progress,
            conduct,
        })
    }

    /// Returns the inputs of a run that sends the plan exactly as the scenario defines it; sends
    /// nothing.
    ///
    /// # Errors
    /// The plan cannot be hashed, which does not happen in practice.
    pub fn point(&self) -> anyhow::Result<Point> {
        let (file, plan) = (&self.file, self.plan.clone());
        let request = &self.engine.file.request;
        let facts = file.facts(&plan.manifest, plan.manifest.sha256()?, request);
        Ok(Point { id: file.id.clone(), scenario: file.scenario.clone(), plan, facts })
    }

    /// Returns the inputs of a run that sends the plan's requests at the send times of `arrival`;
    /// sends nothing. It is another workload than the scenario, so `name` is appended to the
    /// scenario's id.
    ///
    /// # Errors
    /// The workload's seed is too large for the generator of the arrival process, or the plan
    /// cannot be hashed.
    pub fn point_at(&self, arrival: Arrival, name: &str) -> anyhow::Result<Point> {
        let mut point = self.point()?;
        point.id = format!("{}+{name}", self.file.id);
        point.scenario.arrival = arrival;
        let manifest = &mut point.plan.manifest;
        manifest.scenario = format!("{}@{}", point.id, point.scenario.rev);
        // Only send times change; prompts and lengths stay those of the scenario.
        reschedule(manifest, &point.scenario.arrival)?;
        point.facts.manifest_sha256 = Some(manifest.sha256()?);
        point.facts.id = point.id.clone();
        point.facts.arrival = Some(point.scenario.arrival.clone());
        Ok(point)
    }

    /// Returns the number of measured requests in the plan, without warm-up.
    pub fn requests(&self) -> u64 {
        self.plan.manifest.requests.len() as u64
    }

    /// Sends the requests of `point`, measures, and writes the measurement to `out` and the samples
    /// to a file beside it.
    ///
    /// # Errors
    /// The client's own system refuses what the run needs (as with a low limit on open files), a
    /// file cannot be written, or the run was interrupted before one of its requests was answered.
    pub fn measure(&self, point: &Point, slos: &[Slo], out: &Path) -> anyhow::Result<Finished> {
        let manifest = &point.plan.manifest;
        let requests = manifest.requests.len() as u64;
        let generates = self.engine.file.request.dialect().generates();
        let tokens = if generates { manifest.output_tokens() } else { 0 };
        let progress = Progress::begin(self.progress, requests, tokens);
        let mut keeper =
            Keeper::begin(out, &point.facts, requests, self.conduct.keeps_text, progress)?;
        let assignment = Assignment {
            server: &self.server,
            engine: &self.engine.file,
            scenario: &point.scenario,
            facts: point.facts.clone(),
            plan: &point.plan,
            tokenizer: self.tokenizer.as_ref(),
            model: self.model_name(),
            probed: &self.probed,
            meter: &self.meter,
            reference: self.reference.as_ref(),
            slos,
            conduct: self.conduct,
            // What was measured so far is kept when a signal arrives.
            stop: self.signals.stops_the_run(),
        };
        match assignment.run(&mut keeper) {
            Ok(finished) => {
                keeper.finish(&finished.measurement)?;
                Ok(finished)
            }
            Err(error) => Err(keeper.abandon(error)),
        }
    }

    /// Returns the exit code of a command whose run was interrupted and has a partial measurement,
    /// and says so, except after SIGTERM.
    pub fn interrupted(&self, out: &Path) -> Exit {
        if !self.signals.told.load(Ordering::Relaxed) {
            eprintln!(
                "error: interrupted\nnote: what was measured so far is in `{}`",
                untrusted::path(out)
            );
        }
        Exit::Environment
    }

    /// Returns the exit code of a command whose run ended with `error` instead of a measurement.
    ///
    /// # Errors
    /// The error itself, except for an interruption by SIGTERM, which is reported only by the exit
    /// code.
    pub fn unmeasured(&self, error: anyhow::Error) -> anyhow::Result<Exit> {
        let told = self.signals.told.load(Ordering::Relaxed);
        if told && matches!(error.downcast_ref(), Some(DriveError::Interrupted)) {
            // The program that sent SIGTERM also started this one and reports the interruption
            // itself.
            return Ok(Exit::Environment);
        }
        Err(error)
    }

    /// Returns the facts that reports of other tools state and a measurement does not contain:
    /// backend, model and workload.
    pub fn report_facts(&self) -> ReportFacts {
        ReportFacts {
            backend: Some(self.engine.id.clone()),
            model: Some(self.model_name()).filter(|name| !name.is_empty()),
            workload: Some(self.file.scenario.workload.clone()),
            ..ReportFacts::default()
        }
    }

    fn model_name(&self) -> String {
        model_name(self.model.as_deref(), &self.server, &self.probed)
    }
}

/// Returns the model name that requests carry: the one that a flag gives, else the first of the
/// server's model list, else that of its configuration; empty if there is none.
pub(super) fn model_name(given: Option<&str>, server: &Server, probed: &Probed) -> String {
    let told = || Some(probed.probe.model.id.clone()).filter(|id| !id.is_empty());
    let served = || served_model(server);
    let reported = || served().or_else(told).filter(|id| is_name(id));
    given.map(str::to_owned).or_else(reported).unwrap_or_default()
}

/// Returns the engine and what its server reports about itself. A server that no engine file
/// describes is asked which route answers.
pub(super) fn found(
    engine: Option<Engine>,
    server: &Server,
    model: Option<&str>,
) -> anyhow::Result<(Engine, Probed)> {
    if let Some(engine) = engine {
        let probed = probe(server, &engine.id, &engine.file)?;
        return Ok((engine, probed));
    }
    let mut engine = Engine::generic()?;
    let served = match server.first_model(MODELS) {
        // Any other request to a silent server would also wait until its limit.
        Err(silent @ ControlError::Silent { .. }) => return Err(silent.into()),
        listed => listed.ok().flatten(),
    };
    let model = model.map(str::to_owned).or_else(|| served.clone()).unwrap_or_default();
    find_route(server, &model, &mut engine.file.request)?;
    let mut probed = Probed::default();
    probed.probe.model.id = served.unwrap_or_default();
    Ok((engine, probed))
}

/// Checks that a primed cache is possible: priming cuts prompts at token boundaries, so the engine
/// must accept token ids.
pub(super) fn can_be_primed(scenario: &Scenario, form: PromptForm) -> anyhow::Result<()> {
    anyhow::ensure!(
        scenario.cache.state != CacheState::Primed || form == PromptForm::TokenIds,
        "the scenario primes the cache, and this engine accepts no token ids\n\
         hint: set `cache.state` to `cold` or `unknown` for this engine"
    );
    Ok(())
}

/// Handlers for SIGINT and SIGTERM. Before the run a signal ends the program at once, because
/// nothing needs cleaning up; during the run it asks the client's loop to stop, and a second one
/// ends the program at once.
pub(super) struct Signals {
    at_once: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// True after SIGTERM, which a program sends; SIGINT (Ctrl-C) does not set it.
    told: Arc<AtomicBool>,
}

impl Signals {
    /// Registers the handlers of SIGINT and SIGTERM and returns their flags.
    ///
    /// # Errors
    /// The system refuses to register the signal handlers.
    pub fn caught() -> anyhow::Result<Self> {
        let at_once = Arc::new(AtomicBool::new(true));
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::new(AtomicBool::new(false));
        flag::register(SIGTERM, Arc::clone(&told)).context("cannot catch signals")?;
        let code = i32::from(Exit::Environment.code());
        // Handlers run in the order of registration: the exits precede the stop flag, so that the
        // first signal during a run only sets it.
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, code, Arc::clone(&at_once))
                .and_then(|_| flag::register_conditional_shutdown(signal, code, Arc::clone(&stop)))
                .and_then(|_| flag::register(signal, Arc::clone(&stop)))
                .context("cannot catch signals")?;
        }
        Ok(Self { at_once, stop, told })
    }

    /// Makes a signal stop the client's loop from here on, instead of ending the program, and
    /// returns the flag that it sets.
    pub fn stops_the_run(&self) -> &AtomicBool {
        self.at_once.store(false, Ordering::Relaxed);
        &self.stop
    }
}

/// Converts a flag's duration in seconds to nanoseconds.
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    whole(seconds * 1e9)
}

/// Run one scenario against one server and write the measurement.
///
/// The order is fixed: draw the requests, warm up with prompts that share no prefix with them,
/// reset the server's prefix cache and verify that it is empty (where the scenario asks for a cold
/// or primed cache), start the clock, send, wait for every answer, stop the clock, send a few fixed
/// prompts to check the outputs.
///
/// A failed request is data: it is counted, classified and written, and so is a server that dies or
/// hangs. Every sample is written beside the result as soon as its request ends. Until the run has
/// ended the result says `partial`, also after this program was killed. Ctrl-C ends the run: the
/// result then holds what was answered before, and says `partial`. A second Ctrl-C ends the program
/// at once.
///
/// Exit codes: 0 not INVALID and nothing failed; 1 INVALID, a request failed, or a condition of
/// `--fail-if` is met; 2 wrong use; 4 no server, interrupted, a file that cannot be read or
/// written, or a failure of the client's system.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct RunFlags {
    #[command(flatten)]
    bench: BenchFlags,
    /// File to write the run's measurement to, as JSON; by default `measurement-TIME.json` in this
    /// folder. A device or pipe, such as `/dev/stdout`, gets the measurement alone, without samples.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Latency limit for goodput, as `ttft_ms=500`, `tpot_ms=50` or `e2e_ms=9000`; may be given
    /// several times. TTFT and E2E count from the scheduled send.
    #[arg(long, value_name = "NAME_ms=LIMIT")]
    slo: Vec<Slo>,
    #[command(flatten)]
    thresholds: ThresholdFlags,
    /// Also write the result in another tool's format; may be given several times. The formats are
    /// those of `redline-bench export`.
    #[arg(long, value_name = "FORMAT=FILE")]
    export: Vec<ExportTo>,
}

const EXAMPLE: &str = "\
Examples: a server that is already running, and nothing else,

  redline-bench run --url http://127.0.0.1:8000

and a scenario with its dataset:

  redline-bench run --url http://127.0.0.1:8000 --engine redline.toml --scenario ladder-lite-c4.toml \\
    --dataset rows.json --tokenizer tokenizer.json --out m.json --export vllm-json=v.json

What the numbers mean:

  TTFT   from the actual send to the first token; `from schedule` from when it was due
  TPOT   time per token after the first, (E2E - TTFT) / (tokens - 1), of each request
  ITL    gap between two chunks, or between two tokens where a chunk holds several
  E2E    from the send to the last token
  p99    marked with `?` if there are too few requests for an upper bound
  TTFT in parts: where the time to the first token went; `server` is server and network, the rest
  is the client's own, and `schedule lag` grows when the client cannot keep up
  verdict: VALID, DEGRADED or INVALID, from checks of the client, the counts and the cache";

/// Runs `redline-bench run` and returns its exit code.
///
/// # Errors
/// A file or other value that the flags give cannot be used, the server does not answer, the system
/// refuses signal handlers, the run ends without a measurement, or a result cannot be written.
pub fn execute(flags: &RunFlags) -> anyhow::Result<Exit> {
    let mut bench = Bench::open(&flags.bench, Some(words_scenario))?;
    bench.conduct.keeps_text = flags.export.iter().any(ExportTo::has_texts);
    let out = flags.out.clone().map_or_else(|| default_out("measurement"), Ok)?;
    if flags.bench.is_scenario_built_in() {
        // The scenario is saved so that it can be edited, and the same prompts sent again.
        let name = format!("{}.toml", bench.file.id);
        // A device's folder is no place for it.
        let is_stream = whole_file::is_stream(&out).unwrap_or(false);
        let path = if is_stream { PathBuf::from(name) } else { out.with_file_name(name) };
        files::text(&path, &bench.file.scenario.to_toml().context("the built-in scenario")?)?;
        let (path, question) = (untrusted::path(&path), &bench.file.scenario.question);
        eprintln!("scenario `{path}`: {question}");
    }
    let Finished { measurement, interrupted, .. } =
        match bench.measure(&bench.point()?, &flags.slo, &out) {
            Ok(finished) => finished,
            Err(error) => return bench.unmeasured(error),
        };
    let broken = flags.thresholds.broken(&measurement);
    files::print_summary(&out, &(table(&measurement) + &broken))?;
    if flags.out.is_none() {
        whole_file::print(&format!("measurement    {}\n", untrusted::path(&out)))?;
    }
    export_all(&flags.export, (&out, &measurement), &bench.report_facts())?;
    Ok(match interrupted {
        true => bench.interrupted(&out),
        false if !broken.is_empty() => Exit::Worse,
        false => exit_of(&measurement),
    })
}

fn words_scenario(engine: &Engine) -> anyhow::Result<ScenarioFile> {
    words_of(engine, None)
}

/// Makes the built-in scenario: 4 users, whose prompts are drawn with the current second as seed, so
/// that no earlier run has left them in the server's prefix cache. `requests` is the number of
/// prompts, if it is not the scenario's.
pub(super) fn words_of(engine: &Engine, requests: Option<u64>) -> anyhow::Result<ScenarioFile> {
    let mut scenario = Scenario::parse(include_str!("words-c4.toml"))?;
    scenario.workload.requests = requests.unwrap_or(scenario.workload.requests);
    scenario.workload.seed = realtime_ns() / 1_000_000_000;
    // A server that refuses the field ends answers by itself.
    scenario.output.ignore_eos = engine.file.request.ignore_eos;
    Ok(ScenarioFile::made_up(scenario, "words-c4")?.file)
}

/// Returns the name of the file that a command writes where no flag gives one: `name` and the current
/// time.
pub(super) fn default_out(name: &str) -> anyhow::Result<PathBuf> {
    let now = utc_now().context("the system clock has no usable date")?;
    let digits: String = now.chars().filter(char::is_ascii_alphanumeric).collect();
    Ok(PathBuf::from(format!("{name}-{digits}.json")))
}

/// Returns the exit code for a measurement: success unless it is INVALID or its status is not `ok`,
/// as after a failed request.
pub fn exit_of(measurement: &Measurement) -> Exit {
    let invalid = measurement.validity.verdict == ValidityVerdict::Invalid;
    if invalid || measurement.status != Status::Ok { Exit::Worse } else { Exit::Well }
}

/// Returns the exit code for an error that ended the program: 4 if the environment (system, files
/// or server) failed, else 2 for wrong use.
pub fn exit_of_error(error: &anyhow::Error) -> Exit {
    let io = |cause: &(dyn std::error::Error + 'static)| cause.is::<std::io::Error>();
    let environment = error.chain().any(|cause| {
        cause.is::<DriveError>()
            || cause.is::<AlternationError>()
            || cause.downcast_ref().is_some_and(|error| !is_wrong_use(error))
            || io(cause)
    });
    if environment { Exit::Environment } else { Exit::Unsound }
}

/// True for a malformed URL or an unusable TLS setting; any other failure of a connection is the
/// environment's.
fn is_wrong_use(error: &ControlError) -> bool {
    matches!(error, ControlError::Url(_) | ControlError::UserInfo | ControlError::Tls(_))
}
