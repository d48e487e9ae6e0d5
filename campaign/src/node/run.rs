//! One run: starts a server or takes the one that an earlier run has left, measures one scenario
//! with the load generator, stops the server unless the next run shares it, and builds the record.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use schema::canonical::to_file_text;
use schema::correctness::{ReferenceCase, ReferenceOutputs};
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::probe::Probe;
use schema::run::{
    CampaignSlot, Correctness, Failure, FixedOutput, HardwareFacts, ModelFacts, RunRecord,
    ServerFacts,
};

use crate::files;
use crate::inputs::checkpoint_facts;
use crate::node::hardware::has_gpus;
use crate::node::load_generator::{read_measurement, time_limit, workload_arguments};
use crate::node::record::{Happening, Parts, assemble, classify};
use crate::node::server::{ProbeAnswer, Readiness, Server, ask, ask_running, free_port};
use crate::places::CampaignPlaces;
use crate::plan::PlannedRun;
use crate::process::Group;
use crate::server_spec::{
    CommandLine, Container, Filling, ReadyCell, ServerSpec, command_line, container_env,
    container_line, container_name, is_same,
};
use crate::stop::Stop;
use crate::world::World;

/// Time for which the load generator may continue after its server has ended.
const AFTER_SERVER: Duration = Duration::from_secs(20);
/// Interval at which server and load generator are polled during a measurement.
const POLL: Duration = Duration::from_millis(200);
/// Number of attempts to start a server, each on another port: another process may take a free port
/// before the server binds it.
const PORT_TRIES: u32 = 3;

/// Settings and facts that all runs of a job share.
#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    pub world: &'a World,
    pub campaign: &'a str,
    /// Name of the executor, as the runs' records state it.
    pub executor: &'a str,
    pub places: &'a CampaignPlaces,
    pub hardware: &'a HardwareFacts,
    /// URL of a server that is already running and is measured; `None` where each run starts its
    /// own.
    pub url: Option<&'a str>,
    /// Limit, in seconds, of the time without progress, as `--timeout-s` sets it; `None` for the load
    /// generator's default.
    pub timeout_s: Option<u32>,
    /// Time limit of one measurement; `None` for the limit of the scenario's tier.
    pub limit: Option<Duration>,
}

/// A planned run with everything that it starts and measures.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    pub bench: &'a Bench<'a>,
    pub planned: &'a PlannedRun,
    pub spec: &'a ServerSpec,
    pub cell: &'a ReadyCell,
}

/// Server that the runs of one model share, between two of these runs. Dropping it stops the server.
#[derive(Debug, Default)]
pub struct SharedServer {
    /// True to keep the server of the next run for the run after that.
    pub is_kept: bool,
    running: Option<Running>,
}

/// Server that is ready, with what is known about it.
#[derive(Debug)]
struct Running {
    /// Number that the runs on the server have as theirs.
    number: Option<u32>,
    server: Server,
    started: ServerFacts,
    probe: Probe,
    /// Number of runs that the server has served.
    runs: u32,
}

/// Result of a run from which its record is built.
#[derive(Debug, Default)]
struct Outcome {
    /// Number of runs that the server had served before.
    runs_before: u32,
    started: ServerFacts,
    probe: Option<Probe>,
    measurement: Option<Measurement>,
    happening: Option<Happening>,
    failure: Option<Failure>,
    rss_bytes_max: Option<u64>,
    log_tail: String,
}

