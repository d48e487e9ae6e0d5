//! A server and a plan brought together, for one run or for several.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Args;
use schema::exit::Exit;
use schema::run::{PromptForm, ScenarioFacts};
use schema::scenario::{Arrival, CacheState, Scenario};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::inputs::{Engine, ScenarioFile};
use super::keeper::Keeper;
use super::plan::{drawn, replayed};
use super::progress::{Progress, Style};
use super::trust::TrustFlags;
use crate::client::control::{Key, Server};
use crate::client::drive::DriveError;
use crate::client::probe::{Probed, probe, served_model};
use crate::export::Asked;
use crate::measure::slo::Slo;
use crate::session::{Assignment, Finished, Reference};
use crate::telemetry::gpu::Meter;
use crate::telemetry::{Ranks, nvml};
use crate::workload::arrival::reschedule;
use crate::workload::pack::Plan;
use crate::workload::tokenizer::Tokenizer;

/// What every measuring command is given.
#[derive(Debug, Args)]
pub struct BenchFlags {
    /// The server.
    #[arg(long, value_name = "http[s]://HOST:PORT")]
    url: String,
    #[command(flatten)]
    trust: TrustFlags,
    /// Engine file, which says what this kind of server takes and tells, as in `suite/engines`.
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,
    /// File with the key that the server wants to be shown. It enters no record.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Scenario file, as in `suite/scenarios`; its stem is the scenario's id.
    #[arg(long, value_name = "FILE", required_unless_present = "plan")]
    scenario: Option<PathBuf>,
    /// What the scenario's pack draws from: conversations as a JSON array in ShareGPT's shape, or a
    /// file of one request a line. Packs that make their own prompts need none.
    #[arg(long, value_name = "FILE")]
    dataset: Option<PathBuf>,
    /// A plan that `redline-bench plan --out` saved, sent as it is; instead of scenario and data
    /// set.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "dataset"])]
    plan: Option<PathBuf>,
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer.
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// The model's name as the server knows it; by default the first that it offers.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Greedy outputs of another program to compare with, as JSON.
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// How far the run is, on standard error.
    #[arg(long, value_enum, default_value_t = Style::Auto)]
    progress: Style,
    /// Give up when no event comes on any connection for this long.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = positive)]
    timeout_s: f64,
    /// How often the server's counters, this machine and its GPUs are looked at while the clock
    /// runs; 0 for before and after only.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    telemetry_s: f64,
    /// Take the time after each read even where the kernel would tell when the bytes came.
    #[arg(long)]
    no_kernel_timestamps: bool,
    /// Do not ask the fixed prompts by which the outputs are checked, such as where the server is
    /// no language model.
    #[arg(long)]
    no_output_check: bool,
}

/// A rate or a time as a flag gives it.
///
/// # Errors
/// It is no number that a clock in microseconds can follow.
pub fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.001..=1e6).contains(&value) { Ok(value) } else { Err("not from 0.001 to 1e6".to_owned()) }
}

/// A pause between two looks as a flag gives it.
fn interval(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let kept = value == 0.0 || (0.1..=3600.0).contains(&value);
    if kept { Ok(value) } else { Err("neither 0 nor from 0.1 to 3600".to_owned()) }
}

/// Between two looks at server, machine and GPUs, where no other pause is asked for.
pub const TELEMETRY_NS: u64 = 1_000_000_000;

/// All that is opened before anything is sent.
pub struct Bench {
    pub signals: Signals,
    pub engine: Engine,
    pub server: Server,
    pub meter: Meter,
    pub probed: Probed,
    pub reference: Option<Reference>,
    pub tokenizer: Tokenizer,
    pub file: ScenarioFile,
    pub plan: Plan,
    pub conduct: Conduct,
}

/// How runs are made and watched.
pub struct Conduct {
    /// The model's name for the server, where it is given.
    pub model: Option<String>,
    pub progress: Style,
    pub timeout_s: f64,
    /// Between two looks at server, machine and GPUs; none for before and after only.
    pub telemetry_ns: Option<u64>,
    pub kernel_timestamps: bool,
    /// Ask the fixed prompts once the clock has stopped.
    pub check_outputs: bool,
}

/// What is run at one time: the plan, sent at its own times or at others.
pub struct Point {
    pub id: String,
    pub scenario: Scenario,
    pub plan: Plan,
    facts: ScenarioFacts,
}

