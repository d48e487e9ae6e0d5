//! Alternating comparison on a node: starts both servers afresh again and again, and has the load
//! generator send slices of the scenario's requests to one of them at a time, until `judge` has
//! decided every release-blocking metric or the budget is spent.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use judge::alternation::{Call, Judged, is_decided, judge};
use schema::alternation::{
    AlternatingComparison, Alternation, Contender, Side, Start, StartedServer,
};
use schema::canonical::sha256_hex;

use crate::files::{self, FileError, read_text};
use crate::node::freeze::freezer;
use crate::node::load_generator::{save_workload, time_limit, workload_arguments};
use crate::node::record::{Happening, classify};
use crate::node::run::{Bench, Run};
use crate::node::server::Server;
use crate::plan::PlannedRun;
use crate::process::{Group, micros};
use crate::server_spec::{ReadyCell, ServerSpec, container_name};
use crate::stop::{Stop, environment};
use crate::tools::{self, BENCH};

/// Number of starts into which a budget is divided, where the servers start fast: so many that the
/// differences between starts average out, and few enough that starting takes a small part.
const STARTS: u32 = 32;
/// Minimum time of the slices of a start, as a multiple of the time that starting both servers took.
const PER_STARTUP: u32 = 2;
/// Minimum time of the slices of a start.
const SLICES_MIN: Duration = Duration::from_secs(2);
/// Number of starts in a row in which a server fails, after which the comparison ends.
const FAILED_MAX: usize = 2;
/// Time after which the load generator gives a silent server up, unless a flag says otherwise.
const SILENCE: Duration = Duration::from_secs(120);
/// Factor by which a slice may take longer than the longest one so far.
const SLOWER: u32 = 4;
/// Time within which a server ends whose requests failed because it is ending.
const ENDING: Duration = Duration::from_secs(1);
/// Interval at which servers are polled meanwhile.
const POLL: Duration = Duration::from_millis(50);

/// Two variants that are compared in one model and scenario.
#[derive(Debug)]
pub struct Alternating<'a> {
    pub bench: &'a Bench<'a>,
    pub cell: &'a ReadyCell,
    /// Server specifications of baseline and candidate.
    pub specs: [&'a ServerSpec; 2],
    /// Planned runs of baseline and candidate, whose ids name logs and containers.
    pub planned: [&'a PlannedRun; 2],
    /// Number of equal parts of the error probability, of which each release-blocking metric has one.
    pub family: u32,
    /// Time that the comparison may take.
    pub budget: Duration,
    /// End of the comparison within its time.
    pub until: Until<'a>,
}

/// End of an alternating comparison, unless its time is spent or a server fails again and again
/// before.
#[derive(Debug, Clone, Copy)]
pub enum Until<'a> {
    /// Every release-blocking metric is decided.
    Decided,
    /// Every release-blocking metric is decided, or one of those with these names is worse.
    Worse(&'a [String]),
    /// The time is spent, whatever is decided.
    Spent,
}

impl Until<'_> {
    fn is_reached(self, comparison: &AlternatingComparison) -> bool {
        let is_worse = |judged: &Judged, names: &[String]| {
            judged.call == Call::Worse && names.iter().any(|name| name == judged.metric.name)
        };
        comparison.is_spent()
            || match self {
                Self::Spent => false,
                Self::Decided => is_decided(&judge(comparison)),
                Self::Worse(names) => {
                    let judged = judge(comparison);
                    is_decided(&judged) || judged.iter().any(|one| is_worse(one, names))
                }
            }
    }
}