impl Bench<'_> {
    /// Returns what a record states about the campaign of a planned run.
    pub(crate) fn in_campaign(&self, planned: &PlannedRun) -> CampaignSlot {
        CampaignSlot {
            id: self.campaign.to_owned(),
            block: planned.block,
            position: planned.position,
            repeat: planned.repeat,
            executor: self.executor.to_owned(),
            stage: planned.stage,
            server_runs_before: None,
        }
    }

    /// Executes one planned run and returns its record, with findings and hash; calls `inspect`
    /// with a server that it has started, after a measurement without a failure and before the
    /// server is stopped. An engine's failure becomes a record; an error is a failure of the
    /// machine or of a tool, and ends the job.
    ///
    /// # Errors
    /// The command is interrupted; the engine's file lacks a flag or image that is needed; no
    /// server answers at the URL; a file operation, the machine or a Redline tool fails; the record
    /// has no canonical form; or `inspect` fails.
    pub fn run(
        &self,
        planned: &PlannedRun,
        spec: &ServerSpec,
        cell: &ReadyCell,
        inspect: &mut dyn FnMut(&Server) -> Result<(), Stop>,
    ) -> Result<RunRecord, Stop> {
        self.run_shared(planned, spec, cell, &mut SharedServer::default(), inspect)
    }

    /// Executes one planned run like [`Self::run`], on the server in `shared` if there is one.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub fn run_shared(
        &self,
        planned: &PlannedRun,
        spec: &ServerSpec,
        cell: &ReadyCell,
        shared: &mut SharedServer,
        inspect: &mut dyn FnMut(&Server) -> Result<(), Stop>,
    ) -> Result<RunRecord, Stop> {
        let mut record = self.run_unsealed(planned, spec, cell, shared, inspect)?;
        judge::seal(&mut record)?;
        Ok(record)
    }

    /// Executes one planned run like [`Self::run_shared`] and returns its record without findings
    /// and hash, because a job adds the machine calibration first.
    ///
    /// # Errors
    /// The command is interrupted; the engine's file lacks a flag or image that is needed; no
    /// server answers at the URL; a file operation, the machine or a Redline tool fails; or
    /// `inspect` fails.
    pub fn run_unsealed(
        &self,
        planned: &PlannedRun,
        spec: &ServerSpec,
        cell: &ReadyCell,
        shared: &mut SharedServer,
        inspect: &mut dyn FnMut(&Server) -> Result<(), Stop>,
    ) -> Result<RunRecord, Stop> {
        let run = Run { bench: self, planned, spec, cell };
        let started_at = self.world.clock.rfc3339();
        let mut outcome = match self.url {
            Some(url) => run.measure_running(url)?,
            None => run.start_and_measure(shared, inspect)?,
        };
        // The load generator knows in which phase it lost the server; without it the phase is a
        // guess.
        let phase = outcome.measurement.as_ref().and_then(|m| m.failure.as_ref()).map(|f| f.phase);
        let (log, identity) = (&outcome.log_tail, &self.world.identity);
        let happening = outcome.happening.as_ref();
        outcome.failure = happening.map(|happening| classify(happening, phase, log, identity));
        Ok(run.record(outcome, started_at))
    }

    /// Builds the record, without findings and hash, of a planned run that no node could measure.
    pub fn unmeasured(
        &self,
        planned: &PlannedRun,
        spec: &ServerSpec,
        cell: &ReadyCell,
        failure: Failure,
    ) -> RunRecord {
        let (variant, tp) = (spec.built.variant.name.clone(), Some(cell.cell.tp));
        let started = ServerFacts { variant, tp, ..ServerFacts::default() };
        let outcome = Outcome { started, failure: Some(failure), ..Outcome::default() };
        Run { bench: self, planned, spec, cell }.record(outcome, self.world.clock.rfc3339())
    }
}

