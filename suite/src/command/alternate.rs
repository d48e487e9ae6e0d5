//! `redline-bench alternate`: asks two running servers in turns, in short slices of a scenario, and
//! writes what each slice took.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use judge::alternation;
use judge::diff::estimate::Fit;
use schema::alternation::{Alternation, SCHEMA, Side, Slice};
use schema::exit::Exit;
use schema::metric::Metric;
use schema::scenario::Scenario;
use schema::untrusted;
use whole_file::DATA_MAX;

use super::files;
use super::files::{Engine, ScenarioFile};
use super::plan::{drawn, replayed};
use super::run::{
    Signals, can_be_primed, default_out, found, model_name, nanoseconds, positive, words_of,
};
use crate::client::control::{Server, Trust};
use crate::session::alternation::{Alternating, Contender, Until};
use crate::session::freezer::Freezer;
use crate::workload::sampler::Plan;
use crate::workload::tokenizer::Tokenizer;

/// Ask two running servers in turns, in short slices of a scenario's requests.
///
/// Interference by other programs lasts for seconds and affects both slices of a pair alike, so
/// that their ratio shows differences of a few percent within minutes. A closed loop is cut between
/// requests; any other scenario is one slice. Both variants get the same requests in each pair, in
/// an order that is drawn for each pair. Where the scenario asks for a cold or primed prefix cache,
/// both caches are emptied and primed before each round of its requests. It ends early after a slice
/// of which a server answers no request.
///
/// With `--baseline-freeze` and `--candidate-freeze` the idle server, which has to be on this
/// machine, is frozen, and its CPU time in each slice is recorded. Both servers are asked without
/// an API key, each for the first model that it lists.
///
/// Exit codes: 0 all requests were answered; 1 a request failed; 2 wrong use; 4 no server,
/// interrupted, a file that cannot be read or written, or a failure of the client's system.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct AlternateFlags {
    /// URL of the baseline's server.
    #[arg(long, value_name = "http://HOST:PORT")]
    baseline_url: String,
    /// URL of the candidate's server.
    #[arg(long, value_name = "http://HOST:PORT")]
    candidate_url: String,
    /// Engine file of the baseline's server, as in `suite/engines`.
    #[arg(long, value_name = "FILE")]
    baseline_engine: Option<PathBuf>,
    /// Engine file of the candidate's server.
    #[arg(long, value_name = "FILE")]
    candidate_engine: Option<PathBuf>,
    /// Processes to freeze while the baseline is idle: `group:ID`, a process group, or
    /// `cgroup:FOLDER`.
    #[arg(long, value_name = "group:ID|cgroup:FOLDER")]
    baseline_freeze: Option<Freezer>,
    /// Processes to freeze while the candidate is idle.
    #[arg(long, value_name = "group:ID|cgroup:FOLDER")]
    candidate_freeze: Option<Freezer>,
    /// Scenario file, as in `suite/scenarios`. Without it, prompts are 128 common words, 4 at a time.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Plan saved by `redline-bench plan --out`; replaces scenario and dataset.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "dataset"])]
    plan: Option<PathBuf>,
    /// Dataset that the scenario samples from.
    #[arg(long, value_name = "FILE")]
    dataset: Option<PathBuf>,
    /// `tokenizer.json`, or a GGUF file whose metadata holds the tokenizer.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Number of pairs of slices, instead of `--seconds`.
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pairs: Option<u32>,
    /// Time after which no further pair begins, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = positive)]
    seconds: f64,
    /// Number of requests in a slice of a closed loop; by default as many as the baseline answers in
    /// about 0.2 s, and at least one for each user.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    slice_requests: Option<u64>,
    /// Seed of the order within pairs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Give a slice up if requests are in flight and no response begins, and no token arrives, for so
    /// many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = positive)]
    timeout_s: f64,
    /// Slices of an earlier start of the same two variants; may be given several times. With one or
    /// more, intervals are over starts.
    #[arg(long, value_name = "FILE")]
    earlier: Vec<PathBuf>,
    /// File to write the slices to, as JSON; by default `alternation-TIME.json` in this folder.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

const EXAMPLE: &str = "\
Example, two servers that already run:

  redline-bench alternate --baseline-url http://127.0.0.1:8000 --candidate-url http://127.0.0.1:8001

