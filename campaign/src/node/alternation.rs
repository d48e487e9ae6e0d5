//! Alternating comparison on a node: starts both servers afresh again and again, and has the load
//! generator send slices of the scenario's requests to one of them at a time, until `judge` has
//! decided every release-blocking metric or the budget is spent.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use judge::alternation::is_over;
use schema::alternation::{
    AlternatingComparison, Alternation, Contender, FrozenBy, Side, Start, StartedServer,
};
use schema::canonical::sha256_hex;

use crate::files::{self, read_text};
use crate::node::freeze::freezer;
use crate::node::record::{Happening, classify};
use crate::node::run::{Bench, Run, save_workload, time_limit, workload_arguments};
use crate::node::server::Server;
use crate::plan::PlannedRun;
use crate::process::{Group, micros};
use crate::server_spec::{ReadyCell, ServerSpec, container_name};
use crate::stop::Stop;
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

/// Two variants that are compared in one model and scenario.
#[derive(Debug)]
pub struct Alternating<'a> {
    pub bench: &'a Bench<'a>,
    pub cell: &'a ReadyCell,
    /// Server specifications of baseline and candidate.
    pub specs: [&'a ServerSpec; 2],
    /// Planned runs of baseline and candidate, whose ids name logs and containers.
    pub planned: [&'a PlannedRun; 2],
    /// Number of release-blocking metrics that the campaign judges by alternating comparisons.
    pub family: u32,
    /// Time that the comparison may take.
    pub budget: Duration,
    /// True to use the whole budget, also after every metric is decided.
    pub whole: bool,
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
        while !self.is_over(&comparison) && !self.fails_again(&comparison) {
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

    /// True where the budget is spent, or every metric is decided.
    fn is_over(&self, comparison: &AlternatingComparison) -> bool {
        match self.whole {
            true => comparison.starts.last().is_some_and(|s| s.end_us >= comparison.budget_us),
            false => is_over(comparison),
        }
    }

    /// True where a server failed in each of the last starts.
    fn fails_again(&self, comparison: &AlternatingComparison) -> bool {
        let last = comparison.starts.iter().rev().take(FAILED_MAX);
        let failed = last.filter(|start| start.alternation.is_none()).count();
        failed == FAILED_MAX
    }

    /// Returns the arguments by which the load generator gets the requests: a plan that is drawn
    /// once for all starts where both engines take token ids, else what it is drawn from.
    fn requests(&self) -> Result<Vec<PathBuf>, Stop> {
        let words = |cell: &ReadyCell| workload_arguments(cell).iter().map(PathBuf::from).collect();
        let takes_ids = |spec: &&ServerSpec| spec.engine.file.request.sends_ids();
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
        let contender = match side {
            Side::Baseline => &mut comparison.baseline,
            Side::Candidate => &mut comparison.candidate,
        };
        contender.argv = facts.argv;
        match ready {
            Ok(startup_us) => {
                started.startup_us = Some(startup_us);
                Ok(Some(server))
            }
            Err(happening) => {
                started.failure = Some(self.failure(&happening, &server));
                Ok(None)
            }
        }
    }

    /// Has the load generator send slices to both servers; `None` where a server failed before any
    /// was answered, with the reason in `started`.
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
        let mut command = world.tools.bench("alternate");
        for (side, server) in Side::BOTH.iter().zip(&servers) {
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
            let frozen_by: Option<FrozenBy> = freezer.map(|(by, _)| by);
            match side {
                Side::Baseline => comparison.baseline.frozen_by = frozen_by,
                Side::Candidate => comparison.candidate.frozen_by = frozen_by,
            }
        }
        let seconds = (self.budget / STARTS).max(starting * PER_STARTUP).max(SLICES_MIN);
        command.args(["--seconds", &format!("{:.3}", seconds.as_secs_f64())]);
        command.args(requests).args(["--seed", &self.seed(number).to_string()]);
        // The size of a slice is chosen once, so that all slices are alike.
        if let Some(found) = comparison.starts.iter().find_map(|start| start.alternation.as_ref()) {
            command.args(["--slice-requests", &found.slice_requests.to_string()]);
        }
        if let Some(seconds) = self.bench.timeout_s {
            command.args(["--timeout-s", &seconds.to_string()]);
        }
        command.arg("--out").arg(&out).stdout(Stdio::null());
        let limit = time_limit(self.cell.scenario.scenario.tier);
        let status = Group::start(&mut command)?.wait(Some(limit), &world.interrupt)?;
        let mut died = false;
        for (server, started) in servers.iter_mut().zip(started) {
            if let Some(status) = server.poll()? {
                died = true;
                started.failure = Some(self.failure(&Happening::Died(status), server));
            }
        }
        match status {
            // Exit code 1 says that requests failed, which the slices count.
            Some(status) if matches!(status.code(), Some(0 | 1)) => read(&out).map(Some),
            _ if died => Ok(None),
            Some(status) => Err(tools::ended(BENCH, "alternate", status)),
            None => Err(Stop::environment(format!(
                "the load generator did not end within {} s",
                limit.as_secs()
            ))),
        }
    }

    /// Returns the id by which a start names the log and the container of one side.
    fn run_id(&self, side: Side, number: usize) -> String {
        format!("{}-{number}", self.planned[side as usize].run)
    }

    fn failure(&self, happening: &Happening, server: &Server) -> String {
        classify(happening, None, &server.log_tail(), &self.bench.world.identity).message
    }

    /// Returns the seed of the order within the pairs of a start, from the planned runs' ids.
    fn seed(&self, number: usize) -> u32 {
        let digest = sha256_hex(format!("{} {number}", self.planned[0].run).as_bytes());
        u32::from_str_radix(&digest[..8], 16).unwrap_or_default()
    }
}

/// Reads the slices that the load generator wrote.
fn read(path: &Path) -> Result<Alternation, Stop> {
    let found = serde_json::from_str(&read_text(path)?);
    found.map_err(|error| tools::unreadable(BENCH, "alternate", &error))
}