impl Run<'_> {
    fn record(&self, outcome: Outcome, started_at: String) -> RunRecord {
        let Self { bench, planned, spec, cell } = self;
        assemble(Parts {
            id: &planned.run,
            campaign: CampaignSlot {
                server_runs_before: planned.server.map(|_| outcome.runs_before),
                ..bench.in_campaign(planned)
            },
            engine: spec.built.facts.clone(),
            scenario: &cell.scenario,
            dataset_sha256: cell.dataset.as_ref().map(|dataset| dataset.sha256.as_str()),
            hardware: bench.hardware.clone(),
            started: outcome.started,
            model: model_facts(cell, bench.url.is_none()),
            probe: outcome.probe,
            measurement: outcome.measurement,
            failure: outcome.failure,
            rss_bytes_max: outcome.rss_bytes_max,
            started_at,
            finished_at: bench.world.clock.rfc3339(),
            identity: &bench.world.identity,
        })
    }

    fn start_and_measure(
        &self,
        shared: &mut SharedServer,
        inspect: &mut dyn FnMut(&Server) -> Result<(), Stop>,
    ) -> Result<Outcome, Stop> {
        // A server that is left over from other runs is stopped.
        let running = shared.running.take().filter(|of| of.number == self.planned.server);
        let Some(running) = running else {
            let mut started = ServerFacts::default();
            let (server, readiness) = self.start(&mut started)?;
            return match readiness {
                Ok((probe, startup_us)) => {
                    started.startup_us = Some(startup_us);
                    let number = self.planned.server;
                    let running = Running { number, server, started, probe, runs: 0 };
                    self.measure_on(running, shared, inspect)
                }
                Err(happening) => Ok(ended(
                    server,
                    Outcome { started, happening: Some(happening), ..Outcome::default() },
                )),
            };
        };
        self.measure_on(running, shared, inspect)
    }

    /// Measures a server that is ready, and stops it unless `shared` keeps it.
    fn measure_on(
        &self,
        mut running: Running,
        shared: &mut SharedServer,
        inspect: &mut dyn FnMut(&Server) -> Result<(), Stop>,
    ) -> Result<Outcome, Stop> {
        let mut outcome = Outcome {
            runs_before: running.runs,
            started: running.started.clone(),
            // Checked before the measurement, whose hours would be recorded under the wrong
            // release.
            happening: other_version(self.spec, &running.probe),
            probe: Some(running.probe.clone()),
            ..Outcome::default()
        };
        if outcome.happening.is_none() {
            let url = running.server.url();
            (outcome.measurement, outcome.happening) =
                self.measure(&url, Some(&mut running.server))?;
        }
        if outcome.happening.is_none() {
            inspect(&running.server)?;
        }
        if outcome.happening.is_some() || !shared.is_kept {
            return Ok(ended(running.server, outcome));
        }
        outcome.rss_bytes_max = peak_of_first(&running.server, &outcome);
        // The time of the start belongs to the first run alone.
        running.started.startup_us = None;
        running.probe.server.startup_us = None;
        shared.running = Some(Running { runs: running.runs + 1, ..running });
        Ok(outcome)
    }

    /// Starts a server and returns it with the facts that the campaign knows about it and the time
    /// that it took to become ready, in microseconds, or what kept it from becoming ready.
    ///
    /// # Errors
    /// The command is interrupted, the engine's file lacks a flag or image that is needed, or a file
    /// operation, the machine or a Redline tool fails.
    pub fn serve(&self) -> Result<(Server, ServerFacts, Result<u64, Happening>), Stop> {
        let mut facts = ServerFacts::default();
        let (server, readiness) = self.start(&mut facts)?;
        let ready = readiness.and_then(|(probe, startup_us)| {
            match other_version(self.spec, &probe) {
                Some(other) => Err(other),
                // The server's own figure is finer.
                None => Ok(probe.server.startup_us.unwrap_or(startup_us)),
            }
        });
        Ok((server, facts, ready))
    }

    /// Starts a server and waits until it is ready or has failed; tries again on another port if
    /// another process took the first. Stores the server's command line, environment, variant and
    /// tensor-parallel size in `started`.
    fn start(&self, started: &mut ServerFacts) -> Result<(Server, Readiness), Stop> {
        let Self { bench: Bench { world, places, .. }, planned, spec, cell } = *self;
        let limit = Duration::from_secs(spec.engine.file.launch.timeout_s);
        // A container gets its environment as arguments of the runtime.
        let mut env = match spec.built.image {
            Some(_) => BTreeMap::new(),
            None => spec.engine.file.launch.env.clone(),
        };
        // With this machine's folders, which enter no record.
        let all_env = spec.built.process_env(&env, &world.search_path);
        for tries_left in (0..PORT_TRIES).rev() {
            let port = free_port()?;
            let (line, removal) = self.line(port)?;
            // Flags may contain paths, which include user names.
            let recorded = line.recorded.iter().map(|word| world.identity.redact(word));
            started.argv = Some(recorded.collect());
            let log = places.log(&planned.run);
            let mut server = Server::start(&line.argv, &all_env, port, &log, &world.interrupt)?;
            server.removal = removal;
            let readiness =
                server.wait_ready(&world.tools, &spec.engine.path, limit, &world.interrupt)?;
            let taken = matches!(readiness, Err(Happening::ExitedBeforeReady(_)))
                && server.log_tail().to_lowercase().contains("address already in use");
            if !taken || tries_left == 0 {
                env.extend(world.server_env.clone());
                let env = env.iter().map(|(k, v)| (k.clone(), world.identity.redact(v)));
                started.env = Some(env.collect());
                started.variant = spec.built.variant.name.clone();
                started.tp = Some(cell.cell.tp);
                return Ok((server, readiness));
            }
        }
        Err(Stop::environment("no free port stayed free long enough to start a server on it"))
    }

    /// Returns the server's command line, and the command that removes its container, which
    /// outlives the process; `None` without a container and for one that is a process.
    fn line(&self, port: u16) -> Result<(CommandLine, Option<Vec<String>>), Stop> {
        let Self { bench, planned, spec, cell } = self;
        let file = &spec.engine.file;
        let model = cell.model.served();
        let filling = Filling {
            random_weights: cell.model.random_weights,
            tp: cell.cell.tp,
            settings: &cell.cell.settings,
            ..spec.filling(&model, port)
        };
        let Some(contained) = &spec.built.image else {
            return Ok((command_line(file, filling)?, None));
        };
        let [hub, cache] =
            [&bench.world.hub_home, &bench.world.hub_cache].map(|dir| dir.to_string_lossy());
        let is_elsewhere = bench.world.hub_cache != bench.world.hub_home.join("hub");
        let container = Container {
            contained,
            name: &container_name(&planned.run),
            hub: &hub,
            hub_cache: is_elsewhere.then_some(&*cache),
            model: cell.model.hub.is_none().then_some(&*model),
            env: &container_env(file),
            gpus: has_gpus(bench.hardware, contained.accelerator),
        };
        Ok((container_line(file, filling, &container)?, container.removal()))
    }

    /// Measures a server that somebody else started, at `url`.
    fn measure_running(&self, url: &str) -> Result<Outcome, Stop> {
        let probe = ask_running(self.bench.world, url, &self.spec.engine)?;
        let (measurement, happening) = self.measure(url, None)?;
        let variant = self.spec.built.variant.name.clone();
        let started = ServerFacts { variant, ..ServerFacts::default() };
        Ok(Outcome { started, probe: Some(probe), measurement, happening, ..Outcome::default() })
    }

    /// Runs the load generator and watches the server meanwhile. Returns the measurement, if one
    /// was written, and the failure, if one was observed.
    fn measure(
        &self,
        url: &str,
        mut server: Option<&mut Server>,
    ) -> Result<(Option<Measurement>, Option<Happening>), Stop> {
        let Self { bench: Bench { world, places, timeout_s, limit, .. }, planned, spec, cell } =
            *self;
        let out = places.measurement(&planned.run);
        if let Some(dir) = out.parent() {
            files::make_dir(dir)?;
        }
        let mut command = world.tools.bench("run");
        command.args(["--url", url, "--engine"]).arg(&spec.engine.path);
        match &cell.plan {
            Some(plan) => command.arg("--plan").arg(plan).arg("--tokenizer").arg(&cell.tokenizer),
            None => command.args(workload_arguments(cell)),
        };
        command.arg("--out").arg(&out).args(["--progress", world.console.progress()]);
        if let Some(seconds) = timeout_s {
            command.args(["--timeout-s", &seconds.to_string()]);
        }
        let reference = places.reference();
        if reference.exists() {
            command.arg("--reference").arg(&reference);
        }
        // The load generator's summary is also in its file; standard output belongs to the
        // campaign's own result.
        command.stdout(Stdio::null());
        let mut client = Group::start(&mut command)?;
        let limit = limit.unwrap_or_else(|| time_limit(cell.scenario.scenario.tier));
        let mut deadline = world.clock.elapsed() + limit;
        let mut died: Option<ExitStatus> = None;
        let ended = loop {
            let poll = POLL.min(deadline.saturating_sub(world.clock.elapsed()));
            if let Some(status) = client.wait(Some(poll), &world.interrupt)? {
                break Some(status);
            }
            if died.is_none()
                && let Some(server) = server.as_deref_mut()
                && let Some(status) = server.poll()?
            {
                died = Some(status);
                // The load generator notices the closed connections and writes what it has
                // measured.
                deadline = deadline.min(world.clock.elapsed() + AFTER_SERVER);
            }
            if world.clock.elapsed() >= deadline {
                break None;
            }
        };
        if ended.is_none() {
            client.end(Duration::from_secs(5));
        }
        if died.is_none()
            && let Some(server) = server
        {
            died = server.poll()?;
        }
        let happening = match (died, ended) {
            (Some(status), _) => Some(Happening::Died(status)),
            (None, None) => Some(Happening::Stuck { limit_s: limit.as_secs() }),
            // The exit code for an environment error: no server, or no disk space.
            (None, Some(status))
                if status.code() == Some(Exit::Environment.code().into()) && !out.exists() =>
            {
                self.silence(url)?
            }
            (None, Some(_)) => None,
        };
        // A signal to all processes of a job ends the load generator too, which then leaves the
        // measurement of a part of the run.
        world.interrupt.check()?;
        let measurement = read_measurement(&out, ended, happening.is_some())?;
        if let Some(correctness) = measurement.as_ref().and_then(|one| one.correctness.as_ref())
            && !reference.exists()
        {
            self.keep_outputs(correctness, &reference)?;
        }
        Ok((measurement, happening))
    }

    /// Writes the outputs of a run to the file `reference`, so that the outputs of later runs of the
    /// job, also of other releases, are compared with them. A run without token ids writes none.
    fn keep_outputs(&self, correctness: &Correctness, reference: &Path) -> Result<(), Stop> {
        if correctness.outputs.is_empty() {
            return Ok(());
        }
        let variant = &self.spec.built.variant;
        let case = |one: &FixedOutput| ReferenceCase {
            prompt: one.prompt.clone(),
            greedy: one.output.clone(),
        };
        let outputs = ReferenceOutputs {
            reference: format!("{} {}", variant.engine, variant.title()),
            cases: correctness.outputs.iter().map(case).collect(),
        };
        Ok(files::write_whole(reference, to_file_text(&outputs)?.as_bytes())?)
    }

    /// Probes the server after the load generator has ended with an environment error; returns a
    /// failure if the server no longer answers, else `None`.
    fn silence(&self, url: &str) -> Result<Option<Happening>, Stop> {
        let World { tools, interrupt, .. } = self.bench.world;
        let limit = Duration::from_secs(10);
        Ok(match ask(tools, url, &self.spec.engine.path, limit, interrupt)? {
            ProbeAnswer::Ready(_) => None,
            ProbeAnswer::NotYet(said) | ProbeAnswer::Unreadable(said) => {
                Some(Happening::Silent(said))
            }
        })
    }
}