and two that were started in process groups of their own, which are frozen while they are idle:

  redline-bench alternate --baseline-url http://127.0.0.1:8000 --baseline-freeze group:4100 \\
    --candidate-url http://127.0.0.1:8001 --candidate-freeze group:4200 \\
    --baseline-engine redline.toml --candidate-engine redline.toml \\
    --scenario ladder-lite-c4.toml --dataset rows.json --tokenizer model.gguf --out slices.json

Intervals are those of this one start of both servers. A server is a percent or so faster or slower
from one start to the next: start both again and repeat the command before a small difference is
believed. With `--earlier` and the files of those starts, the interval is over starts.";

/// Runs `redline-bench alternate` and returns its exit code.
///
/// # Errors
/// A file or other value that the flags give cannot be used, a server does not answer or cannot be
/// frozen, the system refuses signal handlers, the alternation is interrupted, or the result cannot
/// be written.
pub fn execute(flags: &AlternateFlags) -> anyhow::Result<Exit> {
    let signals = Signals::caught()?;
    let tokenizer = flags.tokenizer.as_deref().map(Tokenizer::open).transpose()?;
    let [baseline, candidate] = [flags.server(Side::Baseline)?, flags.server(Side::Candidate)?];
    let both = [&baseline.engine, &candidate.engine];
    let (file, plan) = flags.requests(both[0], both[0], tokenizer.as_ref())?;
    let form = |engine: &Engine| engine.prompt_form(&file.scenario);
    let other = match form(both[0])? == form(both[1])? {
        true => plan.clone(),
        false => flags.requests(both[0], both[1], tokenizer.as_ref())?.1,
    };
    let contender = |server, side, plan| flags.contender(server, side, &file.scenario, plan);
    let contenders =
        [contender(baseline, Side::Baseline, plan)?, contender(candidate, Side::Candidate, other)?];
    let out = flags.out.clone().map_or_else(|| default_out("alternation"), Ok)?;
    let manifest = &contenders[0].plan.manifest;
    let alternating = Alternating {
        scenario: &file.scenario,
        facts: file.facts(manifest, manifest.sha256()?, &contenders[0].engine.request),
        contenders,
        slice_requests: flags.slice_requests,
        seed: flags.seed,
        until: flags.pairs.map_or(Until::Elapsed(nanoseconds(flags.seconds)), Until::Pairs),
        no_progress_ns: nanoseconds(flags.timeout_s),
        stop: signals.stops_the_run(),
    };
    let mut starts =
        flags.earlier.iter().map(|path| earlier(path)).collect::<Result<Vec<_>, _>>()?;
    let found = alternating.run()?;
    files::json(&out, &found)?;
    starts.push(found.clone());
    let text = if flags.earlier.is_empty() { of_pairs(&found) } else { over_starts(&starts) };
    let text = format!("{text}{}slices         {}\n", summary(&found), untrusted::path(&out));
    files::print_summary(&out, &text)?;
    let failed = found.slices.iter().any(|slice| slice.requests_failed > 0);
    Ok(if failed { Exit::Worse } else { Exit::Well })
}

impl AlternateFlags {
    /// Opens the server of a variant.
    fn server(&self, side: Side) -> anyhow::Result<Opened> {
        let (url, engine) = match side {
            Side::Baseline => (&self.baseline_url, &self.baseline_engine),
            Side::Candidate => (&self.candidate_url, &self.candidate_engine),
        };
        let server = Server::at(url, &Trust::default())?;
        let server = server.within(Duration::from_secs_f64(self.timeout_s));
        let engine = engine.as_deref().map(Engine::open).transpose()?;
        let (engine, probed) = found(engine, &server, None)?;
        let model = model_name(None, &server, &probed);
        Ok(Opened { server, engine, model })
    }

    /// Draws the requests that are sent to `engine`, or reads those of a saved plan; the built-in
    /// scenario, where no other is given, is made for `baseline`.
    fn requests(
        &self,
        baseline: &Engine,
        engine: &Engine,
        tokenizer: Option<&Tokenizer>,
    ) -> anyhow::Result<(ScenarioFile, Plan)> {
        if let Some(path) = &self.plan {
            return replayed(path, tokenizer, engine);
        }
        let given = self.scenario.as_deref().map(ScenarioFile::open).transpose()?;
        let file = given.map_or_else(|| words_of(baseline, Some(WORDS_REQUESTS)), Ok)?;
        let form = engine.prompt_form(&file.scenario)?;
        let plan = drawn(&file, self.dataset.as_deref(), tokenizer, form)?;
        Ok((file, plan))
    }