impl Alternating<'_> {
    /// Adds starts to `earlier`, those of a process that was interrupted, until the comparison is
    /// over; calls `after` with it after each start.
    ///
    /// # Errors
    /// The command is interrupted; the engine's file lacks a flag or image that is needed; a file
    /// operation, the machine or a Redline tool fails; or `after` fails.
    pub fn carry_out(
        &self,
        earlier: Vec<Start>,
        after: &mut dyn FnMut(&AlternatingComparison) -> Result<(), Stop>,
    ) -> Result<AlternatingComparison, Stop> {
        let world = self.bench.world;
        let requests = self.requests()?;
        let mut comparison = self.comparison(earlier);
        let spent_us = comparison.starts.last().map_or(0, |start| start.end_us);
        let began = world.clock.elapsed();
        while !self.until.is_reached(&comparison) && !fails_again(&comparison) {
            let mut start = self.start(&mut comparison, &requests)?;
            start.end_us = spent_us + micros(world.clock.elapsed().saturating_sub(began));
            comparison.starts.push(start);
            after(&comparison)?;
        }
        Ok(comparison)
    }

    fn comparison(&self, starts: Vec<Start>) -> AlternatingComparison {
        let scenario = &self.cell.scenario;
        let contender = |spec: &ServerSpec| Contender {
            engine: spec.built.facts.clone(),
            variant: spec.built.variant.name.clone(),
            ..Contender::default()
        };
        AlternatingComparison {
            model: self.cell.cell.model.clone(),
            scenario: format!("{}@{}", scenario.id, scenario.scenario.rev),
            arrival: Some(scenario.scenario.arrival.clone()),
            baseline: contender(self.specs[0]),
            candidate: contender(self.specs[1]),
            family: self.family,
            budget_us: micros(self.budget),
            starts,
        }
    }

    /// Returns the arguments by which the load generator gets the requests: a plan that is drawn
    /// once for all starts where both engines take token ids, else what it is drawn from.
    fn requests(&self) -> Result<Vec<PathBuf>, Stop> {
        let words = |cell: &ReadyCell| workload_arguments(cell).iter().map(PathBuf::from).collect();
        let scenario = &self.cell.scenario.scenario;
        let takes_ids = |spec: &&ServerSpec| {
            spec.engine.file.for_scenario(scenario).is_ok_and(|request| request.sends_ids())
        };
        if !self.specs.iter().all(takes_ids) {
            return Ok(words(self.cell));
        }
        let plan = match &self.cell.plan {
            Some(plan) => plan.clone(),
            None => {
                let plan = self.bench.places.plan(&self.cell.scenario.id);
                save_workload(self.bench.world, self.cell, &plan)?;
                plan
            }
        };
        let tokenizer = self.cell.tokenizer.clone();
        Ok(vec!["--plan".into(), plan, "--tokenizer".into(), tokenizer])
    }

    /// Starts both servers, has them answer slices in turns, and stops them.
    fn start(
        &self,
        comparison: &mut AlternatingComparison,
        requests: &[PathBuf],
    ) -> Result<Start, Stop> {
        let number = comparison.starts.len();
        let began = self.bench.world.clock.elapsed();
        let mut servers = [None, None];
        let mut started = [StartedServer::default(), StartedServer::default()];
        // The variant that starts first gets other memory than the second, so they take turns.
        let first = Side::BOTH[number % 2];
        for side in [first, first.other()] {
            let server = self.serve(side, number, comparison, &mut started[side as usize])?;
            servers[side as usize] = server;
        }
        let starting = self.bench.world.clock.elapsed().saturating_sub(began);
        let alternation = match &mut servers {
            [Some(baseline), Some(candidate)] => {
                let both = [baseline, candidate];
                self.slices(both, (number, starting), comparison, requests, &mut started)?
            }
            _ => None,
        };
        for (server, started) in servers.iter_mut().zip(&mut started) {
            let Some(server) = server else { continue };
            // Read before the stop: the process's `/proc` entry disappears with it.
            started.rss_bytes_max = server.rss_bytes_max();
            server.stop();
        }
        let [baseline, candidate] = started;
        Ok(Start { end_us: 0, baseline, candidate, alternation })
    }

    /// Starts the server of one side; `None` where it does not become ready, with the reason in
    /// `started`.
    fn serve(
        &self,
        side: Side,
        number: usize,
        comparison: &mut AlternatingComparison,
        started: &mut StartedServer,
    ) -> Result<Option<Server>, Stop> {
        let run = self.run_id(side, number);
        let planned = PlannedRun { run, ..self.planned[side as usize].clone() };
        let (spec, cell) = (self.specs[side as usize], self.cell);
        let run = Run { bench: self.bench, planned: &planned, spec, cell };
        let (server, facts, ready) = run.serve()?;
        comparison.contender_mut(side).argv = facts.argv;
        match ready {
            Ok(startup_us) => {
                started.startup_us = Some(startup_us);
                Ok(Some(server))
            }
            Err(happening) => {
                started.failure = Some(self.failure(&happening, server.log_tail()));
                Ok(None)
            }
        }
    }

    /// Has the load generator send slices to both servers; `None` where a server failed before any
    /// was answered. What kept a server from answering is put into `started`.
    fn slices(
        &self,
        mut servers: [&mut Server; 2],
        (number, starting): (usize, Duration),
        comparison: &mut AlternatingComparison,
        requests: &[PathBuf],
        started: &mut [StartedServer; 2],
    ) -> Result<Option<Alternation>, Stop> {
        let world = self.bench.world;
        let out = self.bench.places.measurement(&self.run_id(Side::Baseline, number));
        files::make_dir(out.parent().unwrap_or(Path::new(".")))?;
        // An interrupted start of the same number may have left its file.
        let _ = fs::remove_file(&out);
        let seconds = (self.budget / STARTS).max(starting * PER_STARTUP).max(SLICES_MIN);
        let mut command = self.command(&servers, number, comparison);
        command.args(["--seconds", &format!("{:.3}", seconds.as_secs_f64())]);
        command.args(requests).arg("--out").arg(&out).stdout(Stdio::null());
        let said =
            self.bench.places.log(&format!("{}-slices", self.run_id(Side::Baseline, number)));
        command.stderr(File::create(&said).map_err(FileError::at("write", &said))?);
        let limit = self.limit(seconds, comparison);
        let mut client = Group::start(&mut command)?;
        let status = client.wait(Some(limit), &world.interrupt)?;
        self.ended(&mut servers, status, started)?;
        if status.is_some_and(|status| matches!(status.code(), Some(0 | 1))) && out.exists() {
            let found = read(&out)?;
            self.silent(&found, started);
            return Ok(Some(found));
        }
        let said = fs::read_to_string(said).unwrap_or_default();
        let said = said.lines().map(str::trim).rfind(|line| line.starts_with("error: "));
        self.refused(said.unwrap_or_default(), started);
        match status {
            _ if started.iter().any(|server| server.failure.is_some()) => Ok(None),
            Some(status) => Err(match said {
                Some(said) => tools::ended(BENCH, "alternate", status).also(said),
                None => tools::ended(BENCH, "alternate", status),
            }),
            None => Err(environment!(
                "`{BENCH} alternate` did not end within {} s, with slices of {} s to send",
                limit.as_secs(),
                seconds.as_secs()
            )
            .with_hint("look whether this machine is overloaded, then continue with `--resume`")),
        }
    }

    /// Returns the load generator's command for a start, without requests, time and output file, and
    /// notes in `comparison` how each server is frozen.
    fn command(
        &self,
        servers: &[&mut Server; 2],
        number: usize,
        comparison: &mut AlternatingComparison,
    ) -> Command {
        let mut command = self.bench.world.tools.bench("alternate");
        for (side, server) in Side::BOTH.iter().zip(servers) {
            let name = side.name();
            let spec = self.specs[*side as usize];
            command.args([format!("--{name}-url"), server.url()]);
            command.arg(format!("--{name}-engine")).arg(&spec.engine.path);
            let container = container_name(&self.run_id(*side, number));
            let image = spec.built.image.as_ref().map(|image| (image, container.as_str()));
            let freezer = freezer(server, image);
            if let Some((_, argument)) = &freezer {
                command.args([format!("--{name}-freeze"), argument.clone()]);
            }
            comparison.contender_mut(*side).frozen_by = freezer.map(|(by, _)| by);
        }
        command.args(["--seed", &self.seed(number).to_string()]);
        // The size of a slice is chosen once, so that all slices are alike.
        if let Some(found) = comparison.starts.iter().find_map(|start| start.alternation.as_ref()) {
            command.args(["--slice-requests", &found.slice_requests.to_string()]);
        }
        if let Some(seconds) = self.bench.timeout_s {
            command.args(["--timeout-s", &seconds.to_string()]);
        }
        command
    }

    /// Returns the time limit of the load generator in a start, a backstop: its slices of `seconds`,
    /// a last pair that begins at their end, and a server that falls silent in the warm-up or in that
    /// pair. How long a slice takes is known from earlier starts; before, it may take as long as a
    /// run of the scenario.
    fn limit(&self, seconds: Duration, comparison: &AlternatingComparison) -> Duration {
        let found = comparison.starts.iter().filter_map(|start| start.alternation.as_ref());
        let slices = found.flat_map(|found| &found.slices);
        let longest = slices.map(|slice| Duration::from_micros(slice.elapsed_us)).max();
        let run = time_limit(self.cell.scenario.scenario.tier);
        let pair = longest.map_or(run, |longest| (2 * SLOWER * longest).min(run));
        let silence = self.bench.timeout_s.map_or(SILENCE, |s| Duration::from_secs(s.into()));
        seconds + pair + 2 * silence
    }

    /// Puts into `started` which servers have ended. Where the load generator failed, a server may
    /// still be about to end.
    fn ended(
        &self,
        servers: &mut [&mut Server; 2],
        status: Option<ExitStatus>,
        started: &mut [StartedServer; 2],
    ) -> Result<(), Stop> {
        let interrupt = &self.bench.world.interrupt;
        let until = interrupt.elapsed() + ENDING;
        let answered = status.is_some_and(|status| status.success());
        loop {
            let mut ended = false;
            for (server, started) in servers.iter_mut().zip(&mut *started) {
                if let Some(status) = server.poll()? {
                    ended = true;
                    started.failure =
                        Some(self.failure(&Happening::Died(status), server.log_tail()));
                }
            }
            if ended || answered || interrupt.elapsed() >= until {
                return Ok(interrupt.check()?);
            }
            interrupt.sleep(POLL);
        }
    }

    /// Puts into `started` which servers answered no request of their last slice, after which the
    /// load generator gave up.
    fn silent(&self, found: &Alternation, started: &mut [StartedServer; 2]) {
        for side in Side::BOTH {
            let last = found.slices_of(side).next_back();
            let failed = last.filter(|last| last.output_tokens == 0 && last.requests_failed > 0);
            let started = &mut started[side as usize];
            if let Some(last) = failed.filter(|_| started.failure.is_none()) {
                let said = format!("{} requests of a slice failed", last.requests_failed);
                started.failure = Some(self.failure(&Happening::Silent(said), String::new()));
            }
        }
    }

    /// Puts the error of a load generator that wrote no slices into `started`, if it names the server
    /// whose warm-up failed.
    fn refused(&self, said: &str, started: &mut [StartedServer; 2]) {
        for side in Side::BOTH {
            let Some(said) = said.strip_prefix(&format!("error: {}: ", side.name())) else {
                continue;
            };
            let happening = Happening::Silent(format!("in its warm-up, {said}"));
            let started = &mut started[side as usize];
            started.failure.get_or_insert_with(|| self.failure(&happening, String::new()));
        }
    }

    /// Returns the id by which a start names the log and the container of one side.
    fn run_id(&self, side: Side, number: usize) -> String {
        format!("{}-{number}", self.planned[side as usize].run)
    }

    fn failure(&self, happening: &Happening, log_tail: String) -> String {
        classify(happening, None, &log_tail, &self.bench.world.identity).message
    }

    /// Returns the seed of the order within the pairs of a start, from the planned runs' ids.
    fn seed(&self, number: usize) -> u32 {
        let digest = sha256_hex(format!("{} {number}", self.planned[0].run).as_bytes());
        u32::from_str_radix(&digest[..8], 16).unwrap_or_default()
    }
}

/// True where a server failed in each of the last starts.
fn fails_again(comparison: &AlternatingComparison) -> bool {
    let failed = |start: &&Start| {
        let is_failed = |side: Side| start.server(side).failure.is_some();
        start.alternation.is_none() || Side::BOTH.into_iter().any(is_failed)
    };
    comparison.starts.iter().rev().take(FAILED_MAX).filter(failed).count() == FAILED_MAX
}

/// Reads the slices that the load generator wrote.
fn read(path: &Path) -> Result<Alternation, Stop> {
    let found = serde_json::from_str(&read_text(path)?);
    found.map_err(|error| tools::unreadable(BENCH, "alternate", &error))
}