impl Bench {
    /// # Errors
    /// An input cannot be used, or the server does not answer.
    pub fn open(flags: &BenchFlags) -> anyhow::Result<Self> {
        let signals = Signals::caught()?;
        let engine = Engine::open(&flags.engine)?;
        let file = flags.scenario.as_deref().map(ScenarioFile::open).transpose()?;
        let reference = flags.reference.as_deref().map(Reference::open).transpose()?;
        let tokenizer = Tokenizer::open(&flags.tokenizer)?;
        let key = flags.api_key_file.as_deref().map(Key::open).transpose()?;
        let server = Server::at(&flags.url, &flags.trust.trust())?.with_key(key);
        let probed = probe(&server, &engine.id, &engine.file)?;
        let (file, plan) = match (file, &flags.plan) {
            (Some(file), _) => {
                let form = engine.prompt_form();
                let plan = drawn(&file, flags.dataset.as_deref(), &tokenizer, form)?;
                (file, plan)
            }
            (None, path) => {
                // The flags see to it that there is one of the two.
                let path = path.as_deref().context("neither scenario nor plan is given")?;
                replayed(path, &tokenizer, engine.prompt_form())?
            }
        };
        can_be_primed(&file.scenario, engine.prompt_form())?;
        let conduct = Conduct {
            model: flags.model.clone(),
            progress: flags.progress,
            timeout_s: flags.timeout_s,
            telemetry_ns: Some(nanoseconds(flags.telemetry_s)).filter(|pause| *pause > 0),
            kernel_timestamps: !flags.no_kernel_timestamps,
            check_outputs: !flags.no_output_check,
        };
        let meter = nvml::open();
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
            conduct,
        })
    }

    /// The plan as it is.
    ///
    /// # Errors
    /// Never in practice: every plan has a hash.
    pub fn point(&self) -> anyhow::Result<Point> {
        let (file, plan) = (&self.file, self.plan.clone());
        let facts = file.facts(&plan.manifest, plan.manifest.sha256()?);
        Ok(Point { id: file.id.clone(), scenario: file.scenario.clone(), plan, facts })
    }

    /// The same requests at the times of another arrival. Numbers of it are not those of the
    /// scenario, so its id says where it differs.
    ///
    /// # Errors
    /// The workload's seed is beyond what the arrival's generator takes.
    pub fn point_at(&self, arrival: Arrival, name: &str) -> anyhow::Result<Point> {
        let mut point = self.point()?;
        point.id = format!("{}+{name}", self.file.id);
        point.scenario.arrival = arrival;
        let manifest = &mut point.plan.manifest;
        manifest.scenario = format!("{}@{}", point.id, point.scenario.rev);
        reschedule(manifest, &point.scenario.arrival)?;
        point.facts.manifest_sha256 = Some(manifest.sha256()?);
        point.facts.id = point.id.clone();
        point.facts.arrival = Some(point.scenario.arrival.clone());
        Ok(point)
    }

    #[must_use]
    pub fn arrival(&self) -> &Arrival {
        &self.file.scenario.arrival
    }

    /// Measured requests of the plan.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.plan.manifest.requests.len() as u64
    }

    /// Sends `point`, measures, and writes the measurement to `out`, its samples beside it.
    ///
    /// # Errors
    /// The system gives out, a file cannot be written, or the run was interrupted.
    pub fn measure(&self, point: &Point, slos: &[Slo], out: &Path) -> anyhow::Result<Finished> {
        let manifest = &point.plan.manifest;
        let requests = manifest.requests.len() as u64;
        let progress = Progress::begin(self.conduct.progress, requests, manifest.output_tokens());
        let mut keeper = Keeper::begin(out, &point.facts, requests, progress)?;
        let assignment = Assignment {
            server: &self.server,
            engine: &self.engine.file,
            scenario: &point.scenario,
            facts: point.facts.clone(),
            plan: &point.plan,
            tokenizer: &self.tokenizer,
            model: self.model_name(),
            page_tokens: self.probed.page_tokens,
            prefix_cache: self.probed.probe.server.prefix_cache,
            ranks: self.ranks(),
            meter: &self.meter,
            reference: self.reference.as_ref(),
            slos,
            no_progress_ns: nanoseconds(self.conduct.timeout_s),
            telemetry_ns: self.conduct.telemetry_ns,
            kernel_timestamps: self.conduct.kernel_timestamps,
            check_outputs: self.conduct.check_outputs,
            stop: &self.signals.stop,
        };
        self.signals.at_once.store(false, Ordering::Relaxed);
        match assignment.run(&mut keeper) {
            Ok(finished) => {
                keeper.finish(&finished.measurement)?;
                Ok(finished)
            }
            Err(error) => Err(keeper.abandon(error)),
        }
    }

    /// What the command ends with when a run could not be made.
    ///
    /// # Errors
    /// The reason, but for the one case in which somebody else gives it.
    pub fn unmeasured(&self, error: anyhow::Error) -> anyhow::Result<Exit> {
        let told = self.signals.told.load(Ordering::Relaxed);
        if told && matches!(error.downcast_ref(), Some(DriveError::Interrupted)) {
            // Whoever sent SIGTERM started this program too, and says so itself.
            return Ok(Exit::Environment);
        }
        Err(error)
    }

    /// What reports of other tools say beside what a measurement does.
    #[must_use]
    pub fn asked(&self) -> Asked {
        Asked {
            backend: Some(self.engine.id.clone()),
            model: Some(self.model_name()).filter(|name| !name.is_empty()),
            workload: Some(self.file.scenario.workload.clone()),
            ..Asked::default()
        }
    }

    fn model_name(&self) -> String {
        let told = || Some(self.probed.probe.model.id.clone()).filter(|id| !id.is_empty());
        let served = || served_model(&self.server);
        self.conduct.model.clone().or_else(served).or_else(told).unwrap_or_default()
    }

    /// Where the server computes; its ranks are GPUs where its device is one.
    fn ranks(&self) -> Ranks<'_> {
        let server = &self.probed.probe.server;
        let device = server.device.as_deref();
        Ranks { device, gpus: server.tp.filter(|_| device == Some("cuda")) }
    }
}

/// The beginning of a prompt is known in tokens: only a prompt of ids has one.
fn can_be_primed(scenario: &Scenario, form: PromptForm) -> anyhow::Result<()> {
    anyhow::ensure!(
        scenario.cache.state != CacheState::Primed || form == PromptForm::TokenIds,
        "the scenario primes the cache, and this engine takes no token ids\n\
         hint: `cache.state` may be `cold` or `unknown` for it"
    );
    Ok(())
}

/// What an interruption does: before the run it ends the program at once, since there is nothing
/// to tidy up; then it asks the client's loop to stop.
pub struct Signals {
    at_once: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// It was SIGTERM, not Ctrl-C.
    told: Arc<AtomicBool>,
}

impl Signals {
    /// # Errors
    /// The system refuses.
    pub fn caught() -> anyhow::Result<Self> {
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

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked when the flag was read"
)]
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