/// Stops the server of a run, and returns the run's outcome with the server's peak memory and the
/// end of its log.
fn ended(mut server: Server, mut outcome: Outcome) -> Outcome {
    // Read before the stop: the process's `/proc` entry disappears with it.
    outcome.rss_bytes_max = peak_of_first(&server, &outcome);
    server.stop();
    outcome.log_tail = server.log_tail();
    outcome
}

/// Returns the peak resident memory of a server in its first run, in bytes; `None` in a later run,
/// because the peak is that of all its runs.
fn peak_of_first(server: &Server, outcome: &Outcome) -> Option<u64> {
    (outcome.runs_before == 0).then(|| server.rss_bytes_max())?
}

/// Returns a failure if the server reports another version than the expected one, under whose name
/// its figures would be recorded; `None` if the versions agree or one of them is unknown.
fn other_version(spec: &ServerSpec, probe: &Probe) -> Option<Happening> {
    let expected = spec.built.version.as_deref()?;
    let found = probe.version.as_deref()?;
    (!is_same(found, expected))
        .then(|| Happening::OtherVersion { expected: expected.to_owned(), found: found.to_owned() })
}

/// Returns the facts about a cell's model that are known without querying the server; only its id
/// if the campaign did not start the server.
fn model_facts(cell: &ReadyCell, started: bool) -> ModelFacts {
    let mut facts = ModelFacts { id: cell.cell.model.clone(), ..ModelFacts::default() };
    if started {
        facts.source = Some(cell.model.source.clone());
        facts.weights = Some(if cell.model.random_weights { "random" } else { "real" }.to_owned());
        facts.revision = cell.model.hub.as_ref().map(|hub| hub.revision.clone());
        let is_hashed = !cell.model.random_weights && !cell.model.sha256.is_empty();
        facts.weights_sha256 = is_hashed.then(|| cell.model.sha256.clone());
        facts.format = cell.model.path.extension().map(|e| e.to_string_lossy().into_owned());
        let checkpoint = checkpoint_facts(&cell.model.path);
        facts.quantization = checkpoint.quantization;
        facts.chat_template_sha256 = checkpoint.chat_template_sha256;
    }
    facts
}