    /// Joins the server of a variant with its requests.
    fn contender(
        &self,
        opened: Opened,
        side: Side,
        scenario: &Scenario,
        plan: Plan,
    ) -> anyhow::Result<Contender> {
        let Opened { server, engine, model } = opened;
        can_be_primed(scenario, plan.manifest.prompt_form)?;
        let freezer = match side {
            Side::Baseline => self.baseline_freeze.clone(),
            Side::Candidate => self.candidate_freeze.clone(),
        };
        let engine = engine.for_scenario(scenario)?.file;
        Ok(Contender { server, engine, model, plan, freezer })
    }
}

/// Server of a variant, before its requests are drawn.
struct Opened {
    server: Server,
    engine: Engine,
    model: String,
}

/// Number of prompts of the built-in scenario: so many that a fast server does not get one twice, of
/// which it would have the beginning in its prefix cache.
const WORDS_REQUESTS: u64 = 4_000;
/// Confidence of the intervals that the command prints.
const CONFIDENCE: f64 = 0.95;

/// Reads the slices of an earlier start.
fn earlier(path: &Path) -> anyhow::Result<Alternation> {
    let shown = path.display();
    let found: Alternation = serde_json::from_str(&whole_file::read_text(
        path, "slices", DATA_MAX,
    )?)
    .with_context(|| format!("`{shown}` is no file that `redline-bench alternate` wrote"))?;
    files::check_schema(path, &found.schema, SCHEMA)?;
    Ok(found)
}

/// Formats the ratio of candidate to baseline for each metric, with the interval over the pairs of
/// one start.
fn of_pairs(found: &Alternation) -> String {
    let mut text = String::from("candidate / baseline, in this start\n");
    for metric in alternation::of_requests() {
        let logs = alternation::of_pairs(&[found], metric.name).concat();
        let Some(log) = alternation::hodges_lehmann(&logs) else { continue };
        let interval = alternation::interval(&logs, CONFIDENCE);
        text += &row(metric, log.exp(), interval.map(|(low, high)| (low.exp(), high.exp())));
        text.push('\n');
    }
    text
}

/// Formats the ratio of candidate to baseline for each metric, with the t interval over starts.
fn over_starts(starts: &[Alternation]) -> String {
    let found: Vec<&Alternation> = starts.iter().collect();
    let mut text = format!("candidate / baseline, over {} starts\n", starts.len());
    for metric in alternation::of_requests() {
        let Some(fit) = Fit::of(&alternation::of_slices(&found, metric.name)) else { continue };
        let (low, high) = fit.interval(CONFIDENCE);
        text += &row(metric, fit.mean.exp(), Some((low.exp(), high.exp())));
        text.push('\n');
    }
    text
}

fn row(metric: &Metric, ratio: f64, interval: Option<(f64, f64)>) -> String {
    let interval = interval
        .map_or_else(String::new, |(low, high)| format!("   95 % interval {low:.4} to {high:.4}"));
    format!("{:<14} {ratio:>8.4}{interval}", metric.title)
}

/// Formats how many pairs were measured, and the requests that failed.
fn summary(found: &Alternation) -> String {
    let pairs = found.slices.len() / 2;
    let seconds = found.slices.iter().map(|slice| slice.elapsed_us).sum::<u64>() / 1_000_000;
    let failed: u64 = found.slices.iter().map(|slice| slice.requests_failed).sum();
    let awake = |slice: &&Slice| slice.idle_cpu_us.is_none_or(|used_us| used_us > 0);
    let awake = found.slices.iter().filter(awake).count();
    let mut text = format!(
        "pairs          {pairs} of slices of {} requests, {seconds} s of answers\n",
        found.slice_requests
    );
    if failed > 0 {
        text += &format!("failed         {failed} requests\n");
    }
    if awake > 0 {
        text += &format!("not frozen     the idle server in {awake} of {} slices\n", 2 * pairs);
    }
    text
}
